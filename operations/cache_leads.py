"""Leads that this process may have and does not use: the answer that told of them was lost.

Who waits for such a lead would wait until it ends. So it is let go in the background, as soon as the cache
answers.
"""

import threading
import time
from dataclasses import dataclass

from operations import cache_store
from operations.cache_flights import chores
from operations.cache_names import Place
from operations.cache_store import AWAY

LOOK_SECONDS = 1.0
# What was sent before may be carried out after: a server that stood still takes its clients in any order.
TIMES = 2


@dataclass
class Lost:
    """A lead that may be held."""

    place: Place
    until: float  # time.monotonic(): it has ended by itself
    times: int = TIMES  # to let it go


class Leads:
    """What this process has to let go."""

    def __init__(self) -> None:
        """Begin with none."""
        self.begin()

    def begin(self) -> None:
        """Begin anew, as in a child."""
        self._lock = threading.Lock()
        self._lost: dict[str, Lost] = {}
        self._look_at = 0.0

    def lose(self, place: Place, token: str, *, seconds: float) -> None:
        """Remember a lead for as long as it may last, and let it go soon."""
        with self._lock:
            self._lost[token] = Lost(place, time.monotonic() + seconds + LOOK_SECONDS)
        self.look()

    def look(self) -> None:
        """Let go of what is lost in the background, if there is any; once a second."""
        if self._lost and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            chores.do("leads", self.let_go)

    def let_go(self) -> None:
        """Give up each lead; what can't be told now is tried again while it may be held."""
        with self._lock:
            lost = dict(self._lost)
        for token, each in lost.items():
            try:
                cache_store.let_go(each.place, token)
                each.times -= 1
            except AWAY:
                if time.monotonic() < each.until:
                    return
                each.times = 0
            if each.times <= 0:
                with self._lock:
                    self._lost.pop(token, None)


leads = Leads()
