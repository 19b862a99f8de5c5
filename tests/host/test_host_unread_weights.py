"""A model in files that no cartridge here can read: what is told, and what it is told with."""

from pathlib import Path

import pytest

from cartdeck.discovery import Cartridge
from cartdeck.router import Router
from cartdeck.unread_weights import with_reader
from cartdeck_protocol.caps import Requirement, build_manifest
from cartdeck_protocol.errors import CartdeckError, Code, failure


def make(name: str, *, missing: bool = False) -> Cartridge:
    text = (
        f'name = "{name}"\nversion = "1.0.0"\ntitle = "T"\ndescription = "D"\ncaps = ["embed-text"]\ntags = ["{name}"]'
    )
    needs = (Requirement(module="torch", install="pip install 'cartdeck[torch]'"),) if missing else ()
    return Cartridge(build_manifest(text + "\nholds_instances = true\n"), ("true",), name, False, needs)


@pytest.fixture
def refused(tmp_path: Path) -> CartdeckError:
    """What the GGUF cartridge says of a folder of safetensors files."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    message = f"{tmp_path} is a folder without a GGUF file."
    return failure(Code.BAD_MODEL_FILE, message, argument="model", details={"path": str(tmp_path)})


def test_weights_of_a_cartridge_that_lacks_its_libraries_are_told_with_what_brings_them(refused: CartdeckError) -> None:
    told = with_reader(refused, Router([make("gguf"), make("torch", missing=True)], ()), "embed-text")
    assert told.code is Code.CARTRIDGE_UNAVAILABLE
    assert told.message.startswith("The model is in safetensors files. cap:embed-text;torch is served by")
    assert "lacks torch (bring it with: pip install 'cartdeck[torch]')" in told.message
    assert told.details["install"] == ["pip install 'cartdeck[torch]'"]


def test_any_other_error_stays_as_it_is(refused: CartdeckError, tmp_path: Path) -> None:
    lacking = Router([make("gguf"), make("torch", missing=True)], ())
    assert with_reader(refused, Router([make("gguf")], ()), "embed-text") is refused
    assert with_reader(refused, Router([make("gguf"), make("torch")], ()), "embed-text") is refused
    other = failure(Code.OUT_OF_MEMORY, "full", details=refused.details)
    assert with_reader(other, lacking, "embed-text") is other
    (tmp_path / "model.safetensors").unlink()
    assert with_reader(refused, lacking, "embed-text") is refused
