"""So many requests a minute, for all processes together; and for each alone while Redis is away."""

import time

import pytest

from operations import quotas
from operations.quotas import Quota
from tests.conftest import NOWHERE
from tests.threads import together

pytestmark = pytest.mark.django_db  # for its servers

USER = 7


@pytest.fixture
def limit(settings):
    settings.POSTS_PER_MINUTE = 40
    return settings.POSTS_PER_MINUTE


@pytest.fixture
def away(settings):
    settings.QUOTA_URL = NOWHERE
    quotas.forget_all()
    yield
    quotas.forget_all()


def make_quota():
    """Make what one process has."""
    return Quota("posts", "POSTS_PER_MINUTE")


def granted(quota, times):
    return [quota.take(USER).granted for _ in range(times)].count(True)


class TestTake:
    def test_grants_as_many_as_the_limit(self, limit):
        assert granted(make_quota(), limit + 10) == limit

    def test_counts_all_processes_together(self, limit):
        processes = [make_quota() for _ in range(4)]

        counts = [granted(process, limit) for process in processes]

        assert sum(counts) <= limit
        assert sum(counts) >= limit - len(processes) * limit // quotas.LEASE_SHARE

    def test_counts_threads_of_one_process_once_each(self, limit):
        quota = make_quota()

        counts = together(*[lambda: granted(quota, 10)] * 8)

        assert sum(counts) == limit

    def test_counts_each_user_by_themselves(self, limit):
        quota = make_quota()
        granted(quota, limit + 1)

        assert quota.take(USER + 1).granted is True

    def test_is_no_limit_at_zero(self, settings):
        settings.POSTS_PER_MINUTE = 0

        assert make_quota().take(USER) is None

    def test_says_how_the_user_stands(self, limit):
        quota = make_quota()

        standings = [quota.take(USER) for _ in range(limit + 1)]

        assert [standing.remaining for standing in standings] == [*reversed(range(limit)), 0]
        assert all(1 <= standing.reset_seconds <= 60 for standing in standings)
        assert standings[0].headers == {
            "RateLimit-Policy": '"posts";q=40;w=60',
            "RateLimit": f'"posts";r=39;t={standings[0].reset_seconds}',
        }

    def test_begins_anew_when_the_window_is_over(self, limit, monkeypatch):
        monkeypatch.setattr(quotas, "WINDOW_SECONDS", 1)
        quota = make_quota()
        granted(quota, limit + 1)
        assert quota.take(USER).granted is False

        time.sleep(1.1)

        assert quota.take(USER).granted is True

    def test_asks_redis_for_few_of_many_requests(self, settings, monkeypatch):
        settings.POSTS_PER_MINUTE = 600
        quota, asked = make_quota(), []
        shared = quota._shared
        monkeypatch.setattr(quota, "_shared", lambda *values: asked.append(values) or shared(*values))

        granted(quota, 300)

        assert len(asked) <= 35  # 300 by tens, and the first

    def test_keeps_for_itself_what_it_leased_for_a_moment_only(self, settings, monkeypatch):
        settings.POSTS_PER_MINUTE = 600
        quota = make_quota()
        quota.take(USER)
        lease = quota._leases[USER]

        lease.until = time.monotonic()

        quota.take(USER)
        assert quota._leases[USER] is not lease

    def test_gives_back_what_it_did_not_use(self, settings):
        settings.POSTS_PER_MINUTE = 600
        processes = [make_quota() for _ in range(16)]
        for _ in range(5):
            for process in processes:
                process.take(USER)
                process._leases[USER].until = time.monotonic()  # a lease that is over

        standing = processes[0].take(USER)

        # 81 asked; 15 processes hold at most a lease of ten each, of which one is used.
        assert standing.remaining >= 600 - 81 - 15 * 9


class TestTakeWithoutRedis:
    def test_turns_nobody_away_for_it(self, away, limit):
        assert make_quota().take(USER).granted is True

    def test_caps_what_each_process_grants(self, away, limit):
        assert granted(make_quota(), limit + 10) == limit

    def test_goes_on_from_what_is_known(self, limit, settings):
        quota = make_quota()
        granted(quota, 30)
        settings.QUOTA_URL = NOWHERE
        quotas._script.cache_clear()

        assert granted(quota, limit) <= limit - 30 + quotas.LARGEST_LEASE

    def test_does_not_ask_again_at_once(self, away, limit, monkeypatch):
        quota = make_quota()
        quota.take(USER)
        with monkeypatch.context() as patched:
            patched.setattr(quotas, "_script", lambda: pytest.fail("it was asked"))

            assert quota.take(USER + 1).granted is True
