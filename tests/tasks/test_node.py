"""Every process that does the work says that it lives, and when it ends."""

import os
import signal
import socket
from datetime import UTC, datetime

import psycopg
import pytest
from django.db import connection

from operations import jobs
from operations.models import WorkerNode
from tasks import node
from tests.faults.lab import eventually

RELEASE = "release-7"
JOBS = sorted(job.name for job in jobs.every())
NODES = "SELECT kind, release, job_types, queues, slots, name FROM operations_workernode"
CONNECTIONS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"""


def named(kind):
    return f"{kind}@{socket.gethostname()}/{os.getpid()}"


@pytest.mark.django_db
class TestReport:
    def test_says_what_the_process_is(self, settings):
        settings.RELEASE = RELEASE

        node.report("worker", queues=["inventory.sync"], slots=2)

        row = WorkerNode.objects.get()
        assert (row.name, row.kind, row.release) == (named("worker"), "worker", RELEASE)
        assert (row.job_types, row.queues, row.slots) == (JOBS, ["inventory.sync"], 2)

    def test_says_later_only_that_it_still_lives(self):
        node.report("relay")
        first = WorkerNode.objects.get()

        node.report("relay")

        again = WorkerNode.objects.get()
        assert again.started_at == first.started_at
        assert again.last_seen_at > first.last_seen_at

    def test_says_what_it_is_where_another_process_of_its_name_was(self, settings, monkeypatch):
        """In a container, the next process has the host and the number of the last."""
        WorkerNode.objects.create(
            name=named("worker"), kind="worker", release="old", started_at=datetime(2026, 1, 1, tzinfo=UTC)
        )
        monkeypatch.setattr(node, "_has_spoken", set())
        settings.RELEASE = RELEASE

        node.report("worker", slots=2)

        row = WorkerNode.objects.get()
        assert (row.release, row.job_types, row.slots) == (RELEASE, JOBS, 2)
        assert row.started_at.year > 2026 or row.started_at.month > 1


@pytest.mark.django_db(transaction=True)
class TestLeave:
    def test_forgets_this_process_and_those_that_died_long_ago(self):
        node.report("worker")
        for name, seen in (("worker@a/1", "2026-01-01T00:00:00Z"), ("worker@b/2", None)):
            WorkerNode.objects.create(name=name, kind="worker", release="")
            if seen:
                WorkerNode.objects.filter(name=name).update(last_seen_at=seen)

        node.leave("worker")

        assert [row.name for row in WorkerNode.objects.all()] == ["worker@b/2"]

    def test_leaves_no_connection_behind(self):
        """A child that is forked later would share it with its parent."""
        node.report("worker")
        assert connection.connection is not None

        node.leave("worker")

        assert connection.connection is None

    def test_ends_quietly_when_the_database_is_away(self, monkeypatch):
        with monkeypatch.context() as patch:
            connection.close()
            patch.setitem(connection.settings_dict, "HOST", "/nowhere")

            node.leave("worker")


@pytest.mark.process
class TestProcesses:
    def test_appear_while_they_live_and_hold_no_connection(self, new_stack):
        stack = new_stack("worker-inventory", "relay", env={"RELEASE": RELEASE, "NODE_PERIOD_SECONDS": "0.2"})
        with psycopg.connect(stack.env["DATABASE_URL"], autocommit=True) as database:

            def seen():
                return {kind: row for kind, *row in database.execute(NODES)}

            def connections():
                return database.execute(CONNECTIONS).fetchone()[0]

            nodes = eventually(lambda: len(now := seen()) == 2 and now, what="a worker and a relay")
            assert nodes["worker"][:4] == [RELEASE, JOBS, sorted([*JOBS, "dead_letter"]), 2]
            assert nodes["relay"][:4] == [RELEASE, JOBS, [], 0]
            assert nodes["worker"][4].endswith(f"/{stack.worker.pid}")

            stack.worker.kill(signal.SIGKILL, whom="children")
            eventually(lambda: len(stack.worker.children()) == 2, what="new children")
            eventually(lambda: connections() == 1, what="no connection but the relay's")

            assert stack.worker.stop() == 0
            assert set(seen()) == {"relay"}
            assert stack.process("relay").stop() == 0
            assert seen() == {}
            assert connections() == 0
