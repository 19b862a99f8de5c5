"""The cheapest assignment, and whether it is the only one, beside trying all."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck.plans.assignment import cheapest, rival, total

PLACES = ["p", "q", "r", "s"]


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(PLACES), st.integers(0, 3)), min_size=1, max_size=4),
    st.frozensets(st.sampled_from(PLACES)),
)
def test_it_is_what_trying_all_finds(costs: list[dict[str, int]], wide: frozenset[str]) -> None:
    sums = [
        total(costs, places)
        for places in itertools.product(PLACES, repeat=len(costs))
        if all(place in cost for cost, place in zip(costs, places, strict=True))
        and all(places.count(place) == 1 or place in wide for place in places)
    ]
    found = cheapest(costs, wide)
    assert (found is None) == (not sums)
    if found is not None:
        assert total(costs, found) == min(sums)
        other = rival(costs, found, wide)
        assert (other is None) == (sums.count(min(sums)) == 1)
        if other is not None:
            assert other != found
            assert total(costs, other) == min(sums)


def test_many_sources_of_one_sequence_are_no_search() -> None:
    costs = [{"items": 3} for _ in range(5000)]
    found = cheapest(costs, frozenset({"items"}))
    assert found is not None
    assert found == ["items"] * 5000
    assert rival(costs, found, frozenset({"items"})) is None
