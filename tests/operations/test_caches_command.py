"""`manage.py caches`: what it tells, what it compares, and that it touches nothing else."""

import json
import time
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from operations import cache_books, cache_report, cache_store, cache_writers
from operations.cache_books import book
from operations.models import AuditEntry, CacheOrder

pytestmark = pytest.mark.django_db
WHY = ("--reason", "it shows the wrong sizes")


@pytest.fixture
def caches(capsys):
    """Give a function that calls the command, and gives what it printed as JSON."""

    def call(*asked):
        call_command("caches", *asked, "--json")
        return json.loads(capsys.readouterr().out)

    return call


class TestList:
    def test_tells_what_makes_each_stale(self, caches):
        told = {each["cache"]: each for each in caches()}

        assert told["inventory:view"]["stale_after"] == {
            "inventory.sync": ["inventory:view:{user_id}"],
            "inventory.grant": ["inventory:view:{user_id}"],
        }
        assert told["inventory:view"]["of"] == ["user_id"]

    def test_tells_how_reads_went(self, colour, source, caches):
        for _ in range(3):
            colour.get(7)
        cache_writers.invalidate(["tests:colour:7"])
        colour.get(7)
        book.write()

        (told,) = caches("list", "tests:colour")

        assert [told[name] for name in ("reads", "hit_ratio", "miss_ratio", "rebuilds", "invalidations")] == [
            4,
            0.5,
            0.5,
            2,
            1,
        ]
        assert 0 < told["rebuild_seconds_mean"] <= told["rebuild_seconds_max"] < 1
        assert told["last_invalidated_at"] is not None
        assert told["values"] == 2  # one of them is asked for no more

    def test_tells_of_what_was_never_read(self, colour, caches):
        (told,) = caches("list", "tests:colour")

        assert (told["hit_ratio"], told["rebuild_seconds_mean"], told["last_invalidated_at"]) == (None,) * 3

    def test_is_readable(self, colour, capsys):
        call_command("caches")

        shown = capsys.readouterr().out
        assert "tests:colour\n" in shown
        assert "  hit ratio               —\n" in shown
        assert "  stale after             inventory.sync: inventory:view:{user_id};" in shown

    def test_knows_no_other_name(self, colour):
        with pytest.raises(CommandError, match=r"no cache is called 'x'; there are .*tests:colour"):
            call_command("caches", "list", "x")

    def test_says_that_the_cache_is_away(self, cache_away):
        with pytest.raises(CommandError, match="the cache does not answer"):
            call_command("caches")


class TestCompare:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch):
        monkeypatch.setattr(cache_report, "SETTLING_SECONDS", 0.0)

    def test_finds_what_is_not_what_the_data_say(self, colour, source, capsys):
        colour.get(7)
        colour.get(8)
        cache_writers.invalidate(["tests:colour:8"])
        source.value = "new"  # by somebody who told nobody
        colour.get(8)

        with pytest.raises(CommandError, match=r"not what the data say: tests:colour:7$"):
            call_command("caches", "compare", "tests:colour", "--json")

        told = {each["name"]: each["verdict"] for each in json.loads(capsys.readouterr().out)}
        assert told == {"tests:colour:7": "different", "tests:colour:8": "same"}

    def test_tells_when_data_and_cache_were_written(self, declare, source, caches):
        changed_at = timezone.now() - timedelta(hours=1)
        dated = declare("tests:dated", source.load, changed_at=lambda id: changed_at)
        dated.get(7)

        (told,) = caches("compare", "tests:dated", "7")

        assert told["data_changed_at"] == changed_at.isoformat()
        assert abs(timezone.datetime.fromisoformat(told["stored_at"]) - timezone.now()) < timedelta(seconds=5)
        assert (told["verdict"], told["past_its_fresh_time"]) == ("same", False)

    def test_gives_a_commit_time_to_tell_the_cache(self, colour, source, caches, monkeypatch):
        colour.get(7)
        source.value = "new"
        monkeypatch.setattr(time, "sleep", lambda seconds: cache_writers.invalidate(["tests:colour:7"]))

        (told,) = caches("compare", "tests:colour", "7")

        assert told["verdict"] == "not cached"

    def test_tells_what_is_marked_and_what_is_not_there(self, declare, source, caches):
        declare("tests:exact", source.load, strict=True)
        cache_writers.about_to_change(["tests:exact:7"], writer="one", seconds=0)

        assert [caches("compare", "tests:exact", part)[0]["verdict"] for part in "78"] == [
            "marked",
            "not cached",
        ]

    def test_names_variants_as_the_reader_does(self, declare, source, caches):
        page = declare("tests:page", source.load, variants=("order",))
        page.get("a:b", "up")

        (told,) = caches("compare", "tests:page")

        assert (told["name"], told["verdict"]) == ("tests:page:a%3Ab:up", "same")

    def test_names_a_value_that_cannot_be_loaded(self, declare):
        number = declare("tests:number", int)
        number.get("7")
        object.__setattr__(number, "load", lambda id: 1 / 0)

        with pytest.raises(CommandError, match=r"tests:number:7 can't be loaded: ZeroDivisionError"):
            call_command("caches", "compare", "tests:number")

    def test_stops_at_as_many_as_were_wanted(self, colour, caches):
        for number in range(5):
            colour.get(number)

        assert len(caches("compare", "tests:colour", "--most", "3")) == 3


class TestClear:
    def test_clears_one_and_touches_nothing_else(self, colour, declare, source, caches):
        other = declare("tests:other", source.load)
        for number in range(3):
            colour.get(number)
        other.get(1)
        cache_writers.about_to_change(["tests:colour:7"], writer="one", seconds=0)
        client = cache_store.client()
        client.set("a queue's own key", "1")
        before = set(client.scan_iter())

        (told,) = caches("clear", "tests:colour", *WHY)

        gone = {key.decode().split(":")[1] for key in before - set(client.scan_iter())}
        assert told == {"cache": "tests:colour", "cleared": 3}
        assert gone == {"value", "revision"}
        assert client.delete("a queue's own key") == 1
        assert (source.loads, other.get(1), source.loads) == (4, "old", 4)

    def test_keeps_who_and_why(self, colour, caches):
        caches("clear", "tests:colour", *WHY, "--as", "ayu")

        entry = AuditEntry.objects.get()
        assert (entry.action, entry.target, entry.actor, entry.reason) == (
            "cache.clear",
            "cache:tests:colour",
            "ayu",
            WHY[1],
        )

    def test_wants_to_be_told_why(self, colour):
        colour.get(7)

        with pytest.raises(CommandError, match="say why"):
            call_command("caches", "clear", "tests:colour")

        assert len(list(cache_store.keys_of("value", "tests:colour"))) == 1


class TestOrder:
    def test_changes_what_it_names_and_keeps_the_rest(self, colour, caches):
        caches("order", "tests:colour", "--soft", "5", *WHY)

        (told,) = caches("order", "tests:colour", "--revalidate", "no", *WHY)

        assert told == {"cache": "tests:colour", "soft_seconds": 5.0, "jitter": None, "revalidate": False}
        assert [entry.after["soft_seconds"] for entry in AuditEntry.objects.all()] == [5.0, 5.0]
        assert caches("list", "tests:colour")[0]["fresh_seconds"] == 5.0

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (["--soft", "61"], "fresh for 61.0 s, and kept for 60 s"),
            (["--soft", "0"], "fresh for 0.0 s"),
            (["--jitter", "1.5"], "a jitter is 0 to 1"),
            ([], "say what to order"),
        ],
    )
    def test_that_cannot_be_kept_changes_nothing(self, colour, wrong, said):
        with pytest.raises(CommandError, match=said):
            call_command("caches", "order", "tests:colour", *wrong, *WHY)

        assert not CacheOrder.objects.exists()
        assert not AuditEntry.objects.exists()

    def test_is_taken_back(self, colour, caches):
        caches("order", "tests:colour", "--soft", "5", *WHY)

        caches("reset", "tests:colour", *WHY)

        (told,) = caches("list", "tests:colour")
        assert (told["fresh_seconds"], told["ordered"]) == (48.0, False)

    @pytest.mark.parametrize("act", ["order", "reset"])
    def test_is_for_one_cache(self, act):
        with pytest.raises(CommandError, match="which cache"):
            call_command("caches", act, "--soft", "5", *WHY)


class TestBook:
    def test_adds_up_the_hours_that_are_asked_for(self, colour, monkeypatch):
        now = time.time()
        for hours_ago in (0, 1, 5):
            monkeypatch.setattr(time, "time", lambda ago=hours_ago: now - 3_600 * ago)
            book.count("tests:colour", hits=1, rebuild_seconds_max=1.0 + hours_ago)
            book.write()
        monkeypatch.setattr(time, "time", lambda: now)

        told = {hours: cache_books.figures("tests:colour", hours=hours) for hours in (1, 2, 24)}

        assert {hours: seen.hits for hours, seen in told.items()} == {1: 1, 2: 2, 24: 3}
        assert told[24].rebuild_seconds_max == 6.0

    def test_is_forgotten_if_it_cannot_be_written(self, colour, cache_away):
        colour.get(7)

        book.write()

        assert book._counted == {}
