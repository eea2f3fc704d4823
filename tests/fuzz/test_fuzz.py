"""The API does what its description says, whatever is sent to it."""

import pytest

from tests.fuzz.conftest import EXAMPLES

pytestmark = [pytest.mark.fuzz, pytest.mark.process]


class TestApi:
    def test_answers_as_described(self, outcome, pytestconfig):
        report = outcome.report

        assert outcome.status == 0, outcome.told
        assert (report["failures"], report["details"]) == (0, [])
        assert report["operations"] == len(report["by_operation"]) >= 5
        assert min(report["by_operation"].values()) >= pytestconfig.getoption("examples", EXAMPLES)
