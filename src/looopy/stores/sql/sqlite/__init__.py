"""
SQLite: one file, one writer thread, a schema made without alembic where there is none.
"""
