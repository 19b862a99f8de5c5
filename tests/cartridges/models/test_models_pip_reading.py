"""What pip said, captured from three of its versions, and the typed error that it means."""

from pathlib import Path

import pytest

from cartdeck_models.pypi.pip_failure import pip_failure
from cartdeck_models.pypi.pip_reading import PipReading, redacted
from cartdeck_models.spec import PypiSpec
from cartdeck_protocol.errors import Code

DATA = Path(__file__).resolve().parents[2] / "data" / "pip_output"
VERSIONS = ("24.1", "25.3", "26.3")
SPEC = PypiSpec("demo-model", "1.0", ("demo_model/data.bin",))

# Case -> the code, and what the message must name.
CASES: dict[str, tuple[Code, str]] = {
    "cut": (Code.DOWNLOAD_INTERRUPTED, "demo_model-1.0-py3-none-any.whl"),
    "wrong-hash": (Code.HASH_MISMATCH, "0" * 64),
    "file-404": (Code.FILE_NOT_FOUND, "http://127.0.0.1:8771/file-404/f/demo_model-1.0-py3-none-any.whl"),
    "file-401": (Code.AUTH_REQUIRED, "401"),
    "file-429": (Code.RATE_LIMITED, "429"),
    "file-503": (Code.ENDPOINT_UNREACHABLE, "127.0.0.1: it answers 503"),
    "page-404": (Code.MODEL_NOT_FOUND, "demo-model"),
    "page-403": (Code.AUTH_REQUIRED, "403"),
    "page-429": (Code.RATE_LIMITED, "429"),
    "page-503": (Code.ENDPOINT_UNREACHABLE, "503"),
    "other-tag": (Code.UNSUPPORTED, "demo_model-1.0-cp27-cp27m-win32.whl"),
    "only-source": (Code.UNSUPPORTED, "demo_model-1.0.tar.gz"),
    "other-version": (Code.REVISION_NOT_FOUND, "0.9"),
    "file-host-gone": (Code.ENDPOINT_UNREACHABLE, "files.invalid"),
    "page-refused": (Code.ENDPOINT_UNREACHABLE, "127.0.0.1:9: Connection refused"),
    "page-unknown-host": (Code.ENDPOINT_UNREACHABLE, "index.invalid: Name or service not known"),
    "certificate": (Code.ENDPOINT_UNREACHABLE, "certificate verify failed"),
    "disk-full": (Code.INSUFFICIENT_STORAGE, "ran full"),
    "not-trusted": (Code.ENDPOINT_UNREACHABLE, "10.1.2.3"),
    "proxy": (Code.ENDPOINT_UNREACHABLE, "index.invalid"),
    "require-hashes": (Code.UNSUPPORTED, "PIP_REQUIRE_HASHES"),
}


def lines_of(version: str, case: str) -> list[str]:
    text = (DATA / f"pip-{version}.txt").read_text("utf-8")
    for part in text.split("=== ")[1:]:
        name, _, output = part.partition("\n")
        if name == case:
            return output.splitlines()
    raise AssertionError(f"no case {case} for pip {version}")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_each_failure_of_pip_is_a_typed_error(version: str, case: str, tmp_path: Path) -> None:
    reading = PipReading()
    for line in lines_of(version, case):
        reading.feed(line)

    error = pip_failure(SPEC, reading, returncode=1, folder=tmp_path)

    code, named = CASES[case]
    assert error.code is code, error.message
    assert named in error.message
    log = error.details.get("log", ())
    assert len(log) <= 5
    assert all(line.startswith(("ERROR: ", "WARNING: ")) for line in log)


@pytest.mark.parametrize("version", VERSIONS)
def test_progress_is_counted_in_bytes_of_the_wheel(version: str) -> None:
    reading = PipReading()
    moved = [(reading.work, reading.total) for line in lines_of(version, "ok") if reading.feed(line)]

    assert moved[-1] == (1000676, 1000676)
    assert (0, 1000676) in moved
    assert reading.file_name == "demo_model-1.0-py3-none-any.whl"


def test_a_total_of_zero_is_an_unknown_one() -> None:
    reading = PipReading()

    assert reading.feed("Progress 500 of 0")
    assert (reading.work, reading.total) == (500, None)


def test_a_retry_is_told_with_its_reason() -> None:
    reading = PipReading()
    lines = lines_of("26.3", "page-refused")
    told = [reading.note for line in lines if reading.feed(line)]

    assert told == ["trying again (Connection refused)"]


def test_an_unreachable_index_counts_more_than_the_versions_of_another(tmp_path: Path) -> None:
    reading = PipReading()
    for line in lines_of("26.3", "page-refused"):
        reading.feed(line.replace("from versions: none", "from versions: 0.8, 0.9"))

    assert pip_failure(SPEC, reading, returncode=1, folder=tmp_path).code is Code.ENDPOINT_UNREACHABLE


@pytest.mark.parametrize("version", VERSIONS)
def test_the_log_of_an_unreachable_index_does_not_end_with_what_only_follows(version: str, tmp_path: Path) -> None:
    reading = PipReading()
    for line in lines_of(version, "page-refused"):
        reading.feed(line)
    assert "No matching distribution" in reading.complaints[-1]

    error = pip_failure(SPEC, reading, returncode=1, folder=tmp_path)

    assert error.details["log"]
    assert not any("No matching" in line or "Could not find a version" in line for line in error.details["log"])


def test_an_end_that_nothing_explains_carries_pip_s_own_words(tmp_path: Path) -> None:
    reading = PipReading()
    reading.feed("ERROR: the moon is in the way")

    error = pip_failure(SPEC, reading, returncode=2, folder=tmp_path)

    assert error.code is Code.DOWNLOAD_INTERRUPTED
    assert "exit code 2" in error.message
    assert "the moon is in the way" in error.message


def test_a_signal_is_named(tmp_path: Path) -> None:
    error = pip_failure(SPEC, PipReading(), returncode=-9, folder=tmp_path)

    assert "signal 9" in error.message


def test_credentials_of_an_index_never_show(tmp_path: Path) -> None:
    reading = PipReading()
    reading.feed("Looking in indexes: https://me:secret@index.invalid/simple")
    reading.feed("Could not fetch URL https://me:secret@index.invalid/simple/x/: 401 Client Error: no - skipping")

    error = pip_failure(SPEC, reading, returncode=1, folder=tmp_path)

    assert "secret" not in f"{error.message} {error.details}"
    assert redacted("https://me:secret@index.invalid/x") == "https://***@index.invalid/x"


def test_what_is_kept_of_the_output_is_bounded() -> None:
    reading = PipReading()
    for number in range(10_000):
        reading.feed(f"WARNING: line {number} " + "x" * 5_000)

    assert len(reading.complaints) == 5
    assert max(len(line) for line in reading.complaints) <= 600
