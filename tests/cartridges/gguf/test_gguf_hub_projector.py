"""A repository with a model and its projector: fetched together when an image is shown, the model alone before."""

import base64
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck.settings import parse_settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

TESTS_DATA = Path(__file__).resolve().parents[2] / "data"
FAKE_HUB = TESTS_DATA / "hub" / "fake_hub.py"
PROJECTOR = TESTS_DATA / "gguf" / "shapes-mmproj-576.gguf"
IMAGE = (TESTS_DATA / "gguf" / "shapes" / "red_circle.png").read_bytes()
LLAVA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n{% else %}USER: {{ m.content }}\n{% endif %}"
    "{% endfor %}ASSISTANT: "
)
SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the human's questions."
)
ASKED = {"model": "hf:owner/sees", "threads": 1, "temperature": 0, "max-tokens": 12, "context-size": 1024}


@pytest.fixture
def hub() -> Iterator[Any]:
    if "fake_hub" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fake_hub", FAKE_HUB)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["fake_hub"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fake_hub"])
    yield from sys.modules["fake_hub"].serving()


@pytest.fixture
def engine(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN_PATH", "/dev/null")
    places = {"endpoint": hub.url, "cache_folder": str(tmp_path / "hub"), "folder": str(tmp_path / "models")}
    with cartdeck.open(parse_settings({"models": places}, origin="test")) as opened:
        yield opened


def test_the_projector_of_a_repository_comes_when_an_image_is_shown(hub: Any, engine: Any, real_model: Path) -> None:
    projector = PROJECTOR.read_bytes()
    hub.add({"m.Q4_1.gguf": real_model.read_bytes(), "mmproj-F32.gguf": projector}, name="owner/sees")
    template = {"chat-template": LLAVA, "system": SYSTEM}
    words = [{"role": "user", "content": "Hello"}]
    engine.run("cap:chat;gguf", {**ASKED, **template, "messages": {"messages": words}})
    before = sum(hub.sent.values())

    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(IMAGE).decode()}}
    seen = [{"role": "user", "content": [shown, {"type": "text", "text": "What is in the image?"}]}]
    assert engine.run("cap:chat;gguf", {**ASKED, **template, "messages": {"messages": seen}}).text == "a red circle"
    assert len(projector) <= sum(hub.sent.values()) - before < 2 * len(projector)  # the model lies here already

    assert engine.run("cap:describe-image;gguf", {**ASKED, **template, "image": IMAGE}).text == "a red circle"
    assert len([one for one in engine.stats().sessions if one.key.cartridge == "gguf"]) == 1


def test_a_repository_without_a_projector_is_refused_before_it_is_fetched(hub: Any, engine: Any) -> None:
    data = b"GGUF" + bytes(1_000_000)
    hub.add({"m.Q4_1.gguf": data}, name="owner/sees")
    with pytest.raises(CartdeckError) as caught:
        engine.run("cap:describe-image;gguf", {**ASKED, "image": IMAGE})
    assert (caught.value.code, caught.value.argument) == (Code.UNSUPPORTED, "projector")
    assert "hf:owner/sees sees no images" in str(caught.value)
    assert sum(hub.sent.values()) < len(data)
