"""The process of pip: its command, its environment, its lines, and its end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cartdeck_models.pypi.pip_process import check_pip, pip_command, pip_environment, run_lines
from cartdeck_models.task import Task
from cartdeck_protocol.errors import CartdeckError, Code

Eventually = Callable[[Callable[[], bool], float], bool]
FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def run(
    program: str,
    *,
    on_line: Callable[[str], None] = lambda _: None,
    task: Task | None = None,
    stall_limit_s: float = 60,
) -> int:
    task = task or Task(lambda _: None, lambda: False)
    command = [sys.executable, "-c", program]
    return run_lines(command, os.environ, on_line=on_line, task=task, stall_limit_s=stall_limit_s)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:  # it went meanwhile
        return True


def test_lines_of_both_outputs_come_whole_and_the_exit_code_too() -> None:
    lines: list[str] = []
    program = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three', end='')\nsys.exit(3)"

    assert run(program, on_line=lines.append) == 3
    assert sorted(lines) == ["one", "three", "two"]


def test_a_line_without_end_is_cut_and_bad_bytes_do_no_harm() -> None:
    lines: list[str] = []
    run("import sys\nsys.stdout.buffer.write(b'x' * 300_000 + b'\\xff\\n')", on_line=lines.append)

    assert sum(map(len, lines)) == 300_001
    assert max(map(len, lines)) <= 128 * 1024


def test_lines_come_as_they_are_written() -> None:
    seen = threading.Event()
    program = "import sys, time\nprint('early', flush=True)\ntime.sleep(600)"

    with pytest.raises(CartdeckError) as caught:
        run(program, on_line=lambda _: seen.set(), task=Task(lambda _: None, seen.is_set))

    assert seen.is_set()
    assert caught.value.code is Code.CANCELLED


@pytest.mark.parametrize("prelude", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"])
def test_a_cancel_ends_the_whole_group_even_one_that_ignores_it(prelude: str, eventually: Eventually) -> None:
    pids: list[int] = []
    program = prelude + (
        "import subprocess, sys, os, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {prelude + FOREVER!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nprint(os.getpid(), child.pid, flush=True)\ntime.sleep(600)"
    )
    started_s = time.monotonic()

    with pytest.raises(CartdeckError) as caught:
        run(
            program,
            on_line=lambda line: pids.extend(map(int, line.split())),
            task=Task(lambda _: None, lambda: bool(pids)),
        )

    assert caught.value.code is Code.CANCELLED
    assert time.monotonic() - started_s < 60  # and not the ten minutes of a sleep
    assert len(pids) == 2
    assert eventually(lambda: all(is_gone(pid) for pid in pids), 20)


def test_silence_is_a_stall_and_the_process_goes() -> None:
    with pytest.raises(CartdeckError) as caught:
        run(FOREVER, stall_limit_s=0.5)

    assert caught.value.code is Code.DOWNLOAD_STALLED
    assert "0.5 s" in caught.value.message


def test_an_error_in_the_reader_ends_the_process(eventually: Eventually) -> None:
    pids: list[int] = []

    def fail(line: str) -> None:
        pids.append(int(line))
        raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        run("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)", on_line=fail)

    assert eventually(lambda: is_gone(pids[0]), 20)


def test_a_grandchild_that_holds_the_pipe_does_not_hold_us() -> None:
    program = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {FOREVER!r}])\nprint('done', flush=True)"
    )
    started_s = time.monotonic()

    assert run(program) == 0
    assert time.monotonic() - started_s < 60  # and not the ten minutes of a sleep


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_pip_dies_with_the_process_that_started_it(tmp_path: Path, eventually: Eventually) -> None:
    setpriv = pip_command("x==1", tmp_path, {})[:4]
    if not setpriv[0].endswith("setpriv"):
        pytest.skip("setpriv (util-linux) is not installed")
    program = (
        "import os, sys\n"
        "from cartdeck_models.pypi.pip_process import run_lines\nfrom cartdeck_models.task import Task\n"
        "child = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
        f"command = {setpriv!r} + [sys.executable, '-c', child]\n"
        "run_lines(command, os.environ, on_line=lambda line: print(line, flush=True),"
        " task=Task(lambda _: None, lambda: False), stall_limit_s=600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)

    assert eventually(lambda: is_gone(pid), 30)


def test_the_caller_s_index_and_certificates_hold_and_constraints_do_not(tmp_path: Path) -> None:
    given = {
        "PIP_INDEX_URL": "https://index.invalid",
        "PIP_CERT": "/c.pem",
        "HTTPS_PROXY": "http://p.invalid",
        "PIP_CONSTRAINT": "/gone.txt",
        "PIP_REQUIREMENT": "/more.txt",
    }

    environment = pip_environment(given, tmp_path)

    assert {name: environment[name] for name in ("PIP_INDEX_URL", "PIP_CERT", "HTTPS_PROXY")} == {
        name: given[name] for name in ("PIP_INDEX_URL", "PIP_CERT", "HTTPS_PROXY")
    }
    assert environment["PIP_CONSTRAINT"] == os.devnull
    assert "PIP_REQUIREMENT" not in environment
    assert environment["TMPDIR"] == str(tmp_path)


def test_the_wheel_is_kept_in_pip_s_cache_only_where_that_is_asked_for(tmp_path: Path) -> None:
    assert "--no-cache-dir" in pip_command("x==1", tmp_path, {})
    assert "--no-cache-dir" not in pip_command("x==1", tmp_path, {"PIP_CACHE_DIR": "/cache"})


@pytest.mark.parametrize("found", [None, "23.2.1", "24.0"])
def test_an_interpreter_without_a_new_pip_says_which_command_brings_it(tmp_path: Path, found: str | None) -> None:
    if found is not None:
        (tmp_path / "pip").mkdir()
        (tmp_path / "pip" / "__init__.py").touch()
        (tmp_path / f"pip-{found}.dist-info").mkdir()
        (tmp_path / f"pip-{found}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: pip\nVersion: {found}\n"
        )
    program = (
        "import sys\n"
        "from cartdeck_models.pypi.pip_process import check_pip\nfrom cartdeck_protocol.errors import CartdeckError\n"
        "sys.path[:] = [sys.argv[1]] + [path for path in sys.path if 'site-packages' not in path]\n"
        "sys.modules.pop('pip', None)\n"
        "try:\n    check_pip()\nexcept CartdeckError as error:\n    print(error.code, error.message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.startswith("CARTRIDGE_UNAVAILABLE")
    assert sys.executable in done.stdout
    assert (f"has pip {found}" if found else "ensurepip") in done.stdout


def test_this_interpreter_s_pip_is_new_enough() -> None:
    check_pip()
