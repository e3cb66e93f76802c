"""
Stores of an application's own, with a few methods each, made into stores of an agent.

- `calls`: calls them, sync or async, and names them in errors.
- `documents`: a context as documents of the state store, and back.
- `backend`: brings a context into memory and writes back what changed, in an order that a killed
  process cannot break.
- `composed`: the four stores over it, behind `Stores.of`.

The methods are in `looopy.stores.base`: `PlainMessageStore` and the two after it. Read `backend`.
"""
