"""Create and drop databases on a server that a URL names."""

from urllib.parse import urlsplit

import psycopg
from psycopg import sql


def url_of(database: str, *, beside: str) -> str:
    """Give the URL of another database on the server that the URL `beside` names."""
    return urlsplit(beside)._replace(path=f"/{database}").geturl()


def exists(name: str, *, server: str) -> bool:
    with psycopg.connect(server, autocommit=True) as connection:
        return (
            connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None
        )


def create(name: str, *, server: str, template: str | None = None) -> str:
    """Create a database and give its URL.

    Args:
        name: Of the new database.
        server: URL of any database on the server, with the right to create another.
        template: Database to copy, to which nobody may be connected.
    """
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement)
    return url_of(name, beside=server)


def drop(name: str, *, server: str) -> None:
    """Drop a database if it is there, with the sessions it still has."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement)
