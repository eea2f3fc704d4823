"""How the demo reads: a title a step, who said what and when, and the promises that were kept."""

import os
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

BOLD, DIM, RED, GREEN = "1", "2", "31", "32"
NAME_WIDTH = 9  # "database " is the longest who


class Broken(Exception):
    """A promise was not kept."""

    def __init__(self, promise: str, seen: str) -> None:
        """Take the promise, and what was seen instead."""
        super().__init__(f"{promise}: {seen}")
        self.promise = promise
        self.seen = seen


@dataclass
class Scene:
    """One step of the story, as it goes into the report."""

    name: str
    title: str
    ok: bool = True
    seen: list[str] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "seen": self.seen}


class Telling:
    """Tells to `out` as it happens, and keeps what was told; with no `out`, only keeps it."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.steps: list[Scene] = []
        self._out = out
        self._colour = out is not None and out.isatty() and "NO_COLOR" not in os.environ
        self._began = time.monotonic()

    def begin(self, name: str, title: str) -> None:
        self.steps.append(Scene(name, title))
        self._began = time.monotonic()
        self.line(f"\n{self._in(BOLD, f'{len(self.steps):>2}  {title}')}")

    def say(self, who: str, text: str) -> None:
        """Tell what somebody did or saw, with the seconds since the step began."""
        self.steps[-1].seen.append(f"{who}: {text}")
        at = f"{time.monotonic() - self._began:5.1f} s"
        self.line(f"  {self._in(DIM, at)}  {who:<{NAME_WIDTH}} {text}")

    def kept(self, promise: str) -> None:
        self.steps[-1].seen.append(f"kept: {promise}")
        self.line(f"           {self._in(GREEN, '✓')} {promise}")

    def broken(self, broken: Broken) -> Broken:
        """Tell of a broken promise, and give it back."""
        self.steps[-1].ok = False
        self.steps[-1].seen.append(f"broken: {broken}")
        self.line(f"           {self._in(RED, '✗')} {broken}")
        return broken

    def line(self, text: str) -> None:
        """Tell something that belongs to no step."""
        if self._out is not None:
            print(text, file=self._out, flush=True)

    def _in(self, colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text
