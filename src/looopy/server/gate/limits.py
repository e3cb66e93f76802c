"""The limits of a server: how much one request, one stream and one caller may take."""

from dataclasses import dataclass, fields

from looopy.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    Limits of a server. A request beyond one is refused before anything is stored.

    Attributes:
        body_bytes: The body of a request: 413 `too_large`.
        body_s: Seconds in which the body has to arrive: 408 `timeout`.
        message_bytes: The text of a message, as UTF-8: 400 `too_large`.
        json_depth: Levels of a JSON body, which is the first itself: 400 `too_deep`.
        json_keys: Keys of one JSON object: 400 `too_deep`.
        json_values: Values in a JSON body, all levels together: 400 `too_deep`.
        header_s: Seconds in which the header of a request has to arrive, from the moment at which
            the connection was opened or the response before it was sent. `looopy serve` alone knows
            connections: this limit and the next two do not apply to a mounted application.
        connections: Connections of this process; fewer if the system lets it open fewer files. At
            a limit of connections, the one that has waited longest for a header is closed. If all
            of them are at work, the new one gets 503.
        connections_per_address: Connections of one address, or of one IPv6 network of 64 bits.
            Behind a proxy, all have the proxy's address.
        streams_per_actor: Event streams of one actor: 429 `limit_exceeded`.
        streams: Event streams of this process: 503 `limit_exceeded`.
        turns_per_minute: Turns that one actor may begin in a minute: 429 `limit_exceeded`. Requests
            that are refused, or repeat an earlier one, do not count. `None`: any number.
        running_turns_per_tenant: Turns of one tenant that run at once, in all processes of the
            database: 429 `limit_exceeded`. An agent that works for a call runs a turn of its own.
            `None`: any number, as for the next three.
        running_turns_per_actor: The same in the contexts of one actor.
        stored_bytes_per_tenant: Messages, events and artifacts of one tenant: 429 `limit_exceeded`
            for whatever adds to them. They are counted now and then.
        stored_bytes_per_actor: The same in the contexts of one actor.
        count_bytes_s: Seconds from one count of stored bytes to the next, at least. A count that
            takes long rests longer.
        heartbeat_s: Seconds of silence after which a stream sends a comment.
        send_s: Seconds in which a reader has to take the next 64 KiB of a response; otherwise it is
            disconnected. The reader of a stream continues after the last `seq`.
        unread_bytes_per_actor: Bytes of responses of one actor that wait for their readers: 429
            `limit_exceeded` for a further one over 64 KiB. A download waits instead.
        page: Items of a page, at most.
        page_bytes: Bytes of a page of messages, at most, unless its first message alone has more.
            The other pages are limited by their number of items.

    Raises:
        ConfigurationError: A limit is not a number above 0.
    """

    body_bytes: int = 1024 * 1024
    body_s: float = 30.0
    message_bytes: int = 256 * 1024
    json_depth: int = 64
    json_keys: int = 10_000
    json_values: int = 50_000
    header_s: float = 10.0
    connections: int = 4_000
    connections_per_address: int = 1_000
    streams_per_actor: int = 20
    streams: int = 2_000
    turns_per_minute: int | None = None
    running_turns_per_tenant: int | None = None
    running_turns_per_actor: int | None = None
    stored_bytes_per_tenant: int | None = None
    stored_bytes_per_actor: int | None = None
    count_bytes_s: float = 60.0
    heartbeat_s: float = 15.0
    send_s: float = 30.0
    unread_bytes_per_actor: int = 64 * 1024 * 1024
    page: int = 200
    page_bytes: int = 8 * 1024 * 1024

    @property
    def counts_turns(self) -> bool:
        """True if a turn may be refused because of others, or of what is stored."""
        names = ("turns_per_minute", "running_turns_per", "stored_bytes_per")
        of_turns = (one.name for one in fields(self) if one.name.startswith(names))
        return any(getattr(self, name) is not None for name in of_turns)

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            kinds = (int, float) if field.name.endswith("_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
                raise ConfigurationError(f"Limits.{field.name} takes a number above 0")
