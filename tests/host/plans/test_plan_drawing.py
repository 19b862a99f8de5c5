"""Drawings of plans, and the search for chains of caps."""

import re
from xml.etree import ElementTree

import pytest

from cartdeck.plans import Plan, compile_plan, find_chains, mermaid, terminal_lines, to_svg
from cartdeck.router import Router
from cartdeck_protocol.caps import MediaUrn

DIAMOND = """
text -> upper -> loud
upper shout
text -> words -> lines
words split
lines -> each -> big
each shout
big -> again -> page
again join
(loud, page) -> pair -> both
"""


def test_rails_lead_from_inputs_through_steps_to_outputs(router: Router) -> None:
    assert (
        "\n".join(terminal_lines(compile_plan(Plan.parse(DIAMOND), router)))
        == """\
○    text   media:enc=utf-8;line
├─●  upper  shout on mill -> loud
● │  words  split on mill -> lines
◉ │  each   shout on mill, for each item -> big
● │  again  join on mill -> page
●─╯  pair   pair on mill
◇    both   media:couple;enc=utf-8"""
    )


def test_every_step_and_wire_of_any_size_of_plan_is_drawn(router: Router) -> None:
    lines = [f"s{i} cap:echo;test\n{'in' if i % 7 == 0 else f'v{i}'} -> s{i} -> v{i + 1}" for i in range(60)]
    plan = compile_plan(Plan.parse("\n".join(lines)), router)
    rows = terminal_lines(plan)
    for name in plan.steps:
        assert sum(1 for row in rows if re.search(rf"[●◉].* {name} ", row)) == 1
    text = mermaid(plan)
    assert text.count("-->") == 60 + len(plan.outputs)
    svg = ElementTree.fromstring(to_svg(plan))
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}g")) == 60 + 1 + len(plan.outputs)
    assert len(svg.findall(f"{space}path")) == 60 + len(plan.outputs)


def test_names_and_kinds_are_escaped(router: Router) -> None:
    plan = compile_plan(Plan.parse('a media:x="<b>&\\"c\\""\na -> echo -> b'), router)
    ElementTree.fromstring(to_svg(plan))
    assert '"<' not in to_svg(plan)


def test_boxes_do_not_lie_on_each_other(router: Router) -> None:
    svg = ElementTree.fromstring(to_svg(compile_plan(Plan.parse(DIAMOND), router)))
    places = [(float(one.attrib["x"]), float(one.attrib["y"])) for one in svg.iter("{http://www.w3.org/2000/svg}rect")]
    for number, (x, y) in enumerate(places):
        assert all(abs(x - ox) > 189 or abs(y - oy) > 45 for ox, oy in places[number + 1 :])


@pytest.mark.parametrize(
    ("source", "target", "chains"),
    [
        ("media:audio", "media:embedding", [["transcribe-speech", "embed-text"]]),
        ("media:image", "media:embedding", [["describe-image", "embed-text"]]),
        ("media:audio", "media:enc=utf-8;transcript", [["transcribe-speech"]]),
        ("media:embedding", "media:audio", []),
    ],
)
def test_chains_lead_from_one_kind_to_another_best_first(
    router: Router, source: str, target: str, chains: list[list[str]]
) -> None:
    found = find_chains(router.routes, MediaUrn.parse(source), MediaUrn.parse(target))
    names = [[route.definition.alias for route in chain.routes] for chain in found]
    assert names[: len(chains)] == chains
    assert [len(one) for one in names] == sorted(len(one) for one in names)
    for chain in found:
        if not chain.needs:
            assert compile_plan(chain.to_plan(), router).steps
    needy = [bool(chain.needs) for chain in found if len(chain.routes) == len(found[0].routes)]
    assert needy == sorted(needy)  # of one length, those that run as they are come first


def test_no_more_chains_than_asked_for_are_given(router: Router) -> None:
    source, target = MediaUrn.parse("media:enc=utf-8;line"), MediaUrn.parse("media:enc=utf-8")
    assert len(find_chains(router.routes, source, target)) > 2
    assert len(find_chains(router.routes, source, target, most=2)) == 2
