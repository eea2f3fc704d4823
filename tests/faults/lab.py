"""A stack that runs fast enough to be watched while it fails, and the eyes to watch it."""

import time
import uuid
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import httpx
import psycopg
import redis
from prometheus_client.parser import text_string_to_metric_families
from psycopg.rows import dict_row

from deploy.local.cable import Cable
from deploy.local.process import Process
from deploy.local.stack import Stack
from operations.models import FINAL
from tests.broker import Broker, broker_at
from tests.environment import GROUP, QUEUES
from tests.faults.effects import Effects

LEASE_SECONDS = 4.0
RELAY_PERIOD_SECONDS = 1.0
MARGIN_SECONDS = 3.0  # on two busy cores a claim, a publish and a run take their time
RECOVERY_SECONDS = LEASE_SECONDS + RELAY_PERIOD_SECONDS + MARGIN_SECONDS
LONG_SECONDS = 30.0  # for what has no bound of its own

PROBES = [f"probe.{verb}" for verb in ("effect", "sleep", "heed", "fail", "die", "alloc", "swallow")]
LAB = {
    "LEASE_SECONDS": str(LEASE_SECONDS),
    "HEARTBEAT_SECONDS": "1",
    "LOCK_POLL_SECONDS": "1",
    "RELAY_PERIOD_SECONDS": str(RELAY_PERIOD_SECONDS),
    "REPUBLISH_AFTER_SECONDS": "2",
    "PUBLISH_PAUSE_SECONDS": "1",
    "ANSWER_MARGIN_SECONDS": "0.5",
    "LONGEST_LOOKUP_PAUSE_SECONDS": "2",
    "STRIPE_CONNECT_SECONDS": "0.5",
    "STRIPE_TIMEOUT_SECONDS": "1",
    "CANARY_PERIOD_SECONDS": "0",  # queues hold what a test has put there
    "WEB_THREADS": "16",
    # Counted and never reached: one user of a test does what many do.
    "POSTS_PER_MINUTE": "1000000",
    "READS_PER_MINUTE": "1000000",
    "MOST_OPEN_OPERATIONS": "1000000",
    "WORKER_GROUP": "",  # every worker serves all queues
    "EXTRA_APPS": "tests.probes",
    "EXTRA_WORKER_GROUPS": "probes",
    "WORKER_GROUP_PROBES": ",".join(PROBES),
}

PRICE_MINOR = 1_200

Row = dict[str, Any]
Value = TypeVar("Value")


def eventually(look: Callable[[], Value], *, what: str, within: float = LONG_SECONDS) -> Value:
    """Look until there is something to see, and give it.

    Raises:
        AssertionError: nothing was seen within so many seconds; says what was awaited.
    """
    give_up_at = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < give_up_at, f"not within {within} s: {what}"
        time.sleep(0.05)
    return seen


class User:
    """Somebody with a token, and the HTTP client that carries it."""

    def __init__(self, id: int, token: str, base_url: str) -> None:
        self.id = id
        self.client = httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Token {token}"},
            timeout=LONG_SECONDS,
            trust_env=False,
        )

    def post(self, path: str, body: Row | None = None, *, key: str | None = None) -> httpx.Response:
        """Ask for a job: "probe/effect" with its body. Without a key, with a new one."""
        headers = {"Idempotency-Key": uuid.uuid4().hex if key is None else key}
        return self.client.post(f"/v1/{path}", json={} if body is None else body, headers=headers)

    def ask(self, path: str, body: Row | None = None) -> str:
        """Ask for a job that must be accepted, and give the operation's id."""
        answer = self.post(path, body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["operation_id"])

    def inventory(self) -> Row:
        return dict(self.client.get("/v1/inventory").raise_for_status().json())


class Lab:
    """One stack with a Valkey of its own, its database, and the stub that counts effects."""

    def __init__(self, stack: Stack, effects: Effects, cable: Cable | None = None) -> None:
        self.stack = stack
        self.cable = cable
        self.effects = effects
        self.provider = stack.provider
        self.gateway = stack.gateway
        self._users: list[User] = []

    @property
    def worker(self) -> Process:
        return self.stack.worker

    @property
    def workers(self) -> list[Process]:
        return [process for name, process in self.stack.processes.items() if name.startswith("worker")]

    @cached_property
    def database(self) -> psycopg.Connection[Row]:
        return psycopg.connect(self.stack.env["DATABASE_URL"], autocommit=True, row_factory=dict_row)

    @property
    def broker(self) -> "redis.Redis":
        """The broker's database; cache and locks are in others of the same server."""
        return redis.Redis.from_url(self.stack.servers.redis_url, db=0, decode_responses=True)

    def leave_database(self) -> None:
        """Close the connection; the next look opens another."""
        self.database.close()
        del self.database

    def new_user(self) -> User:
        """Make a user without the half second that a password hash takes."""
        name = uuid.uuid4().hex
        user_id = self.rows(
            "INSERT INTO auth_user (username, password, first_name, last_name, email,"
            " is_superuser, is_staff, is_active, date_joined)"
            " VALUES (%s, '!', '', '', '', false, false, true, now()) RETURNING id",
            name,
        )[0]["id"]
        self.rows(
            "INSERT INTO authtoken_token (key, created, user_id) VALUES (%s, now(), %s) RETURNING key",
            name,
            user_id,
        )
        self._users.append(User(user_id, name, self.stack.api_url))
        return self._users[-1]

    def rows(self, query: str, *values: object) -> list[Row]:
        return self.database.execute(query, values).fetchall()

    def operation(self, id: str) -> Row:
        """Give an operation's row, with its payload, result and error."""
        found = self.rows(
            "SELECT * FROM operations_operation JOIN operations_operationdata ON operation_id = id"
            " WHERE id = %s",
            id,
        )
        return found[0]

    def history(self, id: str) -> list[tuple[str, str, str]]:
        """Give an operation's moves in order: from, to, reason."""
        moves = self.moves(id)
        return [(move["from_status"], move["to_status"], move["reason"]) for move in moves]

    def moves(self, id: str) -> list[Row]:
        return self.rows("SELECT * FROM operations_transition WHERE operation_id = %s ORDER BY id", id)

    def wait_final(self, id: str, *, within: float = LONG_SECONDS) -> Row:
        return eventually(
            lambda: next(iter([row for row in [self.operation(id)] if row["status"] in FINAL]), None),
            within=within,
            what=f"the end of operation {id}",
        )

    def wait_for(self, id: str, status: str, *, run: int | None = None) -> Row:
        """Wait until an operation has a status, and has it in a certain run."""

        def look() -> Row | None:
            row = self.operation(id)
            return row if row["status"] == status and run in (None, row["runs"]) else None

        return eventually(look, what=f"operation {id} to be {status}")

    def wait_effects(self, ref: str, count: int = 1) -> None:
        eventually(lambda: self.effects.count(ref) >= count, what=f"{count} effects of {ref}")

    def stock(self, sku: str, count: int) -> None:
        """Have so many of a product to sell, for PRICE_MINOR each."""
        self.rows(
            "INSERT INTO payments_product (sku, name, price_minor, currency, stock)"
            " VALUES (%s, %s, %s, 'EUR', %s) ON CONFLICT (sku) DO UPDATE SET stock = excluded.stock"
            " RETURNING id",
            sku,
            sku,
            PRICE_MINOR,
            count,
        )

    def set_items(self, user: User, version: int, **items: int) -> None:
        """Say what the provider says of a user from now on."""
        self.provider.set_snapshot(user.id, version=version, items=items)

    def items(self, user: User) -> dict[str, tuple[int, int]]:
        """Give a user's rows: quantity and version by sku."""
        found = self.rows("SELECT * FROM inventory_inventoryitem WHERE user_id = %s", user.id)
        return {row["sku"]: (row["quantity"], row["version"]) for row in found}

    @property
    def queues(self) -> Broker:
        """What waits in the broker, whichever it is."""
        env = self.stack.env
        names = [queue for name in env if GROUP in name for queue in env[name].split(",")]
        url = env.get("BROKER_URL", "")
        return broker_at(
            url, redis_url=self.stack.servers.redis_url, name=self.stack.name, queues=[*QUEUES, *names]
        )

    def queue_length(self, job_type: str) -> int:
        return self.queues.depth(job_type)

    def messages(self, job_type: str) -> list[Row]:
        """Give the messages that wait in a queue: body, headers, properties."""
        return self.queues.messages(job_type)

    def unacknowledged(self) -> int:
        return self.queues.unacknowledged()

    def flush_broker(self) -> None:
        self.queues.flush()

    def counted(self, metric: str, **labels: str) -> float:
        """Sum a counter over all processes, and over the labels that are not named."""
        token = {"Authorization": f"Bearer {self.stack.env['METRICS_TOKEN']}"}
        page = httpx.get(f"{self.stack.api_url}/metrics", headers=token, trust_env=False).raise_for_status()
        samples = [
            sample for family in text_string_to_metric_families(page.text) for sample in family.samples
        ]
        return sum(
            sample.value
            for sample in samples
            if sample.name == metric and labels.items() <= sample.labels.items()
        )

    def crash_at(self, process: str, crashpoints: str) -> None:
        """Start a process anew with these CRASHPOINTS (empty: none), unless it has them already."""
        harmed = self.stack.process(process)
        if harmed.env.get("CRASHPOINTS", "") != crashpoints:
            harmed.env["CRASHPOINTS"] = crashpoints
            harmed.restart()

    def let_accepts(self, do: str) -> None:
        """Have the database `do` this (PL/pgSQL) in the middle of every accept; "" lets them be."""
        self.database.execute(f"""
            CREATE OR REPLACE FUNCTION in_accepts() RETURNS trigger LANGUAGE plpgsql
                AS $$ BEGIN {do} RETURN NEW; END $$;
            CREATE OR REPLACE TRIGGER in_accepts BEFORE INSERT ON operations_transition
                FOR EACH ROW WHEN (NEW.from_status = '') EXECUTE FUNCTION in_accepts()""")

    def kill_workers(self) -> None:
        """Kill every worker, and wait until it is gone."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait()

    def start_again(self, process: Process) -> None:
        """Start a process that was killed; what it left behind is left alone."""
        eventually(lambda: not process.is_alive(), what=f"the end of {process.name}")
        process.start()

    def close(self) -> None:
        self.database.close()
        for user in self._users:
            user.client.close()
