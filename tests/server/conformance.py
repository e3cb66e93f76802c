"""
The A2A face before a linter and a test bed that others wrote: `python -m tests.server.conformance`.

It serves an agent on loopback without authentication, which the test bed needs, and runs both tools
by `uvx`, each in an environment of its own. The test bed wants Python 3.12 in the `PATH`. Push
notifications go to a receiver of the test bed, on loopback. It also names a host that does not
exist, which a server refuses; here that host is loopback as well.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.server.loopback import listening
from tests.server.test_a2a_api import build
from tests.server.test_a2a_push import ON_LOOPBACK

from looopy import AuthContext, open_stores
from looopy.server import AgentHost, a2a_api, create_app

LINT = ("uvx", "a2a-lint@0.1.1", "--live", "--strict")
BED = (
    *("uvx", "--python", "3.12", "--prerelease", "allow", "--with", "httpx<1"),
    *("a2a-testbed@0.3.0a3", "conformance", "--push-receiver", "local"),
)
ACCEPTED = """
version: 1
accepted:
- contract: transport.task_id_uuid_format
  reason: the id of a task names its context and its first turn, so that nothing is stored for it
"""


async def main() -> int:
    """Run both; 0 if both are content."""
    _invent("example.invalid")
    with tempfile.TemporaryDirectory() as folder:
        accepted = Path(folder) / "accepted.yaml"
        accepted.write_text(ACCEPTED)
        async with open_stores("memory:") as stores:
            face = partial(a2a_api, push=ON_LOOPBACK)
            host = AgentHost(build, stores)
            app = create_app(host, authenticate=lambda _: AuthContext("anybody"), protocols=[face])
            async with listening(app) as url:
                codes = []
                for command in ((*LINT, url), (*BED, "--baseline", str(accepted), url)):
                    sys.stdout.write(f"$ {' '.join(command)}\n")
                    sys.stdout.flush()
                    running = await asyncio.create_subprocess_exec(*command)
                    codes.append(await running.wait())
    return max(codes)


def _invent(name: str) -> None:
    """Resolve a host that does not exist."""
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def resolved(host: Any, port: Any, **options: Any) -> Any:
        return await resolve("127.0.0.1" if host == name else host, port, **options)

    loop.getaddrinfo = resolved  # type: ignore[method-assign]  # of this process alone


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
