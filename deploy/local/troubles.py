"""What breaks under the platform: the second half of the demo. Each step's docstring is its title."""

import json
import signal
import time
from datetime import timedelta

import redis

from deploy.local.stage import Stage, short
from deploy.local.truth import Move, told

LEASE_SECONDS, RELAY_PERIOD_SECONDS = 4.0, 1.0
SETTINGS = {
    "LEASE_SECONDS": f"{LEASE_SECONDS}",
    "HEARTBEAT_SECONDS": "1",
    "RELAY_PERIOD_SECONDS": f"{RELAY_PERIOD_SECONDS}",
    "REPUBLISH_AFTER_SECONDS": "2",
    "WORKER_SLOTS": "2",
}
FIRST_BACKOFF = (timedelta(seconds=5), timedelta(seconds=10))  # 5 s, jittered to twice that
SLACK_SECONDS = 2.0  # for a machine with other things to do
QUEUE = "inventory.sync"
REFUSED = "operation.fence_rejected"
SECOND = "worker-inventory#2"


def provider_fails(stage: Stage) -> None:
    """The provider answers 503; the operation comes back by schedule."""
    stage.restock(stage.budi)
    stage.spoil(stage.budi, status=503)

    id = stage.accept(stage.budi, "budi-1")
    waiting = stage.wait(
        lambda: (row := stage.truth.operation(id))["status"] == "retry_scheduled" and row,
        promise="a failure that may pass is tried again",
        seen=lambda: told(stage.truth.history(id)),
    )
    heard = stage.budi.operation(id)
    stage.say(
        "budi", f"GET operation {short(id)} → {heard.body['status']}, waits for {heard.body['waiting_for']}"
    )
    pause = waiting["run_at"] - stage.truth.history(id)[-1].at
    stage.say(
        "database", f"due again in {pause.total_seconds():.1f} s; the time is in the row, not in the broker"
    )
    least, most = FIRST_BACKOFF
    stage.promise(
        "the first pause is 5 to 10 s", kept=least <= pause <= most + timedelta(seconds=0.5), seen=pause
    )

    history = stage.until_succeeded(id, "the relay sends it round when it is due")
    stage.promise("each try is counted", kept=history[-1].attempt == 2, seen=told(history))
    stage.read_fresh(stage.budi, "the read shows what the provider has")


def worker_killed(stage: Stage) -> None:
    """Kill -9 takes a worker, children and all, in the middle of the call."""
    stage.restock(stage.ana)
    stage.spoil(stage.ana, delay_seconds=30)

    id = stage.accept(stage.ana, "ana-5")
    claim = stage.until_called(id)
    stage.stack.worker.kill(whom="group")
    stage.say("worker", f"{claim.actor} was asking the provider, and is dead")
    stage.say(
        "database",
        f"{short(id)}: {stage.truth.operation(id)['status']}; its lease ends in {LEASE_SECONDS:.0f} s",
    )
    stage.stack.worker.restart()
    stage.say("worker", "another one is up")

    history = stage.until_succeeded(id, "what a dead worker held is taken back and done")
    _taken_back(stage, history, claim)
    stage.read_fresh(stage.ana, "the read shows what the provider has")


def worker_frozen(stage: Stage) -> None:
    """A worker freezes in the middle of the call, loses its claim, and wakes up with an old answer."""
    stage.restock(stage.ana)
    stage.spoil(stage.ana, delay_seconds=3)
    stage.spoil(stage.ana, delay_seconds=3)

    id = stage.accept(stage.ana, "ana-6")
    claim = stage.until_called(id)
    frozen = stage.stack.worker
    frozen.kill(signal.SIGSTOP, whom="group")
    stage.say(
        "worker",
        f"{claim.actor} asked for version {stage.shelves[stage.ana.person.id].version} and is frozen",
    )
    stage.restock(stage.ana)
    stage.stack.add(SECOND)
    second = stage.until_called(id, runs=2)
    stage.say("worker", f"{second.actor} has taken over and asks for the next version")
    frozen.kill(signal.SIGCONT, whom="children")  # the parent would end what is late
    stage.say("worker", f"{claim.actor} goes on, the old answer in its hand")

    history = stage.until_succeeded(id, "a frozen worker's operation is taken back and done")
    _taken_back(stage, history, claim)
    refusals = stage.wait(
        lambda: [line for line in frozen.output().splitlines() if REFUSED in line and id in line],
        promise="a worker that lost its claim is refused",
        seen=lambda: f"no {REFUSED} in its log",
    )
    stage.say("worker", f"logged {REFUSED} for run {json.loads(refusals[0])['run']}")
    frozen.kill(signal.SIGCONT, whom="parent")
    stage.stack.remove(SECOND)
    stage.read_fresh(stage.ana, "a worker that lost its claim changes nothing")


def broker_flushed(stage: Stage) -> None:
    """The broker loses everything while an operation waits behind two slow ones."""
    waiters = [stage.ana, stage.budi, stage.citra]
    for console in waiters:
        stage.restock(console)
    stage.spoil(stage.ana, delay_seconds=3)
    stage.spoil(stage.budi, delay_seconds=3)

    slow = [stage.accept(console, f"{console.person.name}-7") for console in waiters[:2]]
    for id in slow:
        stage.until_called(id)
    waiting = stage.accept(stage.citra, "citra-7")
    _lose_messages(stage)

    for id in [waiting, *slow]:
        stage.until_succeeded(id, "what the broker forgets is done from its row")
    done = {short(id): (stage.truth.operation(id)["runs"], stage.calls(id)) for id in [waiting, *slow]}
    stage.promise("each in one run, with one call", kept=set(done.values()) == {(1, 1)}, seen=done)
    stage.read_fresh(stage.citra, "the read shows what the provider has")


def cache_left_stale(stage: Stage) -> None:
    """A worker dies between its COMMIT and the invalidation of the cache."""
    stage.stack.worker.env["CRASHPOINTS"] = "after_commit.begin=kill@1"
    stage.stack.worker.kill(whom="group")
    stage.stack.worker.restart()
    stage.say("worker", "a new one is up; it will be killed by itself right after a COMMIT")
    before = stage.read(stage.citra).body["version"]
    stage.restock(stage.citra)

    id = stage.accept(stage.citra, "citra-8")
    stage.until_succeeded(id, "a committed operation stays done, whatever dies after it")
    finished_at = time.monotonic()
    stage.say("worker", "is dead, and has told the cache nothing")
    owed = stage.truth.count("operations_aftercommit")
    stage.say("database", f"{owed} after-commit row: the relay owes what the worker did not do")

    stage.wait(
        lambda: stage.citra.inventory().body["version"] > before,
        promise="the relay makes the cache fresh",
        seen=lambda: f"the read still shows version {before}",
    )
    stage.say("relay", f"the cache was told {time.monotonic() - finished_at:.1f} s later")
    within = time.monotonic() - finished_at <= 2 * RELAY_PERIOD_SECONDS + SLACK_SECONDS
    stage.promise("a stale read lasts two relay periods at most", kept=within, seen="it lasted longer")
    stage.read_fresh(stage.citra, "the read shows what the provider has")


def _taken_back(stage: Stage, history: list[Move], claim: Move) -> None:
    """Look whether a history explains a lost worker, and that the lease and the relay were enough."""
    explained = [(move.to, move.reason, move.run) for move in history] == [
        ("queued", "accepted", 0),
        ("processing", "", 1),
        ("retry_scheduled", "worker_lost", 1),
        ("processing", "", 2),
        ("succeeded", "", 2),
    ]
    stage.promise("the history says what happened", kept=explained, seen=told(history))
    waited = (history[2].at - claim.at).total_seconds()
    stage.say("relay", f"took it back {waited:.1f} s after the claim")
    # The last beat may have moved the lease's end by as long as the worker had lived.
    within = waited <= LEASE_SECONDS + RELAY_PERIOD_SECONDS + SLACK_SECONDS
    stage.promise("a lease and a relay period are enough", kept=within, seen=f"{waited:.1f} s")


def _lose_messages(stage: Stage) -> None:
    with redis.Redis.from_url(stage.stack.servers.redis_url, db=0) as broker:
        queue = f"{stage.stack.name}:{QUEUE}"
        stage.wait(
            lambda: broker.llen(queue), promise="a message says that work waits", seen=lambda: "no message"
        )
        before = broker.llen(queue)
        broker.flushdb()
        stage.say("broker", f"{before} message waits; flushed; {broker.llen(queue)} wait")
