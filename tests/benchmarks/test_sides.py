"""Both sides are alike in everything that the comparison is not about."""

import logging
import runpy
from types import SimpleNamespace

import pytest
from django.conf import settings
from django.utils.module_loading import import_string
from rest_framework.authentication import TokenAuthentication

from benchmarks.sides import Baseline, Earlier, Ours


@pytest.fixture(params=["careful", "defaults"])
def variant(request):
    return request.param


@pytest.fixture
def theirs(variant, monkeypatch):
    """The settings of the baseline, read as a process of its own would."""
    return _settings(variant, monkeypatch)


@pytest.fixture
def careful(monkeypatch):
    return _settings("careful", monkeypatch)


def _settings(variant, monkeypatch):
    monkeypatch.setenv("VARIANT", variant)
    monkeypatch.setenv("BROKER_URL", settings.BROKER_URL)
    return runpy.run_module("benchmarks.baseline.settings")


class TestCommands:
    def test_are_the_same_but_for_the_projects_name(self):
        for kind in Baseline.kinds:
            named = Ours.command(kind).replace("config.wsgi", "benchmarks.baseline.wsgi")
            assert Baseline.command(kind) == named.replace("config.celery", "benchmarks.baseline.celery")

    def test_do_not_name_our_project_on_the_other_side(self):
        assert not any("config." in Baseline.command(kind) for kind in Baseline.kinds)


class TestSettings:
    def test_keep_the_connection_of_a_web_process_on_both_sides(self, theirs):
        ours = settings.DATABASES["default"]

        assert theirs["DATABASES"]["default"]["CONN_MAX_AGE"] == ours["CONN_MAX_AGE"]
        assert theirs["DATABASES"]["default"]["ENGINE"] == ours["ENGINE"]
        assert theirs["DATABASES"]["default"]["HOST"] == ours["HOST"]

    def test_authenticate_by_the_same_kind_of_token(self, theirs):
        for classes in (theirs["REST_FRAMEWORK"], settings.REST_FRAMEWORK):
            (authentication,) = classes["DEFAULT_AUTHENTICATION_CLASSES"]
            assert issubclass(import_string(authentication), TokenAuthentication)
            assert classes["DEFAULT_PERMISSION_CLASSES"] == ["rest_framework.permissions.IsAuthenticated"]
            assert classes["DEFAULT_RENDERER_CLASSES"] == ["rest_framework.renderers.JSONRenderer"]

    def test_send_the_same_events_from_the_same_number_of_slots(self, theirs):
        for name in ("WORKER_SEND_TASK_EVENTS", "WORKER_CONCURRENCY", "TASK_IGNORE_RESULT"):
            assert theirs[f"CELERY_{name}"] == getattr(settings, f"CELERY_{name}")

    def test_log_the_same_loggers_to_the_same_place_in_the_same_form(self, theirs):
        for part in ("handlers", "root", "loggers", "disable_existing_loggers"):
            assert theirs["LOGGING"][part] == settings.LOGGING[part]
        assert _line(theirs["LOGGING"]) == _line(settings.LOGGING)

    def test_of_a_careful_worker_are_ours(self, careful):
        for name in (
            "TASK_SERIALIZER",
            "ACCEPT_CONTENT",
            "TASK_ACKS_LATE",
            "TASK_REJECT_ON_WORKER_LOST",
            "WORKER_PREFETCH_MULTIPLIER",
            "WORKER_MAX_TASKS_PER_CHILD",
            "DB_REUSE_MAX",
        ):
            assert careful[f"CELERY_{name}"] == getattr(settings, f"CELERY_{name}"), name

    def test_of_a_careful_transport_are_ours(self, careful):
        theirs = careful["CELERY_BROKER_TRANSPORT_OPTIONS"]

        ours = {name: settings.CELERY_BROKER_TRANSPORT_OPTIONS[name] for name in theirs}

        assert theirs == ours

    def test_of_the_defaults_say_nothing_about_how_celery_works(self, monkeypatch):
        said = {name for name in _settings("defaults", monkeypatch) if name.startswith("CELERY_")}

        assert said == {
            "CELERY_BROKER_URL",
            "CELERY_IMPORTS",
            "CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP",
            "CELERY_BROKER_TRANSPORT_OPTIONS",
            "CELERY_TASK_IGNORE_RESULT",
            "CELERY_WORKER_CONCURRENCY",
            "CELERY_WORKER_SEND_TASK_EVENTS",
            "CELERY_WORKER_HIJACK_ROOT_LOGGER",
        }


def _line(logging_settings):
    """Format one record as these settings would."""
    same = {"name": "n", "levelname": "INFO", "msg": "it.happened", "created": 0.0, "msecs": 0.0}
    record = logging.makeLogRecord(same)
    formatter = dict(logging_settings["formatters"]["json"])
    make = import_string(formatter.pop("()"))
    formatter["fmt"] = formatter.pop("format", None)
    return make(**formatter).format(record)


class TestEarlier:
    def test_runs_what_the_other_checkout_has(self, tmp_path):
        (tmp_path / "Procfile").write_text("web: exec gunicorn other.wsgi\n")

        earlier = Earlier("earlier", tmp_path, SimpleNamespace(database_url="postgresql:///x"), tmp_path)
        earlier.stop()

        assert earlier.command("web", earlier.checkout) == "exec gunicorn other.wsgi"
        assert Ours.checkout != earlier.checkout
