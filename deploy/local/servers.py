"""PostgreSQL and Valkey for one machine: `python -m deploy.local.servers` keeps them up until Ctrl-C."""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local import databases
from deploy.local.binaries import ServerMissing
from deploy.local.ending import end_on_signals
from deploy.local.named import look_at_broker
from deploy.local.postgres import Postgres
from deploy.local.server import Server, ServerFailed
from deploy.local.valkey import Valkey

DATABASE = "teguh"
LOCK_SECONDS = 10.0  # servers whose launcher was killed need a moment to stop; longer means they are in use
WATCH_SECONDS = 0.5


class DirectoryInUse(RuntimeError):
    """Other servers run on the same data."""


class Servers:
    """Both servers on one directory."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        durable: bool = True,
        postgres: Postgres | None = None,
        broker_url: str | None = None,
    ) -> None:
        """Prepare the servers.

        Args:
            directory: Where their data is; None means a new one that stop() removes.
            durable: Whether data must survive the machine; False is faster.
            postgres: One that somebody else starts and stops, for a test that only needs its own Valkey.
            broker_url: A broker that somebody else runs, in the place of Valkey.
        """
        self.broker_url = broker_url
        self._temporary = directory is None
        self.directory = (
            Path(tempfile.mkdtemp(prefix="teguh-")) if directory is None else directory.absolute()
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._temporary:
            self.directory.chmod(0o711)  # PostgreSQL may have to run as nobody
        lock = _lock(self.directory)
        self._lock: int | None = lock
        self.valkey = Valkey(self.directory / "valkey", durable=durable, lock=lock)
        self._own_postgres = postgres is None
        if postgres is None:
            postgres = Postgres(self.directory / "postgres", durable=durable, lock=lock)
        self.postgres = postgres

    @property
    def database_url(self) -> str:
        return self.postgres.url(DATABASE)

    @property
    def redis_url(self) -> str:
        return self.valkey.url

    @property
    def broker(self) -> dict[str, str]:
        """The setting that names the broker, unless it is Valkey."""
        return {} if self.broker_url is None else {"BROKER_URL": self.broker_url}

    def start(self) -> Self:
        """Start both and make the database.

        Raises:
            ServerFailed: One of them did not start; then none runs.
            ServerUnreachable: The broker that was named does not answer.
        """
        try:
            if self.broker_url is not None:
                look_at_broker(self.broker_url)
            self.valkey.start()
            if self._own_postgres:
                self.postgres.start()
            if not databases.exists(DATABASE, server=self.postgres.url("postgres")):
                databases.create(DATABASE, server=self.postgres.url("postgres"))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop what runs; the data stays unless the directory was temporary."""
        if self._lock is None:
            return
        try:
            if self._own_postgres:
                self.postgres.stop()
        finally:
            self.valkey.stop()
            os.close(self._lock)
            self._lock = None
            if self._temporary:
                shutil.rmtree(self.directory, ignore_errors=True)

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database, perhaps as a copy of another, and give its URL."""
        return databases.create(name, server=self.postgres.url("postgres"), template=template)

    def drop_database(self, name: str) -> None:
        databases.drop(name, server=self.postgres.url("postgres"))

    def dead(self) -> list[Server]:
        """Give the servers that should run and do not."""
        return [server for server in (self.postgres, self.valkey) if not server.is_alive()]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()


def _lock(directory: Path) -> int:
    """Hold the directory against other launchers; the servers inherit the lock and hold it until they end."""
    descriptor = os.open(directory / "servers.lock", os.O_RDWR | os.O_CREAT, 0o600)
    give_up_at = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                os.close(descriptor)
                raise DirectoryInUse(
                    f"servers already run on {directory}: stop them, or name another directory"
                ) from None
            time.sleep(0.1)
        else:
            return descriptor


def main() -> int:
    arguments = _arguments()
    directory = (
        Path("var") if arguments.directory is None and not arguments.throw_away else arguments.directory
    )
    end_on_signals()
    try:
        with Servers(directory, durable=not arguments.throw_away) as servers:
            urls = {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url}
            if arguments.command:
                return subprocess.run(arguments.command, env={**os.environ, **urls}, check=False).returncode
            print("\n".join(f"{name}={url}" for name, url in urls.items()), flush=True)
            _watch(servers)
    except KeyboardInterrupt:
        return 0
    except (ServerFailed, DirectoryInUse, ServerMissing) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where the data is (var, if it is to be kept)")
    parser.add_argument(
        "--throw-away", action="store_true", help="faster, and without --directory leaves nothing"
    )
    parser.add_argument(
        "command", nargs="*", help="run this with the servers in its environment, then stop them"
    )
    return parser.parse_args()


def _watch(servers: Servers) -> None:
    while not (dead := servers.dead()):
        time.sleep(WATCH_SECONDS)
    raise ServerFailed(f"{dead[0].name} ended.\n{dead[0].tail()}")


if __name__ == "__main__":
    sys.exit(main())
