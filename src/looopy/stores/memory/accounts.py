"""The accounts of one tenant in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from looopy.stores.contexts.spending import NOTHING, Amount, Place


class Sums(NamedTuple):
    """The use of an account, and the amount that is reserved in it."""

    used: Amount = NOTHING
    reserved: Amount = NOTHING


class Reservation(NamedTuple):
    """The most that a running call may use, and the rows that count it."""

    place: Place
    most: Amount
    charges: Sequence[tuple[str, str]]
    made_at_us: int


@dataclass(slots=True)
class Accounts:
    """The accounts of one tenant: sums by account and period, and reservations by name."""

    sums: dict[tuple[str, str], Sums] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)

    def add(self, charge: tuple[str, str], used: Amount, reserved: Amount) -> None:
        """Change the sums of an account in a period."""
        before = self.sums.get(charge, Sums())
        self.sums[charge] = Sums(before.used.plus(used), before.reserved.plus(reserved))

    def exchange(self, taken: Reservation, used: Amount) -> None:
        """Put *used* in the place of a reservation that was taken away."""
        for charge in taken.charges:
            self.add(charge, used, NOTHING.minus(taken.most))
