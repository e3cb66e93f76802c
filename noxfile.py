"""
The checks of a change, as sessions.

uv owns the environment, so a session runs in the environment that it is started from:
`uv run --all-extras --group dev nox` runs all of them but the long campaigns, `... nox -s lint`
runs one. Some make environments of their own: `build`, because it tests the wheel and not the tree,
and `lowest` and `pythons`, because they run the versions that we declare.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = PROJECT["tool"]["uv"]["constraint-dependencies"]

# What another Python may change: types and their checks, tasks and cancellation.
OF_PYTHON = (
    *("tests/unit/types", "tests/unit/tools", "tests/unit/loop", "tests/unit/agent"),
    "tests/agent/turns/test_turns.py",
)
# What an older dependency may change: validation, schemas, statements, migrations, a database file.
SHORT = (
    *("tests/unit/types", "tests/unit/tools", "tests/unit/llm", "tests/unit/stores"),
    *("tests/migrations/test_sqlite.py", "tests/migrations/test_postgres.py"),
    "tests/contract/every_store/test_state.py",
    "tests/agent/turns/test_turns.py",
)

nox.needs_version = ">=2025.11"
nox.options.default_venv_backend = "none"
nox.options.sessions = [
    "lint",
    "types",
    "imports",
    "tests",
    "coverage",
    "migrations",
    "docs",
    "budgets",
    "build",
    "lowest",
    "pythons",
]


@nox.session
def lint(session: nox.Session) -> None:
    """Check the style."""
    session.run("ruff", "check", "--output-format", "concise", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types twice, and public API, pages and examples as a user's project would."""
    session.run("mypy")
    session.run("basedpyright")
    for face in sorted((ROOT / "tests" / "typing").glob("*.py")):
        session.run("mypy", str(face))
    session.run("python", "-m", "tests.docs.typed_pages")


@nox.session
def imports(session: nox.Session) -> None:
    """Check that imports flow one way."""
    session.run("lint-imports", "--no-logo", "--no-cache", env={"PYTHONPATH": str(ROOT / "src")})


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, as the README says; arguments go to pytest."""
    session.run("pytest", *session.posargs)


@nox.session
def long(session: nox.Session) -> None:
    """Run what `tests` leaves out, and write a report; arguments name steps, as `-- tests`."""
    session.run("python", "-m", "tests.long", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Show the branches that no test takes, and limit their number; arguments go to pytest."""
    session.run("python", "-m", "tests.measuring", *session.posargs)


@nox.session
def heads(session: nox.Session) -> None:
    """Show that the migrations have one head."""
    found = session.run("alembic", "heads", silent=True)
    if not isinstance(found, str) or found.count("(head)") != 1:
        session.error(f"exactly one head is wanted: {found}")


@nox.session
def migrations(session: nox.Session) -> None:
    """Show that there is one head and that it equals the tables."""
    session.notify("heads")
    session.run("pytest", "-q", "tests/migrations")


@nox.session
def changelog(session: nox.Session) -> None:
    """Draft the changelog."""
    session.run("towncrier", "build", "--draft", "--version", "next", "--date", "unreleased")


@nox.session
def docs(session: nox.Session) -> None:
    """Run the code of the README and the examples, follow the links, draft the changelog."""
    session.notify("changelog")
    session.run("pytest", "-q", "tests/docs")


@nox.session
def budgets(session: nox.Session) -> None:
    """Limit the cost of a turn, a delta, a restart and the import; `-- --renew` sets the limits."""
    session.run("python", "-m", "benchmarks.budgets", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel, use it far from the tree, and run the suites that it ships for stores."""
    tmp = Path(session.create_tmp()).resolve()
    shutil.rmtree(tmp / "dist", ignore_errors=True)
    session.run("uv", "build", "--quiet", "--out-dir", str(tmp / "dist"), external=True)
    (wheel,) = (tmp / "dist").glob("*.whl")
    pins = tmp / "pins.txt"
    pins.write_text("\n".join(PINS), encoding="utf-8")
    venv = tmp / "venv"
    session.run("uv", "venv", "--quiet", "--clear", "--python", "3.11", str(venv), external=True)
    python = str(venv / "bin" / "python")
    install = ("uv", "pip", "install", "--quiet", "--python", python, "--constraint", str(pins))
    session.run(*install, str(wheel), external=True)
    with session.chdir(tmp):
        session.run(python, "-I", str(ROOT / ".ci" / "check_wheel.py"), external=True)
        session.run(str(venv / "bin" / "looopy"), "--help", silent=True, external=True)
    # An author of a store has the wheel, pytest, and the module that the docs show.
    project = tmp / "project"
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir()
    # Without a configuration of its own, pytest would take that of the tree around it.
    (project / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    page = (ROOT / "docs" / "stores.md").read_text(encoding="utf-8")
    (module,) = re.findall(r"<!-- file: test_my_store.py -->\n```python\n(.*?)```", page, re.DOTALL)
    (project / "test_my_store.py").write_text(module, encoding="utf-8")
    session.run(*install, "pytest", "pytest-asyncio", external=True)
    with session.chdir(project):
        # The workers that PYTEST_ADDOPTS asks for in CI are of a plugin that is not here.
        session.run(python, "-m", "pytest", "-q", external=True, env={"PYTEST_ADDOPTS": ""})


def fresh(session: nox.Session, name: str, interpreter: str, *options: str) -> str:
    """Make an environment with the tree, its extras and the test tools; return its Python."""
    venv = Path(session.create_tmp()).resolve() / name
    make = ("uv", "venv", "--quiet", "--clear", "--python", interpreter)
    session.run(*make, str(venv), external=True)
    python = str(venv / "bin" / "python")
    extras = ",".join(PROJECT["project"]["optional-dependencies"])
    wanted = ("--editable", f"{ROOT}[{extras}]", "--group", f"{ROOT / 'pyproject.toml'}:test")
    install = ("uv", "pip", "install", "--quiet", "--python", python)
    with session.chdir(ROOT.anchor):  # in the tree, uv would add the pins of pyproject.toml
        session.run(*install, *options, *wanted, external=True)
    return python


@nox.session
def lowest(session: nox.Session) -> None:
    """Run tests with the oldest of each dependency that is declared; arguments go to pytest."""
    python = fresh(session, "lowest", sys.executable, "--resolution", "lowest-direct")
    listed = session.run(
        "uv", "pip", "freeze", "--quiet", "--python", python, silent=True, external=True
    )
    if not isinstance(listed, str) or set(PINS) <= set(listed.split()):
        session.error(f"the versions that we develop on are not the lowest: {listed}")
    chosen = session.posargs or SHORT
    session.run(python, "-m", "pytest", "-q", *chosen, external=True)


@nox.session
def pythons(session: nox.Session) -> None:
    """Run tests on the other versions of Python that are declared; arguments go to pytest."""
    pins = Path(session.create_tmp()).resolve() / "pins.txt"
    pins.write_text("\n".join(PINS), encoding="utf-8")
    for version in declared():
        interpreter = found(version)
        if interpreter is None:
            session.warn(f"Python {version} is declared, not found here, and was NOT run")
            continue
        python = fresh(session, version, interpreter, "--constraint", str(pins))
        session.run(python, "-m", "pytest", "-q", *(session.posargs or OF_PYTHON), external=True)


def declared() -> Iterator[str]:
    """The versions of Python among the classifiers, except the one that runs this."""
    for classifier in PROJECT["project"]["classifiers"]:
        version = classifier.rpartition(" :: ")[2]
        if version.startswith("3.") and version != f"3.{sys.version_info.minor}":
            yield version


def found(version: str) -> str | None:
    """An interpreter of *version*: of pyenv, on the path, or one that uv has or can get."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    known = sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    if known:
        return str(known[-1])
    asked = ("uv", "python", "find", "--quiet", version)
    for command in (asked, ("uv", "python", "install", "--quiet", version), asked):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and command is asked:
            return done.stdout.strip()
    return None


@nox.session
def campaign(session: nox.Session) -> None:
    """Run the fault campaign whole; arguments go to it (`-- --budget 600`), `--help` names them."""
    session.run("python", "-m", "tests.campaign", *session.posargs)
    session.run("python", "-m", "tests.campaign", "--wrong")


@nox.session
def mutants(session: nox.Session) -> None:
    """Make mistakes in a copy, one by one, which tests have to notice; arguments name mutants."""
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def local(session: nox.Session) -> None:
    """Run the embedded model that people chat with; downloads 1.1 GB once."""
    chosen = ("-m", "big_model", "--timeout=0", "tests/local")
    session.run("pytest", *chosen, *session.posargs, env={"LOOOPY_YES": "1"})


@nox.session
def properties(session: nox.Session) -> None:
    """Run the property tests at length: hours, where `tests` takes seconds."""
    env = {"LOOOPY_EXAMPLES": "20000", "LOOOPY_MACHINE_RUNS": "2000"}
    session.run("pytest", "--timeout=0", "tests/property", *session.posargs, env=env)
