"""Plans whose text is long: they are compiled beside the loop, and told as short ones are."""

import asyncio
import threading
from typing import Any, cast

import pytest

pytest.importorskip("starlette", reason="needs the extra server")

from cartdeck.server.plan_compiling import LARGE_CHARACTERS, PlanCompiler
from cartdeck_protocol.errors import Code, failure

pytestmark = pytest.mark.anyio
LIMIT_S = 30.0


def chain(steps: int) -> str:
    return "\n".join(f"s{step} cap:echo;test\nv{step - 1} -> s{step} -> v{step}" for step in range(1, steps + 1))


async def test_the_loop_goes_on_while_a_long_text_is_worked_on() -> None:
    compiler, may_end = PlanCompiler(cast("Any", None)), threading.Event()
    making = asyncio.ensure_future(compiler.made("#" * LARGE_CHARACTERS, lambda: may_end.wait(LIMIT_S)))
    await asyncio.sleep(0)
    may_end.set()  # which this loop would not come to, were it at work itself
    assert await asyncio.wait_for(making, LIMIT_S)


async def test_what_fails_in_a_thread_is_raised_as_it_is() -> None:
    fault = failure(Code.BAD_PLAN, "no plan")

    def fail() -> None:
        raise fault

    for text in ("", "#" * LARGE_CHARACTERS):
        with pytest.raises(type(fault)) as caught:
            await PlanCompiler(cast("Any", None)).made(text, fail)
        assert caught.value is fault


def test_a_long_plan_runs_and_is_drawn(server: Any) -> None:
    plan = chain(100)
    assert len(plan) > LARGE_CHARACTERS
    status, told = server.post("/plans/run", {"plan": plan, "inputs": {"v0": "hello"}, "stream": False})
    assert (status, told["outputs"]["v100"]) == (200, {"text": "hello"})
    status, told = server.post("/plans/run", {"plan": plan, "inputs": {"v0": ["a", "b"]}, "stream": False})
    assert (status, told["outputs"]["v100"]) == (200, {"items": ["a", "b"]})
    status, shown = server.post("/plans/show", {"plan": plan})
    assert (status, [one["name"] for one in shown["inputs"]]) == (200, ["v0"])


@pytest.mark.parametrize("more", [{}, {"stream": False}])
@pytest.mark.parametrize(
    ("line", "inputs", "code", "param"),
    [
        ("v9 -> ecko -> end", {"v0": "a"}, "NO_SUCH_CAP", "plan"),
        ("v9 -> -> end", {"v0": "a"}, "BAD_PLAN", "plan"),
        ("", {"v0": "a", "w": "b"}, "BAD_ARGUMENT", "w"),
        ("s9.count = 1", {"v0": "a"}, "UNKNOWN_ARGUMENT", "count"),
        ("", {}, "MISSING_ARGUMENT", "v0"),
    ],
)
def test_a_long_plan_has_the_faults_of_a_short_one(
    server: Any, more: Any, line: str, inputs: Any, code: str, param: str
) -> None:
    found: list[Any] = []
    for steps in (9, 100):
        status, told = server.post("/plans/run", {"plan": f"{line}\n{chain(steps)}", "inputs": inputs, **more})
        found.append((status, told["error"]))
    assert found[0] == found[1]
    assert (found[0][1]["code"], found[0][1]["param"]) == (code, param)
