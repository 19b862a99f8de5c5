"""`cartdeck cartridges reset`: one process lets the engine of another start a quarantined cartridge again."""

import time
from pathlib import Path

import anyio
import pytest

import cartdeck
from cartdeck.pool.reset_mark import ALL, ResetMarks, mark_reset

pytestmark = pytest.mark.usefixtures("state_folder")
PATIENCE_S = 10.0


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_mark_is_news_once_and_again_when_it_is_renewed(state_folder: Path) -> None:
    marks = ResetMarks()
    assert marks.news() == set()
    mark_reset("gguf")
    mark_reset()
    assert marks.news() == {"gguf", ALL}
    assert marks.news() == set()
    before_ns = (state_folder / "cartdeck" / "resets" / "gguf").stat().st_mtime_ns
    while (state_folder / "cartdeck" / "resets" / "gguf").stat().st_mtime_ns == before_ns:
        mark_reset("gguf")
    assert marks.news() == {"gguf"}


def test_a_mark_from_before_is_old() -> None:
    mark_reset("gguf")
    assert ResetMarks().news() == set()


async def quarantined(engine: cartdeck.Engine) -> bool:
    statuses = [one for cartridge in engine.cartridges() for one in cartridge.sessions]
    return any(one.is_quarantined for one in statuses)


def broken_cartridge(folder: Path) -> cartdeck.Settings:
    """A cartridge that ends at once, and settings under which one failure is enough."""
    manifest = (Path(__file__).resolve().parents[2] / "cartridges/cartdeck_echo/manifest.json").read_text("utf-8")
    (folder / "broken").mkdir(parents=True)
    (folder / "broken" / "manifest.json").write_text(manifest.replace('"name": "echo"', '"name": "broken"'), "utf-8")
    (folder / "broken" / "cartridge.toml").write_text('command = ["false"]\nmanifest = "manifest.json"\n', "utf-8")
    return cartdeck.Settings.model_validate(
        {
            "cartridge_folders": [str(folder)],
            "prefer": ["broken"],
            "restart": {"quarantine_after": 1},
            "call": {"tick_s": 0.02},
        }
    )


@pytest.mark.timeout(60)
def test_a_running_engine_forgets_a_quarantine_when_it_is_asked_from_outside(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cartdeck.Engine(broken_cartridge(tmp_path / "cartridges")) as engine:
            with pytest.raises(cartdeck.CartdeckError):
                await engine.run("echo", {"data": "x"})
            assert await quarantined(engine)
            mark_reset("broken")
            limit = time.monotonic() + PATIENCE_S
            # ASYNC110: the engine announces no reset, and it is another process that asks for one
            while await quarantined(engine) and time.monotonic() < limit:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            assert not await quarantined(engine)

    anyio.run(scenario)
