"""How a client's key is read, what it stands for, and how long it lives."""

import dataclasses
import uuid
from datetime import timedelta
from io import BytesIO

import pytest
from django.utils import timezone

from operations import accept, jobs, keys, retention
from operations.keys import KeyInvalid, KeyMissing
from operations.models import FINAL, IdempotencyRecord, Operation, Status
from operations.parsers import StrictJSONParser
from tests.factories import make_request

KEY_TTL = timedelta(hours=24)  # of inventory.sync
MARGIN = timedelta(minutes=1)


class TestParseKey:
    @pytest.mark.parametrize(
        ("header", "key"),
        [
            ("abc", "abc"),
            ('"abc"', "abc"),
            (" abc ", "abc"),
            ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ("A.Z_a:z~0-9", "A.Z_a:z~0-9"),
            ('"with a space"', "with a space"),
            ('"a,b"', "a,b"),
            (r'"say \"hi\""', 'say "hi"'),
            (r'"back\\slash"', "back\\slash"),
            ("a", "a"),
            ("a" * 255, "a" * 255),
            ('"' + "a" * 255 + '"', "a" * 255),
            ('"' + '\\"' * 255 + '"', '"' * 255),
        ],
    )
    def test_reads(self, header, key):
        assert keys.parse_key(header) == key

    def test_misses_the_header(self):
        with pytest.raises(KeyMissing):
            keys.parse_key(None)

    @pytest.mark.parametrize(
        "header",
        [
            "",
            " ",
            '""',
            "with a space",
            "a,b",
            '"a","b"',
            '"a", "b"',
            '"a";p=1',
            '"not closed',
            'not opened"',
            r'"\x"',
            '"\\"',
            "é",
            '"é"',
            '"tab\t"',
            '"line\n"',
            "line\nbreak",
            "a" * 256,
            '"' + "a" * 256 + '"',
            "?1",
        ],
    )
    def test_refuses(self, header):
        with pytest.raises(KeyInvalid):
            keys.parse_key(header)


class TestFingerprint:
    def of(self, body=b"{}", **changes):
        fields = {
            "method": "POST",
            "path": "/v1/inventory/sync",
            "job_type": "inventory.sync",
            "media_type": "application/json",
        }
        return keys.fingerprint(**fields | changes, body=StrictJSONParser().parse(BytesIO(body)))

    def test_says_by_which_rules_it_was_made(self):
        assert self.of().startswith("v1:")
        assert len(self.of()) == len("v1:") + 64

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            pytest.param(b'{"a": 1, "b": 2}', b'{"b":2,"a":1}', id="order of members"),
            pytest.param(b'{"a": {"b": 1, "c": 2}}', b'{"a": {"c": 2, "b": 1}}', id="order inside"),
            pytest.param(b'{"a": [1, 2]}', b' {"a" :\n[1,2]} ', id="space"),
            pytest.param(rb'{"a": "\u00e9"}', '{"a": "é"}'.encode(), id="escapes"),
        ],
    )
    def test_is_the_same_for_another(self, one, other):
        assert self.of(one) == self.of(other)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (b'{"a": 1.0}', b'{"a": 1.00}'),
            (b'{"a": 1}', b'{"a": 1.0}'),
            (b'{"a": 1}', b'{"a": "1"}'),
            (b'{"a": 1.5}', b'{"a": "1.5"}'),
            (b'{"a": 0.1}', b'{"a": 0.1000000000000000055511151231257827}'),
            (b'{"a": 9007199254740992}', b'{"a": 9007199254740993}'),
            (b'{"a": [1, 2]}', b'{"a": [2, 1]}'),
            (b'{"a": null}', b"{}"),
            (b'{"a": true}', b'{"a": 1}'),
        ],
    )
    def test_differs_between(self, one, other):
        assert self.of(one) != self.of(other)

    @pytest.mark.parametrize(
        "changes", [{"method": "PUT"}, {"path": "/v1/other"}, {"job_type": "a.b"}, {"media_type": "a/b"}]
    )
    def test_differs_by(self, changes):
        assert self.of() != self.of(**changes)


@pytest.mark.django_db
class TestLives:
    """C17: one predicate for look-up, take-over and purge."""

    @pytest.fixture
    def entry(self, user):
        """Give a function that accepts a request and says what became of it, so long ago."""

        def make(status, *, ago, key="k-1"):
            operation = accept.accept(make_request(user, key=key)).operation
            finished_at = timezone.now() - ago if status in FINAL else None
            claim = {"claim_token": uuid.uuid4(), "lease_expires_at": timezone.now()}
            held = claim if status == Status.PROCESSING else {}
            Operation.objects.filter(id=operation.id).update(status=status, finished_at=finished_at, **held)
            return operation

        return make

    @pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.IGNORED])
    def test_so_long_after_its_operation_was_done(self, entry, user, status):
        first = entry(status, ago=KEY_TTL - MARGIN)

        again = accept.accept(make_request(user))

        assert (again.created, again.operation.id) == (False, first.id)

    @pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.IGNORED])
    def test_not_longer(self, entry, user, status):
        first = entry(status, ago=KEY_TTL + MARGIN)

        again = accept.accept(make_request(user, fingerprint="v1:of-another-body"))

        assert again.created is True
        assert again.operation.id != first.id
        assert IdempotencyRecord.objects.get().operation_id == again.operation.id

    @pytest.mark.parametrize(
        "status",
        [Status.QUEUED, Status.PROCESSING, Status.RETRY_SCHEDULED, Status.FAILED_PERMANENT],
    )
    def test_as_long_as_its_operation_can_still_act(self, entry, user, status):
        first = entry(status, ago=10 * KEY_TTL)

        assert accept.accept(make_request(user)).operation.id == first.id
        retention.begin_again()
        assert retention.purge_keys() == 0

    def test_as_long_as_the_contract_says(self, entry, user, monkeypatch):
        entry(Status.SUCCEEDED, ago=KEY_TTL + MARGIN)
        longer = dataclasses.replace(jobs.get("inventory.sync"), key_ttl=2 * KEY_TTL)

        assert accept.accept(make_request(user, job=longer)).created is False

    @pytest.mark.parametrize("ago", [KEY_TTL - MARGIN, KEY_TTL + MARGIN], ids=["lives", "is over"])
    def test_as_the_purge_sees_it(self, entry, user, ago):
        entry(Status.SUCCEEDED, ago=ago)
        lives = accept.find_repeat(make_request(user)) is not None

        retention.begin_again()
        retention.purge_keys()

        assert IdempotencyRecord.objects.exists() is lives
