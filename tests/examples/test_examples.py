"""The examples: their manifests are what their sources say, and where their libraries are installed they work."""

import importlib.util
import io
import os
import subprocess
import sys
import wave
from pathlib import Path

import pytest

import cartdeck
from cartdeck_protocol.caps import Manifest, sample_bytes
from cartdeck_sdk.manifest import generate

EXAMPLES = Path(__file__).parents[2] / "examples"
LIBRARIES = {"rapidocr": "rapidocr_onnxruntime", "hibari": "hibari"}


def package(name: str) -> Path:
    return EXAMPLES / name / f"{name}_cartridge"


def need(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(LIBRARIES[name]) is None]
    if missing:
        pytest.skip(f"{', '.join(LIBRARIES[name] for name in missing)} is not installed: hundreds of megabytes")


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_manifest_of_an_example_is_what_its_sources_say(name: str) -> None:
    assert generate(str(package(name))) == (package(name) / "manifest.json").read_bytes()


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_example_says_what_it_lacks_and_imports_nothing_of_it(name: str) -> None:
    path = os.pathsep.join([str(EXAMPLES / name), os.environ.get("PYTHONPATH", "")])
    program = f"import sys, {name}_cartridge.handlers; print(sorted(set(sys.modules) & {{'numpy', 'onnxruntime'}}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_example_passes_its_own_test(name: str) -> None:
    need(name)
    path = os.pathsep.join(filter(None, [str(EXAMPLES / name), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "tests"],
        cwd=EXAMPLES / name,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_plan_reads_a_sign_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rapidocr", "hibari")
    path = [*(str(EXAMPLES / name) for name in LIBRARIES), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    for name in LIBRARIES:
        folder = tmp_path / "cartridges" / name
        folder.mkdir(parents=True)
        (folder / "cartridge.toml").write_text(
            f'command = ["{sys.executable}", "-P", "-m", "cartdeck_sdk", "{name}_cartridge"]\n'
            f'manifest = "{package(name) / "manifest.json"}"\n',
            "utf-8",
        )
    manifest = Manifest.from_json((package("rapidocr") / "manifest.json").read_bytes())
    sign = sample_bytes(manifest.cap("read-text").argument("image"), manifest.samples["read-text"]["image"])
    settings = cartdeck.Settings(cartridge_folders=(tmp_path / "cartridges",))
    with cartdeck.open(settings) as engine:
        text = engine.run("cap:read-text", {"image": sign}, timeout_s=60)
        assert " ".join(text.text.split()) == "Mind the gap"
        assert [line["text"] for line in text.items_of("lines")] == text.text.splitlines()
        plan = (EXAMPLES / "read_aloud.plan").read_text("utf-8")
        result = engine.run_plan(plan, {"image": sign})
    with wave.open(io.BytesIO(result.output("copy").data)) as speech:
        assert speech.getframerate() == 24_000
        assert speech.getnframes() > 12_000, "half a second at least"
