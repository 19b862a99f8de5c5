"""A library that is not there is missed before anything is obtained for it."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck.settings import parse_settings
from cartdeck_modelkit.libraries import check_installed
from cartdeck_protocol.errors import CartdeckError, Code

PROGRAM = """
import sys
from pathlib import Path

import cartdeck_sdk.cartridge as kit

kit.read_manifest = lambda _: (Path(__file__).parent / "manifest.json").read_bytes()
sys.modules["LIBRARY"] = None  # as if it were not there

from PACKAGE.handlers import cartridge
from cartdeck_sdk.serve import serve

serve(cartridge)
"""
MODELS = {
    "torch": {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights"},
    "gguf": {"m.Q4_1.gguf": b"GGUF" + bytes(1000)},
}


def test_what_is_there_passes_and_what_is_not_is_named_with_what_brings_it() -> None:
    check_installed("json", "cartdeck_modelkit", extra="gguf")
    with pytest.raises(CartdeckError, match=r"not_there_at_all .* pip install 'cartdeck\[gguf\]'") as caught:
        check_installed("json", "not_there_at_all", extra="gguf")
    assert (caught.value.code, caught.value.phase) == (Code.CARTRIDGE_UNAVAILABLE, "load")


@pytest.mark.parametrize(
    ("kind", "library", "cap", "argument"),
    [
        ("torch", "torch", "generate-text", {"prompt": "a"}),
        ("torch", "torch", "embed-text", {"texts": ["a"]}),
        ("gguf", "llama_cpp", "generate-text", {"prompt": "a"}),
        ("gguf", "llama_cpp", "embed-text", {"texts": ["a"]}),
    ],
)
def test_a_model_is_not_obtained_for_a_library_that_is_not_there(
    hub: Any, tmp_path: Path, *, kind: str, library: str, cap: str, argument: dict[str, Any]
) -> None:
    package = f"cartdeck_{kind}"
    folder = tmp_path / "cartridges" / "bare"
    folder.mkdir(parents=True)
    source = importlib.import_module(package).__file__
    assert source is not None
    manifest = json.loads((Path(source).parent / "manifest.json").read_text("utf-8"))
    caps = [{**one, "urn": one["urn"].replace(f";{kind}", ";bare")} for one in manifest["caps"]]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "name": "bare", "requires": [], "caps": caps}))
    (folder / "program.py").write_text(PROGRAM.replace("LIBRARY", library).replace("PACKAGE", package))
    command = json.dumps([sys.executable, "-P", "{folder}/program.py"])
    (folder / "cartridge.toml").write_text(f'command = {command}\nmanifest = "manifest.json"\n')
    hub.add(MODELS[kind], name="owner/model")
    places = {"endpoint": hub.url, "cache_folder": str(tmp_path / "hub"), "folder": str(tmp_path / "models")}
    settings = parse_settings({"models": places, "cartridge_folders": [str(folder.parent)]}, origin="test")
    with cartdeck.open(settings) as engine, pytest.raises(CartdeckError) as caught:
        engine.run(f"cap:{cap};bare", {"model": "hf:owner/model", **argument})
    assert caught.value.code is Code.CARTRIDGE_UNAVAILABLE
    assert f"{library} is not in this Python" in caught.value.message
    assert f"pip install 'cartdeck[{kind}]'" in caught.value.message
    assert not hub.requests
