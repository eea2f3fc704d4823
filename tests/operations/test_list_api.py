"""GET one's own operations: the newest first, page by page, and cheap however many there are."""

import time
import uuid
from datetime import timedelta

import pytest
import uuid_utils.compat
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from operations import list_queries, reading
from operations.models import Operation
from tests.factories import make_job, make_operation
from tests.operations.answers import is_problem

pytestmark = pytest.mark.django_db

PATH = "/v1/operations"


def ids(answer):
    return [item["operation_id"] for item in answer.json()["items"]]


def walk(api, address=PATH):
    """Give the ids of all pages, a list each."""
    pages = []
    while address is not None:
        answer = api.get(address)
        assert answer.status_code == 200
        pages.append(ids(answer))
        address = answer.json()["next"]
        assert len(pages) < 50
    return pages


def made(user, count, **changes):
    """Make operations and give their ids, the newest first."""
    return [str(make_operation(owner=user, **changes).id) for _ in range(count)][::-1]


class TestList:
    def test_shows_ones_own_newest_first(self, api, user):
        mine = made(user, 3)
        make_operation()

        answer = api.get(PATH)

        assert (answer.status_code, ids(answer), answer.json()["next"]) == (200, mine, None)
        assert (answer["Cache-Control"], answer["Vary"]) == (
            "private, no-cache",
            "Authorization, Accept, Prefer",
        )

    def test_shows_each_as_its_own_page_does_without_result_and_error(self, api, user):
        operation = make_operation(owner=user, status="processing")

        [item] = api.get(PATH).json()["items"]

        alone = api.get(f"{PATH}/{operation.id}").json()
        assert alone == {**item, "result": None, "error": None}

    def test_is_empty_for_who_has_none(self, api):
        assert api.get(PATH).json() == {"items": [], "next": None}

    def test_has_pages_that_neither_repeat_nor_skip(self, api, user):
        mine = made(user, 5)

        assert walk(api, f"{PATH}?limit=2") == [mine[:2], mine[2:4], mine[4:]]

    def test_stays_where_it_was_when_something_new_comes(self, api, user):
        mine = made(user, 4)
        first = api.get(f"{PATH}?limit=2").json()
        made(user, 2)

        assert ids(api.get(first["next"])) == mine[2:]

    def test_ends_with_a_page_that_is_just_full(self, api, user):
        mine = made(user, 2)

        assert walk(api, f"{PATH}?limit=2") == [mine]

    @pytest.mark.parametrize(
        ("query", "shown"),
        [
            ("status=queued", [0, 1]),
            ("status=succeeded", [2]),
            ("job_type=tests.other", [1]),
            ("job_type=inventory.sync&status=queued", [0]),
            ("job_type=no.such", []),
        ],
    )
    def test_filters(self, api, user, query, shown):
        made(user, 1, status="succeeded")
        make_operation(owner=user, job=make_job(name="tests.other"))
        made(user, 1)
        mine = ids(api.get(PATH))

        assert ids(api.get(f"{PATH}?{query}")) == [mine[place] for place in shown]

    def test_shows_what_was_accepted_after_a_moment(self, api, user):
        old, new = make_operation(owner=user), make_operation(owner=user)
        moment = timezone.now()
        Operation.objects.filter(id=old.id).update(created_at=moment - timedelta(seconds=1))
        Operation.objects.filter(id=new.id).update(created_at=moment + timedelta(seconds=1))

        query = {"created_after": moment.isoformat()}

        assert ids(api.get(PATH, query)) == [str(new.id)]

    def test_looks_at_no_ids_that_are_much_older_than_that_moment(self, api, user):
        """By the milliseconds in the id; created_at says otherwise here, so that one can see it."""
        two_days_ago = int((time.time() - 2 * 86_400) * 1_000)
        make_operation(owner=user, id=uuid.UUID(int=two_days_ago << 80 | 0x7 << 76 | 0x8 << 60))

        assert ids(api.get(PATH, {"created_after": timezone.now() - timedelta(seconds=9)})) == []

    @pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
    def test_takes_a_moment_at_the_end_of_time(self, api, user, moment):
        made(user, 1)

        answer = api.get(PATH, {"created_after": moment})

        assert (answer.status_code, len(ids(answer))) == (200, 1 if moment < "1" else 0)

    def test_goes_on_with_the_filters_it_had(self, api, user):
        queued = made(user, 1)
        made(user, 2, status="succeeded")
        queued = made(user, 2) + queued

        assert walk(api, f"{PATH}?status=queued&limit=2") == [queued[:2], queued[2:]]

    def test_examines_no_more_than_so_many_rows_for_a_page(self, api, user, monkeypatch):
        """A page may be empty and not the last."""
        monkeypatch.setattr(reading, "MOST_EXAMINED", 3)
        rare = made(user, 1, status="failed_permanent")
        made(user, 7)

        pages = walk(api, f"{PATH}?status=failed_permanent")

        assert pages == [[], [], rare]

    def test_asks_as_much_for_many_as_for_few(self, api, user):
        job = make_job(resource="tests:line:7", ordered=True)
        asked = []
        for many in (1, 10):
            for place in range(many):
                make_operation(owner=user, job=job, resource_seq=Operation.objects.count() + place + 1)
            with CaptureQueriesContext(connection) as queries:
                [*_, last] = api.get(PATH).json()["items"]
            asked.append(len(queries))

        assert asked[0] == asked[1]
        newest = api.get(PATH).json()["items"][0]
        assert newest["waiting_for"] == f"blocked by {last['operation_id']}"

    @pytest.mark.parametrize(
        "wrong",
        [
            "status=done",
            "status=",
            "status=queued&status=ignored",
            "job_type=%00",
            "job_type=" + "x" * 101,
            "limit=0",
            "limit=101",
            "limit=many",
            "limit=",
            "created_after=yesterday",
            "created_after=2026-01-01T00:00:00",
            "created_after=2026-01-01",
            "cursor=nonsense",
            "cursor=",
            "cursor=%00",
            "cursor=%C3%A9%C3%A9",
            "cursor=AAAAAAAAAAAAAAAAAAAAAB",
        ],
    )
    def test_refuses_by_name_and_value(self, api, wrong):
        answer = api.get(f"{PATH}?{wrong}")

        name, _, value = wrong.partition("&")[0].partition("=")
        assert is_problem(answer, 400, "query-invalid")
        assert name in answer.json()["detail"]
        assert value[:20].replace("%00", "\\x00").replace("%C3%A9", "é") in answer.json()["detail"]

    def test_refuses_a_thousand_parameters(self, api):
        query = "&".join(
            f"limit={each}" for each in range(1_001)
        )  # Django's DATA_UPLOAD_MAX_NUMBER_FIELDS + 1

        answer = api.get(f"/v1/operations?{query}")

        assert is_problem(answer, 400, "bad-request")
        assert "detail" not in answer.json(), "Django's words name our settings"

    def test_refuses_a_filter_that_it_does_not_know(self, api):
        answer = api.get(f"{PATH}?state=queued")

        assert is_problem(answer, 400, "query-invalid")
        assert answer.json()["detail"] == "a list of operations has no parameter 'state'"

    def test_takes_a_cursor_of_anothers_for_a_place_and_no_more(self, api, user):
        mine = made(user, 1)
        theirs = make_operation()

        assert ids(api.get(f"{PATH}?cursor={list_queries.cursor_of(theirs.id)}")) == mine


class TestCursor:
    def test_is_read_as_it_was_written(self):
        id = uuid_utils.compat.uuid7()

        assert list_queries.read({"cursor": [list_queries.cursor_of(id)]}).before == id


class TestPlan:
    """However many an owner has: an index, no sort, and no more rows than are shown."""

    def test_walks_the_owners_index(self):
        values = {"owner_id": 1, "before": reading.NEWEST, "most": 51, "skip": []}
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute(f"EXPLAIN {reading.PAGE}", values)
            plan = "\n".join(row[0] for row in cursor.fetchall())

        assert "operation_of_owner" in plan
        assert "Sort" not in plan
