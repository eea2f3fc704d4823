"""Settings and contracts under which a promise could not be kept are refused at start-up, with the cure."""

import pytest
from django.core.checks import run_checks

from operations import jobs
from tests.factories import make_job


@pytest.fixture
def errors():
    """Give a function that lists what is refused: [(number, what it says)]."""

    def errors(*, deploy=False):
        found = run_checks(include_deployment_checks=deploy)
        ours = [each for each in found if each.id.startswith("teguh.")]
        assert all(each.hint for each in ours), "an error without a cure"
        return [(each.id.removeprefix("teguh."), each.msg) for each in ours]

    return errors


class TestCheckTimes:
    def test_takes_the_settings_as_they_are(self, errors):
        assert errors() == []

    @pytest.mark.parametrize("beat", [11.0, 0.0])
    def test_refuses_a_lease_that_does_not_outlive_three_beats(self, errors, settings, beat):
        settings.LEASE_SECONDS = settings.LOCK_TTL_SECONDS = 30.0
        settings.HEARTBEAT_SECONDS = beat

        assert errors() == [("E001", f"a lease of 30.0 s is shorter than three beats of {beat} s")]

    @pytest.mark.parametrize("ttl", [31.0, 7.5], ids=["outlives the lease", "ends with a beat"])
    def test_refuses_a_lock_that_fits_neither_beat_nor_lease(self, errors, settings, ttl):
        settings.LEASE_SECONDS, settings.HEARTBEAT_SECONDS = 30.0, 7.5
        settings.LOCK_TTL_SECONDS = ttl

        [(number, said)] = errors()

        assert number == "E002"
        assert f"a lock of {ttl} s must outlive a beat (7.5 s), not the lease (30.0 s)" in said

    @pytest.mark.parametrize("poll", [31.0, 0.0])
    def test_refuses_a_waiter_that_looks_less_often_than_a_lease_lasts(self, errors, settings, poll):
        settings.LEASE_SECONDS = settings.LOCK_TTL_SECONDS = 30.0
        settings.LOCK_POLL_SECONDS = poll

        assert [number for number, _ in errors()] == ["E003"]


class TestCheckJobs:
    def test_refuses_a_job_whose_queue_nobody_serves(self, errors, monkeypatch):
        monkeypatch.setitem(jobs._registry, "tests.lonely", make_job(name="tests.lonely"))

        assert errors() == [("E004", "no worker group serves the queue of 'tests.lonely'")]

    def test_refuses_a_job_that_the_broker_would_deliver_twice(self, errors, settings):
        settings.BROKER_PATIENCE_SECONDS = 40
        settings.ON_RABBITMQ = False

        said = ("E005", "inventory.sync: the broker redelivers after 40 s, the hard limit is 40 s")
        assert said in errors()


class TestCheckWorkerGroups:
    @pytest.fixture
    def group(self, settings, monkeypatch):
        """Two jobs of 40 s each in one group."""
        monkeypatch.setitem(jobs._registry, "tests.other", make_job(name="tests.other", hard_limit=40))
        for name in {*jobs._registry} - {"inventory.sync", "tests.other"}:
            monkeypatch.delitem(jobs._registry, name)
        settings.WORKER_GROUPS = {"both": ["inventory.sync", "tests.other"]}
        settings.BROKER_PATIENCE_SECONDS = 80

    def test_refuses_a_group_whose_messages_rabbitmq_would_take_back(self, errors, settings, group):
        settings.ON_RABBITMQ = True

        [(number, said)] = errors()

        assert (number, said) == (
            "E008",
            "both: a message may wait 80 s for its turn in a worker; RabbitMQ takes it back after 80 s",
        )

    def test_lets_redis_be_which_never_takes_back_what_waits(self, errors, settings, group):
        settings.ON_RABBITMQ = False

        assert errors() == []


class TestCheckDeployment:
    def test_refuses_crashes_on_purpose(self, errors, settings):
        settings.CRASHPOINTS = {"finish.committed": "kill"}

        assert errors(deploy=True) == [("E006", "CRASHPOINTS is set: finish.committed")]

    def test_refuses_metrics_that_nobody_can_read(self, errors, settings):
        settings.METRICS_TOKEN = ""

        assert errors(deploy=True) == [("E007", "METRICS_TOKEN is empty, so nobody can read /metrics")]

    def test_asks_neither_of_a_laptop(self, errors, settings):
        settings.CRASHPOINTS, settings.METRICS_TOKEN = {"finish.committed": "kill"}, ""

        assert errors() == []
