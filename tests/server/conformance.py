"""
The A2A face before a linter and a test bed that others wrote: `python -m tests.server.conformance`.

It serves an agent on loopback without authentication, which the test bed needs, and runs both tools
by `uvx`, each in an environment of its own. The test bed wants Python 3.12 in the `PATH`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.server.test_a2a_api import served

from looopy import AuthContext, open_stores

LINT = ("uvx", "a2a-lint@0.1.1", "--live", "--strict")
BED = (
    *("uvx", "--python", "3.12", "--prerelease", "allow", "--with", "httpx<1"),
    *("a2a-testbed@0.3.0a3", "conformance", "--push-receiver", "off"),
)
ACCEPTED = """
version: 1
accepted:
- contract: transport.task_id_uuid_format
  reason: the id of a task names its context and its first turn, so that nothing is stored for it
"""


async def main() -> int:
    """Run both; 0 if both are content."""
    with tempfile.TemporaryDirectory() as folder:
        accepted = Path(folder) / "accepted.yaml"
        accepted.write_text(ACCEPTED)
        async with open_stores("memory:") as stores:  # noqa: SIM117 - too long in one
            async with served(stores, authenticate=lambda _: AuthContext("anybody")) as url:
                codes = []
                for command in ((*LINT, url), (*BED, "--baseline", str(accepted), url)):
                    sys.stdout.write(f"$ {' '.join(command)}\n")
                    sys.stdout.flush()
                    running = await asyncio.create_subprocess_exec(*command)
                    codes.append(await running.wait())
    return max(codes)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
