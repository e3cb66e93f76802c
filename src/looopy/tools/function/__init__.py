"""
A Python function becomes a tool: its name, description and schema come from its signature.
"""
