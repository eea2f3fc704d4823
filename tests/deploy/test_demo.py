"""The demo keeps every promise, and says which one is broken when a guard is off."""

import json
import os
import signal
import subprocess
import sys

import psutil
import psycopg
import pytest

from deploy.local import demo, stage, story, troubles
from deploy.local.procfile import ROOT
from deploy.local.stack import USUAL
from deploy.local.telling import Telling

pytestmark = [pytest.mark.process, pytest.mark.embedded]

WITHOUT_RELAY = tuple(name for name in USUAL if name != "relay")
DUE_SECONDS = 13.0  # the first pause is 10 s at most


@pytest.fixture
def start(tmp_path):
    """Start the demo as `make demo` does, on a directory of the test's own."""
    unnamed = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "deploy.local.demo", "--directory", tmp_path, *arguments]
        started.append(subprocess.Popen(command, cwd=ROOT, env=unnamed, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


class TestDemo:
    def test_keeps_every_promise(self, start, tmp_path):
        process = start("--json")

        printed, _ = process.communicate()

        report = json.loads(printed)
        assert report["ok"], report["steps"][-1]
        assert process.returncode == 0
        assert len(report["steps"]) == len(demo.STEPS) + 2  # the start and the end
        assert json.loads((tmp_path / "reports" / "demo.json").read_text()) == report

    def test_leaves_nothing_behind_when_it_is_interrupted(self, start, tmp_path):
        process = start()
        for line in process.stdout:
            if "Ana's console" in line:
                break
        running = psutil.Process(process.pid).children(recursive=True)

        process.send_signal(signal.SIGINT)

        assert process.wait(30) == demo.INTERRUPTED
        assert len(running) > 8  # two servers, the guardian, four processes, and their children
        assert psutil.wait_procs(running, timeout=5)[1] == []
        assert list((tmp_path / "demo").iterdir()) == []


class TestPlay:
    """Each guard is switched off, and the step that needs it says what is broken."""

    @pytest.fixture
    def play(self, new_stack):
        def play(step, *, processes=USUAL, prepare=lambda stack: None, **env):
            assert step in demo.STEPS
            stack = new_stack(*processes, own="valkey", env={**troubles.SETTINGS, **env})
            prepare(stack)
            return demo.play(stack, Telling(), [step])

        return play

    def test_misses_the_relay(self, play, monkeypatch):
        monkeypatch.setattr(stage, "PATIENCE_SECONDS", DUE_SECONDS)

        broken = play(troubles.provider_fails, processes=WITHOUT_RELAY)

        assert broken.promise == "the relay sends it round when it is due"

    def test_misses_the_unique_constraint(self, play):
        broken = play(
            story.ten_at_once, prepare=drop_constraint, EXTRA_APPS="tests.probes.switches.UniqueOff"
        )

        assert broken.promise == "one key makes one operation"

    def test_misses_the_claim_token(self, play):
        broken = play(troubles.worker_frozen, EXTRA_APPS="tests.probes.switches.TokenOff")

        assert broken.promise == "the history says what happened"


def drop_constraint(stack):
    with psycopg.connect(stack.env["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("ALTER TABLE operations_idempotencyrecord DROP CONSTRAINT one_operation_a_key")
