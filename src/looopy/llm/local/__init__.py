"""
The embedded model: a small language model on this computer, for when there is no key and no server.

The weights come as data files in ordinary packages and are fetched once (`weights`); a child
process serves them on loopback (`child`, `server`); a grammar keeps tool calls well formed
(`protocol`, `schema`, `jsonstream`); `provider` puts the four together behind the contract of every
other provider.
"""

from looopy.llm.local.catalogue import Download, LocalModel, cache_folder, catalogue, is_cached
from looopy.llm.local.provider import LocalProvider
from looopy.llm.local.weights import fetch

__all__ = [
    "Download",
    "LocalModel",
    "LocalProvider",
    "cache_folder",
    "catalogue",
    "fetch",
    "is_cached",
]
