"""Keys that were seen accepted: a hint that saves a repeat its insertion, and decides nothing."""

import pytest

from operations import accept, lifecycle, recent
from operations.models import Operation
from tests.factories import make_request, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_seen():
    recent._seen.clear()


class TestExpectedRepeat:
    def test_is_found_without_an_insertion(self, monkeypatch):
        request = make_request(make_user())
        first = accept.accept(request)
        monkeypatch.setattr(lifecycle, "accept", lambda **values: pytest.fail("nothing is to be inserted"))

        again = accept.expected_repeat(request)

        assert (again.operation.id, again.created) == (first.operation.id, False)

    def test_is_not_expected_of_a_key_that_nobody_has_seen(self):
        request = make_request(make_user())
        accept.accept(request)
        recent._seen.clear()

        assert accept.expected_repeat(request) is None
        assert not accept.accept(request).created
        assert accept.expected_repeat(request) is not None

    def test_of_another_body_is_refused(self):
        user = make_user()
        accept.accept(make_request(user))

        with pytest.raises(accept.KeyReused):
            accept.expected_repeat(make_request(user, fingerprint="v1:another"))

    def test_of_another_user_is_none(self):
        accept.accept(make_request(make_user()))

        assert accept.expected_repeat(make_request(make_user())) is None

    def test_is_none_when_the_key_is_over(self):
        request = make_request(make_user())
        accept.accept(request)
        Operation.objects.all().delete()

        assert accept.expected_repeat(request) is None
        assert accept.accept(request).created


class TestNote:
    def test_forgets_the_oldest(self, monkeypatch):
        monkeypatch.setattr(recent, "MOST", 2)
        for key in ("a", "b", "a", "c"):
            recent.note(1, "tests.work", key)

        assert [recent.has(1, "tests.work", key) for key in "abc"] == [True, False, True]
