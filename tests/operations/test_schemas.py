"""Payloads of another version: taken up step by step, left to newer code, or refused."""

import pytest

from operations.jobs import UnsafeJob, job
from operations.schemas import TooNew, TooOld, upgraded
from tests.factories import WorkPayload, make_job


def renamed(payload):
    return {"user_id": payload["owner"]}


def counted(payload):
    return {**payload, "count": 1}


class TestUpgraded:
    def test_leaves_todays_payload_alone(self):
        assert upgraded(make_job(schema_version=3), {"a": 1}, version=3) == {"a": 1}

    def test_takes_an_old_payload_up_one_version_after_the_other(self):
        job = make_job(schema_version=3, upgrade={1: renamed, 2: counted})

        assert upgraded(job, {"owner": 7}, version=1) == {"user_id": 7, "count": 1}
        assert upgraded(job, {"user_id": 7}, version=2) == {"user_id": 7, "count": 1}

    def test_does_not_change_what_it_was_given(self):
        stored = {"user_id": 7}

        upgraded(
            make_job(schema_version=2, upgrade={1: lambda payload: payload.pop("user_id") and {}}),
            stored,
            version=1,
        )

        assert stored == {"user_id": 7}

    def test_leaves_a_later_version_to_newer_code(self):
        with pytest.raises(TooNew, match="version 1 here, and the payload at 2"):
            upgraded(make_job(), {}, version=2)

    def test_refuses_a_version_without_a_way_up(self):
        with pytest.raises(TooOld, match="payload of version 1 any more"):
            upgraded(make_job(schema_version=3, upgrade={2: counted}), {}, version=1)

    def test_refuses_a_payload_that_its_upgrade_cannot_take(self):
        with pytest.raises(TooOld, match="failed with KeyError"):
            upgraded(make_job(schema_version=2, upgrade={1: renamed}), {}, version=1)


class TestJob:
    @pytest.mark.parametrize(
        ("version", "steps"), [(2, (2,)), (3, (1,)), (4, (1, 3)), (1, (0,)), (2, (0, 1))]
    )
    def test_has_upgrades_that_lead_up_to_its_version(self, version, steps):
        declare = job(
            "tests.leap", payload=WorkPayload, schema_version=version, upgrade=dict.fromkeys(steps, counted)
        )

        def leap(run, answer, **values):
            """Leap."""

        with pytest.raises(UnsafeJob, match="without a gap"):
            declare(leap)
