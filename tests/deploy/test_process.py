import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from deploy.local import process as process_module
from deploy.local import ready
from deploy.local.guardian import Guardian
from deploy.local.ports import Port
from deploy.local.process import Process, ProcessFailed
from deploy.local.procfile import ROOT, commands

pytestmark = pytest.mark.process

ENV = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

# A parent with one child, as a worker is; it says that it is ready once the child lives.
FAMILY = "sleep 60 & echo ready.; wait"
DEAF = "trap '' TERM; echo ready.; while :; do sleep 1; done"


@pytest.fixture
def new_process(tmp_path):
    guardian = Guardian()
    made = []

    def new(command):
        env = {**ENV}
        log = tmp_path / "log"
        is_ready = ready.says("ready.")
        made.append(Process("worker", command, env=env, log=log, is_ready=is_ready, guardian=guardian))
        return made[-1]

    yield new
    for process in made:
        process.stop(grace_seconds=0)
    guardian.close()


class TestStart:
    def test_waits_for_the_word(self, new_process):
        process = new_process("sleep 0.2; echo ready.; exec sleep 60")

        process.start()

        assert "ready." in process.output()

    def test_is_ready_from_the_word_to_the_end(self, new_process):
        process = new_process("echo ready.; exec sleep 60")

        before = process.is_ready()
        process.start()
        started = process.is_ready()
        process.stop()

        assert (before, started, process.is_ready()) == (False, True, False)

    def test_tells_why_it_ended(self, new_process):
        process = new_process("echo no such setting; exit 3")

        with pytest.raises(ProcessFailed, match=r"(?s)worker ended with 3 .*no such setting"):
            process.start()

    def test_tells_what_it_said_when_it_is_late(self, new_process, monkeypatch):
        monkeypatch.setattr(process_module, "READY_SECONDS", 0.3)
        process = new_process("echo thinking; exec sleep 60")

        with pytest.raises(ProcessFailed, match=r"(?s)not ready after 0.3 s.*thinking"):
            process.start()

    def test_does_not_take_the_word_of_its_former_self(self, new_process):
        process = new_process(
            "test -e $HOME/second && exit 4; touch $HOME/second; echo ready.; exec sleep 60"
        )
        process.env["HOME"] = str(process.log.parent)
        process.start()

        with pytest.raises(ProcessFailed, match="ended with 4"):
            process.restart()


class TestStop:
    def test_ends_it_by_term(self, new_process):
        process = new_process("echo ready.; exec sleep 60")
        process.start()

        assert process.stop() == -signal.SIGTERM

    def test_kills_it_after_its_grace(self, new_process):
        process = new_process(DEAF)
        process.start()

        assert process.stop(grace_seconds=0.2) == -signal.SIGKILL

    def test_ends_one_that_was_stopped_in_its_tracks(self, new_process):
        process = new_process("echo ready.; exec sleep 60")
        process.start()
        process.kill(signal.SIGSTOP)

        assert process.stop() == -signal.SIGTERM

    def test_removes_children_of_a_killed_parent(self, new_process):
        process = new_process(FAMILY)
        process.start()
        children = process.children()
        process.kill()
        psutil.wait_procs([psutil.Process(process.pid)], timeout=5)
        assert children[0].is_running()

        process.stop()

        assert psutil.wait_procs(children, timeout=5)[1] == []


class TestKill:
    def test_of_children_spares_the_parent(self, new_process):
        process = new_process("sleep 60 & echo ready.; wait; exec sleep 60")
        process.start()
        children = process.children()

        process.kill(whom="children")

        psutil.wait_procs(children, timeout=5)
        assert process.is_alive()


class TestGuardian:
    def test_kills_the_groups_of_a_stack_that_was_killed(self, tmp_path):
        script = tmp_path / "stack.py"
        script.write_text(
            textwrap.dedent(f"""
                import time
                from pathlib import Path
                from deploy.local import ready
                from deploy.local.guardian import Guardian
                from deploy.local.process import Process
                log = Path({str(tmp_path / "log")!r})
                worker = Process("worker", {FAMILY!r}, env={ENV!r}, log=log,
                                 is_ready=ready.says("ready."), guardian=Guardian())
                worker.start()
                print("up", flush=True)
                time.sleep(60)
            """)
        )
        stack = subprocess.Popen(
            [sys.executable, script], env={**ENV, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        )
        assert stack.stdout.readline() == "up\n"
        left = psutil.Process(stack.pid).children(recursive=True)

        stack.kill()
        stack.communicate()

        assert len(left) == 3  # the guardian, the worker, its child
        assert psutil.wait_procs(left, timeout=10)[1] == []


class TestPort:
    def test_is_given_to_nobody_else(self):
        ports = [Port() for _ in range(50)]

        assert len({port.number for port in ports}) == 50

        for port in ports:
            port.release()


class TestProcfile:
    def test_execs_every_line(self):
        """So that a signal reaches the program and not a shell."""
        assert commands()
        assert all("exec " in command for command in commands().values())
