"""What a name of the catalog is loaded from, and who else there needs it."""

from pathlib import Path

import pytest

from cartdeck.cli.named_source import sources_of
from cartdeck_protocol.errors import CartdeckError, Code

ONE, OTHER = "a" * 40, "b" * 40
TEXT = f"""
[models.seeing]
source = "hf:o/n:m.gguf"
projector = "hf:o/n:eyes.gguf"
capabilities = ["chat", "vision"]
lora = {{ pirate = {{ source = "hf:o/pirate" }} }}
[models.pinned]
source = "hf:o/n@{ONE}:m.gguf"
[models.older]
source = "hf:o/n@{OTHER}:m.gguf"
[models.quantized]
source = "hf:o/n:Q4_K_M"
[models.alone]
source = "hf:o/alone"
[models.mine]
source = "./mine.gguf"
[models.far]
external = {{ url = "http://127.0.0.1:9/v1" }}
[models.watched]
source = "hf:o/watched"
guards = ["watch"]
[guards.watch]
source = "hf:o/alone"
format = "qwen3guard"
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "models.toml"
    path.write_text(TEXT)
    return path


def needs(name: str, catalog: Path) -> list[tuple[str, tuple[str, ...]]]:
    found = sources_of(name, catalog)
    assert found is not None
    return [(one.spec, one.needed_by) for one in found]


def test_a_name_is_its_model_and_projector_and_an_adapter_comes_with_what_it_is_for(catalog: Path) -> None:
    others = ("pinned", "older", "quantized")
    assert needs("seeing", catalog) == [("hf:o/n:m.gguf", others), ("hf:o/n:eyes.gguf", ("quantized",))]
    assert needs("pirate", catalog) == [
        ("hf:o/n:m.gguf", ("seeing", *others)), ("hf:o/n:eyes.gguf", ("seeing", "quantized")), ("hf:o/pirate", ()),
    ]  # fmt: skip
    assert needs("watched", catalog) == [("hf:o/watched", ())]


def test_two_commits_share_nothing_and_a_guard_needs_its_files(catalog: Path) -> None:
    assert needs("pinned", catalog) == [(f"hf:o/n@{ONE}:m.gguf", ("seeing", "quantized"))]
    assert needs("alone", catalog) == [("hf:o/alone", ("watch",))]
    [own] = sources_of("mine", catalog) or ()
    assert (own.spec, own.pin) == ("./mine.gguf", None)


def test_a_spec_is_no_name(catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CARTDECK_CATALOG", raising=False)
    assert sources_of("hf:o/alone", None) is None
    assert sources_of("alone", None) is None, "there is no catalog"
    assert sources_of("o/alone", catalog) is None
    for name, code, said in (
        ("alon", Code.MODEL_NOT_FOUND, "Near it: alone"),
        ("far", Code.UNSUPPORTED, "Another server answers for far"),
        ("hf:o/alone", Code.BAD_ARGUMENT, "hf:o/alone is a spec"),
    ):
        with pytest.raises(CartdeckError, match=said) as caught:
            sources_of(name, catalog)
        assert caught.value.code is code
