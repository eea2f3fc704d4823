"""Whatever dies at whichever point: what was accepted is done, once, and soon."""

import pytest

from operations.crashpoints import POINTS
from tests.crashes.campaign import BOUND_SECONDS, LOAD_SECONDS
from tests.crashes.traps import Place

pytestmark = [pytest.mark.crash, pytest.mark.embedded, pytest.mark.timeout(900)]

ONE_DIES = [Place(point, process) for point, process in POINTS.items()]
ALL_DIE = [Place(point, process, whole=True) for point, process in POINTS.items() if process == "worker"]
# Points that another process than the usual one passes as well.
ANOTHER_DIES = [
    Place("accept.committed", "worker"),  # of a follow-up
    Place("relay.taken_back", "worker's parent"),
    Place("after_commit.begin", "relay"),
    Place("after_commit.performed", "relay"),
]


class TestDeath:
    @pytest.mark.parametrize("place", [*ONE_DIES, *ALL_DIE, *ANOTHER_DIES], ids=str)
    def test_breaks_no_promise(self, place, trials, report):
        runs = trials[place].result()
        report.runs.extend(runs)

        assert runs[0].fired, "nobody passed this point"
        assert [violation for run in runs for violation in run.violations] == []
        slowest = max(run.recovered_seconds for run in runs if run.fired)
        assert slowest <= BOUND_SECONDS + LOAD_SECONDS
