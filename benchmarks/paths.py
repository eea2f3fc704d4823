"""The paths that are measured: what is done, what is counted, and the proof that it was done."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.client import Answer, Connection, send
from benchmarks.sides import USERS, Ours, Reads, Side, WorkMissing

SETTLE_SECONDS = 0.15  # for acknowledgements and events that follow the last commit
POLL_SECONDS = 0.02
IDLE_POLL_SECONDS = 0.0005
PAUSES_SECONDS = (0.03, 0.08)  # between requests to an idle system
GIVE_UP_SECONDS = 300.0


@dataclass
class Sample:
    """One measured burst, divided by its number of operations."""

    operations: int
    cpu_ms: float = 0.0
    parts_ms: dict[str, float] = field(default_factory=dict)  # of cpu_ms: each process, postgres, valkey
    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds


def round_of(side: Side, *, operations: int, latencies: int) -> dict[str, Sample]:
    """Measure every path of one side once, and leave it at rest."""
    side.rest()
    samples: dict[str, Sample] = {}
    before, last = side.count(), side.last_entry()
    posts = side.posts(operations)
    samples["accept"], answers = _requests(side, posts, expecting=202)
    if isinstance(side, Ours):
        samples["repeat"], repeated = _requests(side, posts, expecting=202)
        _must_be_the_same(answers, repeated)
        samples["poll"], _ = _requests(side, side.polls(posts, answers), expecting=304)
    side.check(before, accepted=operations, ran=0)
    samples["run"] = _drained(side, last, operations)
    samples["whole"] = _whole(side, operations)
    samples["latency"] = _latency(side, latencies)
    side.check(before, accepted=2 * operations + latencies, ran=2 * operations + latencies)
    side.rest()
    return samples


def reads_of(side: Reads, *, operations: int) -> dict[str, Sample]:
    """Measure reads of what is cached and of what is not, each way through our cache and another.

    In short turns: a read costs so little that what else the machine does would decide.
    """
    samples = {way: Sample(0) for way in ("missed", "query", "cached", "bare")}
    for _ in range(max(1, operations // USERS)):
        side.forget()
        for way, sample in samples.items():
            if way == "bare":  # what it reads was not put there by the ways before
                send(side.url, side.gets(way), expecting=200)
            _add(sample, _requests(side, side.gets(way), expecting=200)[0])
    return samples


def _add(sample: Sample, turn: Sample) -> None:
    """Let `sample` be the mean of what it was and of one more turn."""
    whole = sample.operations + turn.operations
    parts = {part: sample.parts_ms.get(part, 0.0) for part in turn.parts_ms}
    sample.parts_ms = {
        part: (before * sample.operations + turn.parts_ms[part] * turn.operations) / whole
        for part, before in parts.items()
    }
    sample.operations, sample.seconds = whole, sample.seconds + turn.seconds
    sample.cpu_ms = sum(sample.parts_ms.values())
    sample.latencies_ms += turn.latencies_ms


def backlog_of(side: Side, *, operations: int) -> Sample:
    """Let operations pile up with no worker, then measure how they are worked off."""
    side.rest()
    before, last = side.count(), side.last_entry()
    send(side.url, side.posts(operations), expecting=202)
    sample = _drained(side, last, operations)
    side.check(before, accepted=operations, ran=operations)
    side.rest()
    return sample


def _requests(side: Side, requests: list[bytes], *, expecting: int) -> tuple[Sample, list[Answer]]:
    sample = Sample(len(requests))
    with _counted(side, sample):
        load = send(side.url, requests, expecting=expecting)
    sample.seconds = load.seconds
    sample.latencies_ms = [answer.seconds * 1000 for answer in load.answers]
    return sample, load.answers


def _drained(side: Side, last: int, operations: int) -> Sample:
    """Let the workers go on until all that waits has been done."""
    sample = Sample(operations)
    with _counted(side, sample):
        began = time.perf_counter()
        side.go_on()
        _wait_until_done(side, last, operations)
        sample.seconds = time.perf_counter() - began
        time.sleep(SETTLE_SECONDS)
    return sample


def _whole(side: Side, operations: int) -> Sample:
    """Send requests to a system that works, and wait for the last to be done."""
    sample, last = Sample(operations), side.last_entry()
    posts = side.posts(operations)
    with _counted(side, sample):
        began = time.perf_counter()
        send(side.url, posts, expecting=202)
        _wait_until_done(side, last, operations)
        sample.seconds = time.perf_counter() - began
        time.sleep(SETTLE_SECONDS)
    return sample


def _latency(side: Side, count: int) -> Sample:
    """Send one request at a time to an idle system, and look in the database for the commit of its work."""
    sample = Sample(count)
    connection = Connection(side.url)
    with _counted(side, sample):
        for post in side.posts(count):
            last = side.last_entry()
            began = time.perf_counter()
            connection.ask(post)
            while not side.entries_since(last):
                time.sleep(IDLE_POLL_SECONDS)
                _give_up_after(began)
            sample.latencies_ms.append((time.perf_counter() - began) * 1000)
            time.sleep(random.uniform(*PAUSES_SECONDS))
    connection.close()
    return sample


@contextmanager
def _counted(side: Side, sample: Sample) -> Iterator[None]:
    """Put the CPU that the block costs, in milliseconds for each operation, into the sample."""
    before = side.cpu_seconds()
    yield
    after = side.cpu_seconds()
    sample.parts_ms = {part: (after[part] - before[part]) * 1000 / sample.operations for part in before}
    sample.cpu_ms = sum(sample.parts_ms.values())


def _wait_until_done(side: Side, last: int, operations: int) -> None:
    began = time.perf_counter()
    while not side.is_done(last, operations):
        time.sleep(POLL_SECONDS)
        _give_up_after(began)


def _give_up_after(began: float) -> None:
    if time.perf_counter() - began > GIVE_UP_SECONDS:
        raise WorkMissing(f"not done after {GIVE_UP_SECONDS} s")


def _must_be_the_same(answers: list[Answer], repeated: list[Answer]) -> None:
    for first, again in zip(answers, repeated, strict=True):
        if (
            first.headers["location"] != again.headers["location"]
            or "idempotent-replayed" not in again.headers
        ):
            raise WorkMissing(f"a repeated key gave {again.body!r} after {first.body!r}")
