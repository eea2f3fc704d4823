"""A cached value whose source the test holds."""

import pytest

from tests.caching import Source, restarting


@pytest.fixture
def source():
    return Source("old")


@pytest.fixture
def colour(declare, source):
    return declare("tests:colour", source.load)


@pytest.fixture
def restart():
    with restarting() as restart:
        yield restart
