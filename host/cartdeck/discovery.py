"""Owns the search for cartridges: where they are declared, and their manifests, read as files.

It does not know routing or processes, and never imports a cartridge. One that is broken is reported beside the others
and stops nobody.
"""

import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import platformdirs

from cartdeck.cartridge_file import DESCRIPTION_FILE, CartridgeFile, read_cartridge_file
from cartdeck.environment import child_environment, new_session_mark
from cartdeck.installing.installed_hash import site_folder, verify_installed
from cartdeck.installing.lock_file import read_lock
from cartdeck.installing.version_order import version_key
from cartdeck.sessions.network_cut import network_cut
from cartdeck.sessions.process import sdk_command, tied_to_host
from cartdeck.settings import Settings
from cartdeck_protocol.caps import Manifest, Requirement
from cartdeck_protocol.errors import CartdeckError, Code, failure

ENTRY_POINT_GROUP: Final = "cartdeck.cartridges"


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
    file: CartridgeFile | None = None
    """The cartridge.toml that declares it, where one does."""
    expected_hash: str = ""
    """Of what was installed, as the lock has it; "" for what was not brought by `cartdeck install`."""

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> str:
        """That of the distribution that was installed, else that of the manifest."""
        installed = None if self.file is None else self.file.installed
        return self.manifest.version if installed is None else installed.version

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

    def verify(self) -> None:
        """Raises HASH_MISMATCH where what was installed is not what is there now. It reads files where some changed."""
        installed = None if self.file is None else self.file.installed
        if installed is not None:
            verify_installed(installed.environment, installed.distribution, self.expected_hash)


@dataclass(slots=True, frozen=True)
class BrokenCartridge:
    """A declaration that leads to no usable cartridge, and why."""

    origin: str
    error: CartdeckError


@dataclass(slots=True, frozen=True)
class PassedOver:
    """A version of a cartridge that is there and not used, since another one is."""

    cartridge: Cartridge
    reason: str


@dataclass(slots=True)
class Discovery:
    cartridges: list[Cartridge] = field(default_factory=list[Cartridge])
    broken: list[BrokenCartridge] = field(default_factory=list[BrokenCartridge])
    passed_over: list[PassedOver] = field(default_factory=list[PassedOver])


def discover(settings: Settings) -> Discovery:
    """All cartridges: those of the installed packages, then those of the settings' folders.

    It reads files and may run `COMMAND manifest`, so it is called in a worker thread. Of two with one name the first
    found stays, and the other is reported; of several versions that were installed one is used.
    """
    if settings.isolation.network == "auto":
        network_cut()  # tried out here, off the loop's thread, so that it is known when the first process starts
    found = Discovery()
    named: dict[str, list[Cartridge]] = {}
    for declaration in (*_declared_by_packages(), *_declared_in_folders(settings.cartridge_folders)):
        try:
            cartridge = declaration.read(settings)
            known = named.setdefault(cartridge.name, [])
            if known and not cartridge.expected_hash:
                raise failure(
                    Code.AMBIGUOUS_CAP,
                    f"a cartridge named {cartridge.name} was already found at {known[0].origin}",
                )
        except CartdeckError as error:
            found.broken.append(BrokenCartridge(declaration.origin, error))
            continue
        except Exception as error:  # nothing that a declaration says may keep the others from being found
            message = f"{declaration.origin} cannot be read: {type(error).__name__}: {error}"
            found.broken.append(BrokenCartridge(declaration.origin, failure(Code.INTERNAL, message)))
            continue
        known.append(cartridge)
    for versions in named.values():
        _choose(versions, found)
    return found


def cartridge_in(folder: Path, settings: Settings) -> Cartridge:
    """The cartridge that the cartridge.toml in `folder` declares, whether it is registered or not.

    Raises BAD_ARGUMENT where the file is wrong, FILE_NOT_FOUND where what it names is not there, and what reading a
    manifest raises. It may run `COMMAND manifest`.
    """
    return _FolderDeclaration(folder / DESCRIPTION_FILE).read(settings)


def _choose(versions: list[Cartridge], found: Discovery) -> None:
    """The version that was asked for, else the newest; of equal ones the first found."""
    if not versions:
        return
    pinned = _pinned(versions)
    chosen = pinned or max(versions, key=lambda one: version_key(one.version))
    found.cartridges.append(chosen)
    for one in versions:
        if one is not chosen:
            why = "was asked for" if pinned is not None else "is used: the newest, or the first of equals"
            found.passed_over.append(PassedOver(one, f"{chosen.version} from {chosen.origin} {why}"))


def _pinned(versions: list[Cartridge]) -> Cartridge | None:
    for one in versions:
        if one.expected_hash and read_lock(Path(one.origin).parent.parent).pinned.get(one.name) == one.version:
            return one
    return None


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
        message = f"an entry point names the package {top}, which is not in this Python"
        remedy = "Install its distribution again; if you wrote it, name the package in pyproject.toml as its folder is."
        raise failure(Code.CARTRIDGE_UNAVAILABLE, message, details={"remedy": remedy})
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
        data = _read(self.path)
        file = read_cartridge_file(self.path, data)
        if shutil.which(file.command[0]) is None:
            raise failure(Code.FILE_NOT_FOUND, f"{self.path}: there is no program {file.command[0]}")
        if file.manifest is None:
            manifest = Manifest.from_json(
                _ask_for_manifest(file.command, data, settings), place=f"{file.command[0]} manifest"
            )
        else:
            manifest = Manifest.from_json(_read(file.manifest), place=str(file.manifest))
        command = tied_to_host(file.command)
        if file.installed is None:
            return Cartridge(manifest, command, self.origin, file=file)
        digest = read_lock(self.path.parent.parent).hash_of(manifest.name, file.installed.version)
        if digest is None:
            message = f"{self.path}: version {file.installed.version} is not in the lock; install it again"
            raise failure(Code.MANIFEST_DRIFT, message)
        missing = _missing_in(file.installed.environment, manifest)
        return Cartridge(manifest, command, self.origin, missing=missing, file=file, expected_hash=digest)


def _missing_in(environment: Path, manifest: Manifest) -> tuple[Requirement, ...]:
    """What the cartridge needs and its own environment does not have."""
    site = [str(site_folder(environment))]
    return tuple(
        need
        for need in manifest.requires
        if importlib.machinery.PathFinder.find_spec(need.module.partition(".")[0], site) is None
    )


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
    except subprocess.CalledProcessError as error:
        raise failure(Code.START_FAILED, f"`{' '.join(command)} manifest` ended with {error.returncode}") from None
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
