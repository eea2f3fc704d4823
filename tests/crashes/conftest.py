"""The lanes of this session, and the report of what was tried in them."""

import pytest

from tests.crashes import campaign, guards, lanes
from tests.crashes.report import Report

REPORT = pytest.StashKey[Report]()
TRIALS = {"place": campaign.try_out, "guard": guards.try_out}


def pytest_configure(config):
    config.stash[REPORT] = Report()


def pytest_terminal_summary(terminalreporter, config):
    """Print the table and write the file, before pytest's own last line."""
    if not config.stash[REPORT].is_empty():
        terminalreporter.section("crashes")
        for line in config.stash[REPORT].lines():
            terminalreporter.write_line(line)
        config.stash[REPORT].write()


@pytest.fixture(scope="session")
def report(pytestconfig):
    return pytestconfig.stash[REPORT]


@pytest.fixture(scope="session")
def trials(servers, template, tmp_path_factory, request):
    """Begin every chosen trial, several beside each other, in the order of the tests that wait for them."""
    chosen = [
        (kind, item.callspec.params[kind])
        for item in request.session.items
        for kind in TRIALS
        if kind in getattr(getattr(item, "callspec", None), "params", ())
    ]
    pool = lanes.open_pool(servers, template, tmp_path_factory.mktemp("lanes"))
    yield {what: pool.submit(TRIALS[kind], what) for kind, what in chosen}
    pool.shutdown(cancel_futures=True)
