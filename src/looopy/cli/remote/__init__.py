"""
The command line as a client of a server: `--server http://HOST:PORT` in the place of a database.

The commands have the words, the options and the look of those on a database. They know the server
by its HTTP API alone, through `looopy.server.Client`. No other folder imports this one.

- `connection`: the address, the token, and the client in an event loop of its own thread.
- `contexts`: `looopy contexts`. `chat`: `looopy chat`. `budget`: `looopy budget show`.
- `view`: the events of a conversation as text, through any number of connections.

Exports nothing. Read `connection`, `view`, `chat`.
"""
