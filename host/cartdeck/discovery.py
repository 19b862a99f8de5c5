"""Owns the search for cartridges: where they are declared, and their manifests, read as files.

It does not know routing or processes, and never imports a cartridge. One that is broken is reported beside the others
and stops nobody.
"""

import hashlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import platformdirs

from cartdeck.environment import child_environment, new_session_mark
from cartdeck.sessions.process import sdk_command, tied_to_host
from cartdeck.settings import Settings
from cartdeck_protocol.caps import Manifest, Requirement
from cartdeck_protocol.errors import CartdeckError, Code, failure

ENTRY_POINT_GROUP: Final = "cartdeck.cartridges"
DESCRIPTION_FILE: Final = "cartridge.toml"
_DESCRIPTION_KEYS: Final = frozenset({"command", "manifest"})


@dataclass(slots=True, frozen=True)
class Cartridge:
    """A cartridge as it was found. `command` serves it; `origin` says where it is declared, for messages."""

    manifest: Manifest
    command: tuple[str, ...]
    origin: str
    is_child_of_host: bool = False
    """The program that serves is the very process that the host starts, with nothing in between."""
    missing: tuple[Requirement, ...] = ()
    """What it needs and does not find here; empty when it can be started."""

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def is_available(self) -> bool:
        return not self.missing

    @property
    def missing_text(self) -> str:
        """ "torch and transformers (bring them with: pip install 'cartdeck[torch]')" """
        modules: dict[str, list[str]] = {}
        for need in self.missing:
            modules.setdefault(need.install, []).append(need.module)
        return ", ".join(
            f"{' and '.join(names)} (bring {'it' if len(names) == 1 else 'them'} with: {install})"
            for install, names in modules.items()
        )


@dataclass(slots=True, frozen=True)
class BrokenCartridge:
    """A declaration that leads to no usable cartridge, and why."""

    origin: str
    error: CartdeckError


@dataclass(slots=True)
class Discovery:
    cartridges: list[Cartridge] = field(default_factory=list[Cartridge])
    broken: list[BrokenCartridge] = field(default_factory=list[BrokenCartridge])


def discover(settings: Settings) -> Discovery:
    """All cartridges: those of the installed packages, then those of the settings' folders.

    It reads files and may run `COMMAND manifest`, so it is called in a worker thread. Of two with one name the first
    found stays, and the other is reported.
    """
    found = Discovery()
    origins: dict[str, str] = {}
    for declaration in (*_declared_by_packages(), *_declared_in_folders(settings.cartridge_folders)):
        try:
            cartridge = declaration.read(settings)
            if cartridge.name in origins:
                raise failure(
                    Code.AMBIGUOUS_CAP,
                    f"a cartridge named {cartridge.name} was already found at {origins[cartridge.name]}",
                )
        except CartdeckError as error:
            found.broken.append(BrokenCartridge(declaration.origin, error))
            continue
        except Exception as error:  # nothing that a declaration says may keep the others from being found
            message = f"{declaration.origin} cannot be read: {type(error).__name__}: {error}"
            found.broken.append(BrokenCartridge(declaration.origin, failure(Code.INTERNAL, message)))
            continue
        origins[cartridge.name] = cartridge.origin
        found.cartridges.append(cartridge)
    return found


# -- cartridges of this environment


@dataclass(slots=True, frozen=True)
class _PackageDeclaration:
    module: str

    @property
    def origin(self) -> str:
        return f"the package {self.module}"

    def read(self, _settings: Settings) -> Cartridge:
        path = _package_folder(self.module) / "manifest.json"
        manifest = Manifest.from_json(_read(path), place=str(path))
        missing = tuple(need for need in manifest.requires if not _is_importable(need.module))
        return Cartridge(manifest, sdk_command(self.module), self.origin, True, missing)


def _declared_by_packages() -> Iterator[_PackageDeclaration]:
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    for module in sorted({point.module for point in points}):
        yield _PackageDeclaration(module)


def _package_folder(module: str) -> Path:
    """Where the package lies. Only its top-level name is looked up: that is found without importing anything."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise failure(Code.CARTRIDGE_UNAVAILABLE, f"the module {top} cannot be found: {error}") from None
    if spec is None or not spec.submodule_search_locations:
        raise failure(Code.CARTRIDGE_UNAVAILABLE, f"there is no package {top} in this Python")
    return Path(next(iter(spec.submodule_search_locations)), *inner)


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


# -- cartridges of any language or environment


@dataclass(slots=True, frozen=True)
class _FolderDeclaration:
    path: Path

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self, settings: Settings) -> Cartridge:
        text = _read(self.path)
        command, manifest_name = self._parse(text)
        if manifest_name is None:
            data, place = _ask_for_manifest(command, text, settings), f"{command[0]} manifest"
        else:
            path = self.path.parent / manifest_name
            data, place = _read(path), str(path)
        return Cartridge(Manifest.from_json(data, place=place), tied_to_host(command), self.origin)

    def _parse(self, text: bytes) -> tuple[tuple[str, ...], str | None]:
        """Command and manifest name. In the command, {folder} stands for the folder of this file, and a program
        named by a relative path with a slash lies there."""
        try:
            table = tomllib.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, a number or a nesting without end
            raise failure(Code.BAD_ARGUMENT, f"{self.path} is not TOML: {error}") from None
        unknown = sorted(table.keys() - _DESCRIPTION_KEYS)
        if unknown:
            known = ", ".join(sorted(_DESCRIPTION_KEYS))
            raise failure(Code.BAD_ARGUMENT, f"{self.path}: {unknown[0]} is unknown; known: {known}")
        command, manifest = table.get("command"), table.get("manifest")
        if not _is_command(command) or not isinstance(manifest, str | None):
            raise failure(Code.BAD_ARGUMENT, f"{self.path}: command must be a list of texts, and manifest a file name")
        if "\0" in "".join([*cast("list[str]", command), manifest or ""]):
            raise failure(Code.BAD_ARGUMENT, f"{self.path}: command and manifest must be without NUL characters")
        folder = self.path.parent.absolute()
        parts = [part.replace("{folder}", str(folder)) for part in cast("list[str]", command)]
        if "/" in parts[0]:
            parts[0] = str(folder / parts[0])
        if shutil.which(parts[0]) is None:
            raise failure(Code.FILE_NOT_FOUND, f"{self.path}: there is no program {parts[0]}")
        return tuple(parts), manifest


def _is_command(value: Any) -> bool:
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    return len(parts) > 0 and all(isinstance(part, str) for part in parts)


def _declared_in_folders(folders: Iterable[Path]) -> Iterator[_FolderDeclaration]:
    for folder in folders:
        try:
            paths = sorted(folder.glob(f"*/{DESCRIPTION_FILE}"))
        except (OSError, ValueError):  # not there, or no name that a folder can have
            continue
        for path in paths:
            yield _FolderDeclaration(path)


def _ask_for_manifest(command: tuple[str, ...], description: bytes, settings: Settings) -> bytes:
    """What `COMMAND manifest` prints. Kept under a hash of the description and of the files that the command names,
    so that the program runs once and again after it changed."""
    digest = hashlib.sha256(description)
    for part in (shutil.which(command[0]) or command[0], *command[1:]):
        path = Path(part)
        if path.is_file():
            status = path.stat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    kept = platformdirs.user_cache_path("cartdeck") / "manifests" / f"{digest.hexdigest()}.json"
    if kept.is_file():
        return _read(kept)
    environment = child_environment(mark=new_session_mark(), may_use_network=False, durations={})
    try:
        done = subprocess.run(
            (*command, "manifest"),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=settings.start.step_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise failure(Code.START_FAILED, f"`{' '.join(command)} manifest` failed: {error}") from None
    Manifest.from_json(done.stdout, place=f"{command[0]} manifest")  # what is not a manifest is not kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(done.stdout)
    except OSError:
        pass  # a cache that cannot be written costs a start of the program, not the cartridge
    return done.stdout


# -- files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise failure(Code.FILE_NOT_FOUND, f"{path} cannot be read: {error.strerror}") from None
