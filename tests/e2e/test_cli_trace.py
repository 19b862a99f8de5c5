"""`CARTDECK_TRACE` and `cartdeck trace` as a user runs them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))


def cartdeck(*arguments: str, trace: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"CARTDECK_TRACE": str(trace)} if trace else {})}
    return subprocess.run(
        [CARTDECK, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of one call whose cartridge calls itself a peer."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    inner = json.dumps({"data": "hello"})
    done = cartdeck("call", "relay", "--arg", "cap=cap:echo", "--arg", f"arguments={inner}", trace=path)
    assert done.returncode == 0, done.stderr
    return path


def test_a_trace_reads_as_who_to_whom_in_columns(traced: Path) -> None:
    done = cartdeck("trace", str(traced))
    assert (done.returncode, done.stderr) == (0, "")
    head, legend, *lines = done.stdout.splitlines()
    assert re.fullmatch(r"── an engine in process \d+, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", head)
    assert re.fullmatch(r"echo: process \d+", legend)
    assert len({line.index("host") > line.index("echo") for line in lines}) == 2  # both directions
    assert all(re.match(r" +\d+\.\d{3}  (host → echo|echo → host)  ", line) for line in lines)
    kinds = [re.split(r"  +", line.strip())[3] for line in lines]
    kinds = [kind for kind in kinds if kind != "HEARTBEAT"]  # it comes at a time of its own
    assert kinds[:2] == ["HELLO", "HELLO"]
    assert kinds[-1] == "END"


def test_a_peer_call_is_told_from_a_request(traced: Path) -> None:
    lines = cartdeck("trace", str(traced)).stdout.splitlines()
    asked = next(line for line in lines if "peer 1" in line)
    assert "echo → host" in asked
    assert "REQ" in asked
    assert "parent 4" in asked


def test_one_request_can_be_followed_alone(traced: Path) -> None:
    done = cartdeck("trace", str(traced), "--request", "4")
    frames = done.stdout.splitlines()[2:]
    assert "REQ" in frames[0]
    assert "relay" in frames[0]
    assert "END" in frames[-1]
    assert all(re.split(r"  +", line.strip())[2] == "4" for line in frames)


def test_json_prints_the_records_that_were_asked_for(traced: Path) -> None:
    done = cartdeck("trace", str(traced), "--request", "1", "--session", "echo", "--json")
    head, *records = [json.loads(line) for line in done.stdout.splitlines()]
    assert head["trace"] == 1
    assert records
    assert {one["id"] for one in records} == {1}
    assert {one["session"] for one in records} == {"echo"}
    elsewhere = cartdeck("trace", str(traced), "--session", "gguf", "--json")
    assert len(elsewhere.stdout.splitlines()) == 1


def test_that_nothing_was_found_is_said_beside_the_records(traced: Path) -> None:
    assert "no such frame" in cartdeck("trace", str(traced), "--request", "999").stderr
    assert cartdeck("trace", str(traced), "--session", "echo").stderr == ""


def test_chunks_in_a_row_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    done = cartdeck("call", "emit", "--arg", "size=2000000", "--quiet", "--out", str(tmp_path / "out"), trace=path)
    assert done.returncode == 0, done.stderr
    shown = cartdeck("trace", str(path)).stdout
    counted = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    chunks = sum(one.get("kind") == "CHUNK" for one in counted)
    lines = [line for line in shown.splitlines() if "CHUNK" in line]
    assert (
        sum(int(found) for found in re.findall(r"CHUNK x(\d+)", shown)) + sum("CHUNK x" not in x for x in lines)
        == chunks
    )
    assert len(lines) <= chunks


def test_a_line_that_is_still_being_written_is_left_out(traced: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    whole = traced.read_text("utf-8")
    cut.write_text(whole + '{"time":1,"sess', "utf-8")
    assert cartdeck("trace", str(cut)).stdout == cartdeck("trace", str(traced)).stdout


def test_a_file_that_is_no_trace_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text("Once upon a time\n")
    done = cartdeck("trace", str(path))
    assert done.returncode == 2
    assert "line 1" in done.stderr
    assert "CARTDECK_TRACE" in done.stderr
    missing = cartdeck("trace", str(tmp_path / "none"))
    assert missing.returncode == 2
    assert "There is no file" in missing.stderr.replace("\n", " ")


def test_a_trace_that_cannot_be_written_ends_the_command_before_anything_starts(tmp_path: Path) -> None:
    done = cartdeck("call", "echo", "--arg", "data=x", trace=tmp_path / "no" / "folder")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "CARTDECK_TRACE" in done.stderr


def test_a_reader_that_leaves_ends_it_quietly(traced: Path) -> None:
    command = f'set -o pipefail; "{CARTDECK}" trace "{traced}" | head -0'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 141)
    assert done.stderr == ""
