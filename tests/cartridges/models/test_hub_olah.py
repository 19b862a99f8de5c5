"""olah, a hub server that others wrote: our client is at home there too, on plain git repositories and on a mirror.

It lives in an environment of its own, made once in pytest's cache folder, since it pins libraries that we have newer.
"""

import hashlib
import json
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from cartdeck_protocol.errors import Code

OLAH = "olah==0.5.4"
INSTALL_LIMIT_S = 240
LIMIT_S = 60
LARGE = random.Random(31).randbytes(300_000)
FILES = {"m.gguf": LARGE, "config.json": b"{}", "sub/vocab.txt": b"words"}

pytestmark = pytest.mark.timeout(INSTALL_LIMIT_S + 120)


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    """The program `olah-cli`; the test is skipped, with the reason, where it cannot be had."""
    folder = Path(request.config.cache.mkdir("olah")) / f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = folder / "bin" / "olah-cli"
    if not program.exists():
        commands = [
            [sys.executable, "-m", "venv", str(folder)],
            [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", OLAH],
        ]
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"{OLAH} was not installed within {INSTALL_LIMIT_S} s")
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"{OLAH} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
    return program


@pytest.fixture
def serve(program: Path, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Start olah with lines of its configuration; give its address."""
    started: list[subprocess.Popen[bytes]] = []

    def serve(lines: str) -> str:
        port = free_port()
        folder = tmp_path / "olah"
        folder.mkdir()
        config = folder / "olah.toml"
        basic = f'[basic]\nhost = "127.0.0.1"\nport = {port}\nrepos-path = "{folder}/repos"\n'
        config.write_text(f"{basic}mirror-netloc = '127.0.0.1:{port}'\n{lines}\n")
        command = [program, "--config", config, "--log-path", folder / "log"]
        started.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for(f"http://127.0.0.1:{port}", started[-1])
        return f"http://127.0.0.1:{port}"

    yield serve
    for process in started:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def free_port() -> int:
    """A port that nobody has, outside of those that the system hands out: no other test is given it meanwhile."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    pytest.fail("there is no free port")


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=20).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail("olah did not start")


@pytest.fixture
def git_hub(serve: Callable[[str], str], tmp_path: Path) -> str:
    """olah on a plain git repository."""
    return serve_repository(serve, tmp_path / "mirrors", FILES)


def serve_repository(serve: Callable[[str], str], mirrors: Path, files: Mapping[str, bytes]) -> str:
    """olah on `owner/name`, a git repository of these files; its address."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    folder = mirrors / "models" / "owner" / "name"
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True, timeout=60)
    return serve(f"mirrors-path = ['{mirrors}']\n[accessibility]\noffline = true")


def test_a_model_comes_from_plain_git_repositories(desk, git_hub: str) -> None:
    desk.set(endpoint=git_hub)
    found = desk.obtain("owner/name")

    assert found.path.read_bytes() == LARGE
    assert desk.obtain(f"hf:owner/name@{found.revision}:vocab.txt").path.read_bytes() == b"words"
    assert desk.refused("hf:owner/name:none").code is Code.FILE_NOT_FOUND
    assert desk.refused("hf:owner/none").code is Code.AUTH_REQUIRED


def test_a_model_comes_through_a_mirror_of_the_hub(desk, hub, serve: Callable[[str], str]) -> None:
    hub.add(dict(FILES))
    at, storage = hub.url.removeprefix("http://"), hub.storage_url.removeprefix("http://")
    desk.set(endpoint=serve(f"hf-scheme = 'http'\nhf-netloc = '{at}'\nhf-lfs-netloc = '{storage}'"))
    found = desk.obtain("owner/name")

    assert found.path.read_bytes() == LARGE
    assert found.revision == hub.repositories["owner/name"].branches["main"]
    assert desk.obtain("hf:owner/name:config.json").path.read_bytes() == b"{}"


@pytest.mark.model
@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="needs llama-cpp-python")
def test_a_model_is_added_from_a_plain_git_repository(
    serve: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_from_file_location("gguf_writer", Path(__file__).parents[1] / "gguf" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    writer = module_from_spec(spec)
    spec.loader.exec_module(writer)
    metadata = writer.tiny_metadata(**{"tokenizer.chat_template": "{{ messages[0]['content'] }}"})
    data = writer.gguf_bytes(metadata, writer.tiny_tensors())
    monkeypatch.setenv("HF_ENDPOINT", serve_repository(serve, tmp_path / "mirrors", {"tiny.Q4_0.gguf": data}))
    monkeypatch.setenv("CARTDECK_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("CARTDECK_CATALOG", str(tmp_path / "catalog.toml"))
    command = [str(Path(sys.executable).with_name("cartdeck")), "add", "owner/name", "--name", "tiny", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["entry"]["origin"]["files"]["tiny.Q4_0.gguf"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert [step["step"] for step in end["steps"]][-2:] == ["smoke-test", "catalog"]
