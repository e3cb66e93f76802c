"""
Interfaces with the names of other libraries, over the same agents, loops and stores.

Each package is one library: its users change an import and keep their code. The room may import
every room but `testing`, `sync` and `cli`, and no other room imports it. It exports nothing itself.

- `pi/`: the names of pi and pipy-agent.
"""
