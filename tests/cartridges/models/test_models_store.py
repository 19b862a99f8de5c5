"""The cache: complete content under its final name, and records that are only believed when the files agree."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cartdeck_models.record import Record, StoredFile, now_text, tree_digest
from cartdeck_models.staging import OLD_S, staging_folder, sweep
from cartdeck_models.store import Store

SHA_A, SHA_B = "a" * 64, "b" * 64


def record_of(*files: StoredFile, is_folder: bool = False, name: str = "m.gguf") -> Record:
    sha256 = tree_digest(files) if is_folder else files[0].sha256
    return Record("pypi:x==1/m.gguf", "pypi", "1", name, is_folder, sha256, files, now_text())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "models")
    store.prepare()
    return store


def publish_file(store: Store, content: bytes = b"12345") -> Record:
    record = record_of(StoredFile("m.gguf", len(content), SHA_A))
    with store.staging() as folder:
        (folder / "m.gguf.part").write_bytes(content)
        store.publish("key", record, folder / "m.gguf.part")
    return record


def publish_folder(store: Store) -> Record:
    record = record_of(StoredFile("a", 1, SHA_A), StoredFile("sub/b", 2, SHA_B), is_folder=True, name="folder")
    with store.staging() as folder:
        (folder / "f.part" / "sub").mkdir(parents=True)
        (folder / "f.part" / "a").write_bytes(b"1")
        (folder / "f.part" / "sub" / "b").write_bytes(b"22")
        store.publish("key", record, folder / "f.part")
    return record


def test_what_was_published_is_found_under_its_hash(store: Store) -> None:
    record = publish_file(store)

    assert store.find("key") == record
    assert store.path_of(record) == store.root / "content" / SHA_A / "m.gguf"
    assert store.path_of(record).read_bytes() == b"12345"
    assert record.size_bytes == 5
    assert not [path for path in (store.root / "staging").iterdir() if path.is_dir()]


def test_a_folder_is_found_with_all_its_files(store: Store) -> None:
    record = publish_folder(store)

    assert store.find("key") == record
    assert [store.file_path(record, file).read_bytes() for file in record.files] == [b"1", b"22"]


def test_the_tree_digest_is_that_of_a_sha256sum_listing() -> None:
    import hashlib

    files = [StoredFile("sub/b", 2, SHA_B), StoredFile("a", 1, SHA_A)]

    assert tree_digest(files) == hashlib.sha256(f"{SHA_A}  a\n{SHA_B}  sub/b\n".encode()).hexdigest()


@pytest.mark.parametrize("change", ["shorter", "longer", "gone", "link"])
def test_a_file_that_is_not_as_recorded_is_not_found(store: Store, change: str) -> None:
    path = store.path_of(publish_file(store))
    if change in ("gone", "link"):
        path.unlink()
    if change == "link":
        path.symlink_to(__file__)
    if change in ("shorter", "longer"):
        path.write_bytes(b"1234" if change == "shorter" else b"123456")

    assert store.find("key") is None


def test_publishing_again_mends_a_damaged_file_and_a_damaged_folder(store: Store) -> None:
    path = store.path_of(publish_file(store))
    path.write_bytes(b"1")
    publish_file(store)
    assert path.read_bytes() == b"12345"

    record = publish_folder(store)
    (store.path_of(record) / "a").unlink()
    publish_folder(store)
    assert store.find("key") == record


def test_a_reader_of_the_old_file_keeps_what_it_opened(store: Store) -> None:
    path = store.path_of(publish_file(store))
    with path.open("rb") as reader:
        publish_file(store)
        assert reader.read() == b"12345"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', '{"format": 99}', "\xff"])
def test_a_broken_record_is_as_good_as_none(store: Store, text: str) -> None:
    publish_file(store)
    (store.root / "records" / "key.json").write_text(text, encoding="latin-1")

    assert store.find("key") is None


@pytest.mark.parametrize(
    ("key", "value"), [("name", "../../evil"), ("sha256", "../.."), ("files", [{"path": "../x"}]), ("is_folder", "yes")]
)
def test_a_record_that_was_tampered_with_is_not_believed(store: Store, key: str, value: object) -> None:
    publish_file(store)
    path = store.root / "records" / "key.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    assert store.find("key") is None


def test_the_last_use_is_kept(store: Store) -> None:
    publish_file(store)
    path = store.root / "records" / "key.json"
    os.utime(path, (0, 0))
    store.find("key")

    assert path.stat().st_mtime > time.time() - 60


def test_a_staging_folder_is_gone_after_a_failure(tmp_path: Path) -> None:
    def fail() -> None:
        with staging_folder(tmp_path) as folder:
            (folder / "x.part").write_bytes(b"x")
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - the one raised above
        fail()

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib\nfrom cartdeck_models.staging import staging_folder\n"
        "with staging_folder(pathlib.Path(sys.argv[1])) as folder:\n"
        "    (folder / 'x.part').write_bytes(b'x' * 1000)\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    left = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(left) == 1

    assert sweep(tmp_path) == left
    assert not left[0].exists()


def test_what_a_process_left_is_swept_also_while_nobody_has_asked_for_its_end(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "print('started', flush=True)"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"started\n"  # to its end: the process is a zombie now, or about to be one
        folder = tmp_path / f"{socket.gethostname()}-{process.pid}-0123456789ab"
        folder.mkdir()
        end_s = time.monotonic() + 20
        while sweep(tmp_path) != [folder]:
            assert time.monotonic() < end_s
            time.sleep(0.01)


def test_a_folder_in_use_is_not_swept(tmp_path: Path) -> None:
    with staging_folder(tmp_path) as folder:
        assert sweep(tmp_path) == []
        os.utime(folder, (time.time() - 2 * OLD_S,) * 2)
        assert sweep(tmp_path) == []
        assert folder.exists()


def test_a_folder_of_another_machine_is_swept_only_when_it_is_old(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere-1-0123456789ab"
    folder.mkdir()
    assert sweep(tmp_path) == []

    os.utime(folder, (time.time() - 2 * OLD_S,) * 2)
    assert sweep(tmp_path) == [folder]


def test_a_folder_that_is_not_ours_is_never_swept(tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    os.utime(folder, (0, 0))

    assert sweep(tmp_path) == []
