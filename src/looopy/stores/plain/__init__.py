"""
Stores of an application's own, with a few methods each, made into stores of an agent.

- `calls`: calls them, sync or async, and names them in errors.
- `messages`, `contents`, `state`: each of the three, and the checks of what it returns.
- `documents`: a context as documents of the state store, and back.
- `backend`: brings a context into memory and writes back what changed, in an order that a killed
  process cannot break.
- `composed`: the four stores over it, for `Stores.of`.

The methods are in `looopy.stores.base`: `PlainMessageStore` and the two after it. The room may
import what `looopy.stores.memory` may, and that; it knows no `Stores`. Read `backend`.
"""
