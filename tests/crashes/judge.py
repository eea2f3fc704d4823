"""Is everything over, and did every promise hold? By `manage.py verify`, by the rows, and by the outside."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from deploy.local import procfile
from operations.models import FINAL
from tests.crashes.lanes import RELAY_PERIOD_SECONDS, Lab
from tests.crashes.load import SNAPSHOT, Load, insist
from tests.faults.lab import PRICE_MINOR, User
from tests.faults.lab import Lab as FaultLab

# What each life writes; the others only "done".
MARKS = {
    "work": ("first", "second", "done"),
    "buy": ("first", "done"),
    "shy": ("reserved", "released"),
    "perish": (),
}
ONCE = ("buy", "shy")  # whose effects are looked up before they are sent again
STALE_SECONDS = 2 * RELAY_PERIOD_SECONDS + 1.0  # I9, and what reading takes on a busy machine
OPEN = """
    SELECT id::text, job_type, status, reason FROM operations_operation
    WHERE owner_id = ANY(%s) AND status <> ALL(%s) ORDER BY id"""
OWED = """
    SELECT 'dead letter ' || l.id || ' is not reported' AS what FROM operations_deadletter AS l
    JOIN operations_operation AS o ON o.id = l.operation_id
    WHERE o.owner_id = ANY(%(users)s) AND l.reported_at IS NULL
    UNION ALL SELECT 'dead letter ' || l.id || ' waits' FROM operations_deadletter AS l
    JOIN operations_operation AS o ON o.id = l.operation_id
    WHERE o.owner_id = ANY(%(users)s) AND o.id = ANY(%(mended)s::uuid[]) AND l.resolution = 'waiting'
    UNION ALL SELECT 'after-commit work of ' || a.operation_id FROM operations_aftercommit AS a
    JOIN operations_operation AS o ON o.id = a.operation_id WHERE o.owner_id = ANY(%(users)s)"""


def unfinished(lab: Lab, load: Load) -> list[str]:
    """Name what has not come to its end."""
    statuses = [str(status) for status in FINAL]
    waiting = [" ".join(row.values()) for row in lab.rows(OPEN, load.users, statuses)]
    mended = [load.lives[ref] for ref in [load.ref_of("mend")] if ref is not None]
    owed = lab.database.execute(OWED, {"users": load.users, "mended": mended}).fetchall()
    return waiting + [row["what"] for row in owed]


def violations(lab: Lab, load: Load) -> list[str]:
    """Name what is broken, each with its invariant in front."""
    return [
        *(f"I1: {what}" for what in unfinished(lab, load)),
        *by_verify(lab, load.accepted),
        *_by_rows(lab, load),
        *_by_effects(lab, load),
        *by_money(lab, load.purchases),
        *_by_reading(lab, load),
    ]


def by_verify(lab: FaultLab, accepted: Iterable[str]) -> list[str]:
    """Name what `manage.py verify` finds, `accepted` being the ids that were answered."""
    file = lab.stack.directory / "accepted"
    file.write_text("\n".join(accepted))
    command = [sys.executable, str(procfile.ROOT / "manage.py"), "verify", "--json", "--accepted", file]
    done = subprocess.run(command, env=lab.stack.env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    broken = json.loads(done.stdout)["violations"]
    return [f"{each['invariant']}: {each['what']}: {', '.join(each['rows'])}" for each in broken]


def _by_rows(lab: Lab, load: Load) -> Iterator[str]:
    """Compare with what was asked: once each, every step once, and no fence older than the one before."""
    for ref, how in load.hows.items():
        status = "failed_permanent" if how in ("perish", "shy") else "succeeded"
        yield from _statuses(lab, [load.lives[ref]], {status: 1})
        yield from _marks(lab, ref, MARKS.get(how, ("done",)))
        if how == "work":
            yield from _marks(lab, f"{ref}-after", ("done",))
    yield from _statuses(lab, load.syncs, {"succeeded": len(load.syncs)})
    if load.rivals:
        yield from _statuses(lab, load.rivals, {"succeeded": 1, "ignored": len(load.rivals) - 1})
    yield from _statuses(lab, [*load.purchases.values()], {"succeeded": len(load.purchases)})
    # A lamp that is paid is granted, and a receipt is sent.
    follow_ups = list(load.hows.values()).count("work") + 2 * len(load.purchases)
    expected = len(load.accepted) + follow_ups
    made = lab.rows("SELECT count(*) FROM operations_operation WHERE owner_id = ANY(%s)", load.users)
    if made[0]["count"] != expected:
        yield f"I5: {made[0]['count']} operations were made of {expected} requests"
    yield from by_fences(lab)


def _statuses(lab: Lab, ids: list[str], expected: dict[str, int]) -> Iterator[str]:
    found = lab.rows("SELECT status FROM operations_operation WHERE id = ANY(%s::uuid[])", ids)
    if Counter(row["status"] for row in found) != Counter(expected):
        yield f"I1: not {expected} but {[_story(lab, id) for id in ids]}"


def _story(lab: Lab, id: str) -> str:
    moves = [f"{move['to_status']} {move['reason']}{move['error']}" for move in lab.moves(id)]
    return f"{id}: {', '.join(moves)}"


def _marks(lab: Lab, ref: str, expected: tuple[str, ...]) -> Iterator[str]:
    rows = lab.rows("SELECT what FROM probe_mark WHERE ref = %s AND what <> 'mended'", ref)
    found = Counter(row["what"] for row in rows)
    if found != Counter(expected):
        yield f"I2: {ref} left the marks {dict(found)}, not each of {expected} once"


def by_fences(lab: FaultLab) -> Iterator[str]:
    """Name what was written under an older fence than what was written before."""
    older = lab.rows("""
        SELECT resource, fence, before FROM (
            SELECT resource, fence, lag(fence) OVER (PARTITION BY resource ORDER BY id) AS before
            FROM probe_mark WHERE resource <> '') AS marks WHERE fence < before""")
    for row in older:
        yield f"I4: {row['resource']} was written under fence {row['fence']} after {row['before']}"


def _by_effects(lab: Lab, load: Load) -> Iterator[str]:
    """Look what the outside saw: one key an operation, and no call that no run made."""
    for ref, id in load.lives.items():
        if load.hows[ref] in ONCE:
            yield from _once(lab, ref, how=load.hows[ref])
            continue
        calls = lab.effects.calls(ref)
        if len({call.key for call in calls}) != 1:
            yield f"I2: {len(calls)} effects of {ref} under {len({call.key for call in calls})} keys"
        if len({call.run for call in calls}) != len(calls) or len(calls) > lab.operation(id)["runs"]:
            yield f"I2: {len(calls)} effects of {ref} in {lab.operation(id)['runs']} runs"


def _once(lab: Lab, ref: str, *, how: str) -> Iterator[str]:
    """Look that what must not be done twice was done once, and given back once if it was not wanted."""
    for name in (ref, f"{ref}-let-go")[: 2 if how == "shy" else 1]:
        calls = lab.effects.calls(name)
        if len(calls) != 1:
            yield f"I2: {len(calls)} effects of {name}, which is {how}"


BOOKS = """
    SELECT o.status, count(e.id) AS entries, sum(e.amount_minor) AS amount
    FROM payments_order AS o LEFT JOIN payments_ledgerentry AS e ON e.order_id = o.id
    WHERE o.number = %s GROUP BY o.status"""


def by_money(lab: FaultLab, purchases: Mapping[str, str]) -> Iterator[str]:
    """Compare the gateway's own journal with orders and ledger: one charge for each, and one entry."""
    journal = lab.gateway.journal() if purchases else []
    for order, id in purchases.items():
        taken = [e["amount"] for e in journal if (e["what"], e["operation_id"]) == ("captured", id)]
        books = lab.rows(BOOKS, order)
        kept = books[0] if books else {"status": "none", "entries": 0, "amount": None}
        if taken != [PRICE_MINOR] or (kept["status"], kept["entries"], kept["amount"]) != (
            "paid",
            1,
            PRICE_MINOR,
        ):
            yield f"I2: order {order} of {id}: the gateway took {taken}, and our books have {kept}"


def _by_reading(lab: Lab, load: Load) -> Iterator[str]:
    """Read what the syncs brought, over HTTP and so from the cache, and from the rows."""
    for user, synced in ((load.owner, load.syncs), (load.rival, load.rivals)):
        if not synced:
            continue
        if lab.items(user) != {sku: (quantity, 1) for sku, quantity in SNAPSHOT.items()}:
            yield f"I8: user {user.id} has {lab.items(user)}"
        if not _reads_what_was_synced(user):
            yield f"I9: user {user.id} still reads the old inventory after {STALE_SECONDS} s"


def _reads_what_was_synced(user: User) -> bool:
    give_up_at = time.monotonic() + STALE_SECONDS
    while insist(user.inventory)["version"] != 1:
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.1)
    return True
