"""What is kept: listed, verified by hashing it anew, and removed without hurting what else is there."""

import hashlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from cartdeck_models.inventory import Inventory
from cartdeck_models.record import Record, StoredFile
from cartdeck_models.removal import remove
from cartdeck_models.settings import HubSettings, Settings
from cartdeck_models.spec import parse_spec
from cartdeck_models.store import Store
from cartdeck_models.task import Task
from cartdeck_models.verification import verify
from cartdeck_protocol.errors import CartdeckError, Code

A, B = "a" * 40, "b" * 40


@dataclass
class Caches:
    """Two caches with models in them, made by hand."""

    root: Path

    @property
    def hub(self) -> Path:
        return self.root / "hub"

    @property
    def inventory(self) -> Inventory:
        return Inventory(Settings(self.root / "own", hub=HubSettings(cache_dir=self.hub)))

    def folder(self, repository: str) -> Path:
        return self.hub / f"models--{repository.replace('/', '--')}"

    def add_file(self, repository: str, commit: str, path: str, content: bytes, *, is_lfs: bool = True) -> Path:
        """A file of a snapshot, as huggingface_hub puts it there: a relative link to its blob."""
        name = hashlib.sha256(content).hexdigest() if is_lfs else git_sha1(content)
        blob = self.folder(repository) / "blobs" / name
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        place = self.folder(repository) / "snapshots" / commit / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(blob, place.parent))
        return place

    def add_ref(self, repository: str, name: str, commit: str) -> Path:
        path = self.folder(repository) / "refs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)
        return path

    def add_wheel_model(self, distribution: str, content: bytes, name: str = "m.gguf") -> Path:
        """A file that came out of a wheel, in our own cache."""
        spec = parse_spec(f"pypi:{distribution}==1.0/{distribution}/{name}")
        store = Store(self.root / "own")
        store.prepare()
        sha256 = hashlib.sha256(content).hexdigest()
        record = Record(
            spec.canonical,
            "pypi",
            "1.0",
            name,
            False,
            sha256,
            (StoredFile(name, len(content), sha256),),
            "2026-01-01T00:00:00+00:00",
        )
        with store.staging() as folder:
            (folder / name).write_bytes(content)
            return store.publish(spec.key, record, folder / name)

    def verify(self, text: str, is_cancelled: Callable[[], bool] = lambda: False) -> dict[str, object]:
        inventory = self.inventory
        task = Task(lambda _: None, is_cancelled)
        return verify(inventory, inventory.find(parse_spec(text)), task, lambda *_: None)

    def remove(self, text: str) -> dict[str, object]:
        inventory = self.inventory
        return remove(inventory, inventory.find(parse_spec(text)))

    def specs(self) -> list[str]:
        return [model.spec for model in self.inventory.models()]


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def caches(tmp_path: Path) -> Caches:
    return Caches(tmp_path)


def refused(call: Callable[[], object]) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        call()
    return caught.value


def test_nothing_is_listed_where_there_is_no_cache(caches: Caches) -> None:
    assert caches.inventory.models() == []


def test_both_caches_are_listed_with_sizes_refs_hashes_and_times(caches: Caches) -> None:
    caches.add_wheel_model("demo", b"wheel")
    place = caches.add_file("o/m", A, "q/m.gguf", b"hub model")
    caches.add_file("o/m", A, "config.json", b"{}", is_lfs=False)
    caches.add_ref("o/m", "main", A)
    hub, wheel = (model.to_plain() for model in caches.inventory.models())
    assert (hub["spec"], hub["refs"], hub["size_bytes"], hub["verified"]) == (f"hf:o/m@{A}", ["main"], 11, None)
    assert {"path": str(place), "size_bytes": 9, "sha256": hashlib.sha256(b"hub model").hexdigest()} in hub["files"]
    assert (wheel["spec"], wheel["revision"], wheel["size_bytes"]) == ("pypi:demo==1.0/demo/m.gguf", "1.0", 5)
    assert wheel["verified"] == "2026-01-01T00:00:00+00:00"
    assert wheel["last_used"][:4].isdigit()
    json.dumps([hub, wheel])


def test_what_verifying_finds_right_is_marked_with_the_time(caches: Caches) -> None:
    caches.add_wheel_model("demo", b"wheel")
    caches.add_file("o/m", A, "m.gguf", b"hub model")
    caches.add_file("o/m", A, "config.json", b"{}", is_lfs=False)
    found = caches.verify(f"hf:o/m@{A}")
    assert [file["is_intact"] for file in found["files"]] == [True, True]  # type: ignore[index]
    caches.verify("pypi:demo==1.0/demo/m.gguf")
    assert [model.to_plain()["verified"] >= found["verified"] for model in caches.inventory.models()] == [True, True]


def test_a_mark_does_not_outlive_a_change_of_the_content(caches: Caches) -> None:
    place = caches.add_file("o/m", A, "m.gguf", b"hub model")
    caches.verify("hf:o/m")
    place.resolve().write_bytes(b"hub xxxxx")
    assert caches.inventory.models()[0].to_plain()["verified"] is None


@pytest.mark.parametrize("is_lfs", [True, False])
def test_content_that_was_changed_without_a_change_of_size_is_found(caches: Caches, is_lfs: bool) -> None:
    place = caches.add_file("o/m", A, "m.gguf", b"hub model", is_lfs=is_lfs)
    caches.verify("hf:o/m")
    place.resolve().write_bytes(b"hub xxxxx")
    error = refused(lambda: caches.verify("hf:o/m"))
    assert error.code is Code.HASH_MISMATCH
    assert f"cartdeck rm hf:o/m@{A}" in error.message
    bad = error.details["files"][0]
    assert bad["expected"] == place.resolve().name
    assert bad["got"] == (hashlib.sha256(b"hub xxxxx").hexdigest() if is_lfs else git_sha1(b"hub xxxxx"))


def test_a_damaged_wheel_model_is_found_and_its_record_stays(caches: Caches) -> None:
    caches.add_wheel_model("demo", b"wheel").write_bytes(b"whxxl")
    assert refused(lambda: caches.verify("pypi:demo==1.0/demo/m.gguf")).code is Code.HASH_MISMATCH
    assert caches.inventory.models()[0].to_plain()["verified"] == "2026-01-01T00:00:00+00:00"


def test_files_without_links_are_verified_by_the_listing_that_was_kept(caches: Caches) -> None:
    place = caches.folder("o/m") / "snapshots" / A / "m.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"content")
    assert caches.verify("hf:o/m")["files"][0]["is_intact"] is None  # type: ignore[index]
    listing = {"m.gguf": {"size": 7, "blob_id": "0" * 40, "lfs_sha256": hashlib.sha256(b"content").hexdigest()}}
    tree = caches.folder("o/m") / "trees" / f"{A}.json"
    tree.parent.mkdir()
    tree.write_text(json.dumps({"format_version": 1, "files": listing}))
    assert caches.verify("hf:o/m")["files"][0]["is_intact"] is True  # type: ignore[index]


def test_verifying_reports_bytes_over_all_files(caches: Caches) -> None:
    caches.add_file("o/m", A, "a.gguf", b"x" * 3_000_000)
    caches.add_file("o/m", A, "b.gguf", b"y" * 1_000_000)
    inventory = caches.inventory
    seen: list[tuple[float, object, object]] = []
    verify(
        inventory,
        inventory.find(parse_spec("hf:o/m")),
        Task(lambda _: None, lambda: False),
        lambda fraction, message=None, work=None, total=None: seen.append((fraction, work, total)),
    )
    assert seen[-1] == (1.0, 4_000_000, 4_000_000)
    assert [fraction for fraction, _, _ in seen] == sorted(fraction for fraction, _, _ in seen)


def test_a_cancel_ends_verifying(caches: Caches) -> None:
    caches.add_file("o/m", A, "m.gguf", b"hub model")
    assert refused(lambda: caches.verify("hf:o/m", lambda: True)).code is Code.CANCELLED


def test_what_is_not_kept_is_said_with_what_is(caches: Caches) -> None:
    caches.add_file("o/m", A, "m.gguf", b"hub model")
    missing = refused(lambda: caches.inventory.find(parse_spec("hf:o/n")))
    assert missing.code is Code.MODEL_NOT_FOUND
    assert missing.message == "hf:o/n is not kept here. `cartdeck models` lists what is."
    near = refused(lambda: caches.inventory.find(parse_spec(f"hf:o/m@{A[:-1]}b")))
    assert f"Near it: hf:o/m@{A}" in near.message
    nowhere = refused(lambda: caches.inventory.find(parse_spec("./nope")))
    assert (nowhere.code, nowhere.message[:8]) == (Code.MODEL_NOT_FOUND, "'./nope'")
    assert refused(lambda: caches.inventory.find(parse_spec("e" * 300))).code is Code.MODEL_NOT_FOUND
    assert refused(lambda: caches.inventory.find(parse_spec("hf:o/m:n.gguf"))).code is Code.FILE_NOT_FOUND
    assert refused(lambda: caches.inventory.find(parse_spec("/etc/hosts"))).code is Code.UNSUPPORTED
    assert refused(lambda: caches.inventory.find(parse_spec("package:rich/x"))).code is Code.UNSUPPORTED


def test_what_is_near_comes_from_the_same_source(caches: Caches) -> None:
    caches.add_wheel_model("tiny-model", b"weights")
    caches.add_file("owner/other", A, "m.gguf", b"hub model")
    error = refused(lambda: caches.inventory.find(parse_spec("hf:owner/tiny-model")))
    assert "pypi:" not in error.message
    assert error.details["near"] == []


def test_a_model_is_found_by_commit_start_of_it_branch_file_quantization_and_path(caches: Caches) -> None:
    place = caches.add_file("o/m", A, "m.Q4_K_M.gguf", b"hub model")
    caches.add_file("o/m", B, "m.Q8_0.gguf", b"other")
    caches.add_ref("o/m", "main", A)
    for text in (
        "hf:o/m@main",
        f"hf:o/m@{A}",
        f"hf:o/m@{A[:8]}",
        "hf:o/m:Q4_K_M",
        "o/m@main:m.Q4_K_M.gguf",
        str(place),
    ):
        found = caches.inventory.find(parse_spec(text if text.startswith(("/", "hf:")) else f"hf:{text}"))
        assert [model.places for model in found] == [(place,)], text
    assert len(caches.inventory.find(parse_spec("hf:o/m"))) == 2


def test_a_removed_repository_leaves_nothing_and_says_what_it_freed(caches: Caches) -> None:
    caches.add_file("o/m", A, "m.gguf", b"hub model")
    caches.add_ref("o/m", "main", A)
    caches.add_file("o/other", B, "m.gguf", b"stays")
    caches.verify("hf:o/m")
    found = caches.remove("hf:o/m")
    assert found["freed_bytes"] == 9 + len(A)
    assert not caches.folder("o/m").exists()
    assert list((caches.root / "own" / "verified").iterdir()) == []
    assert caches.specs() == [f"hf:o/other@{B}"]


def test_content_that_another_commit_needs_stays(caches: Caches) -> None:
    caches.add_file("o/m", A, "m.gguf", b"shared")
    caches.add_file("o/m", A, "x/y/old.gguf", b"old one")
    stays = caches.folder("o/m") / "snapshots" / B / "m.gguf"
    stays.parent.mkdir(parents=True)
    stays.symlink_to("../../blobs/" + hashlib.sha256(b"shared").hexdigest())
    old, new = caches.add_ref("o/m", "refs/pr/1", A), caches.add_ref("o/m", "main", B)
    assert caches.remove(f"hf:o/m@{A}")["freed_bytes"] == len(b"old one")
    assert stays.read_bytes() == b"shared"
    assert not (caches.folder("o/m") / "snapshots" / A).exists()
    assert (old.exists(), new.exists()) == (False, True)
    assert caches.specs() == [f"hf:o/m@{B}"]


def test_one_file_of_a_model_can_be_removed(caches: Caches) -> None:
    caches.add_file("o/m", A, "m.Q4_K_M.gguf", b"four")
    caches.add_file("o/m", A, "m.Q8_0.gguf", b"eightbit")
    ref = caches.add_ref("o/m", "main", A)
    assert caches.remove("hf:o/m:Q8_0")["freed_bytes"] == 8
    assert ref.exists()
    assert [len(model.places) for model in caches.inventory.models()] == [1]
    assert len(list((caches.folder("o/m") / "blobs").iterdir())) == 1


def test_a_wheel_model_goes_and_its_content_stays_while_another_record_means_it(caches: Caches) -> None:
    first, second = caches.add_wheel_model("demo", b"same"), caches.add_wheel_model("demo2", b"same")
    assert first == second
    assert caches.remove("pypi:demo==1.0/demo/m.gguf")["freed_bytes"] == 0
    assert first.exists()
    assert caches.remove("pypi:demo2==1.0/demo2/m.gguf")["freed_bytes"] == 4
    assert not first.parent.exists()
    assert caches.specs() == []


def test_nothing_is_removed_while_a_process_has_it_mapped(caches: Caches) -> None:
    place = caches.add_file("o/m", A, "m.gguf", b"hub model")
    with place.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        error = refused(lambda: caches.remove("hf:o/m"))
    assert error.code is Code.MODEL_IN_USE
    assert error.details["processes"][0]["pid"] == os.getpid()
    assert place.exists()
    caches.remove("hf:o/m")


def test_another_process_that_has_it_open_is_named(caches: Caches) -> None:
    place = caches.add_wheel_model("demo", b"wheel")
    program = "import sys; file = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        error = refused(lambda: caches.remove("pypi:demo==1.0/demo/m.gguf"))
        process.communicate(timeout=20)
    assert f"process {process.pid}" in error.message
    caches.remove("pypi:demo==1.0/demo/m.gguf")


def test_nothing_is_removed_while_it_is_being_fetched(caches: Caches) -> None:
    place = caches.add_file("o/m", A, "m.gguf", b"hub model")
    wheel = caches.add_wheel_model("demo", b"wheel")
    key = parse_spec("pypi:demo==1.0/demo/m.gguf").key  # type: ignore[union-attr]
    hub_lock = caches.hub / ".locks" / "models--o--m" / f"{place.resolve().name}.lock"
    hub_lock.parent.mkdir(parents=True)
    with FileLock(hub_lock), FileLock(caches.inventory.store.lock_path(key)):
        assert refused(lambda: caches.remove("hf:o/m")).code is Code.LOCK_TIMEOUT
        assert refused(lambda: caches.remove("pypi:demo==1.0/demo/m.gguf")).code is Code.LOCK_TIMEOUT
    assert place.exists()
    assert wheel.exists()


def test_what_a_transfer_that_broke_off_has_left_is_listed_and_can_be_removed(caches: Caches) -> None:
    part = caches.folder("o/half") / ".parts" / ("c" * 64) / "1" / "content"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 100_000)
    caches.add_file("o/m", A, "m.gguf", b"hub model")
    half, whole = caches.inventory.models()
    assert [half.spec, whole.spec] == ["hf:o/half", f"hf:o/m@{A}"]
    assert [one.to_plain()["is_whole"] for one in (half, whole)] == [False, True]
    assert (half.size_bytes, half.to_plain()["files"]) == (100_000, [])
    error = refused(lambda: caches.verify("hf:o/half"))
    assert (error.code, "cartdeck rm hf:o/half" in error.message) == (Code.DOWNLOAD_INTERRUPTED, True)
    for text in ("hf:o/half:m.gguf", "hf:o/half"):
        assert [one.spec for one in caches.inventory.find(parse_spec(text))] == ["hf:o/half"]
    assert caches.remove("hf:o/half")["freed_bytes"] == 100_000
    assert not caches.folder("o/half").exists()
    assert caches.specs() == [f"hf:o/m@{A}"]


def test_a_dry_run_tells_the_same_and_removes_nothing(caches: Caches) -> None:
    place = caches.add_file("o/m", A, "m.gguf", b"shared")
    caches.add_file("o/m", A, "x.gguf", b"only here")
    other = caches.folder("o/m") / "snapshots" / B / "m.gguf"
    other.parent.mkdir(parents=True)
    other.symlink_to("../../blobs/" + place.resolve().name)
    inventory = caches.inventory
    for text, freed in ((f"hf:o/m@{A}", 9), ("hf:o/m", 15), ("hf:o/m:x.gguf", 9)):
        would = remove(inventory, inventory.find(parse_spec(text)), is_dry=True)
        assert would["freed_bytes"] == freed
        assert all(Path(path).exists() for path in would["removed"])
    assert caches.remove("hf:o/m") == remove_result(caches)
    assert not caches.folder("o/m").exists()


def remove_result(caches: Caches) -> dict[str, object]:
    return {
        "specs": [f"hf:o/m@{A}", f"hf:o/m@{B}"],
        "removed": [str(caches.folder("o/m"))],
        "freed_bytes": 15,
    }
