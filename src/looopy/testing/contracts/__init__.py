"""
The contracts of `looopy.stores.base`, sentence by sentence, as tests: one file a contract.
"""
