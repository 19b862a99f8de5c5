"""`cartdeck chat`, `describe`, `embed` and `info` with the real model, as a user and a program run them."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
DATA = Path(__file__).resolve().parent.parent / "data" / "gguf"
PROJECTOR = str(DATA / "shapes-mmproj-576.gguf")
GREEDY = ["--temperature", "0", "--threads", "1", "--context-size", "2048"]
BRIEF = ["--system", "You are a helpful assistant."]
SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the human's questions."
)
STORY = "In the heart"
"""How the answer to a wish for a story begins."""

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n{% else %}USER: {{ m.content }}\n{% endif %}"
    "{% endfor %}ASSISTANT: "
)


def run(*arguments: str, status: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [CARTDECK, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == status, done.stderr
    return done


def test_lines_of_standard_input_are_answered_one_after_another() -> None:
    done = run(
        "chat",
        "--max-tokens",
        "12",
        *GREEDY,
        stdin="/system You are a helpful assistant.\nWhat is the capital of France?\n",
    )
    assert done.stdout == "The capital of France is Paris.\n"


def test_the_first_message_may_be_all_of_standard_input() -> None:
    said = "\n\nWhat is the capital of France?"
    answers = [
        json.loads(run("chat", message, "--max-tokens", "1", *BRIEF, *GREEDY, "--json", "--quiet", stdin=stdin).stdout)
        for message, stdin in (("-", f"{said}\n"), (said, ""))
    ]
    assert answers[0]["provenance"]["usage"] == answers[1]["provenance"]["usage"]


def test_an_answer_is_a_record_for_a_program() -> None:
    done = run("chat", "What is the capital of France?", *BRIEF, "--max-tokens", "12", *GREEDY, "--json", "--quiet")
    record = json.loads(done.stdout)
    assert record["text"] == "The capital of France is Paris."
    assert record["provenance"]["finish_reason"] == "stop"


def test_a_line_that_is_no_command_ends_a_script_with_its_code() -> None:
    done = run("chat", *GREEDY, stdin="/sing\n", status=2)
    assert "/help lists them" in " ".join(done.stderr.split())


class Terminal:
    """A program at a terminal: what it writes is read until something is seen there."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        command = ["setsid", "--ctty", CARTDECK, *arguments]  # a terminal of its own, whose Ctrl-C is a signal
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        data = text.encode(errors="surrogateescape")
        while data:
            data = data[os.write(self._master, data) :]

    def wait_for(self, text: str, *, times: int = 1, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.text().count(text) < times:
            is_ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert is_ready, self.text()[-2000:]
            self.seen += os.read(self._master, 65536).decode(errors="replace")

    def text(self) -> str:
        """What was written, without the bar in the line below."""
        return re.sub(r"\x1b\[[\d;]*\w", "", re.sub(r"\x1bD\x1bM\x1b7.*?\x1b8", "", self.seen, flags=re.DOTALL))

    def end(self) -> int:
        return self.process.wait(60)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._master)
        self.process.kill()
        self.process.wait(60)


def test_ctrl_c_stops_an_answer_and_keeps_the_dialogue() -> None:
    with Terminal("chat", *BRIEF, *GREEDY, "--max-tokens", "1900") as terminal:  # it goes on for long
        terminal.wait_for("> ")
        terminal.type("Write a very long story about a fox and a hen in a wood.\n")
        terminal.wait_for(STORY)
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.type("/reset\n")
        terminal.wait_for("forgotten")
        terminal.type("What is the capital of France?\n")
        terminal.wait_for("The capital of France is Paris.")
        terminal.type("/sing\n")
        terminal.wait_for("no command here")
        terminal.type(f"/image {DATA / 'shapes' / 'red_circle.png'}\nWhat is it?\n")
        terminal.wait_for("--projector,")  # who sits here gives options, and is told of them
        terminal.type("\x04")
        assert terminal.end() == 0


def test_two_ctrl_c_at_the_prompt_end_the_dialogue() -> None:
    with Terminal("chat", *GREEDY) as terminal:
        terminal.wait_for("> ")
        terminal.type("\x03")
        terminal.wait_for("another Ctrl-C.\r\n> ")  # with the prompt behind it, where the next one is typed
        terminal.type("\x03")
        terminal.wait_for("> ^C\r\nerror: ")
        assert terminal.end() == 130


def test_a_line_that_did_not_come_whole_is_told_and_not_said_to_the_model() -> None:
    with Terminal("chat", *GREEDY) as terminal:
        terminal.wait_for("> ")
        terminal.type("a" * 5000 + "\n")
        terminal.wait_for("4,095 bytes of a line")
        terminal.type("\udcff is no text\n")  # the byte FF alone
        terminal.wait_for("INVALID_TEXT")
        terminal.type("/reset\n")
        terminal.wait_for("forgotten")
        terminal.type("\x04")
        assert terminal.end() == 0


@pytest.mark.parametrize("spec", ["nope.gguf", "/no/such/model.gguf", "./no/such.gguf"])
def test_a_model_that_is_not_there_is_told_before_a_message_is_asked_for(spec: str) -> None:
    with Terminal("chat", "--model", spec) as terminal:
        terminal.wait_for("FILE_NOT_FOUND")
        assert terminal.end() == 2
        assert "Ctrl-D" not in terminal.text()
        assert spec.removeprefix("./") in terminal.text()


def test_images_are_described_each_in_its_line(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    looking = ["--projector", PROJECTOR, "--chat-template", str(template), "--system", SYSTEM, *GREEDY, "--quiet"]
    red, green = (str(DATA / "shapes" / f"{name}.png") for name in ("red_circle", "green_triangle"))
    assert run("describe", red, *looking).stdout == "a red circle"
    both = run("describe", red, green, "--prompt", "What color is it?", *looking).stdout
    assert both == f"{red}: red\n{green}: green\n"
    records = [json.loads(line) for line in run("describe", red, green, "--json", *looking).stdout.splitlines()]
    assert [record["image"] for record in records] == [red, green]
    assert records[1]["text"] == "a green triangle"
    stopped = run("describe", red, green, "--json", "--stop", "a", *looking).stdout.splitlines()
    assert [json.loads(line)["text"] for line in stopped] == ["", ""], "nothing came, and that is said"
    run("describe", "/no/such.png", *looking, status=2)
    bad = tmp_path / "bad.png"
    bad.write_text("no image")
    lines = run("describe", red, str(bad), green, "--json", *looking, status=2).stdout.splitlines()
    seen, refused, seen_too = map(json.loads, lines)
    assert [one["image"] for one in (seen, refused, seen_too)] == [red, str(bad), green]
    assert (refused["error"]["code"], refused["error"]["argument"]) == ("BAD_IMAGE", "image")
    assert refused["error"]["message"].startswith(f"{bad}: ")
    assert seen_too["text"] == "a green triangle"


def test_a_text_is_held_to_a_schema_or_a_grammar_in_a_file(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
    written, grammar = tmp_path / "schema.json", tmp_path / "grammar.gbnf"
    written.write_text(json.dumps(schema))
    grammar.write_text('root ::= " Paris" | " Rome"\n')
    question = ["The capital of France is", "--max-tokens", "40", *GREEDY, "--quiet"]
    jsonschema.validate(json.loads(run("generate", *question, "--json-schema", str(written)).stdout), schema)
    assert run("generate", *question, "--grammar", str(grammar)).stdout == " Paris"
    missing = run("generate", *question, "--grammar", "/no/such.gbnf", status=2)
    assert "--grammar" in missing.stderr


def test_vectors_are_json_lists_or_one_record(tmp_path: Path) -> None:
    from cartdeck_gguf.serving import cartridge

    (definition,) = (cap for cap in cartridge.manifest.caps if cap.alias == "generate-text")
    model = str(definition.arguments["model"].default)
    lines = run("embed", "a", "b", "--model", model, "--threads", "1", "--quiet").stdout.splitlines()
    assert [len(json.loads(line)) for line in lines] == [576, 576]
    record = json.loads(run("embed", "-", "--model", model, "--threads", "1", "--json", "-q", stdin="a\nb\n").stdout)
    assert record["dimensions"] == 576
    assert record["vectors"][0] == json.loads(lines[0])
    empty = run("embed", "a", "", "--model", model, "--threads", "1", "--quiet", status=2)
    assert "index 1" in empty.stderr
    lines_file = tmp_path / "lines.txt"
    lines_file.write_text("a\n\nb\n")
    refused = run("embed", "--file", str(lines_file), "--model", model, "--threads", "1", "-q", "--json", status=2)
    assert json.loads(refused.stdout)["error"]["message"].startswith(f"{lines_file}, line 2: ")
    known = json.loads(run("info", model, "--json", "-q").stdout)
    assert (known["architecture"], known["parameters"]) == ("llama", 134_515_008)
    assert "parameters\t134,515,008" in run("info", model, "-q").stdout
