"""The two sides of the comparison, started by the same code from the same Procfile on the same servers."""

import itertools
import json
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import psycopg
import redis

from benchmarks import cpu
from benchmarks.client import Answer, request
from deploy.local import databases, procfile, ready
from deploy.local.children import run
from deploy.local.guardian import Guardian
from deploy.local.ports import Port
from deploy.local.process import Process, ProcessFailed
from deploy.local.servers import Servers

USERS = 40  # as many resources, locks and tokens: more than run at once, so that nobody waits for a lock
MAKE_USERS = """
    WITH made AS (
        INSERT INTO auth_user
            (username, password, email, first_name, last_name, is_superuser, is_staff, is_active, date_joined)
        SELECT 'user' || n, '', '', '', '', false, false, true, now() FROM generate_series(1, %s) AS n
        RETURNING id
    )
    INSERT INTO authtoken_token (key, created, user_id) SELECT md5(id || random()::text), now(), id FROM made
    RETURNING key"""


ITEMS = 10  # that each user owns, to be read
MAKE_ITEMS = """
    INSERT INTO inventory_inventoryitem (user_id, sku, quantity, version)
    SELECT id, 'sku-' || n, n, 1 FROM auth_user, generate_series(1, %s) AS n"""
CACHE_DATABASE = 1  # as in config/settings.py


class WorkMissing(AssertionError):
    """A side did not do the work that its figures would be about."""


class Side:
    """A project under load: its web process, its worker and what else it needs."""

    settings: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]  # names of the Procfile
    renamed: ClassVar[Mapping[str, str]] = {}  # in the Procfile's commands
    counts: ClassVar[Mapping[str, str]]  # what is counted → SQL
    an_accept_adds: ClassVar[Mapping[str, int]]
    a_run_adds: ClassVar[Mapping[str, int]]
    nothing_left: ClassVar[str] = "SELECT true"  # SQL: nothing is owed after the last commit
    checkout: Path = procfile.ROOT

    def __init__(self, name: str, directory: Path, servers: Servers) -> None:
        self.name = name
        self._directory = directory
        self._servers = servers
        self._database = f"bench_{name}"
        self._port = Port()
        self._guardian = Guardian()
        self._processes: dict[str, Process] = {}
        self._numbers = itertools.count()
        self._tokens: list[str] = []
        self._database_url = databases.url_of(self._database, beside=servers.database_url)

    @property
    def url(self) -> str:
        return self._port.url

    @property
    def environment(self) -> dict[str, str]:
        """Give every process its settings, and nothing of the shell's."""
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": self.settings,
            "DATABASE_URL": self._database_url,
            "KEY_PREFIX": self._database,
            "SECRET_KEY": "of-the-benchmark-only",
            "PORT": str(self._port.number),
        }

    def start(self) -> None:
        (self._directory / "metrics").mkdir(parents=True)
        self._servers.create_database(self._database)
        self._migrate()
        self._connection = psycopg.connect(self._database_url, autocommit=True)
        self._tokens = [key for (key,) in self._connection.execute(MAKE_USERS, [USERS])]
        for kind in self.kinds:
            self._processes[kind] = self._process(kind)
            self._processes[kind].launch()
        for process in self._processes.values():
            process.wait_until_ready()

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()
        self._guardian.close()
        self._port.release()

    def rest(self) -> None:
        """Stop all but the web process in its tracks: it takes no message and asks no server for anything."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def cpu_seconds(self) -> dict[str, float]:
        """Give the CPU used so far by each of this side's processes, and by both servers for them."""
        own = frozenset({self._connection.info.backend_pid})
        return {
            **{kind: cpu.seconds_of(process.pid) for kind, process in self._processes.items()},
            "postgres": cpu.seconds_of(self._servers.postgres.pid, leaving_out=own),
            "valkey": cpu.seconds_of(self._servers.valkey.pid),
        }

    def posts(self, count: int) -> list[bytes]:
        """Write down requests that were never sent, for each user in turn."""
        return [self._post(next(self._numbers)) for _ in range(count)]

    def count(self) -> dict[str, int]:
        return {name: self._one(sql) for name, sql in self.counts.items()}

    def check(self, before: Mapping[str, int], *, accepted: int, ran: int) -> None:
        """Compare the rows with those of `before`.

        Raises:
            WorkMissing: they are not as many more as the accepted requests and the runs must have made.
        """
        for name, now in self.count().items():
            wanted = accepted * self.an_accept_adds.get(name, 0) + ran * self.a_run_adds.get(name, 0)
            if now - before[name] != wanted:
                raise WorkMissing(f"{self.name}: {name} grew by {now - before[name]}, not by {wanted}")

    def last_entry(self) -> int:
        return self._one("SELECT COALESCE(max(id), 0) FROM entries_entry")

    def entries_since(self, last: int) -> int:
        """Count the domain rows that were committed after the one with id `last`."""
        return self._one("SELECT count(*) FROM entries_entry WHERE id > %s", last)

    def is_done(self, last: int, count: int) -> bool:
        return self.entries_since(last) >= count and bool(self._one(self.nothing_left))

    def _one(self, sql: str, *values: object) -> int:
        row = self._connection.execute(sql, values).fetchone()
        return 0 if row is None else int(row[0])

    def _post(self, number: int) -> bytes:
        token = self._tokens[number % USERS]
        body = json.dumps({"note": f"entry {number}", "amount": number}).encode()
        return request("POST", "/v1/entries", {"Authorization": f"Token {token}", **self._headers()}, body)

    def _headers(self) -> dict[str, str]:
        return {}

    def _migrate(self) -> None:
        command = [sys.executable, "-m", "django", "migrate", "--no-input", "--pythonpath", self.checkout]
        done = run(command, env=self.environment)
        if done.returncode != 0:
            raise ProcessFailed(f"{self.name}: migrate failed.\n{done.stdout}{done.stderr}")

    def _process(self, kind: str) -> Process:
        started = f"Listening at: {self.url}"
        is_ready = {"web": ready.serves(self.url, after=started), "relay": ready.says("relay.started")}
        return Process(
            kind,
            self.command(kind, self.checkout),
            env=self.environment,
            log=self._directory / f"{kind}.log",
            is_ready=is_ready.get(kind, ready.says(" ready.")),
            guardian=self._guardian,
            cwd=self.checkout,
        )

    @classmethod
    def command(cls, kind: str, checkout: Path = procfile.ROOT) -> str:
        """Give the Procfile's command, with this side's names in it."""
        command = procfile.commands(checkout / "Procfile")[kind]
        for ours, theirs in cls.renamed.items():
            command = command.replace(ours, theirs)
        return command

    def _signal(self, number: signal.Signals) -> None:
        for kind, process in self._processes.items():
            if kind != "web":
                process.kill(number, whom="group")


class Ours(Side):
    """Teguh, with one more job."""

    settings = "config.settings"
    kinds = ("web", "worker-inventory", "relay")
    counts = {
        "operations": "SELECT count(*) FROM operations_operation",
        "keys": "SELECT count(*) FROM operations_idempotencyrecord",
        # Two runs of one resource may meet: then one waits, which is a move more.
        "transitions": "SELECT count(*) FROM operations_transition WHERE reason <> 'lock_contended'",
        "succeeded": "SELECT count(*) FROM operations_operation WHERE status = 'succeeded'",
        "attempts": "SELECT COALESCE(sum(attempt), 0) FROM operations_operation",
        "entries": "SELECT count(*) FROM entries_entry",
    }
    an_accept_adds = {"operations": 1, "keys": 1, "transitions": 1}
    a_run_adds = {"transitions": 2, "succeeded": 1, "attempts": 1, "entries": 1}
    nothing_left = "SELECT NOT EXISTS (SELECT FROM operations_aftercommit)"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            "REDIS_URL": self._servers.redis_url,
            "EXTRA_APPS": "benchmarks.entries",
            "EXTRA_WORKER_GROUPS": "entries",
            "WORKER_GROUP_ENTRIES": "entries.write",
            "WORKER_GROUP": "entries",
            "PROMETHEUS_MULTIPROC_DIR": str(self._directory / "metrics"),
            "POSTS_PER_MINUTE": "1000000",  # counted, and never reached by a few users at full speed
            "READS_PER_MINUTE": "1000000",
        }

    def polls(self, posted: list[bytes], answers: list[Answer]) -> list[bytes]:
        """Ask for the operations of these answers, each as its owner and with the ETag it has now."""
        return [
            request(
                "GET", answer.headers["location"], {"Authorization": _token(post), "If-None-Match": 'W/"1"'}
            )
            for post, answer in zip(posted, answers, strict=True)
        ]

    def _headers(self) -> dict[str, str]:
        return {"Idempotency-Key": uuid.uuid4().hex}


class Earlier(Ours):
    """Teguh as it stands in another checkout, run with the packages of this one."""

    def __init__(self, name: str, directory: Path, servers: Servers, checkout: Path) -> None:
        super().__init__(name, directory, servers)
        self.checkout = checkout.resolve()


class Reads(Ours):
    """Teguh's web process alone, with the views of benchmarks/reads."""

    settings = "benchmarks.reads.settings"
    kinds = ("web",)

    def start(self) -> None:
        super().start()
        self._connection.execute(MAKE_ITEMS, [ITEMS])
        self._users = [id for (id,) in self._connection.execute("SELECT id FROM auth_user ORDER BY id")]

    def gets(self, way: str) -> list[bytes]:
        """Write down a request for each user, in one of the ways of benchmarks/reads/urls.py."""
        return [request("GET", f"/{way}/{id}", {}) for id in self._users]

    def forget(self) -> None:
        """Empty the cache."""
        with redis.Redis.from_url(self._servers.redis_url, db=CACHE_DATABASE) as client:
            client.flushdb()


class Baseline(Side):
    """Django REST framework and Celery, in one of two variants of benchmarks/baseline/settings.py."""

    settings = "benchmarks.baseline.settings"
    kinds = ("web", "worker-inventory")
    renamed = {
        "config.wsgi": "benchmarks.baseline.wsgi",
        "config.celery": "benchmarks.baseline.celery",
    }
    counts = {
        "jobs": "SELECT count(*) FROM baseline_job",
        "events": "SELECT count(*) FROM baseline_jobevent",
        "entries": "SELECT count(*) FROM entries_entry",
    }
    an_accept_adds = {"jobs": 1, "events": 1}
    a_run_adds = {"entries": 1}

    @property
    def environment(self) -> dict[str, str]:
        broker = self._servers.redis_url.replace("unix://", "redis+socket://", 1) + "?virtual_host=0"
        return {**super().environment, "BROKER_URL": broker, "VARIANT": self.name}


def _token(post: bytes) -> str:
    head = post.partition(b"\r\n\r\n")[0].decode()
    return next(line for line in head.split("\r\n") if line.startswith("Authorization")).partition(": ")[2]
