"""
Operations on whole contexts on SQL, each under the name that it has in `looopy.stores.contexts`.

- `listing`: pages of the index of contexts, and their labels. `search`: the index of words.
- `restore`: whole contexts into the database. `erasing`: erasures.
- `spending`: budgets of a day and a month.
"""
