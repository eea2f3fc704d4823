"""What a job redacts is in no place where it could be read by who should not."""

import dataclasses
import json

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command
from rest_framework import serializers
from rest_framework.serializers import ValidationError

from operations import accept, jobs, secrecy
from operations.dead_letters import MESSAGE_LENGTH, from_exception
from operations.jobs import Payload, UnsafeJob
from operations.models import AuditEntry, Operation, OperationData
from tests.factories import make_failure, make_job, make_operation, make_request, work
from tests.operations.people import browser

SECRET = "S3CR3T-XYZ"


class Note(Payload):
    """A payload with something to hide."""

    ref = serializers.CharField()
    password = serializers.JSONField()


@pytest.fixture
def job():
    return make_job(payload=Note, redact=("password",), resource="")


@pytest.fixture
def key(settings):
    settings.PAYLOAD_KEYS = [Fernet.generate_key().decode()]
    secrecy.forget_keys()
    yield settings.PAYLOAD_KEYS[0]
    secrecy.forget_keys()


class TestSealed:
    @pytest.mark.parametrize("secret", [SECRET, {"a": [1, None]}, "", 0, None])
    def test_hides_what_the_job_redacts_and_gives_it_back(self, job, key, secret):
        payload = {"ref": "r", "password": secret}

        stored = secrecy.sealed(job, payload)

        assert stored["ref"] == "r"
        assert SECRET not in json.dumps(stored)
        assert secrecy.opened(stored) == payload

    def test_is_the_payload_itself_without_a_key(self, job, settings):
        settings.PAYLOAD_KEYS = []

        assert secrecy.sealed(job, {"ref": "r", "password": SECRET}) == {"ref": "r", "password": SECRET}

    def test_opens_with_an_older_key(self, job, key, settings):
        stored = secrecy.sealed(job, {"ref": "r", "password": SECRET})
        settings.PAYLOAD_KEYS = [Fernet.generate_key().decode(), key]
        secrecy.forget_keys()

        assert secrecy.opened(stored)["password"] == SECRET

    @pytest.mark.parametrize("keys", [[], [Fernet.generate_key().decode()]], ids=["none", "another"])
    def test_does_not_open_without_its_key(self, job, key, settings, keys):
        stored = secrecy.sealed(job, {"ref": "r", "password": SECRET})
        settings.PAYLOAD_KEYS = keys
        secrecy.forget_keys()

        with pytest.raises(secrecy.Unreadable):
            secrecy.opened(stored)


class TestScrubbed:
    def test_takes_the_secret_out_of_the_texts_of_an_error(self, job):
        failure = make_failure(message=f"no user has {SECRET}, sorry", traceback=f"line 1: {SECRET}")

        scrubbed = secrecy.scrubbed(failure, job, {"ref": "sorry", "password": {"deep": [SECRET]}})

        assert scrubbed.message == "no user has •••, sorry"
        assert SECRET not in scrubbed.traceback

    def test_leaves_no_beginning_of_one_where_a_text_is_cut(self, job):
        error = ValueError("x" * (MESSAGE_LENGTH - 3) + SECRET)

        failure = from_exception(error, category="bug")
        scrubbed = secrecy.scrubbed(failure, job, {"ref": "r", "password": SECRET})

        assert scrubbed.message == "x" * (MESSAGE_LENGTH - 3) + "•••"

    def test_takes_out_the_longer_of_two_that_begin_alike_and_what_is_quoted(self, job):
        payload = {"ref": "r", "password": ["budi", "budi2024", 'a "quoted"\nline']}
        text = f"budi2024 and {payload['password'][2]!r} and {json.dumps(payload['password'][2])}"

        scrubbed = secrecy.scrubbed(make_failure(message=text), job, payload)

        assert scrubbed.message == "••• and '•••' and \"•••\""


class TestWithoutValues:
    def test_tells_of_a_redacted_member_only_that_it_is_wrong(self, job):
        wrong = {"password": [f'"{SECRET}" is not a valid choice.'], "ref": ["This field is required."]}

        assert secrecy.without_values(job, wrong) == {
            "password": "is not valid",
            "ref": ["This field is required."],
        }


class TestRefuse:
    @pytest.mark.parametrize(
        "value",
        [
            "4242424242424242",
            "4242 4242 4242 4242",
            "pay with 4242-4242-4242-4242 please",
            4242424242424242,
            {"deep": ["378282246310005"]},
            "5555555555554444",
            "6011111111111117",
            "30569309025904",
            "sk_live_51Habc",
            "rk_live_51Habc",
            "whsec_0123456789abcdef0123",
        ],
    )
    def test_names_the_member_and_not_the_value(self, value):
        with pytest.raises(ValidationError) as refused:
            secrecy.refuse_what_must_not_be_kept({"ok": "fine", "note": value})

        assert list(refused.value.detail) == ["note"]
        assert "4242" not in str(refused.value.detail)
        assert "live_" not in str(refused.value.detail)

    def test_takes_nothing_that_looks_sealed(self):
        with pytest.raises(ValidationError):
            secrecy.refuse_what_must_not_be_kept({"note": {"sealed": "x"}})

    @pytest.mark.parametrize(
        "value",
        [
            "4242424242424241",  # Luhn says no
            "0197a0e5-2c5f-7c4e-9c55-424242424242",
            "424242424242",
            "sk_test_51Habc",
            1764556800000,
            "20261201000001",
            "20261201000001424",
            "+6281234567894",
            "4006381333931",
            "2026-12-01-000001",
            "order 4242424242424242x",
            True,
            None,
        ],
    )
    def test_lets_pass_what_is_none(self, value):
        secrecy.refuse_what_must_not_be_kept({"note": value})


class TestContract:
    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"redact": ("strange",)}, "no member of its payload is called strange"),
            ({"resource": "note:{password}", "redact": ("password",)}, "can't be part of a name"),
            ({"invalidates": ["view:{password}"], "redact": ("password",)}, "can't be part of a name"),
        ],
    )
    def test_is_refused(self, changes, why):
        def handler(run, answer, **payload):
            """Do it."""

        with pytest.raises(UnsafeJob, match=why):
            jobs.job("tests.secret", payload=Note, **changes)(handler)


@pytest.mark.django_db(transaction=True)
class TestOnTheWay:
    @pytest.fixture
    def accepted(self, user, job, key):

        body = {"ref": "r", "password": SECRET}
        return accept.accept(make_request(user, job=job, payload=body)).operation

    def test_is_stored_sealed_and_given_to_the_handler_open(self, accepted, job):
        seen = []

        def handler(run, answer, **payload):
            seen.append(payload)

        assert SECRET not in json.dumps(OperationData.objects.get().payload)
        assert work(accepted, dataclasses.replace(job, handler=handler)).status == "succeeded"
        assert seen == [{"ref": "r", "password": SECRET}]

    def test_is_in_no_text_of_its_failure(self, accepted, job):
        def handler(run, answer, *, ref, password):
            raise ValueError(f"what is {password}?")

        failed = work(accepted, dataclasses.replace(job, handler=handler))

        assert failed.data.error["message"] == "what is •••?"
        letter = failed.dead_letters.get()
        assert SECRET not in f"{letter.error_message} {letter.traceback} {letter.signature}"

    def test_waits_for_a_worker_that_has_the_key(self, accepted, job, settings, key):
        settings.PAYLOAD_KEYS = []
        secrecy.forget_keys()

        waiting = work(accepted, job)

        assert (waiting.status, waiting.reason) == ("retry_scheduled", "unsupported_schema")
        assert waiting.attempt == 0


@pytest.mark.django_db
class TestAdmin:
    @pytest.fixture
    def page(self, monkeypatch):
        redacting = dataclasses.replace(jobs.get("inventory.sync"), redact=("user_id", "password"))
        monkeypatch.setitem(jobs._registry, "inventory.sync", redacting)
        operation = make_operation()
        OperationData.objects.update(payload={"user_id": 7, "password": SECRET, "ref": "shown"})
        return f"/admin/operations/operation/{operation.id}/change/"

    def viewer(self, *more):
        return browser("view_operation", "view_operationdata", *more)

    def test_masks_all_of_what_nobody_here_knows(self, page):
        Operation.objects.update(schema_version=9)

        shown = self.viewer().get(page).content.decode()

        assert SECRET not in shown
        assert '"ref"' not in shown

    def test_masks_it(self, page):
        shown = self.viewer().get(page).content.decode()

        assert SECRET not in shown
        assert "•••" in shown
        assert "shown" in shown
        assert "Reveal" not in shown

    def test_reveals_it_to_who_may_and_says_why(self, page):
        viewer = self.viewer("reveal_operationdata")
        assert "Reveal" in viewer.get(page).content.decode()

        revealed = viewer.post(page, {"reveal": "payload", "reason": "ticket 12"}).content.decode()

        assert SECRET in revealed
        entry = AuditEntry.objects.get()
        assert (entry.action, entry.reason) == ("reveal", "ticket 12")
        assert SECRET not in json.dumps([entry.before, entry.after])

    def test_reveals_nothing_without_a_reason(self, page):
        refused = (
            self.viewer("reveal_operationdata")
            .post(page, {"reveal": "payload", "reason": " "})
            .content.decode()
        )

        assert SECRET not in refused
        assert "Say why" in refused
        assert not AuditEntry.objects.exists()

    def test_refuses_who_may_not(self, page):
        assert self.viewer().post(page, {"reveal": "payload", "reason": "please"}).status_code == 403
        assert not AuditEntry.objects.filter(action="reveal").exists()


@pytest.mark.django_db
class TestReseal:
    def test_rotates_the_keys(self, job, key, settings, capsys):
        for _ in range(3):
            make_operation()
        OperationData.objects.update(payload=secrecy.sealed(job, {"ref": "r", "password": SECRET}))
        settings.PAYLOAD_KEYS = [Fernet.generate_key().decode(), key]
        secrecy.forget_keys()

        call_command("reseal", json=True)
        settings.PAYLOAD_KEYS = settings.PAYLOAD_KEYS[:1]
        secrecy.forget_keys()

        assert json.loads(capsys.readouterr().out) == {"resealed": 3, "unreadable": 0}
        opened = [secrecy.opened(row.payload) for row in OperationData.objects.all()]
        assert opened == [{"ref": "r", "password": SECRET}] * 3

    def test_says_what_it_cannot_open(self, job, key, settings):
        make_operation()
        OperationData.objects.update(payload=secrecy.sealed(job, {"ref": "r", "password": SECRET}))
        settings.PAYLOAD_KEYS = [Fernet.generate_key().decode()]
        secrecy.forget_keys()

        with pytest.raises(CommandError, match="keep the older keys"):
            call_command("reseal", json=True)
