"""Servers as they are started from a command line, on the double `actor` and on the real cartridges."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol.caps import build_manifest

pytest.importorskip("starlette", reason="needs the extra server")
openai = pytest.importorskip("openai", reason="needs the client that the server is made for")

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
DATA = Path(__file__).parents[2] / "data" / "cartridges"
LIMIT_S = 30.0
CONFIG = """
cartridge_folders = ["{folder}"]
[instances]
limit = 64
[call]
tick_s = 0.1
[stop]
close_s = 0.5
term_s = 0.5
"""


def declare_actor(place: Path, *others: str) -> dict[str, str]:
    """Puts the double, and others by their names, where a server finds them; the environment for that server."""
    for name in ("actor", *others):
        source, package = DATA / name, place / "packages" / name
        package.mkdir(parents=True)
        manifest = build_manifest((source / "manifest.toml").read_text("utf-8"), lambda alias: None)
        (package / "manifest.json").write_bytes(manifest.to_json())
        (package / "__init__.py").write_bytes((source / "__init__.py").read_bytes())
        folder = place / "cartridges" / name
        folder.mkdir(parents=True)
        command = f'["{sys.executable}", "-P", "-m", "cartdeck_sdk", "{name}"]'
        declaration = f'command = {command}\nmanifest = "{package / "manifest.json"}"\n'
        (folder / "cartridge.toml").write_text(declaration, "utf-8")
    (place / "config.toml").write_text(CONFIG.format(folder=place / "cartridges"), "utf-8")
    known = os.environ.get("PYTHONPATH", "")
    return {
        "CARTDECK_CONFIG": str(place / "config.toml"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(place / "packages"), known])),
    }


class Server:
    """A server that runs, and the ways to ask it."""

    def __init__(self, environment: dict[str, str], *options: str) -> None:
        command = [CARTDECK, "serve", "--port", "0", "--json", *options]
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=LIMIT_S)
        told = json.loads(line)
        self.url: str = told["url"]
        self._is_stopping = False
        self._clients: list[Any] = []
        self.port = int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> Any:
        made = openai.OpenAI(
            **{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 60, **options}
        )
        self._clients.append(made)
        return made

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """One request; status, headers, body. A body that is not bytes goes as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent = {"content-type": "application/json", **sent}
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, data

    def get(self, path: str) -> Any:
        return json.loads(self.ask("GET", path)[2])

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        status, _, data = self.ask("POST", path, body, **headers)
        return status, json.loads(data)

    def send(self, path: str, body: Any) -> socket.socket:
        """A request on a bare socket, whose answer is for the caller to read, or not."""
        data = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return connection

    def open_calls(self, model: str) -> dict[str, int]:
        """The open calls of a model by their phase."""
        found: dict[str, int] = {}
        for session in self.get("/stats")["sessions"]:
            if model in session["instance"]:
                for phase, count in session["requests"].items():
                    found[phase] = found.get(phase, 0) + count
        return {phase: count for phase, count in found.items() if count}

    def wait_for(self, condition: Callable[[], Any], *, limit_s: float = LIMIT_S) -> float:
        """Waits until `condition()` holds; the seconds that it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < limit_s, f"not within {limit_s} s"
            time.sleep(0.01)
        return time.monotonic() - began

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Asks it to stop; a second time ends it at once."""
        self._is_stopping = True
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Its end, which is asked for unless it was; its exit code and what it logged."""
        if not self._is_stopping:
            self.stop()
        _, log = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, log

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(scope="session")
def actor_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return declare_actor(tmp_path_factory.mktemp("actor"))


@contextmanager
def serving(environment: dict[str, str], *options: str) -> Iterator[Server]:
    server = Server(environment, *options)
    try:
        yield server
    finally:
        server.end()
        server.close_clients()


@pytest.fixture(scope="session")
def start(actor_environment: dict[str, str]) -> Callable[..., Any]:
    """Starts a server with options of its own: `with start("--grace", "1") as server`."""
    return lambda *options, **more: serving({**actor_environment, **more}, *options)


@pytest.fixture(scope="session")
def rewrite() -> Callable[[Path, str], None]:
    """`rewrite(path, text)`: as editors save a file; who looks meanwhile sees the old text or the new one, not half."""

    def write(path: Path, text: str) -> None:
        staged = path.with_name(f"{path.name}.new")
        staged.write_text(text)
        staged.replace(path)

    return write


@pytest.fixture(scope="session")
def warden_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return declare_actor(tmp_path_factory.mktemp("warden"), "warden")


@pytest.fixture(scope="session")
def start_guarded(warden_environment: dict[str, str]) -> Callable[..., Any]:
    """As `start`, where there are guards too."""
    return lambda *options, **more: serving({**warden_environment, **more}, *options)


@pytest.fixture(scope="module")
def server(start: Callable[..., Any]) -> Iterator[Server]:
    """One for all tests of a file that need no options. It is gone behind the file: other tests count processes."""
    with start("--grace", "1", "--max-audio", "60", "--model", "named=act:tokens=2") as server:
        yield server


@pytest.fixture(scope="module")
def talkative(start: Callable[..., Any]) -> Iterator[Server]:
    """One whose streams say something after 0.3 s of silence."""
    with start("--comment-every", "0.3", "--grace", "1") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    return server.client()
