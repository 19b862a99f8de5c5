"""Owns a model that is on this machine already: a file or folder by its path, never hashed, never copied.

It does not know model formats. A relative path begins at the working directory of this process, which is the one that
the host was started in; `~` is the home folder.
"""

import os
import stat
from pathlib import Path

from cartdeck_models.near_name import near_names, near_sentence
from cartdeck_models.obtained import Obtained, ObtainedFile
from cartdeck_models.spec import FORMS
from cartdeck_protocol.errors import CartdeckError, Code, failure

SOURCE = "local"
MAX_FILES = 10_000
_EXPECTED = "Expected a model file, or the folder of one model."


def obtain_local(text: str) -> Obtained:
    """The file or folder that the path `text` names. Raises FILE_NOT_FOUND, with near names in the same folder."""
    return obtained_at(absolute_path(text), source=SOURCE, said=text)


def exists_locally(text: str) -> bool:
    return os.path.lexists(absolute_path(text))


def obtained_at(path: Path, *, source: str, said: str) -> Obtained:
    """What lies at the absolute `path`; `said` is what the caller wrote. Links are followed, as any reader does.

    Raises FILE_NOT_FOUND for what is not there or cannot be read, BAD_MODEL_FILE for what is neither file nor folder.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _not_there(path, said, error) from None
    if stat.S_ISDIR(mode):
        return Obtained(path, _files_under(path), source)
    if not stat.S_ISREG(mode):
        raise failure(
            Code.BAD_MODEL_FILE,
            f"{path} is neither a file nor a folder. {_EXPECTED}",
            argument="model",
        )
    if said.endswith("/"):
        raise failure(
            Code.FILE_NOT_FOUND, f"{path} is a file, not a folder: leave out the '/' at its end.", argument="model"
        )
    if not os.access(path, os.R_OK):
        raise _unreadable(path)
    return Obtained(path, (ObtainedFile(path, path.stat().st_size),), source)


def absolute_path(text: str) -> Path:
    """The absolute path that `text` means; links in it stay. Raises FILE_NOT_FOUND for the home of nobody."""
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise failure(Code.FILE_NOT_FOUND, f"{text!r}: {error}", argument="model") from error
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolves `..` by text and follows no link, unlike resolve()


def _files_under(folder: Path) -> tuple[ObtainedFile, ...]:
    files: list[ObtainedFile] = []
    for root, folders, names in os.walk(folder, onerror=_raise_unreadable):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            try:
                found = path.stat()
            except OSError:
                continue  # a link to nothing, or gone meanwhile
            if stat.S_ISREG(found.st_mode):
                files.append(ObtainedFile(path, found.st_size))
            if len(files) > MAX_FILES:
                raise failure(
                    Code.BAD_MODEL_FILE,
                    f"{folder} is a folder with more than {MAX_FILES:,} files. {_EXPECTED}",
                    argument="model",
                )
    if not files:
        raise failure(Code.FILE_NOT_FOUND, f"{folder} is a folder without a file. {_EXPECTED}", argument="model")
    return tuple(files)


def _raise_unreadable(error: OSError) -> None:
    raise _unreadable(Path(error.filename)) from error


def _unreadable(path: Path) -> CartdeckError:
    return failure(Code.FILE_NOT_FOUND, f"{path} cannot be read: permission denied.", argument="model")


def _not_there(path: Path, said: str, error: OSError) -> CartdeckError:
    if isinstance(error, PermissionError):
        return _unreadable(path)
    parent = next((folder for folder in path.parents if folder.is_dir()), Path("/"))
    missing = path.relative_to(parent).parts[0]
    try:
        names = sorted(entry.name for entry in parent.iterdir())
    except OSError:
        names = []
    link = parent / missing
    if missing in names and link.is_symlink():
        return failure(
            Code.FILE_NOT_FOUND,
            f"{link} is a link to {link.readlink()}, and there is nothing. Mend it, or give the file's own path.",
            argument="model",
        )
    where = f"There is no {missing!r} in {parent}"
    hint = near_sentence(near_names(missing, names))
    forms = "" if said.startswith(("/", ".", "~")) else f" A model spec is {', '.join(FORMS[:-1])} or {FORMS[-1]}."
    return failure(Code.FILE_NOT_FOUND, f"{path} is not there. {where}.{hint}{forms}", argument="model")
