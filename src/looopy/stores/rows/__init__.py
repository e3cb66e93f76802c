"""
How a message, an event and a context's state are rows: text that every backend stores alike.
"""
