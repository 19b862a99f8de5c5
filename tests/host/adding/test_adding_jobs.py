"""Jobs on a real engine: from a hub's repository to an entry of the catalog, and everything that stops on the way."""

import asyncio
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cartdeck.adding.add import AddRequest, add_job
from cartdeck.adding.job import Job
from cartdeck.adding.step import Step, StepProgress
from cartdeck.adding.update import UpdateRequest, rollback_job, update_job
from cartdeck.catalog.catalog import parse_catalog
from cartdeck.catalog.catalog_file import load_catalog
from cartdeck_protocol.errors import CartdeckError

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("llama_cpp") is None, reason="needs llama-cpp-python"),
]

NAN = float("nan")
STEPS = ["registry", "plan", "download", "header", "entry", "start", "smoke-test", "catalog"]
MIB = 1024 * 1024
Gguf = Callable[..., bytes]


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    return tmp_path / "catalog.toml"


@pytest.fixture
def add(desk: Any, catalog: Path) -> Callable[..., Any]:
    """`add("owner/x", file=…)`: what the job told. `watch` sees its events."""

    def run(repository: str, watch: Any = None, **asked: Any) -> Any:
        request = AddRequest(repository=repository, **asked)
        return desk.run(lambda engine: add_job(engine, catalog, request), watch)

    return run


@pytest.fixture
def update(desk: Any, catalog: Path) -> Callable[..., Any]:
    def run(name: str, **asked: Any) -> Any:
        return desk.run(lambda engine: update_job(engine, catalog, UpdateRequest(name=name, **asked)))

    return run


def test_a_repository_becomes_a_model_that_has_answered(hub: Any, add: Any, catalog: Path, small_gguf: Gguf) -> None:
    repository = hub.add(
        {"tiny.Q4_0.gguf": small_gguf(), "tiny.Q8_0.gguf": small_gguf() + bytes(999), "README.md": b"r"},
        name="owner/whole-GGUF",
    )
    told = add("owner/whole-GGUF")
    assert told.error is None, told.error
    assert told.steps == STEPS
    overall = [event.overall for event in told.events]
    assert overall == sorted(overall)
    assert overall[-1] == 1.0

    commit = repository.branches["main"]
    verdicts = told.detail("plan")["candidates"]
    assert [(one["path"], one["is_taken"]) for one in verdicts] == [("tiny.Q4_0.gguf", True), ("tiny.Q8_0.gguf", False)]
    assert "Q4_0 comes before it" in verdicts[1]["why"]
    assert told.detail("smoke-test")["tokens"] >= 1
    entry = load_catalog(catalog).entries["whole"]
    assert entry.source == f"hf:owner/whole-GGUF@{commit}:tiny.Q4_0.gguf"
    assert (entry.backend, entry.capabilities) == ("gguf", ("chat", "completion"))
    assert entry.origin is not None
    sha256 = hub.file("tiny.Q4_0.gguf", name="owner/whole-GGUF").sha256
    assert entry.origin.revision == commit
    assert {path: file.sha256 for path, file in entry.origin.files.items()} == {"tiny.Q4_0.gguf": sha256}
    assert hub.sent["tiny.Q8_0.gguf"] == 0
    with pytest.raises(CartdeckError, match="cartdeck update whole"):
        add("owner/whole-GGUF")


@pytest.fixture(scope="module")
def seeing() -> bytes:
    """A projector for models of the width 576, taught on coloured shapes."""
    return (Path(__file__).parents[2] / "data" / "gguf" / "shapes-mmproj-576.gguf").read_bytes()


def test_a_projector_comes_along_is_shown_a_picture_and_moves_with_its_model(
    hub: Any, desk: Any, add: Any, update: Any, catalog: Path, small_gguf: Gguf, seeing: bytes
) -> None:
    files = {"eyes.Q4_0.gguf": small_gguf(width=576), "mmproj-F16.gguf": seeing, "mmproj-F32.gguf": seeing}
    first = hub.add(files, name="owner/eyes").branches["main"]
    told = add("owner/eyes", name="m")
    assert told.error is None, told.error
    assert "With its projector for images, mmproj-F16.gguf" in told.detail("plan")["candidates"][0]["why"]
    assert "of_a_picture" in told.detail("smoke-test")
    entry = load_catalog(catalog).entries["m"]
    assert entry.capabilities == ("chat", "completion", "vision")
    assert entry.projector == f"hf:owner/eyes@{first}:mmproj-F16.gguf"
    assert entry.projector_origin is not None
    assert list(entry.projector_origin.files) == ["mmproj-F16.gguf"]
    assert hub.sent["mmproj-F32.gguf"] == 0

    before = catalog.read_text()
    second = hub.add({**files, "eyes.Q4_0.gguf": small_gguf(width=576, seed=2)}, name="owner/eyes").branches["main"]
    assert update("m").result["is_newer"] is True
    entry = load_catalog(catalog).entries["m"]
    assert (entry.source, entry.projector) == (
        f"hf:owner/eyes@{second}:eyes.Q4_0.gguf", f"hf:owner/eyes@{second}:mmproj-F16.gguf"
    )  # fmt: skip
    back = desk.run(lambda engine: rollback_job(engine, catalog, "m"))
    assert back.error is None, back.error
    assert load_catalog(catalog).entries["m"] == parse_catalog(before, origin="before").entries["m"]

    catalog.write_text(before.replace("mmproj-F16.gguf", "mmproj-F32.gguf"))
    for names, kept in (
        (("mmproj-F16.gguf", "mmproj-F32.gguf"), "mmproj-F32.gguf"),
        (("mmproj-F16.gguf",), "mmproj-F16.gguf"),
    ):
        there = {"eyes.Q4_0.gguf": small_gguf(width=576, seed=3), **dict.fromkeys(names, seeing)}
        third = hub.add(there, name="owner/eyes").branches["main"]
        told = update("m", is_dry=True)
        assert told.error is None, told.error
        assert told.detail("plan")["candidates"][0]["projector"] == kept
        assert told.result["source"] == f"hf:owner/eyes@{third}:eyes.Q4_0.gguf"


def test_a_projector_of_another_model_is_left_out_and_told(
    hub: Any, add: Any, catalog: Path, small_gguf: Gguf, seeing: bytes
) -> None:
    hub.add({"odd.Q4_0.gguf": small_gguf(seed=11), "mmproj-F16.gguf": seeing}, name="owner/odd")
    told = add("owner/odd")
    assert told.error is None, told.error
    assert told.steps == [*STEPS[:5], *STEPS[4:]]
    entry = load_catalog(catalog).entries["odd"]
    assert (entry.capabilities, entry.projector) == (("chat", "completion"), None)
    texts = [event.text for event in told.events if type(event).__name__ == "StepEnded" and event.step is Step.ENTRY]
    assert "without eyes: " in texts[-1]
    assert "mmproj-F16.gguf" in texts[-1]

    blind = add("owner/odd", name="blind", takes_projector=False)
    assert blind.steps == STEPS
    assert load_catalog(catalog).entries["blind"].projector is None


def test_a_dry_run_fetches_no_model_and_writes_nothing(hub: Any, add: Any, catalog: Path, small_gguf: Gguf) -> None:
    hub.add({"m.Q4_0.gguf": small_gguf() + bytes(5 * MIB)}, name="owner/dry")
    told = add("owner/dry", is_dry=True, name="other")
    assert (told.steps, told.result["name"]) == (["registry", "plan"], "other")
    assert hub.sent["m.Q4_0.gguf"] <= MIB, "one range of its header"
    assert not catalog.exists()


def test_an_architecture_that_no_engine_knows_is_told_before_the_download(
    hub: Any, add: Any, catalog: Path, small_gguf: Gguf
) -> None:
    strange = small_gguf(**{"general.architecture": "no-such-thing"}) + bytes(5 * MIB)
    hub.add({"strange.Q4_0.gguf": strange}, name="owner/strange")
    told = add("owner/strange")
    assert told.failed == ("UNSUPPORTED_ARCHITECTURE", "plan")
    assert "does not know the architecture 'no-such-thing'" in told.error.message
    assert told.error.remedy
    assert hub.sent["strange.Q4_0.gguf"] <= MIB
    assert not catalog.exists()


@pytest.mark.skipif(find_spec("torch") is None or find_spec("transformers") is None, reason="needs the extra torch")
def test_weights_in_safetensors_are_taken_where_the_gguf_file_cannot_be_run(
    hub: Any, add: Any, small_gguf: Gguf
) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64}
    files = {
        "m.Q4_0.gguf": small_gguf(**{"general.architecture": "no-such-thing"}),
        "config.json": json.dumps(config).encode(),
        "model.safetensors": bytes(2000),
    }
    hub.add(files, name="owner/mixed")
    taken = add("owner/mixed", is_dry=True)
    assert taken.result["source"].endswith(":model.safetensors")
    assert taken.detail("plan")["candidates"][0]["backend"] == "torch"
    hub.add({**files, "m.Q4_0.gguf": small_gguf()}, name="owner/mixed")
    plan = add("owner/mixed", is_dry=True).detail("plan")["candidates"]
    assert [one["format"] for one in plan] == ["gguf", "safetensors"]
    assert "--backend torch takes it" in plan[1]["why"]
    assert add("owner/mixed", is_dry=True, backend="torch").result["source"].endswith(":model.safetensors")
    assert add("owner/mixed", backend="cobol").failed == ("BAD_ARGUMENT", "plan")


def test_what_the_registry_refuses_names_the_step_and_the_remedy(hub: Any, add: Any, catalog: Path) -> None:
    hub.add({"pytorch_model.bin": b"p", "config.json": b"{}"}, name="owner/pickles")
    hub.add({"m.gguf": b"x"}, name="owner/gated", is_gated=True)
    hub.add({"README.md": b"nothing"}, name="owner/empty")
    for repository, code in (
        ("owner/pickles", "UNSAFE_WEIGHTS"),
        ("owner/gated", "GATED"),
        ("owner/none", "AUTH_REQUIRED"),
        ("owner/pickles@nope", "REVISION_NOT_FOUND"),
        ("owner/empty", "FILE_NOT_FOUND"),
        ("owner/pickles:other.gguf", "FILE_NOT_FOUND"),
    ):
        told = add(repository)
        assert told.failed == (code, "registry"), repository
        assert told.error.message.startswith("registry: ")
        assert told.error.phase in (None, "registry", "look_up"), "no other step is named"
        assert told.error.remedy
        assert told.error.argument in (None, "repository")
    assert not catalog.exists()


def test_a_model_that_does_not_fit_in_memory_is_told_before_the_download(hub: Any, add: Any, small_gguf: Gguf) -> None:
    hub.add({"m.Q4_0.gguf": small_gguf(**{"llama.attention.key_length": 2_000_000_000})}, name="owner/huge")
    told = add("owner/huge")
    assert told.failed == ("INSUFFICIENT_MEMORY", "plan")
    assert "It does not fit" in told.error.message
    (candidate,) = told.error.details["candidates"]
    assert candidate["fits"] is False


def test_two_models_in_one_repository_need_a_word(hub: Any, add: Any, small_gguf: Gguf) -> None:
    hub.add({"one.Q4_0.gguf": small_gguf(), "two.Q4_0.gguf": small_gguf(seed=1)}, name="owner/two")
    assert add("owner/two").failed == ("BAD_ARGUMENT", "plan")
    assert add("owner/two", file="two.Q4_0.gguf", is_dry=True).result["source"].endswith(":two.Q4_0.gguf")


def test_bytes_that_are_not_what_the_registry_promised_end_the_job(
    hub: Any, add: Any, catalog: Path, small_gguf: Gguf
) -> None:
    fake = sys.modules["fake_hub"].File
    hub.add({"m.Q4_0.gguf": fake(small_gguf(seed=7), wrong_answers=100)}, name="owner/wrong")
    told = add("owner/wrong")
    assert told.failed == ("HASH_MISMATCH", "download")
    hub.add({"m.Q4_0.gguf": small_gguf(seed=8)[:-3000]}, name="owner/cut")
    assert add("owner/cut").failed == ("MODEL_TRUNCATED", "header")
    assert not catalog.exists()


def test_a_model_that_fails_its_trial_is_in_no_catalog_and_in_no_memory(
    hub: Any, desk: Any, add: Any, catalog: Path, small_gguf: Gguf, eventually: Any
) -> None:
    hub.add({"m.Q4_0.gguf": small_gguf(fill=NAN)}, name="owner/nan")
    catalog.write_text("# mine\n")
    told = add("owner/nan")
    code, step = told.failed
    assert (code, step) == ("NON_FINITE_OUTPUT", "start")
    assert catalog.read_text() == "# mine\n"
    assert eventually(lambda: not loaded(desk, "owner/nan"))


def loaded(desk: Any, text: str) -> list[str]:
    async def keys(engine: Any) -> list[str]:
        return [str(one.key) for status in engine.cartridges() for one in status.sessions if one.pid is not None]

    return [key for key in desk.call(keys) if text in key]


@pytest.fixture
def eventually(desk: Any) -> Callable[[Callable[[], Any]], bool]:
    """Whether the answer became yes within 20 seconds."""

    def wait(question: Callable[[], Any]) -> bool:
        for _ in range(400):
            if question():
                return True
            desk.call(lambda _: asyncio.sleep(0.05))
        return False

    return wait


def test_a_cancelled_job_keeps_what_came_and_the_next_one_goes_on(
    hub: Any, desk: Any, add: Any, catalog: Path, small_gguf: Gguf
) -> None:
    fake = sys.modules["fake_hub"].File
    data = small_gguf(seed=3) + bytes(8 * MIB)
    hub.add({"m.Q4_0.gguf": fake(data, rate_bytes_s=4 * MIB)}, name="owner/slow")

    def leave(job: Job, event: Any) -> None:
        if isinstance(event, StepProgress) and event.step is Step.DOWNLOAD and (event.work or 0) > 2 * MIB:
            job.cancel("enough")

    told = add("owner/slow", leave)
    assert told.failed == ("CANCELLED", "download")
    assert "enough" in told.error.message
    assert not catalog.exists()
    assert hub.wait_idle(20.0)
    hub.file("m.Q4_0.gguf", name="owner/slow").rate_bytes_s = 0.0
    again = add("owner/slow")
    assert again.error is None, again.error
    assert again.detail("download")["resumed_bytes"] > MIB
    assert "slow" in load_catalog(catalog).entries


def test_a_job_can_be_left_at_each_step_and_leaves_no_entry(
    hub: Any, add: Any, catalog: Path, small_gguf: Gguf
) -> None:
    hub.add({"m.Q4_0.gguf": small_gguf(seed=4)}, name="owner/left")
    for step in [one for one in Step if one is not Step.CATALOG]:
        told = add("owner/left", lambda job, event, step=step: job.cancel() if event.step is step else None)
        assert told.failed == ("CANCELLED", step.label)
    assert not catalog.exists()
    assert add("owner/left").error is None


def test_an_update_moves_only_to_weights_that_answered_and_rolls_back(
    hub: Any, desk: Any, add: Any, update: Any, catalog: Path, small_gguf: Gguf
) -> None:
    first = {"m.Q4_0.gguf": small_gguf(seed=5)}
    hub.add(first, name="owner/moving")
    assert add("owner/moving", name="m").error is None
    catalog.write_text(catalog.read_text().replace("[models.m]", "[models.m] # ours\nmax_tokens = 9", 1))
    before = catalog.read_text()

    nothing = update("m")
    assert (nothing.steps, nothing.result["is_newer"]) == (["registry"], False)
    hub.add({**first, "README.md": b"words alone"}, name="owner/moving")
    same = update("m")
    assert (same.result["is_newer"], same.steps[-1]) == (False, "download")
    assert "with the same weights" in same.result["text"]

    hub.add({"m.Q4_0.gguf": small_gguf(fill=NAN)}, name="owner/moving")
    assert update("m", is_dry=True).result["is_newer"] is True
    broken = update("m")
    assert broken.failed == ("NON_FINITE_OUTPUT", "start")
    assert catalog.read_text() == before

    repository = hub.add({"m.Q4_0.gguf": small_gguf(seed=6)}, name="owner/moving")
    moved = update("m")
    assert (moved.error, moved.steps) == (None, STEPS)
    entry = load_catalog(catalog).entries["m"]
    assert entry.source == f"hf:owner/moving@{repository.branches['main']}:m.Q4_0.gguf"
    assert entry.max_tokens == 9
    assert "# ours" in catalog.read_text()

    asked = len(hub.requests)
    back = desk.run(lambda engine: rollback_job(engine, catalog, "m"))
    assert (back.error, back.steps) == (None, ["download", "catalog"])
    assert catalog.read_text() == before
    assert len(hub.requests) == asked, "the old weights are here"
    with pytest.raises(CartdeckError, match="nothing to go back to"):
        desk.run(lambda engine: rollback_job(engine, catalog, "m"))


def test_an_update_looks_at_the_branch_that_the_model_came_from(
    hub: Any, add: Any, update: Any, catalog: Path, small_gguf: Gguf
) -> None:
    hub.add({"m.Q4_0.gguf": small_gguf(seed=9)}, name="owner/branches")
    hub.add({"m.Q4_0.gguf": small_gguf(seed=10)}, name="owner/branches", branch="dev")
    assert add("owner/branches", name="m", revision="dev").error is None
    assert update("m").result["follows"] == "dev"
    assert update("m").result["is_newer"] is False
    moved = update("m", revision="main")
    assert moved.result["is_newer"] is True
    assert update("m").result["follows"] == "main"


def test_what_came_from_no_hub_has_no_newer_weights(update: Any, catalog: Path) -> None:
    catalog.write_text('[models.mine]\nsource = "./m.gguf"\n')
    with pytest.raises(CartdeckError, match=r"mine is of \./m\.gguf"):
        update("mine")
    with pytest.raises(CartdeckError, match="no model 'yours'"):
        update("yours")
