"""
The embedded model: a small language model on this computer, for use without a key or a server.

The weights are data files of ordinary packages. A fetch is resumable and checked by hash; a child
process serves the model on loopback, so its crash never ends the user's process. The room may
import `llm`, `llm.openai`, `types` and `errors`; `server` alone imports the native library.

- Weights: `catalogue` (which models exist), `weights` (fetch and check), `installer` (run `uv` or
  `pip`), `progress` (a bar), `processor` (can this processor run them).
- Process: `child` (start, share, end), `server` (the program in the child).
- Call: `protocol` (the prompt and the allowed answers), `schema` (a JSON Schema for the grammar),
  `jsonstream` (read the answer as it grows), `call` (one request), `provider` (`LocalProvider`).

Exports: the names in `__all__`. Read `provider`, `protocol`, `call`, `child`, `weights`.
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
