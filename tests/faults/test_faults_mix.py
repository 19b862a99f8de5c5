"""Calls, cancels, deaths, stops and damage all at once, from a seed: each call ends, and nothing is left over."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cartdeck import Engine, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_tasks_left", "phases")]

TURNS = 12


@pytest.fixture(scope="module")
def mix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults_mix", Path(__file__).parent / "mix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_happens_each_call_ends_and_nothing_is_left_over(
    quick: Callable[..., Settings], foreign: Callable[..., str], mix: ModuleType, seed: int
) -> None:
    cap = foreign()
    settings = quick(restart={"quarantine_after": 1000}, call={"cancel_s": 2.0, "abandon_s": 3.0}, wire=mix.WIRE)
    async with Engine(settings) as engine:
        all_of_it = mix.Mix(engine, cap, str(seed))
        await all_of_it.work(turns=TURNS)
        assert all_of_it.answers > 0
        await all_of_it.check()
