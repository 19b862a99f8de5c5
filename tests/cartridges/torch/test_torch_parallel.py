"""One language model over two processes on a CPU: the texts of one process, ranks that die, what is not divided."""

import asyncio
import base64
import io
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cartdeck import Engine
from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.folder import read_folder
from cartdeck_torch.generation import Generation
from cartdeck_torch.job import Job
from cartdeck_torch.parallel.group import start_ranks
from cartdeck_torch.parallel.shares import check_devices, check_shares, device_of
from cartdeck_torch.parallel.work import group_timeout_s
from cartdeck_torch.settings import LoadSettings

LIMIT_S = 60.0
PROMPT = "hello there"
NEVER_ENDS = ((257, -100.0),)

Make = Callable[..., Any]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def opened(open_generator: Make) -> Iterator[Make]:
    """`opened(path)` is the model there over two ranks, this process being one: in one group at a time, so that each
    takes the place of the one before, and its ranks, which take seconds to start."""
    models: dict[Path, Any] = {}

    def open_it(path: Path, **settings: Any) -> Any:
        if path not in models:
            ranks = [model.give_away() for model in models.values()]
            models.clear()
            models[path] = open_generator(path, ranks=ranks[0] if ranks else None, tensor_parallel=2, **settings)
        return models[path]

    def close() -> None:
        for model in models.values():
            model.close()
        models.clear()

    open_it.close = close
    yield open_it
    close()


@pytest.fixture
def pair(opened: Make, make_causal: Make) -> Any:
    return opened(make_causal("qwen3"))


@pytest.fixture(scope="module")
def alone(make_causal: Make, open_generator: Make) -> Any:
    return open_generator(make_causal("qwen3"))


def test_the_texts_are_those_of_one_process(pair: Any, alone: Any, make_answer: Make) -> None:
    long = "x" * 300  # more than one slice
    for prompt, changes in (
        (PROMPT, {}),
        (long, {}),
        (PROMPT, {"temperature": 0.9, "seed": 5, "texts": 3}),
    ):
        text, events, counts = make_answer(pair, prompt, **changes)
        wanted, wanted_events, wanted_counts = make_answer(alone, prompt, **changes)
        assert (text, events) == (wanted, wanted_events)
        assert counts.completion_tokens == wanted_counts.completion_tokens
    assert sum(one.numel() for one in pair.model.parameters()) < 0.7 * sum(
        one.numel() for one in alone.model.parameters()
    )
    assert len(pair.rank_pids) == 1


def test_a_schema_holds_the_text_over_ranks_too(pair: Any, alone: Any, make_text: Make) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    asked = {"json_schema": schema, "max_tokens": 40}
    assert make_text(pair, PROMPT, **asked)[0] == make_text(alone, PROMPT, **asked)[0]


def generate_until(model: Any, act: Callable[[Any], None]) -> tuple[CartdeckError, float]:
    """Begins a long text, does `act(job)` once it runs; what the text failed with, and how many seconds later."""
    settings = SamplingSettings(
        max_tokens=1900, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0, seed=1,
        logit_bias=NEVER_ENDS,
    )  # fmt: skip
    generation = Generation(PROMPT, 1900, settings=settings)

    async def run() -> tuple[CartdeckError, float]:
        job, caught = Job(), list[tuple[CartdeckError, float]]()

        def work() -> None:
            try:
                model.generate(generation, job)
            except CartdeckError as error:
                caught.append((error, time.monotonic()))

        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.to_thread(wait_until, lambda: generation.completion_tokens > 3)
        acted_s = time.monotonic()
        act(job)
        await asyncio.to_thread(thread.join, LIMIT_S)
        ((error, failed_s),) = caught
        return error, failed_s - acted_s

    return asyncio.run(run())


def test_a_cancel_ends_a_text_and_the_ranks_make_the_next_one(pair: Any, alone: Any, make_answer: Make) -> None:
    before = pair.rank_pids
    error, took_s = generate_until(pair, lambda job: job.cancel())
    assert error.code is Code.CANCELLED
    assert took_s < 20.0  # one step, some milliseconds, on a machine that does nothing else
    assert make_answer(pair, PROMPT)[0] == make_answer(alone, PROMPT)[0]
    assert pair.rank_pids == before


def test_experts_are_divided_and_a_rank_that_dies_fails_the_text_at_once_and_is_started_anew(
    opened: Make, make_causal: Make, open_generator: Make, make_answer: Make
) -> None:
    path = make_causal("qwen3_moe")
    alone, pair = open_generator(path), opened(path, kv_cache="static")
    warm = {"temperature": 0.9, "seed": 5, "texts": 2}
    wanted = [make_answer(alone, PROMPT, max_tokens=24), make_answer(alone, PROMPT, **warm)]

    def check() -> None:
        found = [make_answer(pair, PROMPT, max_tokens=24), make_answer(pair, PROMPT, **warm)]
        assert [one[:2] for one in found] == [one[:2] for one in wanted]
        assert pair.caches.kept_tokens == 64

    check()
    (pid,) = pair.rank_pids
    error, took_s = generate_until(pair, lambda _: os.kill(pid, signal.SIGKILL))
    assert error.code is Code.DEVICE_FAULT
    assert "rank 1 of 2 was ended by signal 9" in error.message
    assert took_s < 20.0  # 0.1 s on a machine that does nothing else
    check()
    assert pair.rank_pids != [pid]


def test_images_are_read_by_every_rank_and_give_the_text_of_one_process(
    opened: Make, make_seeing: Make, open_generator: Make, make_answer: Make
) -> None:
    path = make_seeing("llava")
    alone, pair = open_generator(path), opened(path)

    def said(*colours: str) -> list[Any]:
        pictures = [io.BytesIO() for _ in colours]
        for colour, file in zip(colours, pictures, strict=True):
            Image.new("RGB", (50, 40), colour).save(file, "PNG")
        urls = ["data:image/png;base64," + base64.b64encode(one.getvalue()).decode() for one in pictures]
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": "x" * 200}]}]

    for colours in (("red", "blue"), ("red",), (), ("green",)):
        found, wanted = (make_answer(model, messages=said(*colours)) for model in (pair, alone))
        assert found[:2] == wanted[:2]
    towers = [
        dict(model.model.named_parameters())["model.vision_tower.embeddings.class_embedding"] for model in (alone, pair)
    ]
    assert towers[0].equal(towers[1])


def test_a_rank_that_dies_between_two_texts_is_seen(opened: Make, make_seeing: Make) -> None:
    pair = opened(make_seeing("llava"))
    (pid,) = pair.rank_pids
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not pair.is_whole)
    assert not is_there(pid)


def test_a_rank_that_dies_while_it_loads_ends_the_load(opened: Any, make_causal: Make) -> None:
    from cartdeck_torch.engine.parallel_text import ParallelTextGenerator
    from cartdeck_torch.engine.torch_device import open_device

    opened.close()
    folder = read_folder(make_causal("llama"))
    group = start_ranks(2)

    def report(part: float) -> None:
        if part and group.is_whole:
            os.kill(group.pids[0], signal.SIGKILL)
            wait_until(lambda: not group.is_whole)

    with pytest.raises(CartdeckError) as caught:
        ParallelTextGenerator(
            folder,
            LoadSettings(threads=1, tensor_parallel=2),
            open_device("cpu", threads=1),
            report=report,
            ranks=group,
        )
    assert caught.value.code is Code.DEVICE_FAULT
    assert "signal 9" in caught.value.message
    wait_until(lambda: not pids(os.getpid()))


def pids(parent: int, word: bytes = b"cartdeck_torch.parallel") -> list[int]:
    """The ranks that a process has started and that are there, or its other children with that word."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            status = (entry / "status").read_text()
        except OSError:
            continue
        if word in words.split(b"\0") and f"PPid:\t{parent}\n" in status and "State:\tZ" not in status:
            found.append(int(entry.name))
    return found


def test_heads_that_do_not_divide_are_refused_with_the_numbers_that_do(make_causal: Make, open_generator: Make) -> None:
    path = make_causal("llama", num_attention_heads=6, num_key_value_heads=2, hidden_size=96)
    for ranks in (3, 4):
        with pytest.raises(CartdeckError) as caught:
            open_generator(path, tensor_parallel=ranks)
        assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "tensor-parallel")
        assert "2 key-value heads" in caught.value.message
        assert "one of 1, 2" in caught.value.message
        assert caught.value.details["allowed"] == [1, 2]
    check_shares(read_folder(path), 2)


def test_a_model_of_another_kind_is_not_divided(tiny_bert: Path) -> None:
    with pytest.raises(CartdeckError) as caught:
        check_shares(read_folder(tiny_bert), 2)
    assert (caught.value.code, caught.value.argument) == (Code.UNSUPPORTED, "tensor-parallel")
    assert "bert" in caught.value.message


def test_each_rank_needs_a_gpu_of_its_own() -> None:
    check_devices("cpu", ranks=8, devices=0)
    check_devices("cuda:0", ranks=2, devices=2)
    assert [device_of(rank, "cpu") for rank in range(3)] == ["cpu"] * 3
    assert [device_of(rank, "cuda:0") for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [device_of(rank, "cuda:1") for rank in range(3)] == ["cuda:1", "cuda:0", "cuda:2"]
    with pytest.raises(CartdeckError) as caught:
        check_devices("cuda:0", ranks=4, devices=2)
    assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "tensor-parallel")
    assert "at most 2" in caught.value.message


def test_a_group_waits_for_a_minute_at_most() -> None:
    assert group_timeout_s({}) == 60
    assert group_timeout_s({"CARTDECK_GROUP_TIMEOUT_S": "5"}) == 5
    for text in ("600", "inf", "nan", "-1", "soon"):
        assert group_timeout_s({"CARTDECK_GROUP_TIMEOUT_S": text}) == 60


WithEngine = Callable[[Callable[[Engine], Awaitable[Any]]], Any]


def test_a_cartridge_divides_a_model_and_its_ranks_go_with_it(
    with_engine: WithEngine, make_causal: Make, open_generator: Make, make_text: Make
) -> None:
    path = make_causal("qwen3_5_text")
    wanted = make_text(open_generator(path), PROMPT)[0]
    ranks: list[int] = []

    async def use(engine: Engine) -> None:
        arguments: dict[str, Any] = {"model": str(path), "threads": 1, "temperature": 0, "max-tokens": 12}
        arguments |= {"prompt": PROMPT, "tensor-parallel": 2}
        made = await engine.run("cap:generate-text;torch", arguments)
        assert made.text == wanted
        leaders = pids(os.getpid(), b"cartdeck_torch")
        ranks.extend(rank for leader in leaders for rank in pids(leader))
        assert len(ranks) == 1
        with pytest.raises(CartdeckError) as caught:
            await engine.run("cap:generate-text;torch", {**arguments, "tensor-parallel": 3})
        assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "tensor-parallel")
        for leader in leaders:
            os.kill(leader, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: not is_there(ranks[0]))

    with_engine(use)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3_next", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"])
def test_the_parts_of_two_ranks_make_the_whole(kind: str, make_causal: Make, open_generator: Make) -> None:
    import torch

    from cartdeck_torch.engine.shares import Share, load_share
    from cartdeck_torch.engine.torch_device import open_device

    changes = {"tie_word_embeddings": True} if kind == "mistral" else {}
    path = make_causal(kind, **changes)
    whole = dict(open_generator(path).model.named_parameters())
    device, settings, seen = open_device("cpu", threads=1), LoadSettings(threads=1), list[float]()
    parts = [
        dict(
            load_share(read_folder(path), settings, device, share=Share(rank, 2), report=seen.append)[
                0
            ].named_parameters()
        )
        for rank in (0, 1)
    ]
    assert seen[-1] == 1.0
    assert parts[0].keys() == whole.keys()
    divided = 0
    for name, tensor in whole.items():
        first, second = parts[0][name], parts[1][name]
        if first.shape == tensor.shape:
            assert torch.equal(first, tensor)
            assert torch.equal(second, tensor)
            continue
        divided += 1
        dim = next(dim for dim in range(tensor.dim()) if first.shape[dim] != tensor.shape[dim])
        pieces = [first, second]
        if name.endswith("gate_up_proj"):  # two projections in one tensor
            halves = [part.chunk(2, dim) for part in pieces]
            pieces = [halves[rank][half] for half in (0, 1) for rank in (0, 1)]
        assert torch.equal(torch.cat(pieces, dim), tensor)
    assert divided > 7
