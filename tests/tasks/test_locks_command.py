"""manage.py locks: who holds what, and how a dead holder's lock is freed."""

import json
import uuid
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.utils import timezone

from operations import jobs
from operations.models import AuditEntry, Operation, ResourceLock
from tasks import lock
from tests.factories import earlier, make_claim, make_job, make_operation

pytestmark = pytest.mark.django_db(transaction=True)

CHEAP, SAFE = "tests:cheap:7", "tests:safe:7"


@pytest.fixture(autouse=True)
def safe(monkeypatch):
    """Let there be a job whose locks are kept in rows."""
    job = make_job(name="tests.safe", resource="tests:safe:{user_id}", lock="database")
    monkeypatch.setitem(jobs._registry, job.name, job)


def locks(*arguments):
    out = StringIO()
    call_command("locks", *arguments, stdout=out)
    return out.getvalue()


def break_lock(resource, reason="its worker is gone"):
    return locks("--break", resource, "--reason", reason)


def hold(resource, **changes):
    """Let a live claim hold the lock of a resource."""
    claim = make_claim(make_operation(resource=resource, **changes))
    taken = lock.take(
        resource, token=claim.token, operation_id=claim.operation.id, worker=claim.operation.claimed_by
    )
    assert taken is None
    return claim


def lose(claim):
    """Let the lease of a claim end, as when its worker was killed."""
    earlier(claim.operation, "lease_expires_at")


@pytest.fixture(params=[CHEAP, SAFE], ids=["redis", "database"])
def resource(request):
    return request.param


class TestList:
    def test_says_that_nothing_is_held(self):
        assert locks() == "0 held\n"
        assert locks("--json") == "[]\n"

    def test_says_who_holds_what_where_and_since_when(self, resource):
        claim = hold(resource)
        kind = {CHEAP: "redis", SAFE: "database"}[resource]

        line, count = locks().splitlines()

        since = lock.holder(resource).since
        assert line == f"{resource}  {claim.operation.id} on worker-a/1 since {since} ({kind}), alive"
        assert count == "1 held"

    def test_tells_the_dead_from_the_living(self):
        hold(CHEAP)
        lose(hold(SAFE))

        living, dead, count = locks().splitlines()

        assert living.startswith(CHEAP)
        assert living.endswith(", alive")
        assert dead.startswith(SAFE)
        assert dead.endswith(", dead: --break frees it")
        assert count == "2 held"

    @pytest.mark.parametrize("status", ["queued", "retry_scheduled", "succeeded", "failed_permanent"])
    def test_calls_a_holder_dead_that_no_longer_works(self, status):
        operation = make_operation(status=status)
        token = operation.claim_token or uuid.uuid4()
        lock.take(CHEAP, token=token, operation_id=operation.id, worker="w")

        assert json.loads(locks("--json"))[0]["alive"] is False

    def test_calls_a_former_claim_dead_although_its_operation_lives(self):
        operation = make_claim(make_operation(resource=CHEAP)).operation
        lock.take(CHEAP, token=uuid.uuid4(), operation_id=operation.id, worker="w")

        assert json.loads(locks("--json"))[0]["alive"] is False

    def test_prints_json_for_programs(self, resource):
        claim = hold(resource)

        [told] = json.loads(locks("--json"))

        assert told == {
            "store": {CHEAP: "redis", SAFE: "database"}[resource],
            "resource": resource,
            "token": str(claim.token),
            "operation_id": str(claim.operation.id),
            "worker": "worker-a/1",
            "since": lock.holder(resource).since,
            "alive": True,
        }

    def test_says_that_nobody_can_know(self, locks_away):
        with pytest.raises(CommandError, match=r"does not answer.*nothing is known"):
            locks()


class TestBreak:
    def test_frees_the_lock_of_a_dead_holder(self, resource):
        lose(hold(resource))

        assert break_lock(resource) == f"{resource} freed\n"

        assert lock.holder(resource) is None

    def test_is_audited_with_who_why_and_whose(self, resource):
        claim = hold(resource)
        lose(claim)
        held = lock.holder(resource)

        break_lock(resource)

        entry = AuditEntry.objects.get()
        assert (entry.action, entry.target) == ("break_lock", f"resource:{resource}")
        assert (entry.reason, entry.before) == ("its worker is gone", held._asdict())
        assert entry.actor.startswith("cli:")

    def test_wakes_who_waits(self, resource, broker):
        lose(hold(resource))
        waiter = make_operation(resource=resource, status="retry_scheduled", reason="lock_contended")

        break_lock(resource)

        assert broker.depth(waiter.job_type) == 1
        assert Operation.objects.get(id=waiter.id).run_at <= timezone.now()

    def test_is_refused_while_the_lease_lives(self, resource):
        claim = hold(resource)

        with pytest.raises(CommandError, match="whose lease lives: it frees the lock itself"):
            break_lock(resource)

        assert lock.holder(resource).token == str(claim.token)
        assert not AuditEntry.objects.exists()

    @pytest.mark.parametrize("reason", ["", "  "])
    def test_is_refused_without_a_reason(self, resource, reason):
        lose(hold(resource))

        with pytest.raises(CommandError, match="say why with --reason"):
            break_lock(resource, reason)

        assert lock.holder(resource) is not None
        assert not AuditEntry.objects.exists()

    def test_is_refused_where_nobody_holds_it(self, resource):
        with pytest.raises(CommandError, match=f"nobody holds '{resource}'"):
            break_lock(resource)

        assert not AuditEntry.objects.exists()

    def test_is_refused_where_the_lock_is_over(self):
        lose(hold(SAFE))
        ResourceLock.objects.update(expires_at=timezone.now())

        with pytest.raises(CommandError, match="nobody holds"):
            break_lock(SAFE)

    def test_says_that_nobody_can_know(self, locks_away):
        with pytest.raises(CommandError, match=r"does not answer.*nothing is known"):
            break_lock(CHEAP)

        assert not AuditEntry.objects.exists()

    def test_frees_nothing_without_its_audit_entry(self, resource, monkeypatch):
        def refuse(**fields):
            raise DatabaseError("no space left")

        claim = hold(resource)
        lose(claim)
        monkeypatch.setattr(AuditEntry.objects, "create", refuse)

        with pytest.raises(DatabaseError):
            break_lock(resource)

        assert lock.holder(resource).token == str(claim.token)

    def test_has_its_audit_entry_committed_before_the_store_is_asked(self, resource, monkeypatch):
        """A COMMIT that fails after the lock was freed would leave nobody who did it."""

        def fail(*values, **named):
            raise lock.StoreAway("the lock store does not answer")

        lose(hold(resource))
        monkeypatch.setattr(lock, "free", fail)

        with pytest.raises(CommandError, match="does not answer"):
            break_lock(resource)

        assert AuditEntry.objects.count() == 1
        assert lock.holder(resource) is not None

    def test_leaves_the_lock_to_who_took_it_meanwhile(self, resource, monkeypatch):
        lose(hold(resource))
        seen = lock.holder(resource)
        lock.free(resource, token=uuid.UUID(seen.token))
        successor = hold(resource)
        monkeypatch.setattr(lock, "holder", lambda resource: seen)

        assert break_lock(resource) == f"{resource} was freed by somebody else meanwhile\n"

        monkeypatch.undo()
        kept = json.loads(locks("--json"))
        assert [each["token"] for each in kept] == [str(successor.token)]

    def test_can_name_the_longest_resource(self):
        resource = "tests:cheap:" + "x" * 188  # 200 characters, as many as a row can hold
        lose(hold(resource))

        break_lock(resource)

        assert AuditEntry.objects.get().before["operation_id"]
