"""The playground on real models: a picture that is seen, a recording that is written down, two names of one file."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(600),  # a model may have to be fetched and converted first, once for a machine
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("llama_cpp", "torch", "transformers")), reason="needs both engines"
    ),
]
DATA = Path(__file__).parents[1] / "data"
LIMIT_MS = 120_000
LIVE = "#link-state[data-state=open]"
CATALOG = """
[models.seer]
source = "{model}"
projector = "{projector}"
backend = "gguf"
capabilities = ["chat", "completion", "vision"]
context_size = 1024

[models.blind]
source = "{model}"
backend = "gguf"

[models.ears]
source = "{speech}"
backend = "torch"
capabilities = ["speech"]
"""


@pytest.fixture(scope="module")
def server(
    servers: Any, real_model: Path, whisper_tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("real") / "catalog.toml"
    projector = DATA / "gguf" / "shapes-mmproj-576.gguf"
    path.write_text(CATALOG.format(model=real_model, projector=projector, speech=whisper_tiny))
    with servers.serving({"CARTDECK_CONFIG": ""}, "--grace", "0.5", "--catalog", str(path)) as found:
        yield found


def badge(page: Any, name: str) -> Any:
    return page.locator("#view-models li", has=page.locator(f"h3:text-is('{name}')")).locator(".badge")


def test_a_picture_is_seen_by_the_model_that_has_eyes_and_by_no_other_name_of_its_file(
    opened: Any, server: Any
) -> None:
    page = opened(f"{server.url}/#/playground")
    page.wait_for_selector(LIVE)
    for field, value in (("heat", "0"), ("tokens", "12")):
        page.fill(f"#chat-{field}", value)
    page.select_option("#panel-chat select", "blind")
    page.set_input_files("#panel-chat input[type=file]", DATA / "gguf" / "shapes" / "red_circle.png")
    page.fill("#chat-input", "What is in the image?")
    page.keyboard.press("Enter")
    expect(page.locator("#panel-chat .problem")).to_contain_text("blind cannot do")
    expect(page.locator(".tray img")).to_have_count(1)  # it was not sent, and need not be chosen again
    expect(page.locator("#chat-input")).to_have_value("What is in the image?")
    page.select_option("#panel-chat select", "seer")
    page.click("#panel-chat >> text=Send")
    expect(page.locator(".message.assistant .text").last).to_contain_text("red", timeout=LIMIT_MS)
    expect(page.locator(".message.assistant .note").last).to_contain_text("tokens", timeout=LIMIT_MS)
    page.click("nav a[href='#/models']")
    expect(badge(page, "seer")).to_have_text("loaded")
    expect(badge(page, "blind")).to_have_text("unused")


def test_a_recording_is_written_down_and_what_is_none_leaves_no_old_words(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/playground")
    page.wait_for_selector(LIVE)
    page.click("#tab-transcribe")
    page.select_option("#panel-transcribe select >> nth=0", "ears")
    page.set_input_files("#audio-file", DATA / "audio" / "quick_brown_fox.flac")
    page.click("#panel-transcribe button[type=submit]")
    expect(page.locator(".transcript")).to_contain_text("quick brown fox", timeout=LIMIT_MS)
    expect(page.locator("#panel-transcribe [role=status]")).to_contain_text("2.89 s of sound")
    page.set_input_files("#audio-file", DATA / "gguf" / "shapes" / "red_circle.png")
    page.click("#panel-transcribe button[type=submit]")
    expect(page.locator("#panel-transcribe .problem")).to_contain_text("BAD_AUDIO", timeout=LIMIT_MS)
    expect(page.locator(".transcript li")).to_have_count(0)


def test_openais_client_gets_each_field_of_its_type_for_a_recording(server: Any) -> None:
    recording = ("a.flac", (DATA / "audio" / "quick_brown_fox.flac").read_bytes())
    heard = server.client().audio.transcriptions.create(model="ears", file=recording, response_format="verbose_json")
    type(heard).model_validate(heard.model_dump(), strict=True)
    first = heard.segments[0]
    assert (first.id, first.seek, first.temperature, heard.language) == (0, 0, 0.0, "en")
    assert -1 < first.avg_logprob < 0
    assert 0 <= first.no_speech_prob < 0.5
    assert first.compression_ratio < 2.4
    assert len(first.tokens) > 5
