"""manage.py deadletters: what it prints for people and programs, what it changes, and how it ends."""

import getpass
import io
import json

import pytest
from django.core.management import CommandError, call_command

from operations import replays
from operations.models import AuditEntry, DeadLetter, Resolution, Status
from tests.factories import history, make_dead_letter, make_job, make_operation, make_user

pytestmark = pytest.mark.django_db

WHY = "the provider was repaired"
ACTOR = f"cli:{getpass.getuser()}"
PAST = "2026-01-01T00:00:00Z"


@pytest.fixture
def command():
    """Give a function that runs the command: (what it printed, what it said meanwhile, its exit code)."""

    def run(*arguments):
        out, err = io.StringIO(), io.StringIO()
        try:
            call_command("deadletters", *map(str, arguments), stdout=out, stderr=err)
        except SystemExit as ended:
            return out.getvalue(), err.getvalue(), ended.code
        return out.getvalue(), err.getvalue(), 0

    return run


@pytest.fixture
def as_json(command):
    """Give a function that runs the command with --json and gives what that says."""
    return lambda *arguments: json.loads(command(*arguments, "--json")[0])


def make_letter(signature="a" * 16, *, owner=None, **changes):
    operation = make_operation(status=Status.FAILED_PERMANENT, owner=owner or make_user())
    return make_dead_letter(operation, signature=signature, **changes)


def resolution(letter):
    letter.refresh_from_db()
    return letter.resolution


class TestGroups:
    def test_shows_kinds_of_failure_with_the_most_frequent_first(self, as_json):
        ayu = make_user()
        for _ in range(2):
            make_letter("b" * 16, owner=ayu, error_class="CallFailed", error_message="no answer")
        make_letter("b" * 16, error_class="CallFailed")
        make_letter("a" * 16)

        first, second = as_json("groups")

        assert (first["signature"], first["count"], first["users"]) == ("b" * 16, 3, 2)
        assert (first["job_type"], first["reason"]) == ("inventory.sync", "bug")
        assert (first["error_class"], first["message"]) == ("CallFailed", "no answer")
        assert first["first_seen"] <= first["last_seen"]
        assert (second["signature"], second["count"]) == ("a" * 16, 1)

    def test_counts_only_what_waits(self, as_json):
        make_letter(resolution=Resolution.REPLAYING)
        make_letter(resolution=Resolution.DISCARDED, resolved_at=PAST)

        assert as_json("groups") == []

    def test_is_a_table_for_people(self, command):
        make_letter("c" * 16)

        printed, _, code = command("groups")

        heading, line = printed.splitlines()
        assert heading.split() == [
            "signature", "count", "users", "job_type", "reason", "error_class", "last_seen", "message",
        ]  # fmt: skip
        assert line.split()[:5] == ["c" * 16, "1", "1", "inventory.sync", "bug"]
        assert code == 0


class TestList:
    def test_shows_the_newest_first(self, as_json):
        older, newer = make_letter(), make_letter()

        listed = as_json("list")

        assert [row["id"] for row in listed] == [newer.id, older.id]
        assert listed[0]["operation_id"] == str(newer.operation_id)

    def test_shows_as_many_as_asked(self, as_json):
        for _ in range(3):
            make_letter()

        assert len(as_json("list", "--limit", 2)) == 2

    @pytest.mark.parametrize(
        "asked", [("--signature", "b" * 16), ("--job-type", "tests.other")], ids=["signature", "job type"]
    )
    def test_shows_only_the_kind_that_is_asked_for(self, as_json, asked):
        make_letter()
        wanted = make_letter("b" * 16, job_type="tests.other")

        assert [row["id"] for row in as_json("list", *asked)] == [wanted.id]

    def test_shows_what_became_of_the_others(self, as_json):
        make_letter()
        gone = make_letter(resolution=Resolution.DISCARDED, resolved_at=PAST)

        assert [row["id"] for row in as_json("list", "--resolution", "discarded")] == [gone.id]

    def test_says_so_when_nothing_waits(self, command):
        assert command("list")[0].splitlines()[1:] == ["there is none"]

    def test_never_shows_a_payload(self, command):
        letter = make_letter()
        letter.operation.data.payload = {"user_id": 1, "note": "CANARY-IN-PAYLOAD"}
        letter.operation.data.save()

        for arguments in (("groups",), ("list",), ("list", "--json"), ("show", letter.id)):
            assert "CANARY-IN-PAYLOAD" not in "".join(command(*arguments)[:2])


class TestShow:
    def test_tells_all_of_one_with_its_history(self, command, as_json):
        letter = make_letter(traceback="File jobs.py")
        command("replay", letter.id, "--reason", WHY)

        shown = as_json("show", letter.id)

        assert (shown["id"], shown["operation"]) == (letter.id, str(letter.operation_id))
        assert (shown["traceback"], shown["resolution"]) == ("File jobs.py", "replaying")
        assert (shown["eligible"], shown["why"]) == (False, "it is replaying already")
        [move] = shown["history"]
        assert (move["from_status"], move["to_status"], move["reason"]) == (
            "failed_permanent",
            "queued",
            "replayed",
        )
        assert (move["actor"], move["error"]) == (ACTOR, WHY)

    def test_is_readable_for_people(self, command):
        letter = make_letter()

        printed, _, _ = command("show", letter.id)

        assert f"signature  {'a' * 16}" in printed
        assert "runs again under the same id and key" in printed

    def test_refuses_one_that_is_not_there(self, command):
        with pytest.raises(CommandError, match="there is no dead letter 0; `deadletters list` names"):
            command("show", 0)


class TestReplayAndDiscard:
    @pytest.mark.parametrize(
        ("act", "status", "took"),
        [("replay", "queued", Resolution.REPLAYING), ("discard", "ignored", Resolution.DISCARDED)],
    )
    def test_does_as_told_in_the_name_of_who_runs_it(self, command, act, status, took):
        letter = make_letter()

        printed, _, code = command(act, letter.id, "--reason", WHY)

        assert (code, resolution(letter)) == (0, took)
        assert "1 done, 0 refused" in printed
        assert history(letter.operation)[-1][1] == status
        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.action, entry.reason) == (ACTOR, act, WHY)

    def test_takes_every_waiting_one_of_a_signature_and_no_other(self, command):
        of_it = [make_letter("b" * 16) for _ in range(3)]
        discarded = make_letter("b" * 16, resolution=Resolution.DISCARDED, resolved_at=PAST)
        other = make_letter("a" * 16)

        command("replay", "--signature", "b" * 16, "--reason", WHY)

        assert {resolution(letter) for letter in of_it} == {Resolution.REPLAYING}
        assert resolution(discarded) == Resolution.DISCARDED
        assert resolution(other) == Resolution.WAITING

    def test_writes_one_entry_for_a_batch_beside_those_of_its_items(self, command):
        make_letter("b" * 16)
        make_letter("b" * 16)
        stranger = make_job(name="tests.forgotten")
        failed = make_operation(job=stranger, status=Status.FAILED_PERMANENT)
        make_dead_letter(failed, signature="b" * 16)

        _, _, code = command("replay", "--signature", "b" * 16, "--reason", WHY)

        assert code == 1
        batch = AuditEntry.objects.get(action="replay_batch")
        assert (batch.actor, batch.target, batch.reason) == (ACTOR, "dead_letters", WHY)
        assert batch.before == {"filter": {"signature": "b" * 16}, "count": 3}
        assert batch.after == {"done": 2, "refused": 1, "untouched": 0}
        assert AuditEntry.objects.filter(action="replay").count() == 2

    def test_accounts_for_a_batch_that_was_interrupted(self, command, monkeypatch):
        first, second = make_letter(), make_letter()
        monkeypatch.setattr("operations.replays.replay", interrupted_at(second))

        with pytest.raises(KeyboardInterrupt):
            command("replay", "--job-type", "inventory.sync", "--reason", WHY)

        batch = AuditEntry.objects.get(action="replay_batch")
        assert batch.after == {"done": 1, "refused": 0, "untouched": 1}
        assert (resolution(first), resolution(second)) == (Resolution.REPLAYING, Resolution.WAITING)

    @pytest.mark.parametrize("act", ["replay", "discard"])
    def test_changes_nothing_in_a_dry_run(self, as_json, act):
        letter = make_letter()

        said = as_json(act, letter.id, "--reason", WHY, "--dry-run")

        assert (said["act"], said["dry_run"]) == (act, True)
        assert said["outcomes"][0]["ok"]
        assert resolution(letter) == Resolution.WAITING
        assert (AuditEntry.objects.count(), history(letter.operation)) == (0, [])

    def test_says_in_a_dry_run_what_would_be_refused(self, command):
        letter = make_letter(resolution=Resolution.DISCARDED, resolved_at=PAST)

        printed, _, code = command("replay", letter.id, "--reason", WHY, "--dry-run")

        assert code == 1
        assert "it is discarded already" in printed

    def test_goes_on_after_a_refusal_and_exits_with_1(self, command):
        done = make_letter(resolution=Resolution.DISCARDED, resolved_at=PAST)
        waiting = make_letter()

        printed, _, code = command("replay", done.id, waiting.id, "--reason", WHY)

        assert code == 1
        assert f"dead letter {done.id} is discarded already" in printed
        assert "1 done, 1 refused" in printed
        assert resolution(waiting) == Resolution.REPLAYING

    def test_reports_each_outcome_to_programs(self, as_json):
        letter = make_letter()

        said = as_json("discard", letter.id, "--reason", WHY)

        assert said == {
            "act": "discard",
            "dry_run": False,
            "outcomes": [
                {
                    "id": letter.id,
                    "operation": str(letter.operation_id),
                    "ok": True,
                    "said": "ignored (discarded)",
                }
            ],
        }

    def test_says_how_far_it_is_on_stderr_only(self, command):
        letters = [make_letter() for _ in range(26)]

        printed, meanwhile, _ = command(
            "discard", *[letter.id for letter in letters], "--reason", WHY, "--json"
        )

        assert meanwhile.splitlines() == ["25 of 26", "26 of 26"]
        assert len(json.loads(printed)["outcomes"]) == 26

    def test_changes_nothing_when_one_of_them_is_not_there(self, command):
        letter = make_letter()

        with pytest.raises(CommandError, match="there is no dead letter 0; nothing was changed"):
            command("replay", letter.id, 0, "--reason", WHY)

        assert resolution(letter) == Resolution.WAITING

    @pytest.mark.parametrize("act", ["replay", "discard"])
    def test_wants_to_know_which(self, command, act):
        make_letter()

        with pytest.raises(CommandError, match=f"say which to {act}: ids, --signature or --job-type"):
            command(act, "--reason", WHY)

    @pytest.mark.parametrize("act", ["replay", "discard"])
    def test_wants_to_know_why(self, command, act):
        with pytest.raises(CommandError, match="--reason"):
            command(act, make_letter().id)

    def test_refuses_an_empty_reason(self, command):
        letter = make_letter()

        printed, _, code = command("discard", letter.id, "--reason", " ")

        assert code == 1
        assert "say why" in printed
        assert DeadLetter.objects.get().resolution == Resolution.WAITING


def interrupted_at(letter):
    """Give a replay that is interrupted when it comes to one dead letter."""
    original = replays.replay

    def replay(letter_id, **how):
        if letter_id == letter.id:
            raise KeyboardInterrupt
        return original(letter_id, **how)

    return replay
