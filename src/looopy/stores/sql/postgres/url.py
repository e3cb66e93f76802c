"""
Reads a Postgres URL: the driver, the server, and the options that are ours rather than libpq's.

The URL goes to the driver as it is, so everything that libpq knows (a socket's folder as host,
several hosts, `sslmode`) works; only our own options are taken out of it. It holds a password, so
it is never shown: errors name the server by `place`.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from looopy.errors import ConfigurationError, missing_extra

SCHEMES = {
    "postgresql": "asyncpg",
    "postgres": "asyncpg",  # as hosting services write it
    "postgresql+asyncpg": "asyncpg",
    "postgresql+psycopg": "psycopg",
}

# A dead peer is noticed within a minute on a silent connection, and within half a minute after a
# command.
_TCP = {
    "keepalives": 1,
    "keepalives_idle": 30,  # seconds
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresURL:
    """
    A database on a Postgres server, and how to reach it.

    Attributes:
        driver: `asyncpg` or `psycopg`.
        dsn: The URL for the driver, with the password if it had one.
        place: Host and database, fit for showing.
        pooler: How a proxy before the server assigns connections, by `session` or by `transaction`;
            `None`: no proxy, and looopy verifies that.
        options: The URL's own `options`, sent to the server when a session begins.
        row_level_security: True to refuse a database that does not keep the tenants apart for this
            user by row-level security on every table.
        named: True if the URL sets the application's name at the server.
        pool_size: How many connections are kept at most.
        max_idle_s: How long an unused connection is kept.
        max_age_s: How long a used connection is kept.
        connect_timeout_s: How long to wait for the server to take a connection.
        tcp: How the system detects a dead peer, as options of libpq.
    """

    driver: str
    dsn: str = field(repr=False)
    place: str
    pooler: str | None = None
    options: str = ""
    row_level_security: bool = False
    named: bool = False
    pool_size: int = 10
    max_idle_s: float = 300
    max_age_s: float = 1800
    connect_timeout_s: int = 10
    tcp: Mapping[str, int] = field(default_factory=lambda: dict(_TCP))

    @property
    def pooled(self) -> bool:
        """
        True if a proxy assigns the connections by transaction, so that nothing may outlive one: no
        prepared statements, no settings of a session.
        """
        return self.pooler == "transaction"


def is_postgres(url: str) -> bool:
    """True if *url* has one of the schemes of Postgres."""
    return url.partition(":")[0] in SCHEMES


def parse(url: str) -> PostgresURL:
    """
    Read a URL such as `postgresql://user:password@host/database?pooler=transaction`.

    Raises:
        ConfigurationError: It is malformed, or one of our options has no such value; the message
            does not hold the URL.
    """
    try:
        parts = urlsplit(url)
        hosts = _hosts(parts.netloc)
        given = parse_qsl(parts.query, strict_parsing=True) if parts.query else []
    except ValueError:
        raise ConfigurationError(
            "the Postgres URL is malformed: use postgresql://user:password@host:5432/database,"
            " with special characters in the password percent-encoded"
        ) from None
    ours = {name: value for name, value in given if name in _OPTIONS}
    theirs = [(name, value) for name, value in given if name not in _OPTIONS]
    known = dict(theirs)
    if "," in known.get("host", hosts):
        # Of several servers, the one that takes writes.
        theirs.append(("target_session_attrs", known.get("target_session_attrs", "primary")))
    query = urlencode(dict(theirs), quote_via=quote)  # libpq knows no + for a space
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, query, ""))
    if not parts.netloc:  # urlunsplit drops the empty authority that libpq wants to see
        dsn = dsn.replace("postgresql:", "postgresql://", 1)
    host = known.get("host") or hosts or "localhost"
    database = unquote(parts.path.lstrip("/")) or "the user's own database"
    return PostgresURL(
        driver=SCHEMES[parts.scheme],
        dsn=dsn,
        place=f"{host}/{database}",
        pooler=_pooler(ours.get("pooler")),
        options=known.get("options", ""),
        named="application_name" in known,
        row_level_security=_required(ours.get("row_level_security")),
        pool_size=_number(ours, "pool_size", 10),
        connect_timeout_s=_number(ours, "connect_timeout", 10),
        max_idle_s=_number(ours, "pool_max_idle", 300, least=0) or math.inf,
        max_age_s=_number(ours, "pool_max_age", 1800, least=0) or math.inf,
        tcp={name: _number(ours, name, usual, least=0) for name, usual in _TCP.items()},
    )


_HOST = re.compile(r"(?:\[[^\[\]]+\]|[^:\[\]]*)(?::(\d{0,5}))?", re.ASCII)


def _hosts(netloc: str) -> str:
    """The hosts of a URL with their ports, several with commas between them; or `ValueError`."""
    hosts = netloc.rpartition("@")[2]
    for host in hosts.split(","):
        found = _HOST.fullmatch(host)
        if found is None or not 0 <= int(found[1] or 0) <= 65535:
            raise ValueError(host)
    return hosts


def check_driver(url: PostgresURL) -> None:
    """Raise `MissingExtra`, which names the command, unless the driver of *url* is installed."""
    if importlib.util.find_spec(url.driver) is None:
        raise missing_extra(f"{url.driver} is not installed, and Postgres needs it", "postgres")


_MOST = 1_000_000
_OPTIONS = (
    *("pooler", "row_level_security", "pool_size", "pool_max_idle", "pool_max_age"),
    *("connect_timeout", *_TCP),
)


def _pooler(value: str | None) -> str | None:
    if value not in (None, "session", "transaction"):
        raise ConfigurationError(
            "the option pooler of a Postgres URL is session or transaction: how the proxy between"
            " here and the server hands connections out"
        )
    return value


def _required(value: str | None) -> bool:
    if value not in (None, "required"):
        raise ConfigurationError(
            "the option row_level_security of a Postgres URL is required, or is left out: it is"
            " used wherever the database has it"
        )
    return value == "required"


def _number(options: dict[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and least <= int(text[:10]) <= _MOST):
        raise ConfigurationError(
            f"the option {name} of a Postgres URL is a number from {least} to {_MOST:,}"
        )
    return int(text)
