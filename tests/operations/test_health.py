"""Is the process alive, and would what it accepts be worked on?"""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone

from operations import health
from operations.models import Hold, Status, Transition, WorkerNode
from tasks import node
from tests.factories import HOUR, earlier, make_claim, make_operation

pytestmark = pytest.mark.django_db

HEALTHY = {"database": True, "migrations": True, "relay": True, "progress": True}


@pytest.fixture
def client():
    """Nobody in particular: whoever watches brings no credentials."""
    return Client()


@pytest.fixture
def relay():
    node.report("relay")
    return WorkerNode.objects.get()


@pytest.fixture
def database_away(monkeypatch):
    """Point the database to where nothing listens, and back before the test's rows are removed."""
    with monkeypatch.context() as patch:
        connection.close()
        patch.setitem(connection.settings_dict, "HOST", "/nowhere")
        yield
        connection.close()


@pytest.fixture
def backlog():
    """An operation that has been due for an hour."""
    operation = make_operation()
    earlier(operation, "run_at")
    return operation


def seconds_ago(seconds):
    return timezone.now() - timedelta(seconds=seconds)


class TestLive:
    def test_asks_nothing_of_anybody(self, client, django_assert_num_queries):
        with django_assert_num_queries(0):
            answer = client.get("/health/live")

        assert (answer.status_code, answer.json()) == (200, {"live": True})

    @pytest.mark.django_db(transaction=True)
    def test_is_alive_without_a_database(self, client, database_away):
        assert client.get("/health/live").status_code == 200


class TestReady:
    def test_is_ready_with_a_relay_and_no_backlog(self, client, relay):
        answer = client.get("/health/ready")

        assert answer.status_code == 200
        assert answer.json() == {"ready": True, "checks": HEALTHY}

    @pytest.mark.django_db(transaction=True)
    def test_is_not_ready_without_a_database_and_says_so_calmly(self, client, database_away, monkeypatch):
        monkeypatch.setattr(health, "_migrated", False)

        answer = client.get("/health/ready")

        assert answer.status_code == 503
        assert answer.json() == {"ready": False, "checks": dict.fromkeys(HEALTHY, False)}

    def test_is_not_ready_before_it_is_migrated(self, client, relay, monkeypatch):
        monkeypatch.setattr(health, "_migrated", False)
        MigrationRecorder.Migration.objects.filter(app="operations").last().delete()

        answer = client.get("/health/ready")

        assert answer.status_code == 503
        assert answer.json()["checks"] == {**HEALTHY, "migrations": False}

    def test_looks_for_migrations_only_until_there_are_none(self, client, relay, monkeypatch):
        monkeypatch.setattr(health, "_migrated", False)
        client.get("/health/ready")
        MigrationRecorder.Migration.objects.filter(app="operations").last().delete()

        assert client.get("/health/ready").status_code == 200

    def test_is_not_ready_without_a_relay(self, client):
        node.report("worker")  # others do not count

        answer = client.get("/health/ready")

        assert answer.status_code == 503
        assert answer.json()["checks"] == {**HEALTHY, "relay": False}

    def test_is_not_ready_when_the_relay_was_not_seen_for_long(self, client, relay, settings):
        settings.RELAY_PERIOD_SECONDS = 2
        relay.last_seen_at = seconds_ago(15)  # 10 s and three periods are 16
        relay.save()
        assert client.get("/health/ready").status_code == 200

        relay.last_seen_at = seconds_ago(17)
        relay.save()

        assert client.get("/health/ready").json()["checks"] == {**HEALTHY, "relay": False}

    def test_is_not_ready_with_a_backlog_and_no_progress(self, client, relay, backlog):
        answer = client.get("/health/ready")

        assert answer.status_code == 503
        assert answer.json()["checks"] == {**HEALTHY, "progress": False}

    def test_is_ready_with_a_backlog_that_is_worked_on(self, client, relay, backlog):
        make_claim()

        assert client.get("/health/ready").status_code == 200

    def test_is_not_ready_when_the_last_run_began_long_ago(self, client, relay, backlog):
        Transition.objects.create(
            operation=backlog, to_status=Status.PROCESSING, run=1, attempt=1, at=seconds_ago(120)
        )

        assert client.get("/health/ready").status_code == 503

    def test_is_ready_while_all_that_waits_is_held(self, client, relay, backlog):
        Hold.objects.create(scope="job_type:inventory.sync", kind="pause", job_types=["inventory.sync"])

        assert client.get("/health/ready").status_code == 200

    def test_is_ready_when_all_that_waits_is_not_due(self, client, relay, backlog):
        earlier(backlog, "run_at", by=-2 * HOUR)

        assert client.get("/health/ready").status_code == 200

    def test_names_neither_versions_nor_operations(self, client, relay, backlog, settings):
        settings.RELEASE = "release-1.2.3"

        text = client.get("/health/ready").content.decode()

        assert "1.2.3" not in text
        assert str(backlog.id) not in text

    def test_answers_to_looking_only(self, client):
        assert client.head("/health/ready").status_code == 503
        assert client.post("/health/ready").status_code == 405
