"""What is refused before a process starts: caches that nobody would tell, stores that share a database."""

from dataclasses import replace

import pytest
from django.core.checks import run_checks

from config import connections
from operations import jobs


def said(*ids):
    return [found.msg for found in run_checks(tags=["teguh"]) if found.id in ids]


class TestCaches:
    @pytest.mark.parametrize(
        ("template", "complaint"),
        [
            ("tests:color:{user_id}", "there is no such cache"),
            ("tests:colour", "told by id"),
            ("tests:colour:{user_id}:{order_id}", "told by id"),
            ("tests:colour:{user_id:03}", ""),
            ("tests:colour:{user_id}", ""),
        ],
    )
    def test_hold_what_jobs_make_stale_to_what_there_is(self, colour, monkeypatch, template, complaint):
        job = jobs.get("inventory.grant")
        monkeypatch.setitem(jobs._registry, job.name, replace(job, invalidates=(template,)))

        found = said("teguh.E009", "teguh.E010")

        assert [complaint in each for each in found] == ([True] if complaint else [])


class TestStores:
    def test_may_be_databases_of_one_server(self):
        assert said("teguh.E011") == []

    @pytest.mark.parametrize("setting", ["LOCK_URL", "QUOTA_URL"])
    def test_may_not_be_one_database(self, settings, setting):
        setattr(settings, setting, settings.CACHE_URL)

        assert len(said("teguh.E011")) == 1

    def test_are_known_however_they_are_spelled(self):
        alike = [
            {"redis://localhost", "redis://127.0.0.1:6379/0", "redis://user:word@127.0.0.1?db=0"},
            {"unix:///x/valkey.sock?db=3", "redis+socket:///x/valkey.sock?virtual_host=3"},
            {"rediss://one.example:6380/2"},
        ]

        assert [len({connections.redis_place(url) for url in urls}) for urls in alike] == [1, 1, 1]
        assert len({connections.redis_place(url) for urls in alike for url in urls}) == 3


class TestEviction:
    def test_of_a_server_that_keeps_all_is_fine(self, monkeypatch):
        monkeypatch.setattr("operations.checks._policy_of", lambda url: "noeviction")

        assert said("teguh.W012") == []

    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
    def test_is_warned_of(self, monkeypatch, settings, policy):
        settings.ON_RABBITMQ = False
        monkeypatch.setattr("operations.checks._policy_of", lambda url: policy)

        assert len(said("teguh.W012")) == 2

    def test_of_a_server_that_is_away_is_not_known(self, settings):
        settings.LOCK_URL = "redis://127.0.0.1:9/2"

        assert said("teguh.W012") == []
