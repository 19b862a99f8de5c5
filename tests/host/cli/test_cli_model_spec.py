"""What is wrong with a model's spec by its look alone is told before a cartridge starts."""

from pathlib import Path

import pytest

from cartdeck.cli.model_spec import check_spec
from cartdeck_protocol.errors import CartdeckError, Code

HUB = "https://huggingface.co/owner/name"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gguf").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone.gguf")
    return tmp_path


@pytest.mark.parametrize(
    "spec",
    ["mine.gguf", "./mine.gguf", ".", "link", "owner/name", "hf:owner/name", "~nobody-of-that-name/m.gguf",
     "act:tokens=1", '{"repo_id": "owner/name"}', "models/none.gguf", "x\0y"],
)  # fmt: skip
def test_what_may_be_a_model_is_left_to_the_cartridge(here: Path, spec: str) -> None:
    check_spec(spec, argument="--model")


@pytest.mark.parametrize("spec", ["mine.guf", "./mine.guf", "HERE/mine.guf", "~/mine.guf"])
def test_a_path_to_nothing_is_told_with_names_near_it(here: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    with pytest.raises(CartdeckError, match=r"mine\.guf'\. Near it: mine\.gguf\. --model takes hf:") as caught:
        check_spec(spec.replace("HERE", str(here)), argument="--model")
    assert (caught.value.code, caught.value.argument) == (Code.FILE_NOT_FOUND, "model")


@pytest.mark.parametrize("spec", ["", "none", "mine.gguf/", "/no/such/folder/m.gguf", "mine.gguf/inside:no"])
def test_what_is_no_path_to_anything_is_refused_or_left(here: Path, spec: str) -> None:
    if spec in ("mine.gguf/", "mine.gguf/inside:no"):
        check_spec(spec, argument="--model")
        return
    with pytest.raises(CartdeckError, match="There is no model"):
        check_spec(spec, argument="--model")


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        (HUB, "write hf:owner/name$"),
        (f"{HUB}/resolve/main/m.gguf", r"write hf:owner/name:m\.gguf"),
        ("https://example.org/m.gguf", "this is an address, not a model; expected hf:"),
    ],
)
def test_an_address_is_answered_with_what_to_write(spec: str, meant: str) -> None:
    with pytest.raises(CartdeckError, match=meant.replace("$", r"\.")) as caught:
        check_spec(spec, argument="--model")
    assert caught.value.code is Code.BAD_ARGUMENT
