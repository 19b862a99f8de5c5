"""The hub that `bench_download.py` asks: the one of the tests, in a process of its own, with two repositories.

argv: BYTES of the one large file, COUNT of the small ones. It prints a JSON line {"url"}; then for each line on stdin,
"rate BYTES_PER_S" or "sent", it prints one too: {"sent": bytes of content sent since the last question}.
"""

import importlib.util
import json
import random
import sys
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

FAKE_HUB = Path(__file__).parents[1] / "tests" / "data" / "hub" / "fake_hub.py"
SMALL_BYTES = 64 * 1024
PIECE_BYTES = 1024 * 1024


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_hub", FAKE_HUB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_hub"] = module
    spec.loader.exec_module(module)
    return module


def serve(large_bytes: int, small_count: int) -> None:
    fake_hub = load()
    fake_hub.PIECE_BYTES = PIECE_BYTES

    class Hashed(fake_hub.File):  # type: ignore[misc]  # loaded by its path
        """A file whose hashes are taken once: the hub is not what is measured."""

        @cached_property
        def sha256(self) -> str:
            return str(super().sha256)

        @cached_property
        def git_sha1(self) -> str:
            return str(super().git_sha1)

    dice = random.Random(1)
    hub = fake_hub.FakeHub()
    # Views, so that a piece of a file is no copy: what the hub takes is taken from whoever is measured.
    large = Hashed(memoryview(dice.randbytes(1024 * 1024) * (large_bytes // (1024 * 1024))))
    small = {f"part-{number:03}.json": Hashed(memoryview(dice.randbytes(SMALL_BYTES))) for number in range(small_count)}
    hub.add({"large.gguf": large}, name="bench/large")
    hub.add(small, name="bench/small")
    for file in (large, *small.values()):
        file.sha256, file.git_sha1  # noqa: B018 - taken now, not while somebody waits
    answer({"url": hub.url})
    sent = 0
    for line in sys.stdin:
        word, _, value = line.strip().partition(" ")
        if word == "rate":
            large.rate_bytes_s = float(value)
        total = sum(hub.sent.values())
        answer({"sent": total - sent})
        sent = total


def answer(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
