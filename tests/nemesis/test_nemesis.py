"""Everything fails, again and again, while clients ask: what was accepted is done, once."""

from collections import Counter

import pytest

pytestmark = [pytest.mark.nemesis, pytest.mark.embedded]


class TestNemesis:
    def test_breaks_no_promise(self, report, plan):
        assert report["details"] == {"lost": [], "doubled": [], "violations": []}
        assert report["faults"] == Counter(fault.kind for fault in plan)
        assert min(each["due"] for each in report["schedule"]) > 0
