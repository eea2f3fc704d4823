"""Each guard is needed: without it the suite fails, and names the invariant."""

import pytest

from tests.crashes.guards import SCENARIOS, Guard

pytestmark = [pytest.mark.crash, pytest.mark.embedded, pytest.mark.timeout(900)]


class TestGuard:
    @pytest.mark.parametrize("guard", SCENARIOS)
    def test_is_missed_when_it_is_away(self, guard, trials, report):
        outcome = trials[guard].result()
        found = [violation for violation in outcome.without if violation.startswith(f"{outcome.invariant}:")]
        report.guards.append(Guard(guard, outcome.invariant, suite_failed=bool(found)))

        assert outcome.with_guard == []
        assert found, f"{outcome.invariant} seems kept without it; found were {outcome.without}"
