"""Which claims have been silent for a lease, by a clock that nobody sets.

The database's clock says when a lease is over, for it is one for all. But it may be set, and then every
lease is over at once, or none for hours. So whoever takes claims back also remembers, on its own monotonic
clock, since when each lease has not been renewed; and one who began to look just now waits before it
believes anything.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.conf import settings


class Lease(NamedTuple):
    """A claim's lease, as the database tells it."""

    token: UUID
    expires_at: datetime
    left_seconds: float  # by the database's clock


class Silence:
    """What one process has seen of the leases of all claims, from look to look."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._looked_at: float | None = None
        self._ends: dict[UUID, tuple[datetime, float]] = {}  # by token: a lease, and its end on our clock

    def among(self, leases: Iterable[Lease], *, now: float) -> list[UUID]:
        """Give the tokens of those that have not been renewed for a lease; `now` is of time.monotonic()."""
        self._ends = {lease.token: self._end_of(lease, now) for lease in leases}
        self._looked_at = now
        return [token for token, (_, end) in self._ends.items() if end <= now]

    def _end_of(self, lease: Lease, now: float) -> tuple[datetime, float]:
        known = self._ends.get(lease.token)
        if known is not None and known[0] == lease.expires_at:
            return known
        return lease.expires_at, now + self._believed(lease, now)

    def _believed(self, lease: Lease, now: float) -> float:
        """Give what a lease has left, if the database says what can be, else a whole one.

        It was written since the last look, so no more of it can be over than time has passed since.
        """
        whole = settings.LEASE_SECONDS
        if self._looked_at is None:
            return whole
        least = whole - (now - self._looked_at)
        return lease.left_seconds if least <= lease.left_seconds <= whole else whole
