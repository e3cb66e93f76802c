"""Stores as an application writes them, with two or three methods each; see `docs/stores.md`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import sqlalchemy as sa

from looopy import open_stores
from looopy.stores.bundle import Stores
from looopy.types.message_json import message_to_json

NAMES = ("files", "table", "mixed")
_WRITER_S = 60.0  # how long a connection of SQLite waits for another one


class JsonLines:
    """Messages in a file a context, one a line; methods that block."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, context_id):
        return self.folder / (context_id.replace("/", "%") + ".jsonl")

    def append(self, context_id, messages):
        """Add lines, after the last whole one: a killed process may have left half a line."""
        with self._path(context_id).open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            for message in messages:
                file.write(json.dumps(message_to_json(message)).encode() + b"\n")
                file.flush()

    def list(self, context_id):
        """The whole lines."""
        if not self._path(context_id).exists():
            return []
        lines = self._path(context_id).read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def clear(self, context_id):
        """Remove the file."""
        self._path(context_id).unlink(missing_ok=True)


class Folder:
    """Contents of artifacts as files, and documents with no way to compare."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, *names):
        return self.folder / "%".join(name.replace("/", "%") for name in names)

    def _put(self, path, content):
        unfinished = path.with_name(f".{os.getpid()}")
        unfinished.write_bytes(content)
        unfinished.replace(path)


class Contents(Folder):
    """Contents of artifacts as files."""

    def save(self, context_id, name, content):
        """Write a file and put it in its place."""
        self._put(self._path(context_id, name), content)

    def load(self, context_id, name):
        """Read a file."""
        return self._path(context_id, name).read_bytes()

    def delete(self, context_id, name):
        """Remove a file."""
        self._path(context_id, name).unlink(missing_ok=True)


class Documents(Folder):
    """Documents as files, with no way to compare."""

    def load(self, key):
        """Read a file."""
        path = self._path(key)
        return json.loads(path.read_bytes()) if path.exists() else None

    def save(self, key, document):
        """Write a file and put it in its place."""
        self._put(self._path(key), json.dumps(document).encode())


def _engine(url):
    if "sqlite" not in url:
        return sa.create_engine(url)
    engine = sa.create_engine(url, connect_args={"timeout": _WRITER_S})
    # A commit of SQLite's usual journal waits several times for the disk.
    sa.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA journal_mode=WAL"))
    return engine


def _create(engine, table):
    with contextlib.suppress(sa.exc.OperationalError):  # another process made it meanwhile
        table.metadata.create_all(engine)


class Table:
    """Messages in a table of the application's own."""

    def __init__(self, url):
        self.engine = _engine(url)
        self.chat = sa.Table(
            "own_chat",
            sa.MetaData(),
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("conversation", sa.Text, index=True, nullable=False),
            sa.Column("place", sa.Integer, nullable=False),
            sa.Column("role", sa.Text, nullable=False),
            sa.Column("body", sa.JSON, nullable=False),
            sa.UniqueConstraint("conversation", "place"),
        )
        _create(self.engine, self.chat)

    def append(self, context_id, messages, position):
        """Insert rows, all or none."""
        rows = [
            {
                "conversation": context_id,
                "place": position + n,
                "role": message.role,
                "body": message_to_json(message),
            }
            for n, message in enumerate(messages)
        ]
        with self.engine.begin() as connection:
            connection.execute(self.chat.insert(), rows)

    def list(self, context_id):
        """The bodies, in order."""
        query = sa.select(self.chat.c.body).where(self.chat.c.conversation == context_id)
        with self.engine.connect() as connection:
            return list(connection.scalars(query.order_by(self.chat.c.place)))

    def clear(self, context_id):
        """Delete the rows."""
        with self.engine.begin() as connection:
            connection.execute(sa.delete(self.chat).where(self.chat.c.conversation == context_id))


class StateTable:
    """Documents in a table, with a way to compare."""

    def __init__(self, url):
        self.engine = _engine(url)
        self.documents = sa.Table(
            "own_documents",
            sa.MetaData(),
            sa.Column("key", sa.Text, primary_key=True),
            sa.Column("revision", sa.Integer),
            sa.Column("document", sa.JSON, nullable=False),
        )
        _create(self.engine, self.documents)

    def load(self, key):
        """The document."""
        query = sa.select(self.documents.c.document).where(self.documents.c.key == key)
        with self.engine.connect() as connection:
            return connection.scalar(query)

    def save(self, key, document):
        """Replace it."""
        row = {"key": key, "revision": document.get("revision"), "document": document}
        with self.engine.begin() as connection:
            connection.execute(sa.delete(self.documents).where(self.documents.c.key == key))
            connection.execute(self.documents.insert(), [row])

    def compare_and_set(self, key, document, revision):
        """Replace it if it has this revision."""
        row = {"key": key, "revision": document["revision"], "document": document}
        with self.engine.begin() as connection:
            if revision == 0:
                try:
                    connection.execute(self.documents.insert(), [row])
                except sa.exc.IntegrityError:
                    return False
                return True
            there = (self.documents.c.key == key) & (self.documents.c.revision == revision)
            done = connection.execute(sa.update(self.documents).where(there).values(**row))
            return done.rowcount == 1

    def delete(self, key):
        """Remove it."""
        with self.engine.begin() as connection:
            connection.execute(sa.delete(self.documents).where(self.documents.c.key == key))

    def list(self):
        """All keys."""
        with self.engine.connect() as connection:
            return list(connection.scalars(sa.select(self.documents.c.key)))


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Stores]:
    """The stores of a URL, or of `own:NAME:FOLDER:POSTGRES`."""
    if url.startswith("own:"):
        _, name, folder, postgres = url.split(":", 3)
        stores = own_stores(name, Path(folder), postgres)
    else:
        stores = open_stores(url)
    async with stores:
        yield stores


def own_stores(name: str, folder: Path, postgres: str | None = None) -> Stores:
    """The stores of a mixture in `NAMES`, in *folder*; `mixed` has its messages in Postgres."""
    if name == "files":
        return Stores.of(
            JsonLines(folder / "chats"), Contents(folder / "files"), Documents(folder / "state")
        )
    file = f"sqlite:///{folder / 'own.db'}"
    if name == "table":
        return Stores.of(Table(file), state=StateTable(file))
    assert postgres is not None
    return Stores.of(Table(postgres), Contents(folder / "files"), StateTable(file))
