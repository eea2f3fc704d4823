"""The servers that the tests themselves stand on, tried as a launcher is: from outside, by signals."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from deploy.local import children
from deploy.local.postgres import NOBODY, OWN_NAMESPACE
from deploy.local.servers import DirectoryInUse, Servers

pytestmark = [pytest.mark.process, pytest.mark.embedded]

STOP_SECONDS = 20


class Launcher:
    """`python -m deploy.local.servers` in a process of its own."""

    def __init__(self, directory: Path, **popen):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.local.servers", "--throw-away", "--directory", directory],
            stdout=subprocess.PIPE,
            text=True,
            **popen,
        )
        lines = [self.process.stdout.readline().strip() for _ in range(2)]
        self.urls = dict(line.split("=", 1) for line in lines)
        self.servers = psutil.Process(self.process.pid).children(recursive=True)

    def end(self, with_signal: signal.Signals) -> int:
        self.process.send_signal(with_signal)
        self.process.stdout.close()
        return self.process.wait(STOP_SECONDS)

    def survivors(self) -> list[psutil.Process]:
        _, alive = psutil.wait_procs(self.servers, timeout=STOP_SECONDS)
        return alive


@pytest.fixture
def short_path():
    """Those of pytest have names too long for a socket."""
    path = Path(tempfile.mkdtemp(prefix="t-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def running():
    """Some that a test may harm if it repairs them."""
    with Servers(durable=False) as servers:
        yield servers


def ask(servers: Servers) -> tuple[int, bool]:
    with psycopg.connect(servers.database_url) as connection:
        one = connection.execute("SELECT 1").fetchone()[0]
    with redis.Redis.from_url(servers.redis_url) as client:
        return one, client.ping()


class TestLauncher:
    def test_leaves_nothing_behind_when_it_is_killed(self, short_path):
        launcher = Launcher(short_path)

        launcher.end(signal.SIGKILL)

        assert launcher.servers
        assert launcher.survivors() == []

    def test_can_be_started_again_at_once_after_a_kill(self, short_path):
        Launcher(short_path).end(signal.SIGKILL)

        again = Launcher(short_path)

        assert again.end(signal.SIGINT) == 0

    @pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM])
    def test_stops_both_cleanly(self, short_path, with_signal):
        launcher = Launcher(short_path)

        assert launcher.end(with_signal) == 0

        assert launcher.survivors() == []
        assert "database system is shut down" in (short_path / "postgres" / "log").read_text()
        assert "ready to exit" in (short_path / "valkey" / "log").read_text()

    def test_ends_with_an_error_when_a_server_dies(self, short_path):
        launcher = Launcher(short_path, stderr=subprocess.PIPE)
        valkey = next(process for process in launcher.servers if "valkey" in process.name())

        valkey.kill()
        _, complaint = launcher.process.communicate(timeout=STOP_SECONDS)

        assert launcher.process.returncode == 1
        assert "valkey ended" in complaint
        assert launcher.survivors() == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_works_for_an_ordinary_user(self, short_path):
        # In a namespace of our own we are uid 1000: without root's powers, but with a way to the checkout.
        launcher = Launcher(short_path, preexec_fn=children._tether(signal.SIGKILL, OWN_NAMESPACE))

        assert set(launcher.urls) == {"DATABASE_URL", "REDIS_URL"}
        assert launcher.end(signal.SIGINT) == 0


class TestServers:
    def test_open_no_port(self, running):
        pids = [running.postgres.pid, running.valkey.pid]

        kinds = {c.family for pid in pids for c in psutil.Process(pid).net_connections("all")}

        assert kinds == {socket.AF_UNIX}

    def test_can_run_twice(self, running):
        with Servers(durable=False) as other:
            assert ask(running) == ask(other) == (1, True)
            assert running.database_url != other.database_url

    def test_refuse_a_directory_in_use(self, short_path, monkeypatch):
        monkeypatch.setattr("deploy.local.servers.LOCK_SECONDS", 0)

        with (
            Servers(short_path, durable=False),
            pytest.raises(DirectoryInUse, match=f"already run on {short_path}"),
        ):
            Servers(short_path, durable=False)

    @pytest.mark.parametrize("name", ["x" * 150, "with space and %"])
    def test_work_where_a_socket_cannot_be(self, short_path, name):
        with Servers(short_path / name, durable=False) as servers:
            assert ask(servers) == (1, True)
            elsewhere = servers.valkey.sockets

        assert not elsewhere.exists()

    def test_keep_their_data(self, short_path):
        with Servers(short_path) as servers, redis.Redis.from_url(servers.redis_url) as client:
            servers.create_database("kept")
            client.set("kept", 1)

        with Servers(short_path) as servers, redis.Redis.from_url(servers.redis_url) as client:
            assert client.get("kept") == b"1"
            assert psycopg.connect(servers.postgres.url("kept")).close() is None

    def test_remove_a_temporary_directory(self):
        with Servers(durable=False) as servers:
            directory = servers.directory

        assert not directory.exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_run_as_nobody_where_a_container_forbids_namespaces(self, monkeypatch):
        def refuse(uid, gid):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(children, "_enter_own_namespace", refuse)

        with Servers(durable=False) as servers:
            assert psutil.Process(servers.postgres.pid).uids().real == NOBODY.uid
            assert ask(servers) == (1, True)


class TestServer:
    """Faults, as tests cause them."""

    def test_comes_back_on_the_same_socket_after_a_kill(self, running):
        running.postgres.kill()
        running.valkey.kill()
        assert len(running.dead()) == 2

        running.postgres.restart()
        running.valkey.restart()

        assert ask(running) == (1, True)

    def test_answers_nothing_while_paused(self, running):
        with redis.Redis.from_url(running.redis_url, socket_timeout=0.2) as client:
            running.valkey.pause()
            with pytest.raises(redis.TimeoutError):
                client.ping()

            running.valkey.resume()

            assert client.ping()

    def test_stops_even_while_paused(self, short_path):
        with Servers(short_path, durable=False) as servers:
            servers.postgres.pause()
            servers.valkey.pause()


class TestSpawn:
    def test_refuses_another_thread(self, tmp_path):
        """The kernel would kill the child when that thread ends."""
        caught = []

        def start():
            with pytest.raises(children.NotMainThread) as refused:
                children.spawn(["true"], env={}, log=tmp_path / "log", death_signal=signal.SIGTERM)
            caught.append(str(refused.value))

        thread = children.threading.Thread(target=start)
        thread.start()
        thread.join()

        assert caught == ["start true from the main thread"]
