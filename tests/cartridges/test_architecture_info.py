"""Whether models of an architecture can be run, asked of both engines before a model is there."""

import asyncio
from importlib.util import find_spec
from typing import Any

import pytest

from cartdeck import Engine, Settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("llama_cpp", "torch", "transformers")), reason="needs both engines"
)
LIMIT_S = 60.0


def test_each_engine_says_which_architectures_it_knows_and_what_for() -> None:
    async def use() -> None:
        async with asyncio.timeout(LIMIT_S), Engine(Settings()) as engine:

            async def ask(backend: str, architecture: str) -> dict[str, Any]:
                return (await engine.run(f"cap:architecture-info;{backend}", {"architecture": architecture})).json()

            of_gguf = [(await ask("gguf", name))["is_known"] for name in ("llama", "bert", "no-such-thing", "clip")]
            assert of_gguf == [True, True, False, False]
            assert (await ask("gguf", "llama"))["engine"]["library"] == "llama-cpp-python"
            with pytest.raises(CartdeckError) as refused:
                await ask("gguf", "a\nb")
            assert (refused.value.code, refused.value.argument) == (Code.BAD_ARGUMENT, "architecture")

            told = {name: await ask("torch", name) for name in ("llama", "llava", "whisper", "no-such-thing")}
            made_for = {name: (one["is_known"], one["made_for"]) for name, one in told.items()}
            assert made_for == {
                "llama": (True, ["chat", "generate-text"]),
                "llava": (True, ["chat", "describe-image", "generate-text"]),
                "whisper": (True, ["transcribe-speech"]),
                "no-such-thing": (False, []),
            }

    asyncio.run(use())
