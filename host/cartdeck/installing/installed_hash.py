"""Owns the hash of what was installed, and the check that it is still that.

The cartridge's own files count by their content, its libraries by their records, which hold the hashes that their files
had when they were installed. So a check reads megabytes, not gigabytes. It does not know where a hash is kept.
"""

import csv
import hashlib
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

from cartdeck_protocol.errors import Code, failure

_READ_BYTES: Final = 1024 * 1024
_LEFT_OUT: Final = re.compile(r".*\.py[co]$|.*\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)$")
_verified: dict[Path, tuple[str, tuple[tuple[str, int, int], ...]]] = {}
_verifying: Final = Lock()


def site_folder(environment: Path) -> Path:
    """The folder of the modules of a virtual environment. Raises FILE_NOT_FOUND."""
    found = next(iter(sorted(environment.glob("lib/python3*/site-packages"))), None)
    if found is None:
        raise failure(Code.FILE_NOT_FOUND, f"{environment} is no virtual environment any more; install it again.")
    return found


def installed_hash(environment: Path, distribution: str) -> str:
    """ "sha256:…" of what an environment holds. Raises FILE_NOT_FOUND where the distribution is not there."""
    site = site_folder(environment)
    digest = hashlib.sha256()
    for record in sorted(site.glob("*.dist-info/RECORD")):
        digest.update(f"{record.parent.name}\0".encode())
        for row in sorted(_rows(record)):
            digest.update(f"{row}\n".encode())
    for path in _own_files(site, distribution):
        digest.update(f"{path.relative_to(environment)}\0".encode())
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
        digest.update(b"\0")
    return f"sha256:{digest.hexdigest()}"


def verify_installed(environment: Path, distribution: str, expected: str) -> None:
    """Raise HASH_MISMATCH unless the environment is what was installed. One that did not change since this process
    looked is not read again: size and time of change of its files say so."""
    with _verifying:
        try:
            stamp = tuple(_stamps(environment, distribution))
            if _verified.get(environment) == (expected, stamp):
                return
            found = installed_hash(environment, distribution)
        except OSError as error:
            found = f"a file that cannot be read: {error}"
        else:
            if found == expected:
                _verified[environment] = (expected, stamp)
                return
    message = f"{distribution} in {environment} is not what was installed: found {found}, expected {expected}"
    again = "Install it again from where it came: cartdeck install FOLDER, WHEEL or NAME --isolated."
    raise failure(Code.HASH_MISMATCH, message, details={"remedy": again})


def _rows(record: Path) -> Iterator[str]:
    """The lines of a RECORD that say what was installed: compiled files and what names this place are left out."""
    with record.open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file):
            if row and not _LEFT_OUT.match(row[0]) and not row[0].startswith(".."):
                yield ",".join(row)


def _own_files(site: Path, distribution: str) -> list[Path]:
    found = next(iter(importlib.metadata.distributions(name=distribution, path=[str(site)])), None)
    if found is None:
        raise failure(Code.FILE_NOT_FOUND, f"{distribution} is not in {site} any more; install it again.")
    names = sorted(str(path) for path in found.files or () if not _LEFT_OUT.match(str(path)))
    return [site / name for name in names if not name.startswith("..")]


def _stamps(environment: Path, distribution: str) -> Iterator[tuple[str, int, int]]:
    site = site_folder(environment)
    for path in (*sorted(site.glob("*.dist-info/RECORD")), *_own_files(site, distribution)):
        status = path.stat()
        yield str(path), status.st_size, status.st_mtime_ns
