"""The commands of vectors and speech, as a person runs them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# A model may have to be fetched and converted first, once for a machine.
pytestmark = pytest.mark.timeout(400)

AUDIO = Path(__file__).resolve().parents[2] / "data" / "audio" / "quick_brown_fox.flac"


def cartdeck(*arguments: str, status: int = 0) -> str:
    run = "import sys; from cartdeck.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", run, *arguments, "-q", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout


def test_lines_of_a_file_become_rows_of_an_array(tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("hi\na man is eating food\nhi\n")
    target = tmp_path / "vectors.npy"
    said = cartdeck("embed", "--file", str(tmp_path / "lines.txt"), "--out", str(target), "--model", str(tiny_bert))
    vectors = np.load(target)
    assert (said, vectors.shape, vectors.dtype) == ("", (3, 32), np.float32)
    assert np.allclose(vectors[0], vectors[2], atol=1e-5)


def test_a_recording_becomes_a_record_and_an_error_names_the_recording_that_it_is_about(
    whisper_tiny: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_text("no recording")
    said = cartdeck("transcribe", str(AUDIO), str(bad), "--model", str(whisper_tiny), "--json", status=2)
    record, refused = map(json.loads, said.splitlines())
    assert (record["audio"], record["text"]) == (str(AUDIO), "The quick brown fox jumps over the lazy dog.")
    assert record["segments"][0]["text"] == record["text"]
    assert record["provenance"]["settings"]["language"] == "en"
    assert refused["error"]["argument"] == "audio"
    assert refused["error"]["message"].startswith(f"{bad}: ")
