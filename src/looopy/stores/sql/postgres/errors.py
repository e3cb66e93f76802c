"""
Translates the failures of both Postgres drivers into looopy's errors.

The drivers put rows, parameters and connection strings into their messages, and the errors they
chain repeat them. So only the SQLSTATE of a driver's error is passed on: a `Trouble` holds what
both drivers share, and it selects our sentence.
"""

from __future__ import annotations

from looopy.errors import StorageFull, StoreUnavailable


class Trouble(Exception):
    """
    A statement, or connecting, failed.

    Args:
        sqlstate: The server's code, five characters; `None` if it sent no code.
        lost: True if the connection is lost, or was never made.
        words: For connecting alone: a sentence of ours, if more is known than the SQLSTATE.
        silent: True if no answer came in time, so that the connection was cut.
    """

    def __init__(
        self,
        sqlstate: str | None,
        *,
        lost: bool = False,
        words: str | None = None,
        silent: bool = False,
    ) -> None:
        super().__init__(sqlstate, lost)
        self.sqlstate = sqlstate
        self.lost = lost
        self.words = words
        self.stale = False  # on a connection that had been idle: another may work
        self.sent = False  # a write of one statement was, and may have been carried out
        self.silent = silent
        self.undone = False  # the server has confirmed since that nothing was written

    @property
    def collided(self) -> bool:
        """True if another transaction was first, so that the same operation may be run again."""
        return self.sqlstate in _COLLISIONS

    @property
    def passing(self) -> bool:
        """True if waiting a little may help: the connection was cut, or the server restarts."""
        if self.words is not None:
            return False
        return self.sqlstate in _RESTARTING or (self.lost and self.sqlstate not in _FINAL)


_COLLISIONS = {
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "23505",  # unique_violation: both made the same row
    "23503",  # foreign_key_violation: the context was deleted in between
}
TOO_MANY = "53300"
"""The SQLSTATE when a server has no connection left (too_many_connections)."""
_RESTARTING = {
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now: it is starting up
    TOO_MANY,
}
_REFUSED = "refused the login: check user and password"
_NO_DATABASE = "does not exist: create it, or check the name in the URL"
_SENTENCES = {
    "28P01": _REFUSED,
    "28000": _REFUSED,
    "3D000": _NO_DATABASE,
    "42501": "does not give this user the rights it needs: the owner of the tables can give them"
    " to a role, by `looopy db secure --role ROLE --db URL`",
    "42704": "does not know something that the URL names, such as an option: check its spelling",
    TOO_MANY: "has no connection left for us: raise max_connections, or use a pooler",
    "55P03": "kept a row locked for too long",
    "57014": "took too long for a statement",
    "25006": "is read-only, so nothing was written: name the primary server, or ask the"
    " administrator who set default_transaction_read_only",
    "42P01": "has lost a table of ours: run `looopy db check`",
}
_FULL = {"53100", "53400"}  # disk_full, configuration_limit_exceeded (a quota)
# A statement is tried again only when nothing is wrong with what was asked. A full disk waits for
# an operator to free space, which takes longer than our patience.
_FINAL = (set(_SENTENCES) | _FULL) - _RESTARTING
# libpq passes on a refusal to connect as text alone.
_PHRASES = (
    ("No space left on device", "53100"),  # a server writes a little for each that connects
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("authentication failed", "28000"),
    ("no pg_hba.conf entry", "28000"),
    ("starting up", "57P03"),
    ("shutting down", "57P03"),
    ("in recovery mode", "57P03"),
    ("too many clients", TOO_MANY),
    ("too many connections for", TOO_MANY),  # a role, or a database
    ("remaining connection slots", TOO_MANY),
    ("invalid URI query parameter", "42704"),
    ("invalid connection option", "42704"),
)


def sqlstate_in(text: str) -> str | None:
    """The SQLSTATE for libpq's *text* about a failed connection, if it is known."""
    for phrase, state in _PHRASES:
        if phrase in text:
            return state
    if "does not exist" in text:
        return "3D000" if "database" in text else "28000"
    return None


def translate(trouble: Trouble, place: str, *, outcome_known: bool = True) -> StoreUnavailable:
    """
    Translate *trouble* into one of looopy's errors. Its message holds no value of any row.

    Args:
        place: Host and database, for the message.
        outcome_known: True if certainly nothing was written.
    """
    state = trouble.sqlstate
    if state in _FULL:
        return StorageFull(
            f"the disk of the database {place} is full: free some space and try again",
            outcome_known=outcome_known,
            sqlstate=state,
        )
    if trouble.words is not None:
        words = trouble.words
    elif state in _SENTENCES:
        words = _SENTENCES[state]
    elif trouble.silent:
        words = (
            "did not answer in time, and the connection was cut: check the server and all that is"
            " between it and here"
        )
    elif trouble.lost or state in _RESTARTING:
        words = "cannot be reached: check that the server runs and that the URL names it"
    elif trouble.collided:
        words = "had too many writers on the same rows: try again"
    else:
        words = "refused a statement"
    shown = f" (SQLSTATE {state})" if state else ""
    doubt = "" if outcome_known else "; whether the write was made is not known"
    return StoreUnavailable(
        f"the database {place} {words}{shown}{doubt}", outcome_known=outcome_known, sqlstate=state
    )
