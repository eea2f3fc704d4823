"""How long, under which seed, and the report."""

import json

import pytest

from tests.faults.effects import serving
from tests.nemesis import campaign, lab, schedule
from tests.nemesis.load import Load
from tests.nemesis.report import Report

SECONDS = 60.0
PURCHASES = 500
TO_START_AND_JUDGE_SECONDS = 120.0


def pytest_addoption(parser):
    """Take the options of `make nemesis`, which names this folder; without it the defaults hold."""
    group = parser.getgroup("nemesis")
    group.addoption("--seconds", type=float, default=SECONDS, help="how long faults happen (default 60)")
    group.addoption("--purchases", type=int, default=PURCHASES, help="how many (default 500)")
    group.addoption(
        "--without",
        default="",
        metavar="SWITCH",
        help="take one guard away: a class of tests.probes.switches",
    )
    group.addoption("--json", action="store_true", help="print the report as JSON")


def pytest_collection_modifyitems(config, items):
    """Bound the run by what it may take."""
    limit = (
        config.getoption("seconds", SECONDS)
        + campaign.LATE_SECONDS
        + 2 * campaign.SETTLE_SECONDS
        + TO_START_AND_JUDGE_SECONDS
    )
    for item in items:
        if item.get_closest_marker("nemesis"):
            item.add_marker(pytest.mark.timeout(limit))


@pytest.fixture
def chosen(pytestconfig):
    option = pytestconfig.getoption
    return {
        "seed": option("seed", 1),
        "seconds": option("seconds", SECONDS),
        "without": option("without", ""),
    }


@pytest.fixture
def plan(chosen):
    return schedule.plan(seed=chosen["seed"], seconds=chosen["seconds"])


@pytest.fixture
def tell(pytestconfig):
    """Give a function that prints a line at once: past pytest's capture, and where it goes to a pipe."""
    plugins = pytestconfig.pluginmanager
    terminal, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")

    def write(line):
        with capture.global_and_fixture_disabled():
            terminal.write(f"{line}\n", flush=True)

    return write


@pytest.fixture
def report(chosen, plan, pytestconfig, tmp_path, tell):
    """Run the nemesis once, tell how it goes, write the report and give it."""
    tell("")
    with serving() as effects, lab.new_lab(tmp_path, effects, without=chosen["without"]) as harmed:
        load = Load(harmed, chosen["seed"])
        outcome = campaign.Campaign(harmed, load, plan, tell).run()
    report = Report(**chosen, outcome=outcome)
    report.write()
    as_json = json.dumps(report.as_json(), indent=2)
    for line in [as_json] if pytestconfig.getoption("json", default=False) else report.lines():
        tell(line)
    return report.as_json()
