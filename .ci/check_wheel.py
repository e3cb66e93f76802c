"""
Use an installed looopy as a user's first minute does; fail where something was not packed.

Run by the wheel's own interpreter with `-I`, outside of the tree: what it imports is installed.
"""

import asyncio
import importlib.metadata
import importlib.resources
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Check the imports, the packed migrations, and a store that outlives its handle."""
    import looopy

    home = Path(looopy.__file__)
    if "site-packages" not in home.parts:
        sys.exit(f"this is not the installed package: {home}")
    for name in looopy.__all__:
        getattr(looopy, name)
    if looopy.__version__ != importlib.metadata.version("looopy"):
        sys.exit(f"looopy.__version__ is {looopy.__version__}")
    if not (home.parent / "py.typed").exists():
        sys.exit("py.typed is not in the wheel")
    packed = importlib.resources.files("looopy.stores.sql")
    for path in ("alembic.ini", "migrations/env.py", "migrations/script.py.mako"):
        if not packed.joinpath(path).is_file():
            sys.exit(f"{path} is not in the wheel")
    page = importlib.resources.files("looopy.server").joinpath("page", "static")
    for path in ("index.html", "style.css", "main.js"):
        if not page.joinpath(path).is_file():
            sys.exit(f"{path} of the page is not in the wheel")
    versions = [p.name for p in packed.joinpath("migrations/versions").iterdir()]
    if "0001_initial.py" not in versions:
        sys.exit(f"no first revision in the wheel, only {versions}")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(talk(f"sqlite:///{folder}/wheel.db"))
    add_extra()
    print(f"the wheel works: looopy in {home.parent}")  # noqa: T201 - it is a script


async def talk(url: str) -> None:
    """Run one turn against *url*, then read it back through a second handle."""
    from looopy import Agent, open_stores
    from looopy.testing import ScriptedProvider, text

    agent = Agent("wheel", llm_provider=ScriptedProvider([text("hello")]), stores=url)
    async with agent:
        result = await agent.execute_turn("hi")
        result.raise_for_outcome()
    async with open_stores(url) as stores:
        said = [message.text for message in await stores.messages.list("wheel")]
    if said != ["hi", "hello"]:
        sys.exit(f"the store forgot: {said}")


def add_extra() -> None:
    """Do what the error of a missing extra says; it names no package of our name."""
    from looopy import open_stores
    from looopy.errors import MissingExtra

    url = "postgresql://127.0.0.1/app"  # nothing connects to it
    try:
        open_stores(url)
    except MissingExtra as error:
        command = shlex.split(error.command)
    else:
        sys.exit("Postgres has its driver without the extra")
    if any(part.startswith("looopy") for part in command):
        sys.exit(f"whoever has the name looopy on an index would be installed: {command}")
    subprocess.run(command, check=True)  # noqa: S603 - ours
    importlib.invalidate_caches()
    open_stores(url)


main()
