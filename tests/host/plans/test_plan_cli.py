"""`cartdeck plan` as a user runs it."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyte
import pytest
from rich.console import Console

from cartdeck.cli.plan_file import read_lists
from cartdeck.cli.plan_tree import Row, render_tree
from cartdeck.plans import Plan, StepState

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
PLAN = "text -> one -> y\none echo\ny -> two -> z\ntwo cap:echo;test\n"
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cartdeck(tmp_path: Path) -> Command:
    """Run `cartdeck plan` in a folder with the plan `a.plan`."""
    (tmp_path / "a.plan").write_text(PLAN)

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [CARTDECK, "plan", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, input=stdin, capture_output=True, text=True, timeout=90, check=False
        )

    return run


def test_check_says_what_a_plan_takes_and_gives(cartdeck: Command) -> None:
    done = cartdeck("check", "a.plan")
    assert (done.returncode, done.stdout) == (0, "2 steps; takes text (media:); gives z (media:)\n")
    record = json.loads(cartdeck("check", "a.plan", "--json", "--input", "text=a", "--input", "text=b").stdout)
    assert [step["loops"] for step in record["steps"]] == [1, 1]
    assert record["outputs"] == [{"name": "z", "media": "media:", "depth": 1}]


def test_a_fault_is_one_paragraph_with_its_place(cartdeck: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.plan").write_text("a -> ech -> b\n")
    done = cartdeck("check", "bad.plan")
    assert done.returncode == 3
    assert done.stderr.startswith("error: line 1, column 6: step ech: No cartridge serves cap:ech. Near it: echo")
    record = json.loads(cartdeck("check", "bad.plan", "--json").stdout)["error"]
    assert record["details"]["candidates"][0] == "echo"
    assert cartdeck("check", "none.plan").returncode == 2
    assert cartdeck("check", "-", stdin="a -> b").returncode == 2


SEVERAL_FAULTS: list[tuple[str, list[int]]] = [
    ("foo.bar = 3\na -> ech -> b\n", [1, 2]),
    ("a -> echo -> b\nfoo.bar = 3\nb -> ech -> c\nx media:y\n", [2, 3, 4]),
    ("a => b\nb -> ech -> c\nc = d\n", [1, 3]),
]


def test_check_tells_all_faults_of_a_plan_in_the_order_of_the_text(cartdeck: Command) -> None:
    for text, lines in SEVERAL_FAULTS:
        record = json.loads(cartdeck("check", "-", "--json", stdin=text).stdout)
        assert [one["details"]["line"] for one in record["faults"]] == lines, record
        assert record["error"] == record["faults"][0]


def test_run_and_show_tell_the_first_of_the_faults(cartdeck: Command) -> None:
    text = "a -> ech -> b\n\nfoo.bar = 3\n"
    done = cartdeck("check", "-", stdin=text)
    first, second = "error: line 1, column 6: step ech", "error: line 3, column 1: there is no step foo"
    assert done.stderr.index(first) < done.stderr.index(second)
    for command in ("run", "show"):
        other = cartdeck(command, "-", stdin=text)
        assert (other.returncode, other.stderr.startswith(first), second in other.stderr) == (3, True, False)
    assert done.returncode == 3


def test_what_is_set_counts_in_a_plan_with_a_fault_too(cartdeck: Command) -> None:
    text = "() -> misbehave -> x\nfoo.bar = 3\n"
    without, given = (
        json.loads(cartdeck("check", "-", "--json", *more, stdin=text).stdout)["faults"]
        for more in ((), ("--set", "misbehave.action=raise", "--set", "foo.bar=4"))
    )
    assert [one["code"] for one in without] == ["MISSING_ARGUMENT", "BAD_PLAN"]
    assert [one["code"] for one in given] == ["BAD_PLAN"]


def test_fmt_prints_writes_and_checks(cartdeck: Command, tmp_path: Path) -> None:
    text = "one cap:echo\ntwo cap:echo;test\n\ntext -> one -> y\ny -> two -> z\n"
    assert cartdeck("fmt", "a.plan").stdout == text
    assert cartdeck("fmt", "a.plan", "--check").returncode == 2
    assert cartdeck("fmt", "a.plan", "--write").returncode == 0
    assert (tmp_path / "a.plan").read_text() == text
    assert cartdeck("fmt", "a.plan", "--check").returncode == 0
    assert cartdeck("fmt", "-", stdin=PLAN).stdout == text


def test_show_draws_for_the_terminal_and_writes_svg_and_mermaid(cartdeck: Command, tmp_path: Path) -> None:
    assert cartdeck("show", "a.plan").stdout.splitlines()[1] == "●  one   echo on echo -> y"
    assert cartdeck("show", "a.plan", "--mermaid").stdout.startswith("flowchart LR\n")
    assert cartdeck("show", "a.plan", "--out", "a.svg").returncode == 0
    assert (tmp_path / "a.svg").read_text().startswith("<svg ")


def test_run_gives_its_only_output_and_says_on_the_side_what_it_does(cartdeck: Command) -> None:
    done = cartdeck("run", "a.plan", "--input", "text=hello")
    assert (done.returncode, done.stdout) == (0, "hello")
    assert done.stderr.splitlines()[-1] == "100% two on echo: done"
    assert cartdeck("run", "a.plan", "--input", "text=@-", "--quiet", stdin="from here").stdout == "from here"


def test_in_one_pipe_the_output_is_whole_before_the_end_of_its_step_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.plan").write_text(PLAN)
    text = "hello " * 200_000
    (tmp_path / "in.txt").write_text(text)
    command = [CARTDECK, "plan", "run", "a.plan", "--input", "text=@in.txt"]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=True
    )
    output, _, rest = done.stdout.partition("100% two on echo: done")
    assert output.endswith("hello \n")
    assert rest == "\n"


def test_inputs_come_from_files_and_folders_and_outputs_go_to_files(cartdeck: Command, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / name).write_text(name)
    assert cartdeck("run", "a.plan", "-i", "text=@folder", "--out", "z=out.txt", "-q").stderr == ""
    assert (tmp_path / "out.txt").read_text() == "ab"
    assert "\nwrote z to more.txt: 2 B\n" in cartdeck("run", "a.plan", "-i", "text=@folder", "--out", "more.txt").stderr
    done = cartdeck("run", "a.plan", "-i", "text=x", "--out", "z=out.txt", "-q")
    assert done.returncode == 2
    assert "exists already" in done.stderr
    done = cartdeck("run", "a.plan", "-i", "text=x", "--out", "q=new.txt")
    assert (done.returncode, (tmp_path / "new.txt").exists()) == (2, False)


def test_items_of_text_and_json_are_lines(cartdeck: Command, tmp_path: Path) -> None:
    (tmp_path / "sizes.plan").write_text("xs -> sink -> sizes\n")
    done = cartdeck("run", "sizes.plan", "-i", "xs=a", "-i", "xs=bcd", "-q")
    assert [json.loads(line)["bytes"] for line in done.stdout.splitlines()] == [1, 3]
    (tmp_path / "said.plan").write_text("action -> misbehave -> said\n")
    done = cartdeck("run", "said.plan", "-i", "action=descriptors", "-i", "action=log-lines", "-q")
    assert done.stdout == '"same"\n"logged"\n'


def test_json_is_one_record_and_several_outputs_a_line_each(cartdeck: Command, tmp_path: Path) -> None:
    record = json.loads(cartdeck("run", "a.plan", "-i", "text=a", "-i", "text=b", "--json").stdout)
    assert record["outputs"] == {"z": {"items": ["a", "b"]}}
    assert record["steps"]["two"]["state"] == "done"
    assert record["steps"]["two"]["calls"] == 2
    (tmp_path / "two.plan").write_text("x -> e -> a\ne echo\nx -> f -> b\nf echo\n")
    lines = [json.loads(line) for line in cartdeck("run", "two.plan", "-i", "x=1", "-q").stdout.splitlines()]
    assert lines == [{"output": "a", "text": "1"}, {"output": "b", "text": "1"}]


def test_set_replaces_a_constant_and_state_keeps_what_was_done(cartdeck: Command, tmp_path: Path) -> None:
    (tmp_path / "emit.plan").write_text("() -> emit -> x\nemit.count = 2\nemit.size = 4\n")
    assert cartdeck("run", "emit.plan", "-q", "--set", "emit.count=3").stdout == "\0\0\0\0\1\1\1\1\2\2\2\2"
    assert cartdeck("run", "emit.plan", "--set", "emt.count=3").returncode == 2
    for state in ("done", "reused"):
        done = cartdeck("run", "a.plan", "-i", "text=x", "--state", "kept", "--json", "-q")
        assert {step["state"] for step in json.loads(done.stdout)["steps"].values()} == {state}


def test_a_plan_that_fails_ends_with_the_steps_error(cartdeck: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.plan").write_text("action -> m -> x\nm misbehave\n")
    done = cartdeck("run", "bad.plan", "-i", "action=raise", "-q")
    assert done.returncode == 4
    assert "line 1, column 11: step m: ValueError: raised on request" in " ".join(done.stderr.split())
    done = cartdeck(
        "run", "bad.plan", "-i", "action=raise", "-i", "action=descriptors", "--on-error", "absent", "--json"
    )
    record = json.loads(done.stdout)
    assert done.returncode == 0
    assert record["missing"][0]["item"] == [0]
    assert "absent" in record["outputs"]["x"]["items"][0]
    assert "\nm: item 0 is missing" in done.stderr
    assert "\n    ValueError: raised on request\n" in done.stderr
    assert done.stderr.endswith("done (2/2 items, 1 missing)\n")


def test_find_lists_chains_and_runs_none(cartdeck: Command) -> None:
    done = cartdeck("find", "--from", "media:enc=utf-8;model-spec", "--to", "media:enc=utf-8;file-path")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "download-model\tmodels\t")
    record = json.loads(
        cartdeck("find", "--from", "media:enc=utf-8;model-spec", "--to", "media:model-info", "--json").stdout
    )
    assert "input -> model-info -> output" in record["chains"][0]["plan"]
    assert cartdeck("find", "--from", "media:nothing", "--to", "media:else").returncode == 3
    assert cartdeck("find", "--from", "nothing", "--to", "media:else").returncode == 2


def test_a_terminal_shows_the_tree_while_the_plan_runs(tmp_path: Path) -> None:
    (tmp_path / "work.plan").write_text("() -> busy -> a\nbusy work\nbusy.seconds = 0.2\na -> after -> b\nafter echo\n")
    screen = pyte.Screen(100, 30)
    stream = pyte.ByteStream(screen)
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    seen: list[str] = []
    with subprocess.Popen(
        [CARTDECK, "plan", "run", "work.plan"], cwd=tmp_path, env=environment, stdout=child, stderr=child
    ) as process:
        os.close(child)
        while data := read(parent):
            stream.feed(data)
            seen.append("\n".join(screen.display))
        assert process.wait(60) == 0
    os.close(parent)
    assert any("● busy" in one and "· after" in one and "plan" in one and "%" in one for one in seen)
    assert "10 steps done" in seen[-1]
    assert "busy" not in seen[-1]


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


def test_help_names_every_command() -> None:
    done: Any = subprocess.run([CARTDECK, "plan", "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert all(f"  {name} " in done.stdout for name in ("check", "fmt", "show", "run", "find"))


def test_the_only_output_comes_while_the_plan_runs(cartdeck: Command, tmp_path: Path) -> None:
    (tmp_path / "slow.plan").write_text("() -> emit -> x\nemit.count = 100000\nemit.size = 4\nemit.interval = 0.05\n")
    command = [CARTDECK, "plan", "run", "slow.plan", "-q"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(8) == b"\0\0\0\0\1\1\1\1"  # it would run for more than an hour
        process.stdout.close()  # and a reader that leaves ends it
        assert process.wait(30) != 0


def test_a_slow_reader_of_one_output_keeps_no_news_of_other_steps_back(tmp_path: Path) -> None:
    (tmp_path / "two.plan").write_text(
        "first emit\nfirst.count = 8\nfirst.size = 65536\n() -> first -> x\n"  # more than a pipe holds
        "second emit\nsecond.count = 5\nsecond.size = 1\nsecond.interval = 0.3\n() -> second -> y\n"
    )
    program = (
        "import cartdeck.cli.plan_output as output, cartdeck.cli.main as command\n"
        "output._SETTLE_S = 60\n"  # a machine that is slow must not come near it
        "command.main()"
    )
    command = [sys.executable, "-c", program, "plan", "run", "two.plan", "--out", "y=y.bin"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told: list[str] = []
        while not told or "second on echo: done" not in told[-1]:  # nobody has read a byte of x until then
            told.append(process.stderr.readline().decode())
            assert told[-1], told
        assert not any("first on echo: done" in line for line in told)
        assert len(process.stdout.read()) == 8 * 65536
        assert "first on echo: done" in process.stderr.read().decode()
        assert process.wait(30) == 0
    assert (tmp_path / "y.bin").read_bytes() == b"\0\1\2\3\4"


def test_the_output_of_a_plan_streams_on_a_terminal_above_one_bar(tmp_path: Path) -> None:
    screen = pyte.Screen(100, 30)
    stream = pyte.ByteStream(screen)
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    (tmp_path / "lines.plan").write_text("words -> each -> said\neach misbehave\n")
    seen: list[list[str]] = []
    arguments = [f"--input=words={word}" for word in ("log-lines", "descriptors")]
    with subprocess.Popen(
        [CARTDECK, "plan", "run", "lines.plan", *arguments], cwd=tmp_path, env=environment, stdout=child, stderr=child
    ) as process:
        os.close(child)
        while data := read(parent):
            stream.feed(data)
            seen.append([line.rstrip() for line in screen.display])
        assert process.wait(60) == 0
    os.close(parent)
    assert [line for line in seen[-1] if line.startswith('"')] == ['"logged"', '"same"']
    assert not any("each" in line and "%" in line for line in seen[-1])  # the bar is gone


def test_a_missing_input_is_told_with_what_to_write(cartdeck: Command, tmp_path: Path) -> None:
    done = cartdeck("run", "a.plan")
    assert done.returncode == 2
    assert "The plan needs text (media:). For instance: --input text=@FILE" in " ".join(done.stderr.split())
    record = json.loads(cartdeck("run", "a.plan", "--json").stdout)["error"]
    assert (record["code"], record["details"]["candidates"]) == ("MISSING_ARGUMENT", ["text"])


def test_an_unknown_input_is_told_before_one_that_is_missing(cartdeck: Command) -> None:
    done = cartdeck("run", "a.plan", "--input", "txt=x")
    assert done.returncode == 2
    assert "the plan has no input txt; its inputs are text" in " ".join(done.stderr.split())
    record = json.loads(cartdeck("run", "a.plan", "--input", "txt=x", "--json").stdout)["error"]
    assert (record["code"], record["argument"], record["details"]["candidates"]) == ("BAD_ARGUMENT", "txt", ["text"])


def test_a_json_list_is_the_items_of_an_input_that_only_goes_to_sequences() -> None:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    listed = {"x": '["a", "b"]'}
    whole = Plan.parse("x -> e -> vectors\ne cap:embed-text;gguf\n")
    assert read_lists(whole, listed) == {"x": ["a", "b"]}
    assert read_lists(whole, {"x": "[a], as it is"}) == {"x": ["[a], as it is"]}
    single = Plan.parse("x -> e -> vectors\ne cap:embed-text;gguf\nx -> echo -> same\n")
    assert read_lists(single, listed) == listed


def test_a_drawing_in_another_form_is_refused_with_those_there_are(cartdeck: Command, tmp_path: Path) -> None:
    done = cartdeck("show", "a.plan", "--out", "x.png")
    assert done.returncode == 2
    assert "cannot be drawn as .png; expected a file that ends in .txt, .svg" in " ".join(done.stderr.split())
    assert not (tmp_path / "x.png").exists()
    assert cartdeck("show", "a.plan", "--out", "x.png", "--svg").returncode == 0
    assert cartdeck("show", "a.plan", "--out", "x.json").returncode == 0
    assert json.loads((tmp_path / "x.json").read_text())["steps"][0]["name"] == "one"


def test_a_signal_cancels_the_plan_and_leaves_no_process(cartdeck: Command, tmp_path: Path) -> None:
    (tmp_path / "long.plan").write_text("() -> work -> a\nwork.steps = 10000\n")
    command = [CARTDECK, "plan", "run", "long.plan"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "work on echo: started" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "CANCELLED" in process.stderr.read()


def test_progress_is_json_where_the_log_is(tmp_path: Path) -> None:
    (tmp_path / "a.plan").write_text(PLAN)
    done = subprocess.run(
        [CARTDECK, "--log-json", "plan", "run", "a.plan", "-i", "text=x"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["step"], line["state"]) for line in lines] == [
        ("one", "running"), ("one", "done"), ("two", "running"), ("two", "done"),
    ]  # fmt: skip
    assert done.stdout == "x"


def test_a_long_note_takes_no_room_from_the_other_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = Row(
        "describe", "torch", 0, StepState.RUNNING, 0.08, 0, 3, is_mapped=True, phase="queue", message="wait " * 40
    )
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_tree({"describe": row}, 0.08, elapsed_s=3, most=5))
    (line,) = [line for line in console.export_text().splitlines() if "describe" in line]
    assert "0/3 items torch queue: wait" in line
    assert line.rstrip().endswith("…")
