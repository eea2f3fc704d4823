"""The test's side of tests/probes/marks/traps.py."""

import json
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """A point and the process that dies there; `whole`: with all that belongs to it."""

    point: str
    process: str
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.point} {self.who}"

    @property
    def who(self) -> str:
        return f"whole {self.process}" if self.whole else self.process


class Trap:
    """A file that every process of a stack looks at when it passes a point."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.file = directory / "trap"
        self.clear()

    def clear(self) -> None:
        self.file.write_text("")

    def set(self, place: Place, *, nth: int) -> None:
        """Wait for the nth passage, counted over all processes of that kind from now on."""
        self.file.write_text(json.dumps({**place._asdict(), "left": nth}))

    @property
    def sprung_at(self) -> float | None:
        """When somebody died, as time.time(); None: nobody has."""
        said = self.file.read_text()
        return json.loads(said).get("sprung_at") if said else None
