"""The default place of conversations: a file in the user's own data folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from looopy.errors import ConfigurationError

FILE = "looopy.db"


def data_folder(env: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """
    The folder for the user's conversations: `LOOOPY_DATA`, or what the system has for such data.

    Raises:
        ConfigurationError: The user has no home folder and `LOOOPY_DATA` is not set.
    """
    if chosen := env.get("LOOOPY_DATA"):
        return Path(chosen).expanduser().absolute()
    try:
        home = Path.home()
    except RuntimeError:
        raise ConfigurationError(
            "there is no home folder to keep conversations in: set LOOOPY_DATA, or pass --db"
        ) from None
    if platform == "win32":
        return Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local") / "looopy"
    if platform == "darwin":
        return home / "Library" / "Application Support" / "looopy"
    given = Path(env.get("XDG_DATA_HOME") or "")
    # The base directory specification: a relative path is to be ignored.
    return (given if given.is_absolute() else home / ".local" / "share") / "looopy"


def default_url() -> str:
    """The database in the data folder, which need not exist yet."""
    return f"sqlite:///{data_folder() / FILE}"


def make_data_folder() -> None:
    """Make the data folder, for this user alone, if missing; or raise `ConfigurationError`."""
    folder = data_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the folder {folder} cannot be made ({error.strerror or error}): set LOOOPY_DATA to"
            " a folder of yours, or pass --db"
        ) from None


def shown_place(url: str) -> str:
    """The database of *url*, as a person would look for it; without credentials."""
    from looopy.stores.opening import mask

    if url.startswith("memory:"):
        return "in memory, gone when this program ends"
    name = url.partition("///")[2]
    return str(Path(name).absolute()) if url.startswith("sqlite") and name else mask(url)
