"""Classes for callers that do not await."""

from collections.abc import Callable

import pytest

import cartdeck
from cartdeck import Settings


@pytest.mark.usefixtures("ballast")
def test_an_engine_that_blocks_has_classes_too(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine:
        engine.run("carry", {"item": "a"}, priority="critical", timeout_s=20)
        assert [one.priority for one in engine.stats().sessions] == [2]
        assert engine.classify("carry", {"item": "a"}, priority="opportunistic")
        assert [one.to_plain()["class"] for one in engine.stats().sessions] == ["opportunistic"]
