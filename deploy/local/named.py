"""Servers that somebody else runs and the environment names."""

import psycopg
import redis
from kombu import Connection
from kombu.exceptions import OperationalError

from deploy.local import databases


class ServerUnreachable(RuntimeError):
    """A server that was named does not answer."""


class NamedServers:
    """The same face as Servers, for servers that are neither started nor stopped here."""

    def __init__(self, database_url: str, redis_url: str, broker_url: str | None = None) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        self.broker_url = broker_url

    @property
    def broker(self) -> dict[str, str]:
        """The setting that names the broker, unless it is Redis."""
        return {} if self.broker_url is None else {"BROKER_URL": self.broker_url}

    def start(self) -> "NamedServers":
        """Look that all answer.

        Raises:
            ServerUnreachable: One does not; the message names its URL and the setting.
        """
        try:
            psycopg.connect(self.database_url, connect_timeout=3).close()
        except psycopg.OperationalError as refused:
            raise _unreachable("PostgreSQL", "DATABASE_URL", self.database_url, refused) from refused
        try:
            self._ping()
        except redis.RedisError as refused:
            raise _unreachable("Redis", "REDIS_URL", self.redis_url, refused) from refused
        if self.broker_url is not None:
            look_at_broker(self.broker_url)
        return self

    def stop(self) -> None:
        """Leave them alone: they are not ours."""

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database, perhaps as a copy of another, and give its URL."""
        return databases.create(name, server=self.database_url, template=template)

    def drop_database(self, name: str) -> None:
        databases.drop(name, server=self.database_url)

    def _ping(self) -> None:
        with redis.Redis.from_url(self.redis_url, socket_timeout=3, socket_connect_timeout=3) as client:
            client.ping()


def look_at_broker(url: str) -> None:
    """Look that a broker answers.

    Raises:
        ServerUnreachable: It does not.
    """
    connection = Connection(url, connect_timeout=3)
    try:
        connection.ensure_connection(max_retries=0)
    except OperationalError as refused:
        raise _unreachable("The broker", "BROKER_URL", connection.as_uri(), refused) from refused
    finally:
        connection.release()


def _unreachable(server: str, setting: str, url: str, why: Exception) -> ServerUnreachable:
    return ServerUnreachable(
        f"{server} does not answer at {url} ({str(why).strip()}). Start it, or name another by {setting} "
        f"(the tests: TEST_{setting}); with neither named, servers of its own are started."
    )
