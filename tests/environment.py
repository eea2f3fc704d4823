"""The pytest plugin that gives a test session its servers, before pytest-django reads the settings.

Throw-away servers are started unless TEST_DATABASE_URL and TEST_REDIS_URL name some. TEST_BROKER_URL names a
RabbitMQ that is to be the broker, beside either. Of named ones the session touches one database, one prefix
of keys and queues, and what tests make with them; it removes them at its end.
"""

import os
import uuid
from collections.abc import Generator, Mapping
from types import MappingProxyType

import pytest
import redis

from deploy.local import databases
from deploy.local.named import NamedServers
from deploy.local.servers import Servers
from tests.broker import DATABASES, broker_at

QUEUES = ("inventory.sync", "dead_letter", "tests.work", "tests.never_used")
GROUP = "WORKER_GROUP_"  # what settings of more queues begin with

AnyServers = Servers | NamedServers
SERVERS = pytest.StashKey[AnyServers]()
NAME = pytest.StashKey[str]()

# What a developer's shell may hold and a test must not see.
FOREIGN = ("SENTRY_DSN", "BROKER_URL", "CACHE_URL", "LOCK_URL", "PROMETHEUS_MULTIPROC_DIR")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Start the servers and set the environment, around what pytest-django does in this hook."""
    servers = _servers().start()
    name = f"teguh_{uuid.uuid4().hex[:12]}"
    early_config.stash[SERVERS] = servers
    early_config.stash[NAME] = name
    for foreign in FOREIGN:
        os.environ.pop(foreign, None)
    os.environ.update(settings_for(servers, name))
    return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers, or clean up the named ones."""
    if (servers := config.stash.get(SERVERS, None)) is None:
        return
    if isinstance(servers, NamedServers):
        servers.drop_database(f"test_{config.stash[NAME]}")
        forget_keys(servers.redis_url, prefix=f"{config.stash[NAME]}:")
    forget_queues(servers, config.stash[NAME])
    servers.stop()


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> AnyServers:
    """The servers of this session; a test that kills one starts its own."""
    return pytestconfig.stash[SERVERS]


def settings_for(servers: AnyServers, name: str) -> dict[str, str]:
    """Give the environment of a session that calls its database and its keys `name`."""
    return {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": databases.url_of(name, beside=servers.database_url),
        "REDIS_URL": servers.redis_url,
        "KEY_PREFIX": name,
        "SECRET_KEY": "of-the-tests-only",
        "DEBUG": "false",
        "TOKEN_MEMORY_SECONDS": "0",  # primary keys return from test to test
        "METRICS_TOKEN": "metrics-token-of-the-tests",
        "PROVIDER_URL": "http://127.0.0.1:9",  # RFC 863 discard: a test that reaches it forgot its stand-in
        **servers.broker,
    }


def forget_keys(redis_url: str, *, prefix: str) -> None:
    """Delete every key under a prefix."""
    for number in DATABASES:
        with redis.Redis.from_url(redis_url, db=number) as client:
            for key in client.scan_iter(match=f"{prefix}*", count=1000):
                client.delete(key)


def forget_queues(servers: AnyServers, name: str, env: Mapping[str, str] = MappingProxyType({})) -> None:
    """Delete what an installation with this environment has made in a RabbitMQ that somebody else runs."""
    if url := servers.broker.get("BROKER_URL"):
        queues = [
            *QUEUES,
            *(queue for group, value in env.items() if GROUP in group for queue in value.split(",")),
        ]
        broker_at(url, redis_url=servers.redis_url, name=name, queues=queues).forget()


def _servers() -> AnyServers:
    database_url, redis_url = os.environ.get("TEST_DATABASE_URL"), os.environ.get("TEST_REDIS_URL")
    broker_url = os.environ.get("TEST_BROKER_URL")
    if database_url is None and redis_url is None:
        return Servers(durable=False, broker_url=broker_url)
    if database_url is None or redis_url is None:
        raise pytest.UsageError("name both TEST_DATABASE_URL and TEST_REDIS_URL, or neither")
    return NamedServers(database_url, redis_url, broker_url)
