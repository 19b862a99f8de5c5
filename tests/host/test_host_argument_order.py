"""Arguments that a handler gathers are there before it reads one that it takes as it comes, in whatever order a caller
names them."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine, Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(
    quick: Callable[..., Settings], declared: Callable[[str], None], nothing_left: None
) -> AsyncIterator[Engine]:
    declared("letters")
    async with Engine(quick()) as engine:
        yield engine


async def _pages() -> AsyncIterator[bytes]:
    for _ in range(40):
        yield bytes(250_000)


@pytest.mark.parametrize("names", [("pages", "label"), ("label", "pages")])
async def test_a_long_text_beside_a_stream_reaches_the_handler(engine: Engine, names: tuple[str, str]) -> None:
    given: dict[str, Any] = {"pages": _pages(), "label": "l" * 9000}
    result = await engine.run("file", {name: given[name] for name in names}, timeout_s=20)
    assert result.json() == ["l", 9000, 10_000_000]


async def test_a_text_from_a_file_beside_a_longer_stream_does_too(engine: Engine, tmp_path: Path) -> None:
    label = tmp_path / "label.txt"
    label.write_text("l" * 3_000_000, "utf-8")
    result = await engine.run("file", {"pages": _pages(), "label": label}, timeout_s=20)
    assert result.json() == ["l", 3_000_000, 10_000_000]


@pytest.mark.parametrize(
    ("pages", "label", "is_asynchronous"), [(3_000_000, 9000, False), (3_000_000, 9000, True), (300, 9000, True)]
)
async def test_a_cartridge_that_calls_another_gives_them_in_that_order(
    engine: Engine, pages: int, label: int, is_asynchronous: bool
) -> None:
    arguments = {"pages": pages, "label": label, "asynchronous": is_asynchronous}
    assert (await engine.run("send", arguments, timeout_s=20)).json() == ["l", label, pages]
