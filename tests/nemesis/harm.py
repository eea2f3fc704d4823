"""What each kind of fault does. A victim that is not up is waited for: the caller tries again."""

import os
import signal
from collections.abc import Callable, Sequence
from typing import TypeVar

import psutil
import psycopg
import redis

from deploy.local.process import Process
from deploy.local.provider_store import Fault as Spoilt
from tests.faults.envelopes import body, envelope
from tests.nemesis.lab import Lab
from tests.nemesis.schedule import Fault

AWAY = (psycopg.OperationalError, redis.ConnectionError, redis.TimeoutError, psutil.NoSuchProcess)
SLOW_SECONDS = 1.0  # an answer that is late, and one that comes after the call has given up
TOO_SLOW_SECONDS = 3.0
COPIES = 3  # of each message that is doubled
WORK = (
    "SELECT id::text, job_type, claimed_by FROM operations_operation WHERE status = 'processing' ORDER BY id"
)
FINISHED = """
    SELECT id::text, job_type FROM operations_operation WHERE finished_at IS NOT NULL
    ORDER BY finished_at DESC LIMIT 5"""
END_ALL = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""

Undo = Callable[[], None]
Victim = TypeVar("Victim")


class VictimAway(Exception):
    """What is to be harmed is down already, and has to come up first."""


def do(lab: Lab, fault: Fault) -> Undo | None:
    """Harm the stack, and give what ends it, if it does not end by itself.

    Raises:
        VictimAway: nothing was done.
    """
    try:
        return ACTS[fault.kind](lab, fault)
    except AWAY as error:
        raise VictimAway(fault.kind) from error


def kill_child(lab: Lab, fault: Fault) -> None:
    """Kill a process that is at work, or if none is, one that waits for work."""
    holders = {int(row["claimed_by"].rpartition("/")[2]) for row in lab.rows(WORK)}
    children = [child for worker in _ready(lab.workers) for child in worker.children()]
    _one_of([child for child in children if child.pid in holders] or children, fault).kill()


def kill_worker(lab: Lab, fault: Fault) -> None:
    """Kill a worker's parent, in half of the cases with all of its children."""
    whom = "parent" if int(fault.pick * 4) % 2 else "group"
    _one_of(_ready(lab.workers), fault).kill(whom=whom)


def kill_relay(lab: Lab, fault: Fault) -> None:
    _one_of(_ready([lab.stack.process("relay")]), fault).kill()


def kill_web(lab: Lab, fault: Fault) -> None:
    """Kill all of the web server, or one of its workers."""
    web = _one_of(_ready([lab.stack.process("web")]), fault)
    if fault.pick < 0.5:
        web.kill(whom="group")
    else:
        _one_of(web.children(), fault).kill()


def stop_worker(lab: Lab, fault: Fault) -> Undo:
    worker = _one_of(_ready(lab.workers), fault)
    worker.kill(signal.SIGSTOP, whom="group")

    def go_on() -> None:
        if worker.is_alive():
            worker.kill(signal.SIGCONT, whom="group")

    return go_on


def tell_worker_to_end(lab: Lab, fault: Fault) -> None:
    _one_of(_ready(lab.workers), fault).kill(signal.SIGTERM)


def restart_valkey(lab: Lab, fault: Fault) -> None:
    """Kill it; it comes back with nothing."""
    if not lab.stack.servers.valkey.is_alive():
        raise VictimAway("valkey")
    lab.stack.servers.valkey.kill()


def flush_valkey(lab: Lab, fault: Fault) -> None:
    with lab.broker as broker:
        broker.flushall()


def restart_postgres(lab: Lab, fault: Fault) -> None:
    """Have it shut down immediately: no checkpoint, no good-bye; what it does next is recovery."""
    lab.rows("SELECT 1")
    os.kill(lab.stack.servers.postgres.pid, signal.SIGQUIT)


def kill_backends(lab: Lab, fault: Fault) -> None:
    lab.rows(END_ALL)


def slow_provider(lab: Lab, fault: Fault) -> Undo:
    seconds = SLOW_SECONDS if fault.pick < 0.5 else TOO_SLOW_SECONDS
    lab.provider.fail(Spoilt(delay_seconds=seconds))
    return lab.provider.clear_faults


def failing_provider(lab: Lab, fault: Fault) -> Undo:
    """Have it answer 503, or nothing."""
    lab.provider.fail(Spoilt(status=503) if fault.pick < 0.5 else Spoilt(drop=True))
    return lab.provider.clear_faults


def double_messages(lab: Lab, fault: Fault) -> None:
    """Deliver again what is at work, and what has just been finished."""
    with lab.broker as broker:
        for row in [*lab.rows(WORK), *lab.rows(FINISHED)]:
            queue = row["job_type"]
            to = {"delivery_info": {"exchange": "", "routing_key": queue}}
            copies = [envelope(body(row["id"]), task=queue, properties=to) for _ in range(COPIES)]
            broker.rpush(f"{lab.stack.name}:{queue}", *copies)


ACTS: dict[str, Callable[[Lab, Fault], Undo | None]] = {
    "child killed": kill_child,
    "worker killed": kill_worker,
    "relay killed": kill_relay,
    "web killed": kill_web,
    "worker stopped beyond its lease": stop_worker,
    "worker told to end": tell_worker_to_end,
    "valkey restarted": restart_valkey,
    "valkey flushed": flush_valkey,
    "postgres restarted": restart_postgres,
    "backends killed": kill_backends,
    "slow provider": slow_provider,
    "failing provider": failing_provider,
    "messages doubled": double_messages,
}


def _ready(processes: Sequence[Process]) -> list[Process]:
    return [process for process in processes if process.is_ready()]


def _one_of(victims: Sequence[Victim], fault: Fault) -> Victim:
    if not victims:
        raise VictimAway(fault.kind)
    return victims[int(fault.pick * len(victims))]
