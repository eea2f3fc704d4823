"""Who asks, who answers, what waits in the broker; and stacks of real processes where these are needed."""

import math
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from typing import Literal

import httpx
import pytest
from django.db import connection
from django.test import Client, TransactionTestCase
from rest_framework.authtoken.models import Token

from deploy.local.named import NamedServers
from deploy.local.servers import Servers
from deploy.local.stack import Stack, unique_name
from inventory import provider as inventory_provider
from operations import accept, admission, publish, quotas
from operations.broker import Line
from operations.cache_books import book
from operations.cache_orders import orders
from operations.cache_rebuild import breaker
from operations.publish import publisher
from operations.reminders import reminders
from tasks import after_commit, heartbeat, lock_stores
from tests import factories
from tests.broker import DECLARED, RabbitBroker, broker_at, deliver
from tests.caching import declaring
from tests.cleaning import delete_rows
from tests.environment import NAME, AnyServers, forget_keys, forget_queues
from tests.stand_ins import StandInProvider
from tests.threads import meanwhile

TransactionTestCase._fixture_teardown = delete_rows
heartbeat.KEEP_SECONDS = 0.0  # a connection that is kept would hold up the end of the test database

NOWHERE = "redis://127.0.0.1:9/0"  # RFC 863 discard: refused at once
Own = Literal["nothing", "valkey", "servers"]


class WatchedLine(Line):
    """Remembers which queues are to be deleted in the end."""

    def count(self, queue: str) -> int:
        DECLARED.add(queue)
        return super().count(queue)


publish.Line = WatchedLine


def pytest_addoption(parser):
    """Take what both the nemesis and the fuzzer understand."""
    parser.addoption("--seed", type=int, default=1, help="of faults, or of examples (default 1)")


@pytest.fixture
def user(db):
    return factories.make_user("ayu")


@pytest.fixture
def client_of():
    """Give a function that makes a user's HTTP client; an error of ours is an answer, as it is for them."""

    def client(user):
        token, _ = Token.objects.get_or_create(user=user)
        return Client(headers={"Authorization": f"Token {token}"}, raise_request_exception=False)

    return client


@pytest.fixture
def api(client_of, user):
    return client_of(user)


@pytest.fixture
def provider(monkeypatch):
    stand_in = StandInProvider()
    client = httpx.Client(base_url="http://provider", transport=httpx.MockTransport(stand_in))
    monkeypatch.setattr(inventory_provider, "_client", lambda: client)
    yield stand_in
    client.close()


@pytest.fixture
def broker(settings):
    """What waits in the broker of this session."""
    there = broker_at(
        settings.CELERY_BROKER_URL,  # no test moves that one
        redis_url=settings.REDIS_URL,
        name=settings.KEY_PREFIX,
        queues=[queue for queues in settings.WORKER_GROUPS.values() for queue in queues],
    )
    there.deliver = deliver
    return there


@pytest.fixture
def lose_redis(settings):
    """Give a function that loses every key of this session in Redis: cached values, locks, messages."""
    return lambda: forget_keys(settings.REDIS_URL, prefix=f"{settings.KEY_PREFIX}:")


@pytest.fixture
def declare(lose_redis):
    """Give a function that declares a cache; no declaration and no value outlives the test."""
    with declaring() as declare:
        yield declare
    lose_redis()


@pytest.fixture(autouse=True)
def forgetful(request, servers, broker):
    """Leave no message, cached value or lock to the next test, and no memory of what was settled or away."""
    after_commit._settled.clear()
    breaker.begin()
    book._counted.clear()
    orders.look_at = book._write_at = math.inf  # no thread looks for orders or writes figures down
    yield
    after_commit._settled.clear()
    if "db" in request.fixturenames or request.node.get_closest_marker("django_db"):
        reminders.forget()
        forget_keys(servers.redis_url, prefix=f"{request.config.stash[NAME]}:")
        quotas.forget_all()
        admission.forget()
        publisher.hang_up()
        if isinstance(broker, RabbitBroker):
            broker.flush()


@pytest.fixture
def first_uncommitted():
    """Give a context in which another connection has accepted a request and not committed it.

    A rival in the block waits for it for a tenth of a second.
    """

    @contextmanager
    def held(request):
        with meanwhile(lambda: accept.accept(request)), connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
            yield
        connection.close()

    return held


@pytest.fixture
def locks_away(settings):
    """Point the lock store to where nothing listens."""
    settings.LOCK_URL = NOWHERE
    _forget_lock_client()
    yield
    _forget_lock_client()


@pytest.fixture
def cache_away(settings):
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": NOWHERE}}


@pytest.fixture
def broker_away(settings):
    settings.BROKER_URL = "amqp://127.0.0.1:9//" if settings.ON_RABBITMQ else NOWHERE
    publisher.hang_up()


def _forget_lock_client():
    lock_stores.forget_connections()


@pytest.fixture(scope="session")
def template(servers, tmp_path_factory):
    """A migrated database to copy: a tenth of a second instead of migrations."""
    name = unique_name()
    with Stack(tmp_path_factory.mktemp("template"), processes=(), servers=servers, name=name):
        pass
    yield name
    servers.drop_database(name)


@pytest.fixture
def new_stack(servers, template, tmp_path):
    """Give a function that starts a stack with its own database, keys and ports.

    new_stack("web", "relay", env={…}) starts these processes of the Procfile. A test that harms a server says
    which it wants for itself, and is marked `embedded`: own="valkey" shares PostgreSQL with the session,
    own="servers" shares nothing.
    """
    with ExitStack() as stacks:

        def new(*processes: str, own: Own = "nothing", **options: object) -> Stack:
            name = unique_name()
            beside = _servers(servers, own, stacks)
            if own != "servers":
                stacks.callback(_forget, servers, name, options.get("env") or {})
            stack = Stack(
                tmp_path / name,
                processes=processes,
                servers=beside,
                name=name,
                template=None if own == "servers" else template,
                **options,
            )
            return stacks.enter_context(stack)

        yield new


def _servers(servers: AnyServers, own: Own, stacks: ExitStack) -> AnyServers | None:
    if own == "servers":
        return None
    if own == "nothing":
        return servers
    assert isinstance(servers, Servers), "a test that wants its own Valkey is to be marked embedded"
    return stacks.enter_context(
        Servers(durable=False, postgres=servers.postgres, broker_url=servers.broker_url)
    )


def _forget(servers: AnyServers, name: str, env: Mapping[str, str]) -> None:
    servers.drop_database(name)
    if isinstance(servers, NamedServers):
        forget_keys(servers.redis_url, prefix=name)
    forget_queues(servers, name, env)
