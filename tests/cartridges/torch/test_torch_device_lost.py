"""A device that is lost under a real process: every call there is told at once, and the next one meets a new process.

The cartridge's own handlers and worker run on a device double, in a process of their own, under an engine.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import cartdeck_torch
from cartdeck import Data, Engine, Settings
from cartdeck_protocol.errors import CartdeckError, Code

LIMIT_S = 60.0
CAP = "cap:embed-text;lossy"
PROGRAM = """
import os, struct, time
from pathlib import Path
from types import SimpleNamespace

import cartdeck_sdk.cartridge as kit

kit.read_manifest = lambda _: (Path(__file__).parent / "manifest.json").read_bytes()

import cartdeck_torch.instance as instance
import cartdeck_torch.serving as serving
from cartdeck_torch.device import DeviceMemory


class AcceleratorError(RuntimeError):
    pass


class Device:
    name, notice = "cuda:0", None

    def memory(self):
        return DeviceMemory(0, 0)

    def release_cached(self):
        pass


class Model:
    dtype, notice, shape = "float32", None, SimpleNamespace(max_tokens=64)

    def encode(self, texts, *, truncate):
        return [SimpleNamespace(ids=list(map(ord, one)), is_cut=False) for one in texts], None

    def embed(self, batch, *, pooling, normalize):
        if batch[0][0] == ord("!"):
            calls = int("0" + "".join(map(chr, batch[0][1:])))
            (Path(__file__).parent / "running").touch()
            while len(serving._open_calls) < calls:  # they queue up behind it
                time.sleep(0.01)
            raise AcceleratorError("CUDA error: device-side assert triggered")
        return [struct.pack("<f", os.getpid() % 16384) for _ in batch]


instance._open_device = lambda *_, **__: Device()
instance._open_model = lambda *_: Model()
instance._engine_version = lambda: "a double"

from cartdeck_sdk.serve import serve
from cartdeck_torch.handlers import cartridge

serve(cartridge)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "cartridges" / "lossy"
    folder.mkdir(parents=True)
    manifest = json.loads((Path(cartdeck_torch.__file__).parent / "manifest.json").read_text("utf-8"))
    manifest |= {"name": "lossy", "requires": [], "caps": renamed(manifest["caps"])}
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    command = json.dumps([sys.executable, "-P", "{folder}/program.py"])
    (folder / "cartridge.toml").write_text(f'command = {command}\nmanifest = "manifest.json"\n', "utf-8")
    return Settings(cartridge_folders=(str(folder.parent),))


def renamed(caps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**cap, "urn": cap["urn"].replace(";torch", ";lossy")} for cap in caps]


def with_engine(settings: Settings, use: Callable[[Engine], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(LIMIT_S), Engine(settings) as engine:
            await use(engine)

    asyncio.run(run())


def wait_for(path: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


async def texts_of(texts: list[str], *, end: asyncio.Event | None = None) -> Any:
    for text in texts:
        yield text
    if end is not None:
        await end.wait()


def test_a_lost_device_costs_the_calls_that_were_there_and_no_later_one(settings: Settings, tiny_bert: Path) -> None:
    async def use(engine: Engine) -> None:
        async def ask(*texts: str) -> Any:
            found = await engine.run(CAP, {"model": str(tiny_bert), "texts": texts_of(list(texts)), "threads": 1})
            return found.items[0]

        async def code_of(*texts: str) -> Code:
            with pytest.raises(CartdeckError) as caught:
                await ask(*texts)
            return caught.value.code

        first = await ask("a")
        lost = asyncio.create_task(code_of("!5"))
        running = Path(settings.cartridge_folders[0]) / "lossy" / "running"
        await asyncio.to_thread(wait_for, running)  # what comes from then on waits behind it
        waiting = [asyncio.create_task(code_of("b")) for _ in range(4)]
        started = time.monotonic()
        assert await lost is Code.DEVICE_FAULT
        codes = await asyncio.gather(*waiting)
        assert set(codes) == {Code.DEVICE_FAULT}
        assert time.monotonic() - started < 30
        assert await ask("a") != first  # the process is another one

    with_engine(settings, use)


def test_the_process_leaves_too_when_the_last_call_of_a_lost_device_is_given_up(
    settings: Settings, tiny_bert: Path
) -> None:
    async def use(engine: Engine) -> None:
        def arguments(texts: Any) -> dict[str, Any]:
            return {"model": str(tiny_bert), "texts": texts, "threads": 1}

        idle = engine.call(CAP, arguments(texts_of(["a"], end=asyncio.Event())))
        async with idle:
            async for event in idle:
                if isinstance(event, Data):
                    break
            with pytest.raises(CartdeckError) as caught:
                await engine.run(CAP, arguments(texts_of(["!"])))
            assert caught.value.code is Code.DEVICE_FAULT
            idle.cancel("enough")
            with pytest.raises(CartdeckError) as caught:
                await idle.collect()
            assert caught.value.code is Code.CANCELLED
        assert (await engine.run(CAP, arguments(texts_of(["a"])))).items[0] != event.value

    with_engine(settings, use)


def test_the_error_says_what_the_device_said(settings: Settings, tiny_bert: Path) -> None:
    async def use(engine: Engine) -> None:
        with pytest.raises(CartdeckError) as caught:
            await engine.run(CAP, {"model": str(tiny_bert), "texts": texts_of(["!"]), "threads": 1})
        assert caught.value.code is Code.DEVICE_FAULT
        assert "device-side assert triggered" in caught.value.message
        assert caught.value.details["device"] == "cuda:0"

    with_engine(settings, use)
