"""Wheels made on the spot, and a package index and a hub on loopback that can be slow, cut off or wrong."""

import base64
import hashlib
import importlib.util
import os
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cartdeck_models.library import Library
from cartdeck_models.obtained import Obtained
from cartdeck_models.settings import HubSettings, Settings
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Advance, Task
from cartdeck_protocol.errors import CartdeckError

FAKE_HUB = Path(__file__).parents[2] / "data" / "hub" / "fake_hub.py"
PIECE_BYTES = 64 * 1024


def wheel_bytes(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "demo_model",
    version: str = "1.0",
    record: str | None = None,
) -> bytes:
    """A wheel with `files`; its RECORD lists their hashes unless `record` is given."""
    info = f"{name}-{version}.dist-info"
    listed = "".join(f"{path},sha256={record_hash(data)},{len(data)}\n" for path, data in files.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", listed if record is None else record)
    return path.read_bytes()


def record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@dataclass
class Hosted:
    """One wheel of the index, and how it is served."""

    data: bytes
    rate_bytes_s: float = 0.0
    cut_at: int | None = None
    has_length: bool = True


@dataclass
class Index:
    """A package index on loopback; `gets` counts the requests for each wheel."""

    url: str = ""
    wheels: dict[str, Hosted] = field(default_factory=dict[str, Hosted])
    gets: dict[str, int] = field(default_factory=dict[str, int])
    open_transfers: int = 0
    started: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, data: bytes, *, name: str = "demo_model", version: str = "1.0", **how: object) -> Hosted:
        hosted = Hosted(data, **how)  # type: ignore[arg-type]
        self.wheels[f"{name}-{version}-py3-none-any.whl"] = hosted
        return hosted

    def wait_idle(self, limit_s: float) -> bool:
        """Whether no transfer is open any more within `limit_s` seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: self.open_transfers == 0, limit_s)

    def count(self, change: int) -> None:
        with self.changed:
            self.open_transfers += change
            self.changed.notify_all()


def handler_of(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            if name:
                self.send_wheel(name)
            else:
                self.send_page(self.path.rstrip("/").rpartition("/")[2].replace("-", "_"))

        def send_page(self, distribution: str) -> None:
            names = [name for name in index.wheels if name.startswith(f"{distribution}-")]
            lines = [
                f'<a href="/files/{name}#sha256={hashlib.sha256(index.wheels[name].data).hexdigest()}">{name}</a>'
                for name in names
            ]
            body = "\n".join(lines).encode()
            self.send_response(200 if names else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_wheel(self, name: str) -> None:
            hosted = index.wheels[name]
            index.gets[name] = index.gets.get(name, 0) + 1
            self.send_response(200)
            if hosted.has_length:
                self.send_header("Content-Length", str(len(hosted.data)))
            self.close_connection = True
            self.end_headers()
            index.count(1)
            try:
                self.send_slowly(hosted)
            except OSError:
                return
            finally:
                index.count(-1)

        def send_slowly(self, hosted: Hosted) -> None:
            data = hosted.data[: hosted.cut_at]
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                self.wfile.write(piece)
                index.started.set()
                if hosted.rate_bytes_s and index.closing.wait(len(piece) / hosted.rate_bytes_s):
                    return

    return Handler


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The index that pip is set up for in this test, and the only one."""
    index = Index()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(index))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONSTRAINT", "PIP_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": index.url,
        "PIP_RETRIES": "0",
        "PIP_DEFAULT_TIMEOUT": "10",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    yield index
    index.closing.set()
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def make_wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """`make_wheel({"folder/file": b"…"}, record=…)`: the bytes of a wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    return lambda files, **how: wheel_bytes(folder, files, **how)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool], float], bool]:
    """`eventually(question, limit_s)`: whether the answer became yes in time."""

    def wait(question: Callable[[], bool], limit_s: float) -> bool:
        end_s = time.monotonic() + limit_s
        while not question():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.02)
        return True

    return wait


def load_fake_hub() -> ModuleType:
    """The module tests/data/hub/fake_hub.py, which other programs load by its path too."""
    spec = importlib.util.spec_from_file_location("fake_hub", FAKE_HUB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_hub"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake_hub() -> ModuleType:
    return sys.modules.get("fake_hub") or load_fake_hub()


@pytest.fixture
def hub(fake_hub: ModuleType) -> Iterator[Any]:
    """A hub on loopback, `fake_hub.FakeHub`."""
    yield from fake_hub.serving()


@pytest.fixture(autouse=True)
def no_real_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the real hub, or has the token or cache of whoever runs it."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_OFFLINE", "CARTDECK_MODELS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN_PATH", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Desk:
    """A library with a cache of its own, which asks `hub`; `told` has every advance."""

    def __init__(self, root: Path, endpoint: str) -> None:
        self.root = root
        self.hub_settings = HubSettings(endpoint=endpoint, quiet_limit_s=10.0)
        self.settings = Settings(root, lock_limit_s=20.0, stall_limit_s=6.0, hub=self.hub_settings)
        self.told: list[Advance] = []
        self.is_cancelled = threading.Event()
        self._libraries: list[Library] = []

    def set(self, **how: Any) -> None:
        """Change settings of the hub."""
        self.hub_settings = replace(self.hub_settings, **how)
        self.settings = replace(self.settings, hub=self.hub_settings)

    def library(self) -> Library:
        self._libraries.append(Library(self.settings))
        return self._libraries[-1]

    def close(self) -> None:
        for library in self._libraries:
            library.close(5.0)

    def obtain(self, spec: str, library: Library | None = None) -> Obtained:
        task = Task(self.told.append, self.is_cancelled.is_set)
        return (library or self.library()).obtain(parse_spec(spec), task)

    def refused(self, spec: str) -> CartdeckError:
        """The error that obtaining `spec` ends in."""
        with pytest.raises(CartdeckError) as caught:
            self.obtain(spec)
        return caught.value

    def phases(self) -> list[str]:
        return list(dict.fromkeys(advance.phase for advance in self.told))

    def leftovers(self) -> list[Path]:
        """Files of transfers: parts, partial files of huggingface_hub, staged ones."""
        names = (".part", ".incomplete", ".tmp")
        return [path for path in self.root.rglob("*") if path.is_file() and path.name.endswith(names)]


@pytest.fixture
def desk(tmp_path: Path, hub: Any) -> Iterator[Desk]:
    desk = Desk(tmp_path / "models", hub.url)
    yield desk
    desk.close()
