"""Where the demo plays: a running stack, three consoles, the provider's shelves, and the database."""

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from deploy.local import people
from deploy.local.console import Answer, Console, owned
from deploy.local.provider_store import Fault
from deploy.local.stack import Stack
from deploy.local.telling import Broken, Telling
from deploy.local.truth import Move, Truth, told

NAMES = ("ana", "budi", "citra")
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 20.0  # nothing in the story takes longer unless a promise is broken


class Shelf(NamedTuple):
    """What the provider says that a user owns."""

    version: int
    items: dict[str, int]


class Stage:
    """What every step needs."""

    def __init__(self, stack: Stack, telling: Telling) -> None:
        """Make the users; the stack runs."""
        self.stack = stack
        self.truth = Truth(stack.env["DATABASE_URL"])
        self.shelves: dict[int, Shelf] = {}
        self._telling = telling
        self.consoles = [Console(stack.api_url, person) for person in people.make(stack, NAMES)]
        self.ana, self.budi, self.citra = self.consoles

    def close(self) -> None:
        self.truth.close()
        for console in self.consoles:
            console.close()

    def say(self, who: str, text: str) -> None:
        self._telling.say(who, text)

    def promise(self, promise: str, *, kept: bool, seen: object) -> None:
        """Tell that a promise was kept.

        Raises:
            Broken: It was not.
        """
        if not kept:
            raise Broken(promise, str(seen))
        self._telling.kept(promise)

    def wait(self, probe: Callable[[], Any], *, promise: str, seen: Callable[[], object]) -> Any:
        """Look until something is there, and give it.

        Raises:
            Broken: It did not come in PATIENCE_SECONDS.
        """
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not (found := probe()):
            if time.monotonic() > give_up_at:
                raise Broken(promise, f"after {PATIENCE_SECONDS:.0f} s, {seen()}")
            time.sleep(POLL_SECONDS)
        return found

    def restock(self, console: Console) -> Shelf:
        """Let a user own something else from now on; the provider forgets what was theirs before."""
        user_id = console.person.id
        version = self.shelves[user_id].version + 1 if user_id in self.shelves else 1
        shelf = Shelf(version, {"arrows": 10 * version, f"gem-{version}": 1, "potions": version + 1})
        self.stack.provider.set_snapshot(user_id, version=version, items=shelf.items)
        self.shelves[user_id] = shelf
        return shelf

    def spoil(self, console: Console, **fault: Any) -> None:
        """Spoil the provider's next answer for a user that is not spoilt yet."""
        self.stack.provider.fail(Fault(user_id=console.person.id, times=1, **fault))

    def calls(self, id: str) -> int:
        """Count how often the provider was asked for an operation."""
        return len(self.stack.provider.journal(operation_id=id))

    def ask(self, console: Console, key: str, **request: Any) -> Answer:
        """Ask for a sync and tell what came back."""
        answer = console.sync(key, **request)
        return self.heard(console, f"POST sync, key {key}{_spelt(**request)}", answer)

    def heard(self, console: Console, request: str, answer: Answer) -> Answer:
        self.say(console.person.name, f"{request} → {answer.status} {_in_short(answer)}".rstrip())
        return answer

    def accept(self, console: Console, key: str, **request: Any) -> str:
        """Ask for a sync that is to be accepted, and give the operation's id."""
        answer = self.ask(console, key, **request)
        if answer.status != 202:
            raise Broken("a request with a new key is accepted", f"{answer.status} {answer.body}")
        return answer.id

    def until_called(self, id: str, *, runs: int = 1) -> Move:
        """Wait until the provider has been asked in a run, and give the claim of that run."""
        self.wait(
            lambda: self.calls(id) == runs,
            promise="a worker takes up what was accepted",
            seen=lambda: told(self.truth.history(id)),
        )
        return self.truth.history(id)[-1]

    def until_succeeded(self, id: str, promise: str) -> list[Move]:
        """Wait until an operation has succeeded, tell its history and give it."""
        row = self.wait(
            lambda: self._final(id), promise=promise, seen=lambda: told(self.truth.history(id)) or "no row"
        )
        history = self.truth.history(id)
        self.say("database", f"{short(id)}: {told(history)}")
        self.promise(promise, kept=row["status"] == "succeeded", seen=told(history))
        return history

    def read(self, console: Console) -> Answer:
        answer = console.inventory()
        things = ", ".join(f"{quantity} {sku}" for sku, quantity in owned(answer).items())
        self.say(
            console.person.name,
            f"GET inventory → {answer.status} version {answer.body.get('version')}: {things}",
        )
        return answer

    def read_fresh(self, console: Console, promise: str) -> Answer:
        """Read the inventory and hold it against the provider's."""
        answer, shelf = self.read(console), self.shelves[console.person.id]
        self.promise(
            promise,
            kept=(answer.body.get("version"), owned(answer)) == shelf,
            seen=f"version {answer.body.get('version')}, not {shelf.version}",
        )
        return answer

    def _final(self, id: str) -> dict[str, Any]:
        row = self.truth.operation(id)
        return row if row.get("finished_at") is not None else {}


def short(id: str) -> str:
    """Give the end of an operation's id: its beginning is the time."""
    return f"…{id[-6:]}"


def _spelt(*, body: dict[str, Any] | None = None, seen: str | None = None) -> str:
    said = "" if body is None else f", body {json.dumps(body)}"
    return said if seen is None else f"{said}, If-Match {seen}"


def _in_short(answer: Answer) -> str:
    if answer.id:
        return f"{short(answer.id)} {answer.body['status']}"
    return str(answer.body.get("title", ""))
