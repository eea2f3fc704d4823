"""Orders about jobs: who may be meant, what they hold, how they are kept, and the command that gives them."""

import getpass
import io
import json

import pytest
from django.core.management import CommandError, call_command

from operations import controls, lifecycle
from operations.models import AuditEntry, Hold, JobControl
from tests.factories import make_claim, make_failure, make_operation, make_user

pytestmark = pytest.mark.django_db

SYNC = "job_type:inventory.sync"


def order(scope=SYNC, *, reason="they migrate", **wanted):
    return controls.change(controls.read(scope), actor="sari", reason=reason, **wanted)


def held():
    return list(Hold.objects.filter(ended_at=None).order_by("kind").values_list("kind", "per_second"))


class TestRead:
    def test_knows_job_types_queues_groups_and_owners(self, user):
        assert controls.read(SYNC).job_types == ["inventory.sync"]
        assert controls.read("queue:inventory.sync").job_types == ["inventory.sync"]
        assert controls.read("queue:inventory").job_types == ["inventory.sync", "inventory.grant"]
        assert controls.read(f"owner:{user.username}") == controls.Scope(f"owner:{user.pk}", [], user.pk)

    @pytest.mark.parametrize(
        "name", ["", "inventory.sync", "job_type:nothing", "queue:dead_letter", "owner:nobody", "x:y"]
    )
    def test_refuses_what_it_does_not_know(self, name):
        with pytest.raises(controls.BadOrder):
            controls.read(name)


class TestWanted:
    @pytest.mark.parametrize(("act", "number"), [("rate", None), ("rate", -1), ("rate", 0.5), ("backoff", 0)])
    def test_refuses_a_number_that_would_mean_something_else(self, act, number):
        """Half an operation a minute would be rounded to no limit at all."""
        with pytest.raises(controls.BadOrder):
            controls.wanted(act, number)

    def test_takes_a_rate_of_nothing_for_no_limit(self):
        assert controls.wanted("rate", 0) == {"rate_per_minute": None}


class TestChange:
    def test_opens_and_ends_a_hold(self):
        order(paused=True)
        assert held() == [("pause", 0.0)]

        order(paused=False, reason="they are done")

        assert held() == []
        assert Hold.objects.get().ended_at is not None

    def test_leaves_a_hold_that_goes_on(self):
        order(paused=True)
        first = Hold.objects.get()

        order(accepting=False)

        assert Hold.objects.get(kind="pause", ended_at=None) == first
        assert held() == [("pause", 0.0), ("refuse", 0.0)]

    def test_replaces_a_rate(self):
        order(rate_per_minute=60)
        order(rate_per_minute=30)
        assert held() == [("rate", 0.5)]

        order(rate_per_minute=None)
        assert held() == []

    def test_keeps_who_and_why_with_the_order_or_not_at_all(self, monkeypatch):
        order(paused=True)

        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.action, entry.target) == ("sari", "control", f"jobs:{SYNC}")
        assert entry.reason == "they migrate"
        assert (entry.before["paused"], entry.after["paused"]) == (False, True)

    @pytest.mark.django_db(transaction=True)
    def test_holds_nothing_if_it_cannot_be_kept(self, monkeypatch):
        def fail(**columns):
            raise RuntimeError("no room")

        monkeypatch.setattr(AuditEntry.objects, "create", fail)

        with pytest.raises(RuntimeError):
            order(paused=True)

        assert not Hold.objects.exists()
        assert not JobControl.objects.exists()

    @pytest.mark.parametrize("reason", ["", "  ", "x" * 301])
    def test_wants_a_reason(self, reason):
        with pytest.raises(controls.BadOrder):
            order(paused=True, reason=reason)

    def test_about_an_owner_holds_all_of_their_jobs(self, user):
        order(f"owner:{user.username}", paused=True)
        claimed = [make_operation(owner=owner) for owner in (user, make_user())]

        seen = [lifecycle.look(each.id, job_type=each.job_type).held for each in claimed]

        assert seen == [True, False]

    def test_stretches_the_pauses_between_attempts(self):
        order(backoff_factor=4.0)

        claim = make_claim()
        retried = lifecycle.retry(claim, failure=make_failure(), delay_seconds=10)

        assert round((retried.run_at - claim.operation.started_at).total_seconds()) == 40


class TestCommand:
    def run(self, *arguments):
        out = io.StringIO()
        call_command("jobs", *arguments, stdout=out)
        return out.getvalue()

    def test_pauses_and_resumes(self):
        assert self.run("pause", SYNC, "--reason", "they migrate") == (f"{SYNC}: paused, backoff factor 1\n")
        assert AuditEntry.objects.get().actor == f"cli:{getpass.getuser()}"

        self.run("resume", SYNC, "--reason", "done")

        assert held() == []

    def test_lists_what_is_held(self):
        self.run("pause", SYNC, "--reason", "they migrate")

        told = json.loads(self.run("list", "--json"))

        assert [hold["scope"] for hold in told["holds"]] == [SYNC]
        assert told["holds"][0]["says"].endswith("they migrate")
        assert [control["paused"] for control in told["controls"]] == [True]
        assert "1 held" in self.run()

    def test_takes_numbers(self):
        told = json.loads(self.run("rate", SYNC, "--to", "90", "--reason", "slowly", "--json"))
        assert (told["rate_per_minute"], held()) == (90, [("rate", 1.5)])

        assert (
            json.loads(self.run("rate", SYNC, "--to", "0", "--reason", "again", "--json"))["rate_per_minute"]
            is None
        )
        assert json.loads(self.run("backoff", SYNC, "--to", "2.5", "--reason", "slow", "--json"))[
            "backoff_factor"
        ] == pytest.approx(2.5)

    @pytest.mark.parametrize(
        "arguments",
        [
            ("pause", SYNC),
            ("pause", "job_type:nothing", "--reason", "x"),
            ("rate", SYNC, "--reason", "x"),
            ("backoff", SYNC, "--to", "0", "--reason", "x"),
        ],
    )
    def test_says_what_is_wrong(self, arguments):
        with pytest.raises(CommandError):
            self.run(*arguments)
        assert not JobControl.objects.exists()
