"""
Reads a Postgres URL: the driver, the server, and the options that are ours rather than libpq's.

The URL means the same with both drivers. Everything that libpq knows works: a socket's folder as
host, several hosts, `sslmode`. Options that libpq does not know are settings of the server. Our own
options, and options that hosting services write for other libraries, leave the URL. It
holds a password, so it is never shown: errors name the server by `place`.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping, Sequence
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
        asked: The names of the URL's own options, which an error may show.
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
    asked: Sequence[str] = ()
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
        ConfigurationError: It is malformed, an option has no such value, or its driver cannot keep
            one; the message names the option and does not hold the URL.
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
    asked = dict(given)
    _translate(asked)
    driver = _driver(parts.scheme, asked)
    ours = {name: asked.pop(name) for name in _OPTIONS if name in asked}
    known = asked
    if driver == "psycopg":
        settings = [name for name in known if name not in _LIBPQ]
        _add_options(known, {name: known.pop(name) for name in settings})
    if "," in known.get("host", hosts):  # of several servers, the one that takes writes
        known.setdefault("target_session_attrs", "primary")
    query = urlencode(known, quote_via=quote)  # libpq knows no + for a space
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, query, ""))
    if not parts.netloc:  # urlunsplit drops the empty authority that libpq wants to see
        dsn = dsn.replace("postgresql:", "postgresql://", 1)
    host = known.get("host") or hosts or "localhost"
    database = unquote(parts.path.lstrip("/")) or "the user's own database"
    return PostgresURL(
        driver=driver,
        dsn=dsn,
        place=f"{host}/{database}",
        asked=[name for name, _ in given],
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


# Which options libpq 18 takes in a URL: PostgreSQL 18, section 32.1.2.
_LIBPQ = (
    *("application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname"),
    *("fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "host"),
    *("hostaddr", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval"),
    *("krbsrvname", "load_balance_hosts", "max_protocol_version", "min_protocol_version"),
    *("oauth_client_id", "oauth_client_secret", "oauth_issuer", "oauth_scope", "options"),
    *("passfile", "password", "port", "replication", "require_auth", "requirepeer"),
    *("scram_client_key", "scram_server_key", "service", "ssl_max_protocol_version"),
    *("ssl_min_protocol_version", "sslcert", "sslcertmode", "sslcompression", "sslcrl"),
    *("sslcrldir", "sslkey", "sslkeylogfile", "sslmode", "sslnegotiation", "sslpassword"),
    *("sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout", "user"),
)
# Which of them asyncpg lacks, with the values that ask for no more than it does anyway.
_LIBPQ_ALONE = {
    "channel_binding": {"disable", "prefer"},
    "gssencmode": {"disable", "prefer"},
    "gssdelegation": {"0"},
    "load_balance_hosts": {"disable"},
    "sslcompression": {"0"},
    "sslsni": {"1"},
    "sslcertmode": {"allow"},
    "min_protocol_version": {"3.0"},
    "max_protocol_version": {"3.0", "latest"},
    "hostaddr": set[str](),
    "require_auth": set[str](),
    "requirepeer": set[str](),
    "scram_client_key": set[str](),
    "sslcrldir": set[str](),
}
# For routers and libraries of hosting services: Supabase's and Vercel's marks, node-postgres'.
_MARKS = ("supa", "workaround", "uselibpqcompat")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def _driver(scheme: str, asked: dict[str, str]) -> str:
    """
    The driver that supports the options of a URL, which loses the ones that hold anyway.

    A URL that names no driver and wants something of libpq alone (Neon's `channel_binding=require`)
    is psycopg's: to drop what the URL requires would be less safe than it looks.
    """
    driver = SCHEMES[scheme]
    if driver == "psycopg":
        return driver
    for name, harmless in _LIBPQ_ALONE.items():
        if asked.get(name, "") in harmless:
            del asked[name]
        elif name in asked and "+" not in scheme:
            return "psycopg"
        elif name in asked:
            raise ConfigurationError(
                f"asyncpg does not know the option {name} of the Postgres URL: leave it out, or"
                " begin the URL with postgresql+psycopg://"
            )
    return driver


def _translate(asked: dict[str, str]) -> None:
    """Replace the options of other libraries by ours, libpq's and the server's."""
    for mark in _MARKS:
        asked.pop(mark, None)
    pgbouncer = asked.pop("pgbouncer", "false")  # Prisma
    if _truth("pgbouncer", pgbouncer):
        asked.setdefault("pooler", "transaction")
    if (most := asked.pop("connection_limit", None)) is not None:  # Prisma
        asked.setdefault("pool_size", most)
    if (ssl := asked.pop("ssl", None)) is not None:  # JDBC, node-postgres
        asked.setdefault("sslmode", "require" if _truth("ssl", ssl) else "disable")
    if asked.get("client_encoding", "utf8").lower().replace("-", "") not in ("utf8", "unicode"):
        raise ConfigurationError(
            "the option client_encoding of a Postgres URL is UTF8, or is left out"
        )
    if (schema := asked.pop("schema", None)) is not None:  # Prisma
        if asked.get("pooler") == "transaction":
            raise ConfigurationError(
                "the option schema of the Postgres URL does not outlive a transaction behind a"
                " pooler: leave it out, and set it for the user (ALTER ROLE ... SET search_path)"
            )
        quoted = schema.replace('"', '""')
        _add_options(asked, {"search_path": f'"{quoted}"'})


def _truth(name: str, value: str) -> bool:
    if value not in _TRUTH:
        raise ConfigurationError(f"the option {name} of a Postgres URL is true or false")
    return _TRUTH[value]


def _add_options(known: dict[str, str], settings: Mapping[str, str]) -> None:
    """Add settings of the server to `options`, in which a backslash keeps a space."""
    for name, value in settings.items():
        escaped = re.sub(r"([\\\s])", r"\\\1", value)
        known["options"] = f"{known.get('options', '')} -c {name}={escaped}".lstrip()


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
