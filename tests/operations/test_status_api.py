"""GET an operation: the truth as it stands, short if it is known, and after a wait if that is wished."""

import uuid
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from operations import claims, lifecycle, reading, waits
from operations.models import Hold, Operation, Status
from tests.factories import make_claim, make_job, make_operation
from tests.operations.answers import is_problem, told
from tests.threads import aside, until

pytestmark = pytest.mark.django_db

SOME_ID = "0197a0e5-2c5f-7c4e-9c55-3a1f0f7e8f11"
THREADS = {"wsgi.multithread": True}


class TestGet:
    def get(self, api, operation, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return api.get(f"/v1/operations/{operation.id}", headers=named)

    @pytest.mark.parametrize("status", [Status.QUEUED, Status.PROCESSING, Status.RETRY_SCHEDULED])
    def test_shows_what_is_under_way(self, api, user, status):
        operation = make_operation(owner=user, status=status, version=3)

        response = self.get(api, operation)

        assert (response.status_code, response.json()["status"]) == (200, status)
        assert (response["ETag"], response["Cache-Control"]) == ('W/"3"', "private, no-cache")
        assert int(response["Retry-After"]) >= 1

    @pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED_PERMANENT, Status.IGNORED])
    def test_shows_what_is_over(self, api, user, status):
        operation = make_operation(owner=user, status=status)
        operation.data.result, operation.data.error = {"items": 2}, {"category": "bug", "message": "no"}
        operation.data.save()

        response = self.get(api, operation)

        assert (response.status_code, response.json()["status"]) == (200, status)
        assert response.json()["result"] == {"items": 2}
        assert response.json()["error"] == {"category": "bug", "message": "no"}
        assert "Retry-After" not in response

    @pytest.mark.parametrize(("seconds", "pause"), [(0, "1"), (2, "2"), (10, "5"), (30, "10"), (90, "30")])
    def test_asks_to_come_back_ever_later(self, api, user, seconds, pause):
        operation = make_operation(owner=user, created_at=timezone.now() - timedelta(seconds=seconds))

        assert self.get(api, operation)["Retry-After"] == pause

    @pytest.mark.parametrize("known", ['W/"3"', '"3"', '"1", W/"3"', "*"])
    def test_is_short_when_nothing_has_changed(self, api, user, known):
        operation = make_operation(owner=user, version=3)

        response = self.get(api, operation, If_None_Match=known)

        assert (response.status_code, response.content) == (304, b"")
        assert (response["ETag"], response["Cache-Control"]) == ('W/"3"', "private, no-cache")
        assert response["Vary"] == "Authorization, Accept, Prefer"
        assert response["Retry-After"] == "1"

    @pytest.mark.parametrize("known", ['W/"2"', '"33"', "3", "", '"*"', 'W/"1", *'])
    def test_is_whole_when_something_has(self, api, user, known):
        operation = make_operation(owner=user, version=3)

        assert self.get(api, operation, If_None_Match=known).status_code == 200

    def test_answers_the_same_for_anothers_and_for_nothing(self, api):
        anothers = self.get(api, make_operation(), X_Request_ID="r-1")
        nothing = api.get(f"/v1/operations/{SOME_ID}", headers={"X-Request-ID": "r-1"})

        assert is_problem(anothers, 404, "not-found")
        assert told(anothers) == told(nothing)

    @pytest.mark.parametrize("id", ["nonsense", "1", SOME_ID.upper() + "0"])
    def test_knows_no_malformed_id(self, api, id):
        assert is_problem(api.get(f"/v1/operations/{id}"), 404, "not-found")

    def test_shows_nothing_to_who_does_not_say_who_they_are(self, client, user):
        operation = make_operation(owner=user)

        assert is_problem(client.get(f"/v1/operations/{operation.id}"), 401, "not-authenticated")


class TestWaitingFor:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({}, "a worker"),
            ({"waiting_for": "lock x held by y"}, "lock x held by y"),
            ({"status": "succeeded"}, ""),
            ({"status": "processing"}, ""),
            (
                {"status": "processing", "cancel_requested_at": timezone.now()},
                "its run to notice that it is cancelled",
            ),
        ],
    )
    def test_says_it_in_words(self, api, user, changes, words):
        operation = make_operation(owner=user, **changes)

        assert api.get(f"/v1/operations/{operation.id}").json()["waiting_for"] == words

    def test_counts_the_attempts(self, api, user):
        run_at = timezone.now().replace(microsecond=0) + timedelta(minutes=1)
        operation = make_operation(owner=user, status="retry_scheduled", attempt=2, run_at=run_at)

        words = api.get(f"/v1/operations/{operation.id}").json()["waiting_for"]

        assert words == f"attempt 3 of 5 at {run_at:%Y-%m-%dT%H:%M:%SZ}"


class TestETag:
    """It changes with everything that can be seen, and with nothing else."""

    def etag(self, api, operation):
        return api.get(f"/v1/operations/{operation.id}")["ETag"]

    def test_is_that_of_a_glimpse(self, api, user):
        operation = make_operation(owner=user)
        hold()

        assert self.etag(api, operation) == reading.glimpse(operation.id, owner_id=user.pk).etag

    def test_stays_through_heartbeats_and_publishing(self, api, user):
        claim = make_claim(owner=user)
        before = self.etag(api, claim.operation), api.get(f"/v1/operations/{claim.operation.id}").json()

        claims.extend(claim.operation.id, token=claim.token)
        Operation.objects.update(published_at=timezone.now())

        after = self.etag(api, claim.operation), api.get(f"/v1/operations/{claim.operation.id}").json()
        assert after == before

    def test_changes_with_a_hold(self, api, user):
        operation = make_operation(owner=user)
        before = self.etag(api, operation)

        hold()

        assert self.etag(api, operation) != before

    def test_changes_with_the_head_of_the_line(self, api, user):
        """The words do: `blocked by` another."""
        job = make_job(resource="tests:line:7", ordered=True)
        first, second, third = (
            make_operation(owner=user, job=job, resource_seq=place) for place in (1, 2, 3)
        )
        before = self.etag(api, third)

        Operation.objects.filter(id=first.id).update(status="succeeded", finished_at=timezone.now())

        answer = api.get(f"/v1/operations/{third.id}", headers={"If-None-Match": before})
        assert (answer.status_code, answer.json()["waiting_for"]) == (200, f"blocked by {second.id}")


class TestCost:
    """A client that polls is the most frequent guest."""

    @pytest.mark.parametrize(("known", "status"), [('W/"1"', 304), ('W/"77"', 200)])
    def test_is_one_statement(self, api, user, monkeypatch, known, status):
        operation = make_operation(owner=user)
        asked = []
        real = reading.statements.row
        monkeypatch.setattr(
            reading.statements, "row", lambda sql, values: asked.append(sql) or real(sql, values)
        )

        with CaptureQueriesContext(connection) as others:
            answer = api.get(f"/v1/operations/{operation.id}", headers={"If-None-Match": known})

        assert (answer.status_code, asked) == (status, [reading.STANDS])
        assert [query for query in others.captured_queries if "authtoken" not in query["sql"]] == []


class TestPurged:
    def test_looks_like_what_never_was(self, api, user):
        """No tombstone is kept, so there is nothing that could say 410."""
        operation = make_operation(owner=user, status="succeeded")
        address = f"/v1/operations/{operation.id}"
        Operation.objects.all().delete()

        assert is_problem(api.get(address), 404, "not-found")


class Clock:
    """Time that passes only in pauses."""

    def __init__(self):
        self.now, self.pauses = 0.0, []
        self.then = {}  # after so many pauses: what happens

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds
        self.pauses.append(seconds)
        self.then.get(len(self.pauses), lambda: None)()


class TestForChange:
    def wait(self, looks, *, seconds=5, known=None):
        clock = Clock()
        looks = iter(looks)
        seen = waits.for_change(
            lambda: next(looks), is_known=known, seconds=seconds, clock=clock, pause=clock.pause
        )
        return seen.version, clock

    def glimpses(self, *versions, status="queued"):
        return [reading.Glimpse(version, status, timezone.now(), None, None) for version in versions]

    def test_ends_with_the_first_change(self):
        version, clock = self.wait(self.glimpses(1, 1, 1, 2, 3))

        assert (version, len(clock.pauses)) == (2, 3)

    def test_ends_when_the_time_is_over(self):
        version, clock = self.wait(self.glimpses(*[1] * 100), seconds=1)

        assert version == 1
        assert clock.now == pytest.approx(1)
        assert len(clock.pauses) == pytest.approx(1 / waits.LOOK_EVERY_SECONDS, abs=1)

    def test_does_not_begin_if_the_client_knows_another_state(self):
        _, clock = self.wait(self.glimpses(2, 2), known=lambda etag: etag == 'W/"1"')

        assert clock.pauses == []

    def test_goes_on_while_the_client_knows_what_is_seen(self):
        version, clock = self.wait(self.glimpses(2, 2, 3), known=lambda etag: etag == 'W/"2"')

        assert (version, len(clock.pauses)) == (3, 2)

    @pytest.mark.parametrize("status", ["succeeded", "failed_permanent", "ignored"])
    def test_does_not_begin_when_it_is_over(self, status):
        _, clock = self.wait(self.glimpses(2, status=status))

        assert clock.pauses == []


class TestPreferredSeconds:
    @pytest.mark.parametrize(
        ("prefer", "seconds"),
        [
            (None, 0),
            ("", 0),
            ("respond-async", 0),
            ("wait=3", 3),
            ("Wait = 3", 3),
            ('wait="3"', 3),
            ("respond-async, wait=2", 2),
            ("wait=2; foo=bar", 2),
            ("wait=2, wait=4", 2),  # RFC 7240 section 2: the first counts
            ("wait=600", 5),
            ("wait=0", 0),
            ("wait=-1", 0),
            ("wait=1.5", 0),
            ("wait=soon", 0),
            ("wait", 0),
            ("wait=" + "9" * 5_000, 0),
            ("wait=\u0663", 0),
            ("handling=wait", 0),
        ],
    )
    def test_reads(self, prefer, seconds):
        assert waits.preferred_seconds(prefer) == seconds


class TestPlace:
    def test_is_only_there_while_one_is_free(self):
        with waits.place(THREADS) as first, waits.place(THREADS) as second, waits.place(THREADS) as third:
            assert (first, second, third) == (True, True, False)

        with waits.place(THREADS) as again:
            assert again

    def test_is_given_back_after_an_error(self):
        for _ in range(waits.MOST_WAITING + 1):
            with suppress(LookupError), waits.place(THREADS) as free:
                assert free
                raise LookupError

    def test_is_on_no_server_without_threads(self):
        """There, one who waits keeps all others from an answer."""
        with waits.place({"wsgi.multithread": False}) as free:
            assert not free


@pytest.mark.django_db(transaction=True)
class TestWait:
    """`Prefer: wait=n`, with the pauses of the clock."""

    def get(self, api, operation, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return api.get(f"/v1/operations/{operation.id}", headers=named, **THREADS)

    @pytest.fixture
    def pauses(self, monkeypatch):
        """Let no time pass, and note what there was of transactions in each pause."""
        clock = Clock()
        monkeypatch.setattr(waits.for_change, "__kwdefaults__", {"clock": clock, "pause": clock.pause})
        return clock

    def test_gives_what_has_changed_meanwhile(self, api, user, pauses):
        operation = make_operation(owner=user)
        pauses.then = {
            3: lambda: lifecycle.wait(operation.id, reason="lock_contended", waiting_for="x", actor="a")
        }

        answer = self.get(api, operation, Prefer="wait=4")

        assert (answer.status_code, answer.json()["status"]) == (200, "retry_scheduled")
        assert answer["Preference-Applied"] == "wait=4"
        assert "Prefer" in answer["Vary"]
        assert len(pauses.pauses) == 3

    def test_is_304_at_the_end_for_one_who_knows(self, api, user, pauses):
        operation = make_operation(owner=user, version=3)

        answer = self.get(api, operation, Prefer="wait=60", If_None_Match='W/"3"')

        assert (answer.status_code, answer["Preference-Applied"]) == (304, "wait=5")
        assert (answer["Retry-After"], answer["ETag"]) == ("1", 'W/"3"')
        assert pauses.now == pytest.approx(5)

    def test_is_not_wished_by_default(self, api, user, pauses):
        answer = self.get(api, make_operation(owner=user))

        assert "Preference-Applied" not in answer
        assert pauses.pauses == []

    def test_is_refused_silently_when_no_place_is_free(self, api, user, pauses):
        operation = make_operation(owner=user)
        with waits.place(THREADS), waits.place(THREADS):
            answer = self.get(api, operation, Prefer="wait=4")

        assert (answer.status_code, pauses.pauses) == (200, [])
        assert "Preference-Applied" not in answer

    def test_has_no_transaction_open(self, api, user, pauses):
        operation, seen = make_operation(owner=user), []
        pauses.then = {
            1: lambda: seen.append(
                (connection.in_atomic_block, connection.connection.info.transaction_status)
            )
        }

        self.get(api, operation, Prefer="wait=1")

        assert seen == [(False, 0)]  # psycopg.pq.TransactionStatus.IDLE

    def test_finds_nothing_of_others(self, api, pauses):
        assert is_problem(self.get(api, make_operation(), Prefer="wait=4"), 404, "not-found")
        assert pauses.pauses == []

    def test_hears_of_what_another_does(self, api, user):
        """With real time: the change comes from another connection."""
        operation = make_operation(owner=user)
        waiting = aside(lambda: self.get(api, operation, Prefer="wait=5", If_None_Match='W/"1"'))
        until(lambda: waits._places._value < waits.MOST_WAITING)

        claim = lifecycle.claim(operation.id, job_type=operation.job_type, worker="a/1", token=uuid.uuid4())

        assert claim is not None
        assert waiting.result(4).json()["status"] == "processing"


def hold():
    Hold.objects.create(scope="job_type:inventory.sync", kind="pause", job_types=["inventory.sync"])
