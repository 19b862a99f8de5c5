# ruff: noqa: PLC0415, PLR0915 - torch is imported after the environment is set; the checks share two workers
"""Checks of the torch cartridge's engine on a GPU, from the source tree, on models made here: nothing is fetched.

    python benchmarks/gpu_check.py [--json]        (under 5 minutes; torch, transformers, numpy and msgpack are needed)

One line per check, {"check", "is_met", "found"}; the exit code is 1 where one is not met, 2 without a GPU. The last
check loses the device on purpose, which this process survives as a cartridge does: drain-only.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("protocol", "cartridges")]
LIMIT_S = 120.0


class Checks:
    """Runs checks, prints what they found, and remembers whether all were met."""

    def __init__(self, *, as_json: bool) -> None:
        self.are_met = True
        self._as_json = as_json

    def run(self, name: str, check: Callable[[], tuple[bool, Any]]) -> None:
        started = time.monotonic()
        try:
            is_met, found = check()
        except Exception as error:
            is_met, found = False, f"{type(error).__name__}: {error}"[:500]
        self.are_met = self.are_met and is_met
        line = {"check": name, "is_met": is_met, "found": found, "took_s": round(time.monotonic() - started, 2)}
        print(json.dumps(line) if self._as_json else f"{'ok  ' if is_met else 'FAIL'} {name}: {found}", flush=True)


def make_models(folder: Path) -> dict[str, Path]:
    """A small random encoder and language model, each with a tokenizer of single letters."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    shapes: dict[str, Any] = {"vocab_size": 256, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
    shapes |= {"num_attention_heads": 4, "max_position_embeddings": 4096, "initializer_range": 0.2}
    bert = transformers.BertModel(transformers.BertConfig(**shapes), add_pooling_layer=False)
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**shapes, num_key_value_heads=2, eos_token_id=None, bos_token_id=None)
    )
    found = {"bert": folder / "bert", "llama": folder / "llama"}
    for name, model in (("bert", bert), ("llama", llama)):
        found[name].mkdir()
        model.save_pretrained(found[name])
        tokenizer = Tokenizer(models.BPE(vocab={chr(code): code for code in range(256)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.save(str(found[name] / "tokenizer.json"))
    return found


def check_all(checks: Checks, models: dict[str, Path]) -> None:
    import torch

    from cartdeck_torch.engine.models import open_model
    from cartdeck_torch.engine.torch_device import describe_devices, open_device
    from cartdeck_torch.folder import read_folder
    from cartdeck_torch.settings import LoadSettings
    from cartdeck_torch.worker import DeviceWorker

    def worker_on(*, use_gpu: bool) -> DeviceWorker:
        return DeviceWorker(lambda: open_device(use_gpu=use_gpu, threads=4))

    def load(worker: DeviceWorker, name: str, **settings: Any) -> Any:
        folder = read_folder(models[name])

        def make(device: Any) -> Any:
            return open_model(folder, LoadSettings(**settings), device, report=lambda _: None)

        return worker.load(make, name).result(LIMIT_S)

    gpu, cpu = worker_on(use_gpu=True), worker_on(use_gpu=False)
    checks.run("the device is a GPU", lambda: (describe_devices()[-1]["name"].startswith("cuda"), describe_devices()))

    def memory_returns() -> tuple[bool, Any]:
        before = gpu.memory().result(LIMIT_S).free_bytes
        handle = load(gpu, "llama")
        during = gpu.memory().result(LIMIT_S).free_bytes
        gpu.drop(handle).result(LIMIT_S)
        after = gpu.memory().result(LIMIT_S).free_bytes
        return during < before and before - after < 64 * 2**20, {"before": before, "during": during, "after": after}

    checks.run("a dropped model's memory goes back to the device", memory_returns)

    def vectors_agree() -> tuple[bool, Any]:
        import numpy as np

        texts = [[ord(letter) for letter in "hello " * count] for count in (1, 3, 40, 3)]
        rows = []
        for worker in (gpu, cpu):
            handle = load(worker, "bert", dtype="float32")
            found = worker.use(handle, lambda model: model.embed(texts, pooling=None, normalize=True)).result(LIMIT_S)
            rows.append(np.stack([np.frombuffer(one, "<f4") for one in found]))
        lowest = float((rows[0] * rows[1]).sum(1).min())
        return lowest > 0.9999, lowest

    checks.run("vectors are those of the CPU", vectors_agree)

    def text_of(worker: DeviceWorker, handle: Any, **changes: Any) -> str:
        from cartdeck_modelkit.sampling import SamplingSettings
        from cartdeck_torch.generation import Generation

        plain: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        settings = SamplingSettings(**{**plain, "repeat_penalty": 1.0, "seed": 1, **changes})
        generation = Generation("hello there", settings.max_tokens, settings=settings)

        async def run() -> str:
            job = worker.submit(handle, lambda model, job: model.generate(generation, job))
            return "".join([piece async for piece in job.pieces()])

        return asyncio.run(run())

    def texts_agree() -> tuple[bool, Any]:
        texts = [text_of(worker, load(worker, "llama", dtype="float32")) for worker in (gpu, cpu)]
        return texts[0] == texts[1], texts

    checks.run("a greedy text in float32 is that of the CPU", texts_agree)

    def seed_repeats() -> tuple[bool, Any]:
        handle = load(gpu, "llama", dtype="bfloat16")
        first, second = (text_of(gpu, handle, temperature=1.5, seed=7) for _ in range(2))
        return first == second, first

    checks.run("a seed gives its text again", seed_repeats)

    def runs_out() -> tuple[bool, Any]:
        total = gpu.memory().result(LIMIT_S).total_bytes
        error = gpu.start(lambda _: torch.empty(total * 2, dtype=torch.uint8, device="cuda:0")).exception(LIMIT_S)
        went_on = gpu.memory().result(LIMIT_S).total_bytes == total
        return "OUT_OF_MEMORY" in str(getattr(error, "code", "")) and went_on, str(error)[:200]

    checks.run("memory that runs out is an error and the device goes on", runs_out)

    def is_lost() -> tuple[bool, Any]:
        def assert_on_device(_: Any) -> Any:
            table = torch.zeros(4, device="cuda:0")
            row = table[torch.tensor([10_000_000], device="cuda:0")]
            torch.cuda.synchronize()
            return row

        first = gpu.start(assert_on_device).exception(LIMIT_S)
        second = gpu.memory().exception(LIMIT_S)
        gpu.shutdown().result(LIMIT_S)
        codes = [str(getattr(error, "code", error)) for error in (first, second)]
        return codes == ["DEVICE_FAULT"] * 2 and not gpu.is_healthy, codes

    checks.run("a device-side assert makes the worker drain-only", is_lost)


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks of the torch cartridge on a GPU.")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print(
            json.dumps({"check": "a GPU is there", "is_met": False, "found": f"torch {torch.__version__} finds none"})
        )
        return 2
    checks = Checks(as_json=options.json)
    with tempfile.TemporaryDirectory() as place:
        check_all(checks, make_models(Path(place)))
    return 0 if checks.are_met else 1


if __name__ == "__main__":
    sys.exit(main())
