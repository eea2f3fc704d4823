"""Recovery points of a job: done once in an operation's life, whatever becomes of the run that did them."""

from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from operations import replays
from operations.models import Effect, Operation
from tasks import drain
from tasks.handle import ClaimLost, Interrupted, LockLost, Run
from tasks.retry import CallFailed
from tests.factories import earlier, history, make_claim, make_job, make_operation, work
from tests.threads import aside

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "tests:of:{user_id}"
DEADLOCK = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$"
GONE = "SELECT pg_terminate_backend(pg_backend_pid())"


class Stepping:
    """A job whose call is a row of steps; each writes its name and counts, then does as the test says."""

    def __init__(self, *names, **contract):
        self.names = names
        self.does = {}  # by the step's name: what it does after it has written
        self.between = {}  # by the step's name: what happens before it
        self.done, self.results, self.calls = [], [], 0
        self.job = make_job(call=self.call, resource=RESOURCE, **contract)

    def call(self, run, *, user_id):
        self.calls += 1
        for name in self.names:
            self.between.get(name, lambda run: None)(run)
            self.results.append(run.step(name, self.write, user_id=user_id, name=name))

    def write(self, *, user_id, name):
        self.done.append(name)
        User.objects.create(username=f"{name} of {user_id}")
        return self.does.get(name, lambda: f"result of {name}")()

    def operation(self, **changes):
        return make_operation(job=self.job, **changes)

    def work(self, operation):
        return work(operation, self.job)

    def work_again(self, operation):
        earlier(operation, "run_at")
        return self.work(operation)


def written(operation):
    """Give the names of the steps that left something, in order."""
    names = User.objects.filter(username__endswith=f" of {operation.owner_id}").order_by("id")
    return [name.partition(" ")[0] for name in names.values_list("username", flat=True)]


def recorded(operation):
    return dict(Effect.objects.filter(operation=operation).values_list("step", "result"))


def run_sql(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def raiser(error):
    def fail(*args):
        raise error

    return fail


def once(act):
    """Do something the first time, and nothing after that."""
    acts = [act]
    return lambda *args: acts.pop()() if acts else None


class TestStep:
    def test_gives_what_the_function_gives(self):
        job = Stepping("reserve", "charge")

        operation = job.work(job.operation())

        assert operation.status == "succeeded"
        assert job.results == ["result of reserve", "result of charge"]
        assert written(operation) == ["reserve", "charge"]

    def test_is_committed_on_its_own_before_the_call_goes_on(self):
        job = Stepping("reserve", "charge")
        seen = []
        job.between["charge"] = lambda run: seen.extend(
            aside(lambda: (written(operation), recorded(operation))).result(10)
        )
        operation = job.operation()

        job.work(operation)

        assert seen == [["reserve"], {"reserve": "result of reserve"}]

    def test_says_which_run_did_it(self):
        job = Stepping("reserve")
        operation = job.operation(status="retry_scheduled", runs=2)

        job.work(operation)

        [effect] = Effect.objects.all()
        assert (effect.kind, effect.generation, effect.run) == ("local", 1, 3)

    def test_is_shown_as_the_last_recovery_point(self):
        job = Stepping("reserve", "charge")
        shown = []
        job.between["charge"] = lambda run: shown.append(
            Operation.objects.values_list("step", "version").get()
        )
        operation = job.operation()

        finished = job.work(operation)

        # Version 1 was accepted, 2 is the claim, 3 the step.
        assert shown == [("reserve", 3)]
        assert finished.step == "charge"

    def test_is_not_a_move(self):
        job = Stepping("reserve")

        operation = job.work(job.operation())

        assert history(operation) == [("queued", "processing", ""), ("processing", "succeeded", "")]

    def test_belongs_to_one_operation(self):
        job = Stepping("reserve")

        job.work(job.operation())
        job.work(job.operation())

        assert job.done == ["reserve", "reserve"]

    def test_is_done_once_however_often_a_run_asks(self):
        job = Stepping("reserve", "reserve")

        operation = job.work(job.operation())

        assert job.done == ["reserve"]
        assert job.results == ["result of reserve"] * 2
        assert operation.status == "succeeded"


class TestLaterRun:
    @pytest.fixture
    def job(self):
        job = Stepping("reserve", "charge", "tell")
        job.does["charge"] = once(raiser(CallFailed("timeout", "…")))
        return job

    def test_goes_on_behind_what_is_recorded(self, job):
        first = job.work(job.operation())

        assert (first.status, first.step) == ("retry_scheduled", "reserve")
        assert (written(first), recorded(first)) == (["reserve"], {"reserve": "result of reserve"})

        second = job.work_again(first)

        assert (second.status, second.step) == ("succeeded", "tell")
        assert job.done == ["reserve", "charge", "charge", "tell"]
        assert job.results == ["result of reserve", "result of reserve", None, "result of tell"]

    def test_goes_on_there_after_a_replay_too(self, job, monkeypatch):
        job.does["charge"] = once(raiser(ValueError("a bug")))
        monkeypatch.setattr(replays.jobs, "get", lambda name: job.job)
        failed = job.work(job.operation())
        [letter] = failed.dead_letters.all()

        replays.replay(letter.id, actor="user:1", reason="mended")

        assert job.work(failed).status == "succeeded"
        assert job.done == ["reserve", "charge", "charge", "tell"]

    @pytest.mark.parametrize(
        "result", [None, 0, 0.0, False, "", [], {}, {"a": [1, None, {"b": "c"}]}, 2**63, "ünï\n\u2028"]
    )
    def test_is_given_the_recorded_result_whatever_it_is(self, job, result):
        job.does["reserve"] = lambda: result

        job.work_again(job.work(job.operation()))

        first, again = job.results[:2]
        assert (again, type(again)) == (first, type(first)) == (result, type(result))
        assert job.done.count("reserve") == 1

    @pytest.mark.parametrize(
        ("result", "stored"),
        [
            ((1, 2), [1, 2]),
            ({1: "one"}, {"1": "one"}),
            (Decimal("1.10"), "1.10"),
            ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
            (float("nan"), None),
        ],
        ids=["tuple", "number as member", "decimal", "NUL", "NaN"],
    )
    def test_sees_what_the_first_run_saw(self, job, result, stored):
        """What JSON or PostgreSQL can't hold is changed at once, not only for those who come later."""
        job.does["reserve"] = lambda: result

        job.work_again(job.work(job.operation()))

        assert job.results[:2] == [stored, stored]

    def test_does_a_step_again_that_failed(self):
        job = Stepping("reserve")
        job.does["reserve"] = once(raiser(CallFailed("conflict", "…")))

        first = job.work(job.operation())

        assert (written(first), recorded(first)) == ([], {})
        assert job.work_again(first).status == "succeeded"
        assert written(first) == ["reserve"]


class TestClaimLostInAStep:
    def test_changes_nothing_for_the_run_that_has_it_now(self):
        now = {}

        def taken():
            aside(lambda: earlier(operation, "lease_expires_at")).result(10)
            aside(lambda: now.update(Operation.objects.values().get())).result(10)

        job = Stepping("reserve", "charge")
        job.does["charge"] = taken
        operation = job.operation()

        after = job.work(operation)

        assert (written(operation), recorded(operation)) == (["reserve"], {"reserve": "result of reserve"})
        assert (after.status, after.step, after.version) == ("processing", "reserve", now["version"])
        assert history(operation) == [("queued", "processing", "")]

    def test_ends_the_call_there(self):
        job = Stepping("reserve", "charge")
        job.between["reserve"] = lambda run: earlier(operation, "lease_expires_at")
        operation = job.operation()

        job.work(operation)

        assert job.done == ["reserve"]
        assert written(operation) == []

    def test_hands_the_run_back_when_it_is_the_resource_that_was_lost(self):
        """The claim is still ours, so nobody needs to wait for its lease to end."""
        job = Stepping("reserve", "charge")
        job.between["charge"] = once(lambda: make_claim(resource=operation.resource))
        operation = job.operation()

        after = job.work(operation)

        assert (after.status, after.reason, after.attempt) == ("queued", "interrupted", 0)
        assert (written(operation), list(recorded(operation))) == (["reserve"], ["reserve"])
        assert job.work(operation).status == "succeeded"
        assert job.done == ["reserve", "charge", "charge"]

    def test_is_noticed_before_the_next_step_by_the_heartbeat(self):
        job = Stepping("reserve")
        job.between["reserve"] = lambda run: setattr(run.heartbeat, "claim_lost", True)

        job.work(job.operation())

        assert job.done == []


class TestDatabaseTrouble:
    @pytest.mark.parametrize("sql", [DEADLOCK, DEADLOCK.replace("40P01", "40001"), GONE])
    def test_repeats_the_step_and_nothing_else(self, sql):
        job = Stepping("reserve", "charge")
        job.does["charge"] = once(lambda: run_sql(sql))

        operation = job.work(job.operation())

        assert (operation.status, operation.attempt, job.calls) == ("succeeded", 1, 1)
        assert job.done == ["reserve", "charge", "charge"]
        assert written(operation) == ["reserve", "charge"]

    def test_is_another_attempt_when_it_lasts(self):
        job = Stepping("reserve")
        job.does["reserve"] = lambda: run_sql(DEADLOCK)

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("retry_scheduled", "dependency_unavailable")
        assert job.done == ["reserve"] * 3
        assert written(operation) == []

    def test_in_the_answer_to_commit_is_learned_from_the_marker(self):
        job = Stepping("reserve", "charge")
        job.does["reserve"] = lambda: transaction.on_commit(lambda: run_sql(GONE)) or "the result"

        operation = job.work(job.operation())

        assert (operation.status, operation.attempt, job.done) == ("succeeded", 1, ["reserve", "charge"])
        assert job.results[0] == "the result"
        assert written(operation) == ["reserve", "charge"]

    @pytest.mark.parametrize("result", [None, 0, False, [], ""])
    def test_is_learned_with_a_result_that_is_nothing(self, result):
        def reserve():
            transaction.on_commit(lambda: run_sql(GONE))
            return result

        job = Stepping("reserve")
        job.does["reserve"] = reserve

        job.work(job.operation())

        assert (job.done, job.results) == (["reserve"], [result])

    def test_that_ends_after_the_lease_repeats_nothing(self):
        """The connection went before COMMIT, and so did the claim: the second try is refused, too."""

        def reserve():
            aside(lambda: earlier(operation, "lease_expires_at")).result(10)
            run_sql(GONE)

        job = Stepping("reserve")
        job.does["reserve"] = reserve
        operation = job.operation()

        after = job.work(operation)

        assert after.status == "processing"
        assert (written(operation), recorded(operation)) == ([], {})

    def test_of_a_soft_limit_rolls_the_step_back(self):
        job = Stepping("reserve", soft_limit=0.2)
        job.does["reserve"] = lambda: run_sql("SELECT pg_sleep(10)")

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("retry_scheduled", "timeout")
        assert (written(operation), recorded(operation)) == ([], {})


class TestDraining:
    def test_stops_at_the_boundary_of_a_step(self, monkeypatch):
        job = Stepping("reserve", "charge")
        job.between["charge"] = once(lambda: monkeypatch.setattr(drain, "begun", lambda: True))
        operation = job.operation()

        after = job.work(operation)

        assert (after.status, after.reason, after.attempt) == ("queued", "interrupted", 0)
        assert job.done == ["reserve"]
        monkeypatch.setattr(drain, "begun", lambda: False)
        assert job.work(operation).status == "succeeded"
        assert job.done == ["reserve", "charge"]

    def test_lets_a_run_pass_what_is_recorded(self, monkeypatch):
        job = Stepping("reserve", "charge")
        job.does["charge"] = once(raiser(CallFailed("timeout", "…")))
        operation = job.work(job.operation())
        job.between["reserve"] = lambda run: monkeypatch.setattr(drain, "begun", lambda: True)

        job.work_again(operation)

        assert job.results[1:] == ["result of reserve"]


class TestMisuse:
    """A step that could not be found again must not be done: it would be done in every run."""

    def test_of_a_name_that_is_too_long_is_refused(self):
        job = Stepping("r" * 51)

        operation = job.work(job.operation())

        assert (operation.status, operation.reason, job.done) == ("failed_permanent", "bug", [])
        assert "50 characters" in operation.data.error["message"]

    def test_of_no_name_is_refused(self):
        job = Stepping("")

        operation = job.work(job.operation())

        assert (operation.status, operation.reason, job.done) == ("failed_permanent", "bug", [])

    def test_in_a_handler_is_refused(self):
        """Its marker would be committed with the finish, and a lost connection would be mended in vain."""
        job = make_job(lambda run, answer, **values: run.step("reserve", dict))

        operation = work(make_operation(job=job), job)

        assert (operation.status, operation.reason) == ("failed_permanent", "bug")
        assert "run.step" in operation.data.error["message"]

    def test_of_a_result_that_is_not_json_is_a_bug(self):
        job = Stepping("reserve")
        job.does["reserve"] = object

        operation = job.work(job.operation())

        assert (operation.status, operation.reason) == ("failed_permanent", "bug")
        assert (written(operation), recorded(operation)) == ([], {})


class TestCheck:
    class Heart:
        claim_lost = lock_lost = cancel_requested = False

    @pytest.fixture
    def run(self):
        return Run(make_claim(), self.Heart(), began=0.0)

    def test_lets_a_run_go_on(self, run):
        assert run.check() is None

    @pytest.mark.parametrize(
        ("lost", "error"), [("claim_lost", ClaimLost), ("lock_lost", LockLost)], ids=["claim", "lock"]
    )
    def test_stops_a_run_that_goes_on_in_vain(self, run, lost, error):
        setattr(run.heartbeat, lost, True)

        with pytest.raises(error):
            run.check()

    def test_stops_a_run_whose_worker_ends(self, run, monkeypatch):
        monkeypatch.setattr(drain, "begun", lambda: True)

        with pytest.raises(Interrupted):
            run.check()

    def test_hands_the_run_back(self, monkeypatch):
        def call(run, **values):
            monkeypatch.setattr(drain, "begun", lambda: True)
            run.check()

        job = make_job(call=call)

        operation = work(make_operation(job=job), job)

        assert (operation.status, operation.reason, operation.attempt) == ("queued", "interrupted", 0)
