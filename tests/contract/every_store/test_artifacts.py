"""The contract of artifacts, on each backend."""

from __future__ import annotations

from tests.contract.backends import on_every_store

from looopy.testing.contracts.artifact import ArtifactContentContract, ArtifactStoreContract

globals().update(on_every_store("Artifacts", ArtifactStoreContract, ArtifactContentContract))
