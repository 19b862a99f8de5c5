"""Progress: the sum of the steps' progress ÷ n, of a mapped step the same over its items; it never falls."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck.plans.tally import PlanTally, StepTally


def test_steps_one_after_another_have_equal_parts() -> None:
    plan = PlanTally(4)
    for number in range(4):
        step = StepTally(plan, 1)
        step.advance(0.5)
        assert plan.overall == pytest.approx(number / 4 + 0.125)
        step.item_ended(0.5)
        step.end()
        assert plan.overall == pytest.approx((number + 1) / 4, abs=1e-6)
    assert plan.overall < 1
    plan.succeed()
    assert plan.overall == 1.0


def test_a_mapped_step_counts_its_items_once_their_number_is_known() -> None:
    plan = PlanTally(1)
    step = StepTally(plan, None)
    step.item_ended(1.0)
    assert step.fraction == 0
    step.set_count(4)
    assert step.fraction == 0.25
    step.advance(0.5)
    assert step.fraction == 0.375
    assert step.done == 1


def test_a_try_that_failed_is_not_progress_but_does_not_take_any_back() -> None:
    plan = PlanTally(1)
    step = StepTally(plan, 1)
    step.advance(0.8)
    step.advance(-0.8)
    assert step.fraction == 0.8
    step.advance(0.5)
    assert step.fraction == 0.8
    step.item_ended(0.5)
    assert step.fraction == 1.0


@settings(deadline=None)
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.floats(-1, 1)), max_size=60))
def test_whatever_steps_say_the_whole_never_falls_nor_is_it_whole(count: int, moves: list[tuple[int, float]]) -> None:
    plan = PlanTally(count)
    steps = [StepTally(plan, 3 if number % 2 else 1) for number in range(count)]
    seen = 0.0
    for number, delta in moves:
        steps[number % count].advance(delta)
        assert seen <= plan.overall < 1
        seen = plan.overall
