"""PostgreSQL as a child process, for root and for everybody else."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from deploy.local import binaries
from deploy.local.children import MYSELF, Identity, run, spawn
from deploy.local.server import Server, ServerFailed

MAX_CONNECTIONS = 200  # several stacks may share one server in a test run; 100, the default, is soon used up
NOBODY = Identity("nobody", uid=65534, gid=65534)
OWN_NAMESPACE = Identity("root in its own user namespace", own_namespace=True)


class Postgres(Server):
    """The database server; trusts whoever reaches its socket, which only its owner does."""

    name = "postgres"
    socket_name = ".s.PGSQL.5432"
    stop_signal = signal.SIGINT  # its fast shutdown: ends sessions, writes a checkpoint

    def __init__(self, directory: Path, *, durable: bool, lock: int) -> None:
        super().__init__(directory, durable=durable, lock=lock)
        self.data = directory / "data"
        self.binaries = binaries.postgres()
        self._copied: Path | None = None
        self.identity = self._choose_identity()

    def url(self, database: str) -> str:
        """Give the libpq URL of a database; it names the port so that PGPORT cannot change it."""
        return f"postgresql://postgres@/{database}?host={self.sockets}&port=5432"

    def start(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._copied is not None:
            shutil.rmtree(self._copied, ignore_errors=True)
            self._copied = None

    def _initialise(self) -> None:
        self._hand_over()
        options = [
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-instructions",
        ]
        if not self.durable:
            options.append("--no-sync")
        made = run(
            [self.binaries / "initdb", "-D", self.data, *options], env=self._env(), identity=self.identity
        )
        if made.returncode != 0:
            raise ServerFailed(
                f"initdb could not make {self.data} as {self.identity.name}: {made.stderr.strip()}\n"
                "Use a directory that this user may reach, or run as an ordinary user."
            )

    def _spawn(self) -> "subprocess.Popen[bytes]":
        self._hand_over()
        return spawn(
            [self.binaries / "postgres", "-D", self.data, "-k", self.sockets, *self._options()],
            env=self._env(),
            log=self.log,
            death_signal=self.stop_signal,
            identity=self.identity,
            keep_open=[self.lock],
        )

    def _options(self) -> list[str]:
        options = {
            "listen_addresses": "",
            "port": "5432",
            "unix_socket_permissions": "0700",
            "max_connections": str(MAX_CONNECTIONS),
        }
        if not self.durable:
            options |= {"fsync": "off", "full_page_writes": "off"}
        return [part for name, value in options.items() for part in ("-c", f"{name}={value}")]

    def _env(self) -> dict[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(self.directory), "TZ": "UTC"}

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    # Note [PostgreSQL and root]
    # PostgreSQL refuses uid 0. In a user namespace of its own root is somebody else to it, and still root to
    # the file system: nothing has to be handed over. Where a container forbids namespaces it runs as nobody,
    # who needs a way to the programs (copied if there is none) and owns the data. Data that already belongs
    # to an ordinary user, because they ran this before root did, stays theirs.

    def _choose_identity(self) -> Identity:
        if os.geteuid() != 0:
            return MYSELF
        if owner := self._ordinary_owner():
            return owner
        return OWN_NAMESPACE if self._may_run(OWN_NAMESPACE) else self._nobody()

    def _ordinary_owner(self) -> Identity | None:
        if not self.data.exists() or self.data.stat().st_uid == 0:
            return None
        owner = self.data.stat()
        return Identity(f"uid {owner.st_uid}, who owns {self.data}", uid=owner.st_uid, gid=owner.st_gid)

    def _nobody(self) -> Identity:
        if not self._may_run(NOBODY):
            self._copied = Path(tempfile.mkdtemp(prefix="teguh-"))
            self.binaries = _copy(self.binaries, self._copied)
        return NOBODY

    def _may_run(self, identity: Identity) -> bool:
        try:
            answer = run([self.binaries / "postgres", "--version"], env=self._env(), identity=identity)
        except (OSError, subprocess.SubprocessError):
            return False
        return answer.returncode == 0

    def _hand_over(self) -> None:
        if self.identity.uid is None:
            return
        for path in {self.directory, self.sockets, self.data if self.data.exists() else self.directory}:
            os.chown(path, self.identity.uid, self.identity.gid or -1)


def _copy(source: Path, target: Path) -> Path:
    """Copy an installation where everybody can run it, with the libraries that its wheel keeps beside it."""
    package = source.parent.parent
    target.chmod(0o755)
    shutil.copytree(package, target / package.name)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)
    return target / package.name / source.parent.name / source.name
