# ruff: noqa: PLC0415, PLR0915 - torch is imported after the environment is set; the checks share two workers
"""Checks of the torch cartridge's engine on a GPU, from the source tree, on models made here: nothing is fetched.

    python benchmarks/gpu_check.py [--json] [--dry]     (under 5 minutes; torch, transformers, numpy, msgpack)

One line per check, {"check", "is_met", "found"}; the exit code is 1 where one is not met, 2 without a GPU. The last
check loses the device on purpose, which this process survives as a cartridge does: drain-only.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("protocol", "cartridges")]
LIMIT_S = 120.0
IMAGE_TOKEN = 255
TINY = ROOT / "tests" / "data" / "models"
"""A small CLIP and a small BLIP, trained on coloured shapes."""
RATE_HZ = 16_000
TEMPLATE = "{% for m in messages %}{{ m['content'] if m['content'] is string else '' }}{% endfor %}"


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
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    llava = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            text_config=llama.config,
            vision_config=transformers.CLIPVisionConfig(**tower, image_size=32, patch_size=8, projection_dim=32),
            image_token_id=IMAGE_TOKEN,
        )
    )
    found = {name: folder / name for name in ("bert", "llama", "llava")}
    for name, model in (("bert", bert), ("llama", llama), ("llava", llava)):
        found[name].mkdir()
        model.save_pretrained(found[name])
        tokenizer = Tokenizer(models.BPE(vocab={chr(code): code for code in range(256)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.save(str(found[name] / "tokenizer.json"))
        if name == "llava":
            write_processor(found[name], tokenizer)
    return {
        **found,
        "whisper": make_whisper(folder / "whisper"),
        "clip": TINY / "tiny-clip",
        "blip": TINY / "tiny-blip",
    }


def make_whisper(folder: Path) -> Path:
    """A small random Whisper of two languages, whose words are single letters."""
    import transformers
    from tokenizers import Tokenizer, decoders, models

    names = ["endoftext", "startoftranscript", "en", "fr", "translate", "transcribe", "notimestamps"]  # 256 to 262
    tokenizer = Tokenizer(models.BPE(vocab={chr(code): code for code in range(256)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([f"<|{name}|>" for name in (*names, *(f"{0.02 * mark:.2f}" for mark in range(1501)))])
    size = tokenizer.get_vocab_size()
    shapes = {f"{side}_{what}": count for side in ("encoder", "decoder") for what, count in
              (("layers", 2), ("attention_heads", 2), ("ffn_dim", 128))}  # fmt: skip
    marks = {"pad_token_id": 256, "bos_token_id": 256, "eos_token_id": 256, "decoder_start_token_id": 257}
    config = transformers.WhisperConfig(
        vocab_size=size, d_model=64, max_target_positions=64, init_std=0.2, **shapes, **marks
    )
    model = transformers.WhisperForConditionalGeneration(config)
    folder.mkdir()
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {**marks, "lang_to_id": {"<|en|>": 258, "<|fr|>": 259}, "no_timestamps_token_id": 262}
    settings |= {"task_to_id": {"translate": 260, "transcribe": 261}, "is_multilingual": True}
    (folder / "generation_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def write_processor(folder: Path, tokenizer: Any) -> None:
    """How images are prepared; their mark is one letter, which stands for itself."""
    import transformers

    mark = chr(IMAGE_TOKEN)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, extra_special_tokens={"image_token": mark})
    pixels = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    transformers.LlavaProcessor(
        image_processor=pixels, tokenizer=fast, patch_size=8, vision_feature_select_strategy="default",
        image_token=mark, num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip


def check_all(checks: Checks, models: dict[str, Path], *, is_dry: bool, threads: int) -> None:
    import torch

    from cartdeck_torch.engine.models import open_model
    from cartdeck_torch.engine.torch_device import describe_devices, open_device
    from cartdeck_torch.folder import read_folder
    from cartdeck_torch.settings import LoadSettings
    from cartdeck_torch.worker import DeviceWorker

    def worker_on(name: str) -> DeviceWorker:
        return DeviceWorker(lambda: open_device(name, threads=threads))

    def load(worker: DeviceWorker, name: str, **settings: Any) -> Any:
        folder = read_folder(models[name])

        def make(device: Any) -> Any:
            return open_model(folder, LoadSettings(**settings), device, report=lambda _: None)

        return worker.load(make, name).result(LIMIT_S)

    torch.backends.cudnn.allow_tf32 = False  # convolutions as exact as the CPU's: texts are compared letter by letter
    gpu, cpu = worker_on("cpu" if is_dry else "cuda:0"), worker_on("cpu")
    if not is_dry:
        devices = describe_devices()
        checks.run("the device is a GPU", lambda: (devices[-1]["name"].startswith("cuda"), devices))

    def memory_returns() -> tuple[bool, Any]:
        before = gpu.memory().result(LIMIT_S).free_bytes
        handle = load(gpu, "llama")
        during = gpu.memory().result(LIMIT_S).free_bytes
        gpu.drop(handle).result(LIMIT_S)
        after = gpu.memory().result(LIMIT_S).free_bytes
        return during < before and before - after < 64 * 2**20, {"before": before, "during": during, "after": after}

    if not is_dry:
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

    def generation_of(prompt: str, *, sees: bool = False, **changes: Any) -> Any:
        from cartdeck_modelkit.dialogue.messages import Dialogue
        from cartdeck_modelkit.image import RgbImage
        from cartdeck_modelkit.sampling import SamplingSettings
        from cartdeck_torch.generation import Generation, Question

        plain: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        settings = SamplingSettings(**{**plain, "repeat_penalty": 1.0, "seed": 1, **changes})
        question = None
        if sees:
            pixels = bytes(value for row in range(32) for column in range(32) for value in (row * 7, column * 7, 99))
            dialogue = Dialogue([{"role": "user", "content": "[image]what?"}], marker="[image]")
            question = Question(dialogue, template=TEMPLATE, pictures=[RgbImage(32, 32, pixels)])
        return Generation(prompt, settings.max_tokens, settings=settings, question=question)

    def text_of(worker: DeviceWorker, handle: Any, **changes: Any) -> str:
        generation = generation_of("hello there", **changes)

        async def run() -> str:
            job = worker.submit(handle, lambda model, job: model.generate(generation, job))
            return "".join([piece async for piece in job.pieces()])

        return asyncio.run(run())

    def texts_agree() -> tuple[bool, Any]:
        texts = [text_of(worker, load(worker, "llama", dtype="float32")) for worker in (gpu, cpu)]
        return texts[0] == texts[1], texts

    checks.run("a greedy text in float32 is that of the CPU", texts_agree)

    def static_agrees() -> tuple[bool, Any]:
        handles = [load(gpu, "llama", dtype="float32", kv_cache=kind) for kind in ("dynamic", "static")]
        texts = [text_of(gpu, handle) for handle in handles]
        again = text_of(gpu, handles[1])
        gpu.clear(handles[1]).result(LIMIT_S)
        return texts[0] == texts[1] == again == text_of(gpu, handles[1]), texts

    checks.run("a static cache gives the text of a growing one, used again and made anew", static_agrees)

    def several_texts() -> tuple[bool, Any]:
        handle = load(gpu, "llama", dtype="float32")
        alone = [text_of(gpu, handle, temperature=1.5, seed=seed) for seed in (3, 4)]
        return text_of(gpu, handle, temperature=1.5, seed=3, texts=2, top_logprobs=3, logprobs=True) == alone[0], alone

    checks.run("the first of several texts is the one of its seed", several_texts)

    def images_agree() -> tuple[bool, Any]:
        texts = [text_of(worker, load(worker, "llava", dtype="float32"), sees=True) for worker in (gpu, cpu)]
        return texts[0] == texts[1], texts

    checks.run("a greedy text about an image in float32 is that of the CPU", images_agree)
    check_others(checks, lambda name: [(worker, load(worker, name, dtype="float32")) for worker in (gpu, cpu)])

    def stops_early() -> tuple[bool, Any]:
        handle = load(gpu, "llama", dtype="float32")
        made = generation_of("x" * 4000, max_tokens=50)

        async def run() -> float:
            job = gpu.submit(handle, lambda model, job: model.generate(made, job))
            async with asyncio.timeout(LIMIT_S):
                while made.prompt_done < 512:  # noqa: ASYNC110 - a count of another thread's
                    await asyncio.sleep(0)
            started = time.perf_counter()
            job.stop.set()
            await asyncio.gather(asyncio.wrap_future(job.outcome), return_exceptions=True)
            return time.perf_counter() - started

        took_s = asyncio.run(run())
        return took_s < (10 if is_dry else 0.1), took_s

    checks.run("a cancel inside a prompt acts in under 100 ms", stops_early)

    def seed_repeats() -> tuple[bool, Any]:
        handle = load(gpu, "llama", dtype="bfloat16")
        first, second = (text_of(gpu, handle, temperature=1.5, seed=7) for _ in range(2))
        return first == second, first

    checks.run("a seed gives its text again", seed_repeats)

    if is_dry:
        return

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


def check_others(checks: Checks, load_both: Callable[[str], list[tuple[Any, Any]]]) -> None:
    """Images and speech: what the device and the CPU make of the same."""
    import numpy as np

    from cartdeck_modelkit.image import RgbImage
    from cartdeck_torch.describing import Description
    from cartdeck_torch.speech import Transcription

    shapes = np.full((2, 64, 64, 3), 120, np.uint8)
    shapes[0, 20:44, 20:44] = (220, 30, 30)
    shapes[1, 16:48, 16:48] = (40, 70, 220)
    images = [RgbImage(64, 64, one.tobytes()) for one in shapes]

    def says(worker: Any, handle: Any, work: Callable[[Any, Any], None]) -> str:
        async def run() -> str:
            return "".join([piece async for piece in worker.submit(handle, work).pieces()])

        return asyncio.run(run())

    def image_vectors_agree() -> tuple[bool, Any]:
        rows = []
        for worker, handle in load_both("clip"):
            found = worker.use(handle, lambda model: model.embed_images(images, normalize=True)).result(LIMIT_S)
            rows.append(np.stack([np.frombuffer(one, "<f4") for one in found]))
        lowest = float((rows[0] * rows[1]).sum(1).min())
        return lowest > 0.9999, lowest

    checks.run("vectors of images are those of the CPU", image_vectors_agree)

    def captions_agree() -> tuple[bool, Any]:
        texts = [
            says(worker, handle, lambda model, job: model.describe(images[0], Description(None, 12), job))
            for worker, handle in load_both("blip")
        ]
        return texts[0] == texts[1] and "red" in texts[0], texts

    checks.run("a caption is that of the CPU", captions_agree)

    def speech_agrees() -> tuple[bool, Any]:
        samples = np.random.default_rng(0).standard_normal(4 * RATE_HZ).astype("<f4").tobytes()
        texts = []
        for worker, handle in load_both("whisper"):
            for beams in (1, 2):
                asked = Transcription(samples, RATE_HZ, beams=beams, spoken=[(0.0, 4.0)])
                text = says(worker, handle, lambda model, job, asked=asked: model.transcribe(asked, job))
                texts.append((asked.found_language, text))
        return texts[:2] == texts[2:] and bool(texts[0][1]), texts

    checks.run("what is heard, by one reading and by two, is that of the CPU", speech_agrees)


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks of the torch cartridge on a GPU.")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--dry", action="store_true", help="on the CPU, without what only a GPU can show")
    options = parser.parse_args()
    import torch

    if not options.dry and not torch.cuda.is_available():
        print(
            json.dumps({"check": "a GPU is there", "is_met": False, "found": f"torch {torch.__version__} finds none"})
        )
        return 2
    checks = Checks(as_json=options.json)
    with tempfile.TemporaryDirectory() as place:
        check_all(checks, make_models(Path(place)), is_dry=options.dry, threads=1 if options.dry else 4)
    return 0 if checks.are_met else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # what the interpreter frees at its end may meet the lost device
