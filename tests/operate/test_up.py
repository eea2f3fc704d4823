"""`make up`: what dies comes back and nothing is lost; Ctrl-C ends all of it, and that is a success."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import pytest

from deploy.local.procfile import ROOT
from tests.faults.lab import eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded, pytest.mark.timeout(300)]

# Nothing is installed on the way, and the Python is this one.
MAKE = ["make", "--old-file=.venv/ready", f"BIN={Path(sys.executable).parent}"]
READY = "ready; Ctrl-C stops it"
READY_SECONDS = 180
BACK_SECONDS = 10
DONE_SECONDS = 60  # a lease of 30 s, and what publishing again takes


class Kind(NamedTuple):
    """How to know a process among the children of `make up`, and what it writes when it is ready."""

    command: str
    log: str
    says: str


KINDS = {
    "web": Kind("gunicorn", "log/web.log", "Listening at"),
    "worker": Kind("celery.* worker .*inventory@", "log/worker-inventory.log", " ready."),
    "relay": Kind("manage.py relay", "log/relay.log", "relay.started"),
    "flower": Kind("celery.* flower ", "log/flower.log", "Visit me at"),
    "provider": Kind("deploy.local.provider", "log/provider.log", "provider ready: "),
    "valkey": Kind("valkey-server", "valkey/log", "Ready to accept connections"),
    "postgres": Kind("postgres", "postgres/log", "ready to accept connections"),
}


class Up:
    """`make up` as it runs: what it said, and what it started."""

    def __init__(self, pid, directory):
        self.pid = pid
        self.directory = directory
        self.said = (directory / "said").read_text()

    def printed(self, pattern):
        return re.search(pattern, self.said, re.MULTILINE).groups()

    def child(self, kind):
        children = psutil.Process(self.pid).children()
        return next(child for child in children if re.search(KINDS[kind].command, " ".join(child.cmdline())))

    def starts(self, kind):
        """Count how often a process of this kind has become ready."""
        log = self.directory / KINDS[kind].log
        return log.read_text(errors="replace").count(KINDS[kind].says)


@pytest.fixture(scope="module")
def unnamed():
    """The environment without servers that this session may have been told of."""
    return {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}


@pytest.fixture(scope="module")
def up(unnamed, tmp_path_factory):
    directory = tmp_path_factory.mktemp("up")
    command = [sys.executable, "-m", "deploy.local.up", "--directory", directory]
    with (directory / "said").open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=unnamed, stdout=out, stderr=subprocess.STDOUT)
        try:
            eventually(
                lambda: READY in (directory / "said").read_text(), within=READY_SECONDS, what="the stack"
            )
            yield Up(process.pid, directory)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@pytest.fixture(scope="module")
def client(up):
    [address], [token] = up.printed(r"^API +(\S+)/v1/$"), up.printed(r"^ana's token (\S+)$")
    with httpx.Client(
        base_url=address, headers={"Authorization": f"Token {token}"}, trust_env=False
    ) as client:
        yield client


class TestUp:
    def test_prints_where_everything_is_and_who_may_look(self, up):
        starts = (
            "API ",
            "provider ",
            "Flower ",
            "admin ",
            "logs ",
            "commands ",
            "ana's token ",
            "curl -X POST ",
            READY,
        )

        assert [start for start in starts if f"\n{start}" not in f"\n{up.said}"] == []

    def test_lets_the_admin_in(self, up):
        address, name, password = up.printed(r"^admin +(\S+) \((\S+?):(\S+)\)$")
        with httpx.Client(trust_env=False, follow_redirects=True) as browser:
            browser.get(address)
            form = {"username": name, "password": password, "next": "/admin/"}
            token = {"X-CSRFToken": browser.cookies["csrftoken"], "Referer": address}
            page = browser.post(f"{address}login/", data=form, headers=token)

        assert page.status_code == 200
        assert "/admin/logout/" in page.text

    def test_tells_how_to_run_its_commands(self, up):
        [command] = up.printed(r"^commands +(.+)$")

        printed = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)

        assert printed.stdout.startswith("signature ")

    def test_rehearses_the_runbook_of_dead_letters(self, up):
        page = (ROOT / "docs" / "runbooks" / "dead-letters.md").read_text()
        [drill] = re.findall(r"^```sh\n(.+?)^```$", page, re.MULTILINE | re.DOTALL)
        drill = drill.replace(". var/environment", f". {up.directory}/environment")

        done = subprocess.run(["sh", "-eu", "-c", drill], cwd=ROOT, capture_output=True, text=True)

        assert done.returncode == 0, done.stderr
        assert "3 done, 0 refused" in done.stdout

    @pytest.mark.parametrize("kind", KINDS)
    def test_starts_again_what_was_killed_and_loses_nothing(self, up, client, kind):
        starts, killed = up.starts(kind), up.child(kind)
        accepted = [ask(client) for _ in range(3)]

        killed.kill()

        eventually(lambda: up.starts(kind) > starts, within=BACK_SECONDS, what=f"another {kind}")
        accepted.append(eventually(lambda: ask(client), within=BACK_SECONDS, what="an answer"))
        for operation in accepted:
            eventually(lambda at=operation: is_done(client, at), within=DONE_SECONDS, what=operation)
        assert up.child(kind).pid != killed.pid


class TestCtrlC:
    def test_is_a_failure_to_make(self, tmp_path, unnamed):
        """A terminal sends it to everything in its foreground, make included."""
        terminal, ours = pty.openpty()
        make = subprocess.Popen(
            [*MAKE, "up", f"ARGS=--directory {tmp_path}"],
            cwd=ROOT,
            env=unnamed,
            stdin=ours,
            stdout=ours,
            stderr=ours,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(ours)
        try:
            said = read_until(terminal, READY)
            started = psutil.Process(make.pid).children(recursive=True)

            os.write(terminal, b"\x03")

            assert make.wait(60) == 0, said
            assert len(started) > 8
            assert psutil.wait_procs(started, timeout=20)[1] == []
        finally:
            make.kill()
            os.close(terminal)


def ask(client):
    """Ask for a sync and give its address; None if nobody answers."""
    try:
        answer = client.post("/v1/inventory/sync", json={}, headers={"Idempotency-Key": uuid.uuid4().hex})
    except httpx.TransportError:
        return None
    return answer.json()["status_url"] if answer.status_code == 202 else None


def is_done(client, address):
    """Say whether an operation has succeeded, or has found that another brought the same snapshot."""
    try:
        return client.get(address).json().get("status") in {"succeeded", "ignored"}
    except httpx.TransportError:
        return False


def read_until(terminal, text):
    said, end = "", time.monotonic() + READY_SECONDS
    while text not in said:
        assert time.monotonic() < end, said
        if select.select([terminal], [], [], 1)[0]:
            said += os.read(terminal, 4096).decode()
    return said
