"""The receivers of push notifications that an application allows, and how long looopy tries."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from looopy.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class PushNotifications:
    """
    Turns push notifications of A2A on: `partial(a2a_api, push=PushNotifications(...))`.

    Args:
        key: A secret of at least 32 bytes, the same in every process. It encrypts the receivers in
            the store. Without it, a receiver with a token or with credentials is refused.
        receivers: The hosts that may receive, such as `hooks.example.org` or `example.org:8443`.
            `None`: any.
        networks: Networks besides the public ones that receivers may be in, such as `10.1.0.0/16`.
        http: Allow `http` besides `https`.
        per_task: How many receivers one task may have.
        attempts: How often looopy tries to send one notification. After that, the receiver gets no
            more of its task.
        pause_s: The pause after the first failure. Each further one is twice as long.
        longest_pause_s: The longest pause.
        timeout_s: How long a receiver may take to answer.

    Raises:
        ConfigurationError: A number is not above 0, or a network or a host is invalid.
    """

    key: str | bytes | None = field(default=None, repr=False)
    receivers: Sequence[str] | None = None
    networks: Sequence[str] = ()
    http: bool = False
    per_task: int = 10
    attempts: int = 12
    pause_s: float = 1.0
    longest_pause_s: float = 300.0
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value: object = getattr(self, one.name)
            if one.name not in ("per_task", "attempts") and not one.name.endswith("_s"):
                continue
            kinds = (int, float) if one.name.endswith("_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
                raise ConfigurationError(f"PushNotifications.{one.name} takes a number above 0")
        for name, texts in (("receivers", self.receivers or ()), ("networks", self.networks)):
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise ConfigurationError(f"PushNotifications.{name} takes a list of texts")
        for text in self.receivers or ():
            if "/" in text or not text:
                raise ConfigurationError(
                    f"PushNotifications.receivers takes hosts, such as hooks.example.org: {text!r}"
                )
        for text in self.networks:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise ConfigurationError(f"PushNotifications.networks: {error}") from None
