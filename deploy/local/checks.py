"""The demo's last look: all that was promised, against the rows, the provider and the reads."""

import json
from collections import Counter

from deploy.local.console import owned
from deploy.local.stage import Stage, short
from deploy.local.truth import FINAL, Move, told

MOVES = """
import json
from operations.models import Operation
print(json.dumps([[move.source, move.to, reason] for move in Operation.MOVES for reason in move.reasons]))
"""
RUNS = "SELECT operation_id, run FROM operations_transition WHERE to_status = 'processing'"

Arrow = tuple[str, str, str]  # from, to, reason


def everything(stage: Stage) -> None:
    """Every promise of these is looked at once more."""
    _promised_is_final(stage)
    _one_operation_a_key(stage)
    _rows_are_the_snapshots(stage)
    _calls_are_explained(stage)
    _histories_are_legal(stage)
    _nothing_is_left(stage)


def _promised_is_final(stage: Stage) -> None:
    promised = {accepted.id for console in stage.consoles for accepted in console.accepted}
    statuses = Counter(stage.truth.operation(id).get("status", "missing") for id in promised)
    heard = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    stage.say("consoles", f"were promised {len(promised)} operations: {heard}")
    stage.promise("every operation that was promised is final", kept=set(statuses) <= set(FINAL), seen=heard)
    stage.promise("and all of these succeeded", kept=set(statuses) == {"succeeded"}, seen=heard)


def _one_operation_a_key(stage: Stage) -> None:
    answers = [accepted for console in stage.consoles for accepted in console.accepted]
    ids: dict[tuple[int, str], set[str]] = {}
    for user_id, key, id in answers:
        ids.setdefault((user_id, key), set()).add(id)
    rows = stage.truth.count("operations_operation")
    stage.say("database", f"{rows} operations for {len(ids)} keys and {len(answers)} accepted requests")
    one_each = rows == len(ids) and all(len(each) == 1 for each in ids.values())
    stage.promise("one key names one operation", kept=one_each, seen=f"{rows} rows, {ids}")


def _rows_are_the_snapshots(stage: Stage) -> None:
    users = {console.person.id: console for console in stage.consoles}
    rows = {id: (stage.truth.items(id), stage.truth.versions(id)) for id in users}
    reads = {id: owned(console.inventory()) for id, console in users.items()}
    counted = ", ".join(f"{len(rows[id][0])} of {console.person.name}" for id, console in users.items())
    stage.say("database", f"items: {counted}")
    snapshots = {id: (shelf.items, {shelf.version}) for id, shelf in stage.shelves.items()}
    stage.promise("the rows are the provider's snapshots, one set each", kept=rows == snapshots, seen=rows)
    same = all(reads[id] == shelf.items for id, shelf in stage.shelves.items())
    stage.promise("the reads are the same", kept=same, seen=reads)


def _calls_are_explained(stage: Stage) -> None:
    calls = Counter((entry["operation_id"], int(entry["run"])) for entry in stage.stack.provider.journal())
    runs = {(str(row["operation_id"]), row["run"]) for row in stage.truth.rows(RUNS)}
    first = sum(run == 1 for _, run in runs)
    stage.say(
        "provider", f"was asked {calls.total()} times: in {first} first runs and {len(runs) - first} others"
    )
    odd = [
        f"{short(id)} run {run}" for (id, run), times in calls.items() if times > 1 or (id, run) not in runs
    ]
    stage.promise("each call belongs to one run that the database knows", kept=not odd, seen=odd)


def _histories_are_legal(stage: Stage) -> None:
    printed = stage.stack.manage("shell", "--no-imports", "--command", MOVES)
    legal: set[Arrow] = {(source, to, reason) for source, to, reason in json.loads(printed.splitlines()[-1])}
    rows = stage.truth.rows("SELECT * FROM operations_operation ORDER BY created_at")
    histories = [stage.truth.history(str(row["id"])) for row in rows]
    stage.say("database", f"{sum(map(len, histories))} moves in {len(histories)} histories")

    illegal = [told(history) for history in histories if not _is_legal(history, legal)]
    stage.promise("each history is made of legal moves", kept=not illegal, seen=illegal)
    intruded = [told(history) for history in histories if not _is_by_its_holder(history)]
    stage.promise("a run is ended by its own worker or by the relay", kept=not intruded, seen=intruded)
    over = [short(str(row["id"])) for row in rows if row["attempt"] > min(row["runs"], row["max_attempts"])]
    stage.promise("no operation has more attempts than its contract", kept=not over, seen=over)


def _is_legal(history: list[Move], legal: set[Arrow]) -> bool:
    """Look whether each move begins where the one before it ended, and is one that the code has."""
    sources = ["", *(move.to for move in history[:-1])]
    connected = [move.source for move in history] == sources
    return connected and all((move.source, move.to, move.reason) in legal for move in history)


def _is_by_its_holder(history: list[Move]) -> bool:
    holder = ""
    for move in history:
        if move.source == "processing" and move.actor not in {holder, "relay"}:
            return False
        holder = move.actor
    return True


def _nothing_is_left(stage: Stage) -> None:
    tables = ("operations_aftercommit", "operations_deadletter")
    left = {table: stage.truth.count(table) for table in tables}
    stage.promise("nothing is owed, and nothing is dead", kept=not any(left.values()), seen=left)
