"""Turn the URLs of the environment into what Django, kombu and redis-py each want to be given."""

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from psycopg.conninfo import conninfo_to_dict


def database(url: str, *, options: dict[str, Any]) -> dict[str, Any]:
    """Give Django's database settings for a libpq URL, Unix sockets included.

    Raises:
        psycopg.ProgrammingError: the URL is not one that libpq understands.
    """
    parts = conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.pop("dbname", ""),
        "USER": parts.pop("user", ""),
        "PASSWORD": parts.pop("password", ""),
        "HOST": parts.pop("host", ""),
        "PORT": str(parts.pop("port", "")),
        "OPTIONS": {**parts, **options},
    }


def redis_database(url: str, number: int) -> str:
    """Name database `number` of a server (redis://host:port or unix:///path), as redis-py spells it."""
    base = url.partition("?")[0].rstrip("/")
    if urlsplit(url).scheme == "unix":
        return f"{base}?db={number}"
    scheme, _, rest = base.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{number}"


def broker(url: str) -> str:
    """Spell a redis-py URL as kombu does: redis+socket for a Unix socket, virtual_host for a database."""
    if not url.startswith("unix://"):
        return url
    return url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")


def redis_url(url: str) -> str:
    """Spell kombu's URL of a Redis as redis-py does."""
    return url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=")


def redis_place(url: str) -> tuple[str, str]:
    """Say which server and which database of it a URL names, however it is spelled."""
    parts = urlsplit(redis_url(url))
    database = dict(parse_qsl(parts.query)).get("db")
    if parts.scheme == "unix":
        return parts.path, database or "0"
    host = {"localhost": "127.0.0.1"}.get(parts.hostname or "localhost", parts.hostname or "")
    return f"{host}:{parts.port or 6379}", database or parts.path.strip("/") or "0"


def speaks_amqp(url: str) -> bool:
    """Say whether a broker's URL names RabbitMQ."""
    return urlsplit(url).scheme in ("amqp", "amqps", "pyamqp")
