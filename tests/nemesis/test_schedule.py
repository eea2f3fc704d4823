"""The schedule is a pure function of seed and length."""

import random
from collections import Counter

import pytest

from tests.nemesis.harm import ACTS
from tests.nemesis.schedule import KINDS, LENGTHS, plan


class TestPlan:
    def test_is_the_same_for_the_same_seed(self):
        assert plan(seed=7, seconds=300) == plan(seed=7, seconds=300)

    def test_is_another_for_another_seed(self):
        assert plan(seed=7, seconds=300) != plan(seed=8, seconds=300)

    def test_does_not_touch_the_dice_of_others(self):
        before = random.getstate()

        plan(seed=7, seconds=300)

        assert random.getstate() == before

    @pytest.mark.parametrize("seed", range(20))
    def test_has_ten_of_every_kind_in_five_minutes(self, seed):
        assert Counter(fault.kind for fault in plan(seed=seed, seconds=300)) == dict.fromkeys(KINDS, 10)

    @pytest.mark.parametrize("seconds", [10, 60, 300])
    def test_is_in_order_and_within_its_length(self, seconds):
        moments = [fault.at_seconds for fault in plan(seed=7, seconds=seconds)]

        assert moments == sorted(moments)
        assert moments[0] >= 0
        assert moments[-1] <= seconds

    def test_gives_a_length_to_what_does_not_end_by_itself(self):
        lasting = {fault.kind for fault in plan(seed=7, seconds=300) if fault.for_seconds}

        assert lasting == set(LENGTHS)


class TestKinds:
    def test_have_an_act_each(self):
        assert list(ACTS) == list(KINDS)
