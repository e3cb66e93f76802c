"""
The contracts of `looopy.stores.base` as tests, sentence by sentence: one file a contract.

A backend subclasses each class and names the factory of its stores; see
`looopy.testing.stores`. The room may import `stores`, `types`, `errors` and pytest; it knows no
backend.

- `message`, `artifact`, `state`: the three stores.
- `journal`: claim, commit and event log, together with `inbox`, `delivery` (what a turn takes from
  its inbox), `withdraw` (what a caller takes back), `key` (idempotency keys) and `wait_queue`
  (waiting claims).
- `listing`, `search`, `erasure`: all contexts of a tenant, to list, to search and to erase.
- `spending`: what owners and tenants may use in a day or month.
- `fork`: forks, rewinds and lineage. `inner`: contexts that work for others. `restore`: whole
  contexts out of a store and into another.
- `durability`, `processes`: kills and races of other processes, which take the steps of `walk`.
- `turns`: short ways to write a turn into stores, for all of these.

Exports: the classes, through `looopy.testing.stores`. Read `message`, `state`, `journal`.
"""

import pkgutil

import pytest

for _module in pkgutil.iter_modules(__path__):  # a failed comparison shows its two sides
    pytest.register_assert_rewrite(f"{__name__}.{_module.name}")
