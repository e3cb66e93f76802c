"""
The stores on a SQL database: one logic for every dialect.

`statements.py` holds the text, `commit.py` and the three stores the logic (generators that do no
I/O), `driver.py` what a database must offer them, `sqlite.py` SQLite's driver. `tables.py` and
`migrate.py` are loaded only when a schema is made or changed.
"""
