"""What tests of locks, lines and versions share: the jobs of tests.probes.lines in a lab, and their rows."""

import redis

from tests.faults.lab import PROBES, Lab, Row
from tests.probes.lines import EXTRA_APPS, TABLE, VERBS

LINES = {
    "EXTRA_APPS": EXTRA_APPS,
    "WORKER_GROUP_PROBES": ",".join([*PROBES, *VERBS]),
    "WORKER_SLOTS": "1",
}


def prepare(lab: Lab) -> Lab:
    """Make the table that the jobs write to."""
    lab.database.execute(TABLE)
    return lab


def written(lab: Lab, what: str) -> list[Row]:
    """Give what the jobs wrote about one thing, in order: operation_id as text, run, fence, seen."""
    return lab.rows(
        "SELECT operation_id::text, run, fence, seen FROM probe_line WHERE what = %s ORDER BY id", what
    )


def locks(lab: Lab) -> "redis.Redis":
    """The lock store; broker and cache are in other databases of the same server."""
    return redis.Redis.from_url(lab.stack.servers.redis_url, db=2, decode_responses=True)


def lock_key(lab: Lab, resource: str) -> str:
    return f"{lab.stack.name}:lock:{resource}"
