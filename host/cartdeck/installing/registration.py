"""Owns what is registered in a cartridge folder: linked folders, versions that are asked for, and their removal.

It does not know pip.
"""

import errno
import shutil
from pathlib import Path
from typing import Final

from cartdeck.cartridge_file import DESCRIPTION_FILE, CartridgeFile, read_cartridge_file
from cartdeck.installing.isolated import environments_of
from cartdeck.installing.lock_file import guarded, read_lock, write_lock
from cartdeck_protocol.caps import Manifest
from cartdeck_protocol.errors import CartdeckError, Code, failure

NEWEST: Final = "newest"


def link_folder(source: Path, folder: Path) -> Path:
    """Register the cartridge in `source`, a folder that holds cartridge.toml, where it lies. The link that was made.

    Raises BAD_ARGUMENT where the file is wrong, FILE_NOT_FOUND where what it names is not there, INSUFFICIENT_STORAGE,
    NOT_WRITABLE.
    """
    source = source.absolute()
    link = folder / _name_in(source)
    try:
        with guarded(folder):
            if link.is_symlink():
                link.unlink()
            elif link.exists():
                message = f"{link} is there already, and is no link; remove it first."
                raise failure(Code.BAD_ARGUMENT, message, argument="DISTRIBUTION")
            link.symlink_to(source, target_is_directory=True)
    except OSError as error:
        reason = error.strerror or error
        code = Code.INSUFFICIENT_STORAGE if error.errno in (errno.ENOSPC, errno.EDQUOT) else Code.NOT_WRITABLE
        message = f"The folder {folder} cannot be written: {reason}; the setting cartridge_folders names it."
        raise failure(code, message) from None
    return link


def missing_program(source: Path) -> str | None:
    """The program of the cartridge in `source` that is not there or cannot be run, as one that is still to be built;
    else None. Raises BAD_ARGUMENT where its file is wrong."""
    description = source / DESCRIPTION_FILE
    program = read_cartridge_file(description, description.read_bytes()).command[0]
    return program if shutil.which(program) is None else None


def _name_in(source: Path) -> str:
    """What the cartridge in a folder is called: by its manifest, or as the folder where none is named."""
    description = source / DESCRIPTION_FILE
    path = description
    try:
        file = read_cartridge_file(description, description.read_bytes())
        if file.manifest is None:
            return source.name
        path = file.manifest
        return Manifest.from_json(path.read_bytes(), place=str(path)).name
    except OSError as error:
        if path == description:
            raise failure(Code.FILE_NOT_FOUND, f"{path} cannot be read: {error.strerror or error}") from None
        message = f"{description} names the manifest {path}, which cannot be read: {error.strerror or error}"
        remedy = f"Make it with: python -m cartdeck_sdk.manifest {source}"
        raise failure(Code.FILE_NOT_FOUND, message, details={"remedy": remedy}) from None


def pin(folder: Path, name: str, version: str) -> None:
    """Use this installed version of a cartridge from now on; `newest` leaves it to the order of versions.

    Raises BAD_ARGUMENT for one that is not installed.
    """
    with guarded(folder):
        lock = read_lock(folder)
        known = lock.versions.get(name, {})
        if version == NEWEST:
            lock.pinned.pop(name, None)
        elif version in known:
            lock.pinned[name] = version
        else:
            there = f"installed are {', '.join(known)}" if known else "no version of it was installed"
            raise failure(Code.BAD_ARGUMENT, f"{name} {version} is not there; {there}.", argument="VERSION")
        write_lock(folder, lock)


def unregister(folder: Path, name: str, version: str | None = None) -> list[str]:
    """Remove what is registered of a cartridge, one version or all: registration first, then its environment.

    Gives the versions that went, "" for a link; none where nothing is registered.
    """
    gone: list[str] = []
    with guarded(folder):
        lock = read_lock(folder)
        environments: set[Path] = set()
        for path, file in registered_files(folder):
            if path.parent.is_symlink():
                if version is None and path.parent.name == name:
                    path.parent.unlink()
                    gone.append("")
                continue
            if file.installed is None or path.parent.name != f"{name}-{file.installed.version}":
                continue
            if version is None or version == file.installed.version:
                environments |= environments_of([path])
                shutil.rmtree(path.parent)
                lock.remove(name, file.installed.version)
                gone.append(file.installed.version)
        if gone:
            write_lock(folder, lock)
        still_used = environments_of([path for path, _ in registered_files(folder)])
    for environment in environments - still_used:  # a distribution may bring several cartridges
        shutil.rmtree(environment, ignore_errors=True)
    return gone


def registered_files(folder: Path) -> list[tuple[Path, CartridgeFile]]:
    """The readable cartridge files of a folder, by path."""
    found: list[tuple[Path, CartridgeFile]] = []
    for path in sorted(folder.glob(f"*/{DESCRIPTION_FILE}")):
        try:
            found.append((path, read_cartridge_file(path, path.read_bytes())))
        except (OSError, CartdeckError):
            continue
    return found
