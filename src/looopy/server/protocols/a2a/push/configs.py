"""
The stored configurations: receivers of the notifications of a task, and how far that has come.

Each is a document: the metadata of a context without turns, in a tenant of its own. So every store
keeps them, a write fails if another process was first, and a restarted server finds all tenants'.
The receiver, with its token and credentials, is one encrypted text.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from looopy.auth.sealing import KeyLost, Sealer
from looopy.errors import ContextNotFound, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.records import ContextRecord

TENANT: Final = "looopy:a2a-push"
_DOCUMENT: Final = "a2a_push"
_FORMAT: Final = 1
_PAGE: Final = 100
_DIGITS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """
    Where notifications go, and what shows there that they come from here.

    Attributes:
        token: For the header `X-A2A-Notification-Token`; empty for none.
        scheme, credentials: For the header `Authorization`; empty for none.
    """

    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""

    @property
    def is_secret(self) -> bool:
        """True if it holds more than an address."""
        return bool(self.token or self.credentials)

    def __repr__(self) -> str:
        return "<Receiver>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """
    One configuration of a task.

    Attributes:
        tenant, context_id, made_at: Its context, and when that was made: a context may be erased,
            and another one made under its name.
        owner: The actor who made it, and to whom the context belongs.
        config_id: As the caller names it.
        first: The first turn of its task.
        base: The server's address as the caller knew it; for the URLs of large artifacts.
        is_old: The receiver speaks 0.3.
        receiver: The receiver as it is stored: encrypted, or its URL.
        after: The `seq` up to which everything was sent.
        failures: How often the next notification has failed; `due`: when to try again.
        holder, until: The worker that sends now, and the end of its lease.
        ended_at: When all was sent, or `None`. `gave_up`: the receiver did not take it.
        version: The document's; 0 before it is stored.
    """

    tenant: str
    context_id: str
    made_at: str
    owner: str
    task_id: str
    config_id: str
    first: int
    base: str
    is_old: bool
    receiver: Mapping[str, str]
    after: int
    failures: int = 0
    due: float = 0.0
    holder: str | None = None
    until: float = 0.0
    ended_at: float | None = None
    gave_up: bool = False
    version: int = 0

    @property
    def name(self) -> str:
        """The name of its document."""
        return f"{_task(self.tenant, self.task_id)}.{_digest(self.config_id)}"

    def is_for(self, record: ContextRecord | None) -> bool:
        """True if *record* is the context that it was made for."""
        return (
            record is not None
            and record.owner_actor == self.owner
            and record.created_at.isoformat() == self.made_at
        )


class Configs:
    """
    The configurations of all tenants.

    Args:
        stores: Stores of any tenant.
        key: Encrypts the receivers; `None`: those with secrets are refused.

    Raises:
        ConfigurationError: The stores are bound to one tenant for good, or the key is too short.
        MissingExtra: The extra `auth` is not installed, and there is a key.
    """

    def __init__(self, stores: Stores, key: str | bytes | None) -> None:
        self._state = stores.for_tenant(TENANT).state
        self._sealer = None if key is None else Sealer(key, option="PushNotifications.key")

    def check(self, receiver: Receiver) -> None:
        """
        See that a receiver can be stored.

        Raises:
            ValueRefused: It has secrets, and there is no key.
        """
        if self._sealer is None and receiver.is_secret:
            raise ValueRefused(
                "this server has no key to keep a token or credentials with: leave them out, or"
                " set PushNotifications(key=...)",
                path="/token" if receiver.token else "/authentication/credentials",
            )

    def sealed(self, config: Config, receiver: Receiver) -> Config:
        """
        The configuration with its receiver.

        Raises:
            ValueRefused: The receiver has secrets, and there is no key.
        """
        self.check(receiver)
        if self._sealer is None:
            return replace(config, receiver={"url": receiver.url})
        said = [receiver.url, receiver.token, receiver.scheme, receiver.credentials]
        text = self._sealer.seal(said, place=config.name)
        return replace(config, receiver={"sealed": text})

    def receiver(self, config: Config) -> Receiver | None:
        """The receiver of a configuration; `None` if it cannot be decrypted any more."""
        text = config.receiver.get("sealed")
        if text is None:
            return Receiver(url=config.receiver["url"])
        try:
            if self._sealer is None:
                return None
            url, token, scheme, credentials = self._sealer.open(text, place=config.name)
        except KeyLost:
            return None
        return Receiver(url=url, token=token, scheme=scheme, credentials=credentials)

    async def load(self, name: str) -> Config | None:
        """A configuration by the name of its document; `None` if there is none."""
        return _read(await self._state.load(name))

    async def find(self, tenant: str, task_id: str, config_id: str) -> Config | None:
        """A configuration of a task; `None` if there is none."""
        return await self.load(f"{_task(tenant, task_id)}.{_digest(config_id)}")

    async def of_task(self, tenant: str, task_id: str) -> list[Config]:
        """All configurations of a task."""
        prefix = _task(tenant, task_id)
        found: list[Config] = []
        async for config in self._from(f"{prefix}."):
            if not config.name.startswith(prefix):
                break
            found.append(config)
        return sorted(found, key=lambda config: config.config_id)

    def all(self) -> AsyncIterator[Config]:
        """The configurations of all tasks."""
        return self._from("")

    async def _from(self, after: str) -> AsyncIterator[Config]:
        while True:
            page = await self._state.list(after=after, limit=_PAGE)
            for record in page:
                config = _read(record)
                if config is not None:
                    yield config
            if len(page) < _PAGE:
                return
            after = page[-1].context_id

    async def save(self, config: Config) -> Config:
        """
        Store a configuration that is new, or that was read before.

        Raises:
            StoreConflict: Another writer was first.
            StoreUnavailable: The store did not answer.
        """
        said = {"format": _FORMAT, **asdict(config)}
        del said["version"]
        version = await self._state.save(config.name, {_DOCUMENT: said}, version=config.version)
        return replace(config, version=version)

    async def delete(self, config: Config) -> bool:
        """Remove a configuration; false if it was gone."""
        try:
            await self._state.delete(config.name)
        except ContextNotFound:
            return False
        return True


def now() -> float:
    """The time by a clock that processes share."""
    return time.time()


def _read(record: ContextRecord | None) -> Config | None:
    said: Any = None if record is None else record.metadata.get(_DOCUMENT)
    if record is None or not isinstance(said, Mapping) or said.get("format") != _FORMAT:
        return None
    facts = {key: value for key, value in said.items() if key != "format"}
    return Config(**facts, version=record.version)


def _task(tenant: str, task_id: str) -> str:
    return _digest(f"{tenant}\n{task_id}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
