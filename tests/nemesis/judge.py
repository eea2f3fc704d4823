"""What came of it all: what was lost, what happened twice, and which promise was broken."""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from operations.models import DONE
from tests.crashes import judge
from tests.faults.lab import User
from tests.nemesis.lab import Lab
from tests.nemesis.load import Load, read

OPEN = """
    SELECT id::text, job_type, status, reason, run_at::text FROM operations_operation
    WHERE status <> ALL(%s) ORDER BY id"""
EXISTING = "SELECT id::text FROM operations_operation WHERE id = ANY(%s::uuid[])"
DOUBLES = """
    SELECT ref || ' was marked ' || what || ' ' || count(*) || ' times' AS said FROM probe_mark
    WHERE what <> 'mended' GROUP BY ref, what HAVING count(*) > 1
    UNION ALL SELECT operation_id || ' wrote ' || count(*) || ' times' FROM probe_line
    GROUP BY operation_id HAVING count(*) > 1
    UNION ALL SELECT 'key ' || idempotency_key || ' made ' || count(*) || ' operations'
    FROM operations_operation WHERE idempotency_key <> ''
    GROUP BY owner_id, job_type, idempotency_key HAVING count(*) > 1
    UNION ALL SELECT 'operation ' || parent || ' had ' || count(*) || ' follow-ups'
    FROM operations_operation WHERE parent IS NOT NULL GROUP BY parent HAVING count(*) > 1"""
# A success that left no trace, a step that is missing, or a trace without a success.
UNEVEN = """
    SELECT 'I2: ' || o.id || ' is ' || o.status || ' and left ' || count(w.operation_id) || ' rows' AS said
    FROM operations_operation AS o
    LEFT JOIN (SELECT operation_id FROM probe_mark WHERE what = 'done'
        UNION ALL SELECT operation_id FROM probe_line) AS w ON w.operation_id = o.id
    WHERE o.job_type IN ('probe.life', 'probe.turn', 'probe.hold')
    GROUP BY o.id HAVING (count(w.operation_id) > 0) <> (o.status = 'succeeded')"""
OVERTAKEN = """
    SELECT 'order: ' || operation_id || ' came before its turn on ' || what AS said FROM (
        SELECT l.operation_id, l.what, o.resource_seq AS seq,
            max(o.resource_seq) OVER (PARTITION BY l.what ORDER BY l.id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM probe_line AS l JOIN operations_operation AS o ON o.id = l.operation_id) AS turns
    WHERE seq < before"""
OUTRUN = """
    SELECT 'I4: ' || what || ' was written under fence ' || fence || ' after ' || before AS said FROM (
        SELECT what, fence, lag(fence) OVER (PARTITION BY what ORDER BY id) AS before
        FROM probe_line) AS written WHERE fence < before"""
STALE_SECONDS = 5.0  # I9 allows two relay periods, and reading takes its time


class Verdict(NamedTuple):
    """What was found, each in words."""

    operations: int
    lost: list[str]
    doubled: list[str]
    violations: list[str]


def unfinished(lab: Lab) -> list[str]:
    """Name what has not come to its end, a dead letter that somebody still has to send round included."""
    return [" ".join(row.values()) for row in lab.rows(OPEN, [str(status) for status in DONE])]


def verdict(lab: Lab, load: Load) -> Verdict:
    """Look at the rows, at what the outside saw, and at what clients read, once nothing happens any more."""
    return Verdict(
        operations=lab.rows("SELECT count(*) FROM operations_operation")[0]["count"],
        lost=lost(lab, load.accepted),
        doubled=doubled(lab, load.answers),
        violations=[
            *judge.by_verify(lab, load.accepted),
            *judge.by_fences(lab),
            *by_traces(lab),
            *_by_reading(lab, load),
            *load.refusals,
        ],
    )


def lost(lab: Lab, accepted: set[str]) -> list[str]:
    """Name what was answered and is not there, and what is there and does not end."""
    there = {row["id"] for row in lab.rows(EXISTING, sorted(accepted))}
    return [f"{id} was answered and does not exist" for id in sorted(accepted - there)] + unfinished(lab)


def doubled(lab: Lab, answers: Mapping[str, set[str]]) -> list[str]:
    """Name what happened twice: in our tables, to one key, or outside."""
    return [*_said(lab, DOUBLES), *_by_answers(answers), *_by_effects(lab)]


def by_traces(lab: Lab) -> list[str]:
    """Hold what the jobs wrote against their operations, the order of lines, and fences."""
    return [*_said(lab, UNEVEN), *_said(lab, OVERTAKEN), *_said(lab, OUTRUN)]


def _said(lab: Lab, query: str) -> list[str]:
    return [row["said"] for row in lab.rows(query)]


def _by_answers(answers: Mapping[str, set[str]]) -> Iterator[str]:
    for key, ids in answers.items():
        if len(ids) > 1:
            yield f"key {key} was answered with {sorted(ids)}"


def _by_effects(lab: Lab) -> Iterator[str]:
    """A call may be repeated, under its own key: then who honours keys does it once."""
    for ref, calls in lab.effects.by_ref().items():
        keys = {call.key for call in calls}
        if len(keys) > 1:
            yield f"{ref} had its effect under {len(keys)} keys"


def _by_reading(lab: Lab, load: Load) -> Iterator[str]:
    for user in load.users:
        version = load.versions[user.id]
        if lab.items(user) != {"sword": (version, version), "potion": (5, version)}:
            yield f"I8: user {user.id} has {lab.items(user)}, the provider version {version}"
        elif not _reads(user, version):
            yield f"I9: user {user.id} does not read version {version} after {STALE_SECONDS} s"


def _reads(user: User, version: int) -> bool:
    give_up_at = time.monotonic() + STALE_SECONDS
    while read(user)["version"] != version:
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.1)
    return True
