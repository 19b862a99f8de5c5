"""The order of steps and the search for cycles, also where they are long."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck.plans.order import find_cycle, find_cycles, in_order


def test_each_comes_behind_what_it_needs_and_else_by_name() -> None:
    assert in_order({"c": ["a"], "b": [], "a": ["b"], "d": []}) == ["b", "a", "c", "d"]


def test_a_long_chain_has_no_cycle_and_a_long_ring_is_one() -> None:
    chain = {f"{number:05}": [f"{number - 1:05}"] if number else [] for number in range(20_000)}
    assert find_cycle(chain) is None
    assert in_order(chain) == sorted(chain)
    chain["00000"] = ["19999"]
    cycle = find_cycle(chain)
    assert cycle is not None
    assert len(cycle) == 20_001


GRAPHS = st.integers(1, 8).flatmap(
    lambda size: st.fixed_dictionaries(
        {
            f"n{i}": st.lists(st.integers(0, size - 1).map(lambda one: f"n{one}"), max_size=3, unique=True)
            for i in range(size)
        }
    )
)


@settings(deadline=None)
@given(GRAPHS)
def test_a_cycle_is_found_exactly_where_there_is_no_order(graph: dict[str, list[str]]) -> None:
    order, cycle = in_order(graph), find_cycle(graph)
    assert sorted(order) == sorted(graph)
    is_order = all(order.index(needed) < order.index(name) for name in graph for needed in graph[name])
    assert is_order == (cycle is None)
    if cycle is not None:
        assert cycle[0] == cycle[-1]
        assert all(before in graph[after] for before, after in pairwise(cycle))


@settings(deadline=None)
@given(GRAPHS)
def test_of_several_cycles_each_is_found_without_the_names_of_those_before(graph: dict[str, list[str]]) -> None:
    left, found = graph, list[list[str]]()
    while (cycle := find_cycle(left)) is not None:
        found.append(cycle)
        left = {name: [one for one in needed if one not in cycle] for name, needed in left.items() if name not in cycle}
    assert list(find_cycles(graph)) == found


def test_many_cycles_behind_a_long_chain_are_found_at_once() -> None:
    rings = 20_000
    graph = {f"a{i}": [f"b{i}", f"a{i + 1}"] if i < rings - 1 else [f"b{i}"] for i in range(rings)}
    graph |= {f"b{i}": [f"a{i}"] for i in range(rings)}
    assert len(list(find_cycles(graph))) == rings
