"""
The gate of the server: authentication of callers, and limits of their use.

- Who: `auth` (ready-made answers), `jwt` (bearer tokens of an identity provider), `guard` (Host and
  Origin), `expiry` (the end of a stream whose credentials expire).
- How much: `limits` (the numbers), `quotas` (shares of tenants and actors in the store), `body`
  (JSON bodies up to a number of bytes), `fields` (the fields of bodies and
  queries), `flow` (deadlines and bytes in flight of responses), `connections` (of `looopy serve`).

Exports `LocalToken`, `StaticTokens` and `Limits`, through `looopy.server`.
"""
