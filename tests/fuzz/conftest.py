"""How many examples, and under which seed."""

import pytest

from tests.fuzz.run import NO_LIMITS, fuzz

EXAMPLES = 50  # an operation: what CI has time for
FIXED_SECONDS = 60.0
EXAMPLE_SECONDS = 2.0


def pytest_addoption(parser):
    """Take the options of `make fuzz-api`, which names this folder; without it the defaults hold."""
    group = parser.getgroup("fuzz")
    group.addoption("--examples", type=int, default=EXAMPLES, help="an operation (default 50)")


def pytest_collection_modifyitems(config, items):
    """Bound the run by what it may take."""
    limit = FIXED_SECONDS + limit_seconds(config)
    for item in items:
        if item.get_closest_marker("fuzz"):
            item.add_marker(pytest.mark.timeout(limit))


def limit_seconds(config):
    return FIXED_SECONDS + EXAMPLE_SECONDS * config.getoption("examples", EXAMPLES)


@pytest.fixture
def outcome(new_stack, tmp_path, pytestconfig):
    stack = new_stack("provider", "web", "worker-inventory", "relay", env=NO_LIMITS)
    return fuzz(
        stack,
        tmp_path,
        examples=pytestconfig.getoption("examples", EXAMPLES),
        seed=pytestconfig.getoption("seed", 1),
        limit_seconds=limit_seconds(pytestconfig),
    )
