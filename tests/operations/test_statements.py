"""Statements of ours, as psycopg and PostgreSQL get them."""

import pytest
from psycopg import _queries

from operations import accept, cancel, claims, lifecycle, reading
from operations.arrows import Arrow
from tasks import backlog, relay

MODULES = (accept, backlog, cancel, claims, lifecycle, reading, relay)


def written():
    for module in MODULES:
        for name, value in vars(module).items():
            sql = value.sql if isinstance(value, Arrow) else value
            if isinstance(sql, str) and "SELECT" in sql:
                yield pytest.param(sql, id=f"{module.__name__}.{name}")


class TestLength:
    @pytest.mark.parametrize("sql", [*written()])
    def test_lets_psycopg_remember_how_it_reads_it(self, sql):
        assert len(sql) <= _queries.MAX_CACHED_STATEMENT_LENGTH
