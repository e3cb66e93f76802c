"""
Stores in memory: the specification by example, for tests and for agents that may forget.
"""
