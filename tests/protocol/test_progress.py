"""The arithmetic of progress: spans, clamping, the running maximum, steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck_protocol.progress import (
    INFERENCE,
    LOADING,
    OBTAINING,
    WHOLE,
    RunningMaximum,
    Span,
    clamp,
    steps_of,
)

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
UNIT = st.floats(min_value=0, max_value=1)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    base = draw(UNIT)
    return Span(base, draw(st.floats(min_value=0, max_value=1 - base)))


@given(ANY_FLOAT)
def test_a_clamped_value_lies_between_0_and_1(value: float) -> None:
    found = clamp(value)
    assert found is not None
    assert 0 <= found <= 1
    assert found == value or not 0 <= value <= 1


def test_unknown_stays_unknown_and_no_number_is_zero() -> None:
    assert clamp(None) is None
    assert clamp(math.nan) == 0
    assert clamp(math.inf) == 1
    assert clamp(-math.inf) == 0


@given(spans(), ANY_FLOAT)
def test_a_span_maps_any_value_into_itself(span: Span, value: float) -> None:
    assert span.base <= span.at(value) <= span.end


@given(spans(), UNIT, UNIT)
def test_a_span_keeps_the_order_of_values(span: Span, a: float, b: float) -> None:
    assert span.at(min(a, b)) <= span.at(max(a, b))


@given(spans(), spans(), UNIT)
def test_a_nested_span_is_the_composition_of_both(inner: Span, outer: Span, value: float) -> None:
    assert inner.within(outer).at(value) == pytest.approx(outer.at(inner.at(value)), abs=1e-12)
    assert inner.within(WHOLE).at(value) == pytest.approx(inner.at(value), abs=1e-12)


@pytest.mark.parametrize(("base", "weight"), [(-0.1, 0.5), (0.6, 0.5), (math.nan, 0.1), (0.1, math.nan), (0.1, -0.1)])
def test_a_span_outside_the_whole_is_refused(base: float, weight: float) -> None:
    with pytest.raises(ValueError, match="lies inside"):
        Span(base, weight)


def test_the_three_phases_follow_one_another_and_leave_the_rest_to_the_end() -> None:
    assert OBTAINING.base == 0
    assert OBTAINING.end == LOADING.base == 0.25
    assert LOADING.end == pytest.approx(INFERENCE.base) == 0.35
    assert INFERENCE.end == pytest.approx(0.95)


@given(st.lists(st.none() | ANY_FLOAT))
def test_the_running_maximum_never_falls(values: list[float | None]) -> None:
    maximum = RunningMaximum()
    shown = [maximum.advance(value) for value in values]
    assert shown == sorted(shown)
    assert all(0 <= value <= 1 for value in shown)
    assert maximum.value == (shown[-1] if shown else 0)


def test_steps_let_through_the_first_each_step_and_the_end_once() -> None:
    limiter = steps_of(0.05)
    due = [n for n in [*range(101), 100, 100] if limiter.is_due(n / 100)]
    assert due == list(range(0, 101, 5))


def test_steps_let_a_jump_through_and_nothing_that_goes_back() -> None:
    limiter = steps_of(0.05)
    asked = [0.3, 0.32, 0.9, 0.2, 0.9, 0.93, math.nan, 0.999, 1.0, 1.0, 2.0]
    assert [value for value in asked if limiter.is_due(value)] == [0.3, 0.9, 0.999, 1.0]


@pytest.mark.parametrize("step", [0, -0.1, 1.5, math.nan])
def test_a_step_outside_the_whole_is_refused(step: float) -> None:
    with pytest.raises(ValueError, match="step"):
        steps_of(step)
