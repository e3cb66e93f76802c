"""
Postgres: two drivers behind one wire, a pool, and the fate of a commit whose answer was lost.
"""
