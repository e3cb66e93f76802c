"""Rows as they were stored, and the values that they are read as; see `make`."""
