"""Kept results and models: a step runs again when its model has changed under its name, and only then."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Engine
from cartdeck.plans import StepState, run_plan
from cartdeck.plans.model_hash import model_specs
from cartdeck.router import Router

pytestmark = pytest.mark.anyio
FAKE_HUB = Path(__file__).parents[2] / "data" / "hub" / "fake_hub.py"
DONE, REUSED = StepState.DONE, StepState.REUSED


def load_hub() -> ModuleType:
    found = sys.modules.get("fake_hub")
    if found is None:
        spec = importlib.util.spec_from_file_location("fake_hub", FAKE_HUB)
        assert spec is not None
        assert spec.loader is not None
        found = sys.modules["fake_hub"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    return found


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A hub on loopback that the models cartridge asks, with a cache of its own."""
    for hub in load_hub().serving():
        for name, value in {
            "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "NO_PROXY": "127.0.0.1",
            "CARTDECK_MODELS_DIR": str(tmp_path / "models"), "HF_TOKEN_PATH": "/dev/null",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        yield hub


@pytest.fixture
def weighed(milled: Engine, tmp_path: Path) -> Any:
    """The state in which a step with that model ends, in a folder of kept results."""

    async def run(model: Any, line: Any = "a", **constants: Any) -> StepState:
        lines = [f"weigh.{name} = {json.dumps(value)}" for name, value in {"model": model, **constants}.items()]
        plan = "line -> weigh -> y\n" + "\n".join(lines)
        result = await run_plan(milled, plan, {"line": line}, state=tmp_path / "state")
        return result.steps["weigh"].state

    return run


async def test_a_local_file_counts_by_what_is_in_it(weighed: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"one")
    assert [await weighed(str(file)), await weighed(str(file))] == [DONE, REUSED]
    file.write_bytes(b"two")
    assert [await weighed(str(file)), await weighed(str(file))] == [DONE, REUSED]
    file.write_bytes(b"one")
    assert await weighed(str(file)) is REUSED


async def test_a_local_folder_counts_by_all_its_files(weighed: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_bytes(b"{}")
    (folder / "deep" / "weights").write_bytes(b"one")
    assert [await weighed(str(folder)), await weighed(str(folder))] == [DONE, REUSED]
    (folder / "deep" / "weights").write_bytes(b"two")
    assert [await weighed(str(folder)), await weighed(str(folder))] == [DONE, REUSED]
    (folder / "deep" / "weights").rename(folder / "weights")
    assert await weighed(str(folder)) is DONE


async def test_a_hub_s_model_counts_by_its_files_and_not_by_its_commit(weighed: Any, hub: Any) -> None:
    hub.add({"model.onnx": b"one" * 1000, "README.md": b"first"})
    spec = "hf:owner/name:model.onnx"
    assert [await weighed(spec), await weighed(spec)] == [DONE, REUSED]
    hub.add({"model.onnx": b"one" * 1000, "README.md": b"second"})
    assert await weighed(spec) is REUSED
    hub.add({"model.onnx": b"two" * 1000, "README.md": b"second"})
    assert [await weighed(spec), await weighed(spec)] == [DONE, REUSED]
    assert len(hub.asked_for("model.onnx")) >= 2
    assert len(hub.asked_for("README.md")) == 0  # nothing is fetched for the key alone


async def test_the_items_of_a_map_look_their_model_up_once(weighed: Any, hub: Any) -> None:
    hub.add({"model.onnx": b"one" * 1000})
    lines = [str(number) for number in range(20)]
    assert await weighed("hf:owner/name:model.onnx", lines) is DONE
    asked = len(hub.requests)
    assert await weighed("hf:owner/name:model.onnx", lines) is REUSED
    assert len(hub.requests) - asked <= 3
    hub.add({"model.onnx": b"two" * 1000})
    assert await weighed("hf:owner/name:model.onnx", lines) is DONE


async def test_an_adapter_that_changed_makes_the_step_run_again(weighed: Any, tmp_path: Path) -> None:
    model, adapter = tmp_path / "model.onnx", tmp_path / "adapter.bin"
    model.write_bytes(b"model")
    adapter.write_bytes(b"one")
    lora = [{"model": str(adapter), "scale": 0.5}]
    assert [await weighed(str(model), lora=lora), await weighed(str(model), lora=lora)] == [DONE, REUSED]
    adapter.write_bytes(b"two")
    assert await weighed(str(model), lora=lora) is DONE


async def test_a_model_that_cannot_be_obtained_is_the_step_s_error(weighed: Any, hub: Any) -> None:
    hub.add({"model.onnx": b"one"})
    with pytest.raises(CartdeckError, match="step weigh") as caught:
        await weighed("hf:owner/nome:model.onnx")
    assert caught.value.code in (Code.MODEL_NOT_FOUND, Code.AUTH_REQUIRED)
    assert caught.value.details["step"] == "weigh"


async def test_what_the_models_cartridge_gives_is_never_kept(milled: Engine, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"one")
    plan = "spec -> download-model -> path\npath -> echo -> said\necho cap:echo"
    results = [await run_plan(milled, plan, {"spec": str(file)}, state=tmp_path / "state") for _ in range(2)]
    assert [one.steps["download-model"].state for one in results] == [DONE, DONE]
    assert [one.steps["echo"].state for one in results] == [DONE, REUSED]


def test_the_specs_of_a_call_are_those_given_and_those_by_default(router: Router) -> None:
    definition = next(one.definition for one in router.routes if one.definition.alias == "generate-text")
    (default,) = model_specs(definition, {})
    assert default.startswith("pypi:")
    given = {"model": b"a", "lora": '["b", {"model": "c", "scale": 1}, 5]'}
    assert model_specs(definition, given) == ["a", "b", "c"]
    assert model_specs(definition, {"model": {"repo_id": "x"}, "lora": "no list"}) == ['{"repo_id": "x"}']
