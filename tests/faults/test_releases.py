"""C07: two releases side by side. What one accepted the other may have to do, and does, or leaves."""

import uuid

import pytest

from tests.faults.lab import LONG_SECONDS, MARGIN_SECONDS, PROBES, RELAY_PERIOD_SECONDS, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

GRACE_SECONDS = 2.0
PATIENCE_SECONDS = 10.0
SECOND = "worker-inventory#2"
RELEASES = {release: f"tests.probes,tests.releases.{release}" for release in ("old", "new")}
ENV = {
    "NODE_PERIOD_SECONDS": "0.5",
    "UNKNOWN_TYPE_GRACE_SECONDS": str(GRACE_SECONDS),
    "UNKNOWN_TYPE_PATIENCE_SECONDS": str(PATIENCE_SECONDS),
    "WORKER_GROUP_PROBES": ",".join([*PROBES, "release.greet", "release.echo"]),
    "EXTRA_APPS": RELEASES["old"],
    "RELEASE": "old",
}
OLD, NEW = {"name": "Ayu Lestari"}, {"first": "Ayu", "last": "Lestari"}
ECHO = {"amount": "10.10", "id": str(uuid.uuid4()).upper(), "at": "2026-11-30T22:10:00.100+07:00"}
UNKNOWN = ("queued", "retry_scheduled", "unknown_job_type")


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab("web", "worker-inventory", "relay", env=ENV)


@pytest.fixture
def second(lab):
    """Give a function that starts a second worker, of the new release."""

    def start():
        lab.stack._extra.update(EXTRA_APPS=RELEASES["new"], RELEASE="new")
        try:
            lab.stack.add(SECOND)
        finally:
            lab.stack._extra.update(EXTRA_APPS=RELEASES["old"], RELEASE="old")

    yield start
    if SECOND in lab.stack.processes:
        lab.stack.remove(SECOND)


def deploy(lab, **releases):
    """Have processes run a release, by name with _ for -."""
    for name, release in releases.items():
        process = lab.stack.process(name.replace("_", "-"))
        if process.env["RELEASE"] != release:
            process.env |= {"EXTRA_APPS": RELEASES[release], "RELEASE": release}
            process.restart()


def reason(lab, id):
    return lab.operation(id)["reason"]


class TestOldPayload:
    def test_raises_in_new_code(self, lab):
        """C07 part 4."""
        deploy(lab, web="old", worker_inventory="new")

        operation = lab.wait_final(lab.new_user().ask("release/greet", OLD))

        assert operation["result"] == {"greeting": "Hello Ayu Lestari", "release": "new"}
        assert (operation["schema_version"], operation["payload"], operation["attempt"]) == (1, OLD, 1)


class TestNewPayload:
    def test_raises_in_old_code(self, lab, second):
        """C07 part 5."""
        deploy(lab, web="new", worker_inventory="old")
        pid = lab.worker.pid
        ids = [lab.new_user().ask("release/greet", NEW) for _ in range(5)]

        for id in ids:
            eventually(lambda id=id: reason(lab, id) == "unsupported_schema", what=f"{id} to wait")
        second()

        for id in ids:
            operation = lab.wait_final(id)
            assert operation["result"] == {"greeting": "Hello Ayu Lestari", "release": "new"}
            assert (operation["attempt"], operation["runs"], lab.worker.pid) == (1, 1, pid)
            assert lab.history(id)[1] == ("queued", "retry_scheduled", "unsupported_schema")


class TestUnknownJob:
    def test_is_dropped_with_its_message(self, lab, second):
        """C07 part 2 and part 6: nothing is lost, and the texts come back as they were sent."""
        deploy(lab, web="new", worker_inventory="old")
        pid = lab.worker.pid
        id = lab.new_user().ask("release/echo", ECHO)

        eventually(lambda: reason(lab, id) == "unknown_job_type", what=f"{id} to wait")
        assert lab.queue_length("release.echo") == 0
        assert lab.counted("ops_bad_messages_total", fault="unknown_task") > 0
        assert lab.rows("SELECT * FROM operations_badmessage") == []
        second()

        operation = lab.wait_final(id, within=GRACE_SECONDS + 2 * RELAY_PERIOD_SECONDS + MARGIN_SECONDS)
        assert (operation["result"], operation["attempt"], lab.worker.pid) == (ECHO, 1, pid)
        assert lab.history(id)[1] == UNKNOWN

    def test_waits_for_ever(self, lab):
        """C07 part 3."""
        deploy(lab, web="new", worker_inventory="old")

        id = lab.new_user().ask("release/echo", ECHO)

        operation = lab.wait_final(id, within=GRACE_SECONDS + PATIENCE_SECONDS + LONG_SECONDS / 2)
        assert (operation["status"], operation["attempt"]) == ("failed_permanent", 0)
        assert lab.history(id) == [
            ("", "queued", "accepted"),
            UNKNOWN,
            ("retry_scheduled", "failed_permanent", "unknown_job_type"),
        ]
        letter = lab.rows("SELECT * FROM operations_deadletter WHERE operation_id = %s", id)[0]
        assert letter["reason"] == "unknown_job_type"
