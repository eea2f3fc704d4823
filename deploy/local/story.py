"""What clients do to the platform: the first half of the demo. Each step's docstring is its title."""

from collections import Counter

from deploy.local.stage import Stage, short

AT_ONCE = 10


def first_sync(stage: Stage) -> None:
    """Ana's console asks for her inventory, and reads it."""
    stage.restock(stage.ana)

    id = stage.accept(stage.ana, "ana-1")
    stage.promise("a 202 means that the row is there", kept=bool(stage.truth.operation(id)), seen="no row")
    stage.until_succeeded(id, "what was accepted is done")

    stage.heard(stage.ana, f"GET operation {short(id)}", stage.ana.operation(id))
    stage.read_fresh(stage.ana, "the read shows what the provider has")


def ten_at_once(stage: Stage) -> None:
    """An impatient console sends one request ten times at the same moment."""
    stage.restock(stage.ana)

    answers = stage.ana.sync_at_once("ana-2", AT_ONCE)
    statuses, ids = Counter(answer.status for answer in answers), {answer.id for answer in answers}
    heard = ", ".join(f"{_times(times)} {status}" for status, times in sorted(statuses.items()))
    stage.say("ana", f"{AT_ONCE} times POST sync, key ana-2 → {heard}: {', '.join(map(short, sorted(ids)))}")
    stage.promise("every repeat is answered like the first", kept=set(statuses) <= {200, 202}, seen=heard)
    rows = stage.truth.operations_of(stage.ana.person.id, "ana-2")
    stage.promise(
        "one key makes one operation", kept=ids == set(rows) and len(rows) == 1, seen=f"{ids}, rows {rows}"
    )

    stage.until_succeeded(rows[0], "what was accepted is done")
    calls = stage.calls(rows[0])
    stage.say("provider", f"asked {_times(calls)} for {short(rows[0])}")
    stage.promise("the provider is asked once", kept=calls == 1, seen=f"asked {calls} times")
    stage.read_fresh(stage.ana, "the read shows what the provider has")


def answer_lost(stage: Stage) -> None:
    """The connection breaks after the server has accepted, before the console hears of it."""
    stage.restock(stage.ana)

    def rows() -> list[str]:
        return stage.truth.operations_of(stage.ana.person.id, "ana-3")

    stage.ana.sync_and_vanish(
        "ana-3",
        when=lambda: stage.wait(rows, promise="a request that was sent is accepted", seen=lambda: "no row"),
    )
    stage.say("ana", "POST sync, key ana-3 → connection lost, no answer read")
    accepted = rows()[0]
    stage.say("database", f"{short(accepted)} was accepted all the same")

    again = stage.ask(stage.ana, "ana-3")
    same = again.id == accepted and rows() == [accepted]
    stage.promise("asking again gives the same operation", kept=same, seen=f"{again.id}, rows {rows()}")
    replayed = again.headers.get("Idempotent-Replayed") == "true"
    stage.promise("a repeat says that it is one", kept=replayed, seen=dict(again.headers))
    stage.until_succeeded(accepted, "what was accepted is done")


def key_misused(stage: Stage) -> None:
    """A key comes back with another body, and from another user."""
    stage.restock(stage.budi)

    other = stage.ask(stage.ana, "ana-3", body={"full": True})
    stage.promise("a used key with another body is refused", kept=other.status == 422, seen=other.status)
    wrong = stage.ask(stage.ana, "ana-4", body={"full": True})
    stage.promise("a body that the job does not know is refused", kept=wrong.status == 400, seen=wrong.status)
    rows = stage.truth.operations_of(stage.ana.person.id, "ana-4")
    stage.promise("what is refused leaves no row and burns no key", kept=not rows, seen=rows)

    id = stage.accept(stage.budi, "ana-3")
    ours = stage.truth.operations_of(stage.ana.person.id, "ana-3")
    stage.promise(
        "keys of different users never meet", kept=id not in ours, seen=f"Budi was given {id}, Ana's"
    )
    hidden = stage.heard(stage.ana, f"GET operation {short(id)}", stage.ana.operation(id))
    stage.promise("nobody sees another's operation", kept=hidden.status == 404, seen=hidden.status)
    stage.until_succeeded(id, "what was accepted is done")


def page_resumed(stage: Stage) -> None:
    """A page sleeps on Ana's console while her phone moves on; then it wakes and acts on what it saw."""
    page = stage.read(stage.ana).headers["ETag"]
    stage.restock(stage.ana)
    stage.say("provider", "Ana plays on her phone; she owns other things now")
    stage.until_succeeded(stage.accept(stage.ana, "ana-phone-1"), "what was accepted is done")

    refused = stage.ask(stage.ana, "ana-page-1", seen=page)
    stage.promise(
        "an old page acts on nothing", kept=refused.status == 412, seen=f"{refused.status} {refused.body}"
    )
    rows = stage.truth.operations_of(stage.ana.person.id, "ana-page-1")
    stage.promise("412 leaves no row and burns no key", kept=not rows, seen=rows)

    fresh = stage.read_fresh(stage.ana, "reloading the page shows what is true now").headers["ETag"]
    stage.restock(stage.ana)
    id = stage.accept(stage.ana, "ana-page-1", seen=fresh)
    stage.until_succeeded(id, "the same key works once the page has seen the truth")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
