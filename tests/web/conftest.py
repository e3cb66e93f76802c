"""
What the tests of the web faces share: the clients that others wrote, in node and in a browser.

`package.json` beside this file names them. They are found in `node_modules` here, or in the folder
that `LOOOPY_WEB_MODULES` names. A test that misses one is skipped. If `LOOOPY_WEB_TESTS` is
`required`, as in `.ci/run`, it fails instead.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

HERE = Path(__file__).parent


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it where it has to run."""
    if os.environ.get("LOOOPY_WEB_TESTS") == "required":
        pytest.fail(f"{what}: the tests of the web faces have to run here")
    pytest.skip(f"{what}: see tests/web/conftest.py")


@pytest.fixture(scope="session")
def modules() -> Path:
    """The folder of the npm packages."""
    if shutil.which("node") is None:
        missing("node is not installed")
    folder = Path(os.environ.get("LOOOPY_WEB_MODULES", HERE / "node_modules"))
    if not (folder / "ai").is_dir():
        missing(f"`npm install` in {HERE.name} has not been run")
    return folder


@pytest.fixture(scope="session")
def bundle(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that bundles a script of this folder and returns the bundle's path."""
    made: dict[str, Path] = {}

    def bundled(name: str, platform: str = "node") -> Path:
        if name not in made:
            target = tmp_path_factory.mktemp("bundle") / Path(name).with_suffix(".mjs").name
            options = [
                "--bundle",
                f"--platform={platform}",
                "--format=esm",
                "--log-level=warning",
                "--jsx=automatic",
                '--define:process.env.NODE_ENV="production"',
                f"--outfile={target}",
            ]
            if platform == "node":
                require = "import {createRequire} from 'module';"
                require += "const require = createRequire(import.meta.url);"
                options.append(f"--banner:js={require}")
            build = [str(modules / ".bin" / "esbuild"), str(HERE / name), *options]
            subprocess.run(build, check=True, env={**os.environ, "NODE_PATH": str(modules)})
            made[name] = target
        return made[name]

    return bundled


@pytest.fixture
def in_node(bundle: Any) -> Any:
    """A function that runs a script of this folder with a JSON value and returns its answer."""

    def run(name: str, value: Any) -> Any:
        done = subprocess.run(
            ["node", str(bundle(name))],
            input=json.dumps(value),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    """Chromium without a window."""
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        missing("playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        missing("Chromium is not installed")
    async with async_playwright() as play:
        found = await play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        await found.close()
