"""Alembic's entrance: what it does is in the package, and so installed and checked with it."""

from looopy.stores.sql.migrate import run_from_env

run_from_env()
