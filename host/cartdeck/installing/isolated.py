"""Owns the way of a distribution into an environment of its own, and of the cartridges in it into the cartridge folder.

Nothing half-installed is left: the registration comes last, what fails or is cancelled before it is removed, and what a
killed process left is removed by the next one. It does not know how a cartridge is found and started.
"""

import contextlib
import importlib.metadata
import json
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import platformdirs

from cartdeck.cartridge_file import DESCRIPTION_FILE, CartridgeFile, Installed, render_cartridge_file
from cartdeck.discovery import ENTRY_POINT_GROUP
from cartdeck.installing.installed_hash import installed_hash, site_folder
from cartdeck.installing.lock_file import guarded, read_lock, replace_text, write_lock
from cartdeck.installing.offline import refuse_addresses
from cartdeck.installing.pip_install import OWN_DISTRIBUTION, pip_install
from cartdeck.installing.pip_run import Tell, make_environment
from cartdeck.sessions.leftover import engine_mark, is_mark_dead
from cartdeck_protocol.caps import Manifest
from cartdeck_protocol.errors import Code, failure

_UNFINISHED: Final = "unfinished"
_REPORT: Final = "report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One cartridge that was registered. `file` is its cartridge.toml."""

    name: str
    version: str
    file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """A cartridge that an installed distribution offers."""

    manifest: Manifest
    manifest_path: Path
    module: str
    distribution: str
    version: str


def environments_folder() -> Path:
    return platformdirs.user_data_path("cartdeck") / "environments"


async def install_isolated(
    requirement: str, *, beside: Sequence[str] = (), folder: Path, tell: Tell, offline: str = ""
) -> list[Registered]:
    """Install `requirement` (as pip takes it) into a new environment, and register its cartridges in `folder`.

    `beside` are further requirements for the same environment; `offline` says why nothing may be fetched for it.
    Raises START_FAILED where pip fails, CARTRIDGE_UNAVAILABLE where it finds no cartdeck, OFFLINE_NOT_CACHED,
    BAD_ARGUMENT where the distribution offers no cartridge, INSUFFICIENT_STORAGE.
    """
    sweep_unfinished()
    if offline:
        refuse_addresses((requirement, *beside), offline)
    slug = re.sub(r"[^a-z0-9]+", "-", Path(requirement).name.lower()).strip("-")[:40] or "cartridge"
    environment = environments_folder() / f"{slug}-{secrets.token_hex(4)}"
    try:
        environment.mkdir(parents=True)
        (environment / _UNFINISHED).write_text(engine_mark(), "utf-8")
        tell(f"making an environment in {environment}")
        await make_environment(str(environment))
        report = environment / _REPORT
        await pip_install(
            (requirement, *beside),
            before=("--python", str(environment / "bin" / "python")),
            options=("--report", str(report)),
            offline=offline,
            tell=tell,
        )
        offered = _offered(environment, json.loads(report.read_bytes()), requirement)
        registered = _register(environment, offered, folder)
    except OSError as error:
        shutil.rmtree(environment, ignore_errors=True)
        message = f"{error.filename or environment} cannot be written: {error.strerror or error}."
        raise failure(Code.INSUFFICIENT_STORAGE, message) from None
    except BaseException:
        shutil.rmtree(environment, ignore_errors=True)
        raise
    return registered


def sweep_unfinished() -> int:
    """Remove the environments whose installation was killed; how many there were."""
    removed = 0
    for mark in environments_folder().glob(f"*/{_UNFINISHED}"):
        with contextlib.suppress(OSError):
            if is_mark_dead(mark.read_text("utf-8")):
                shutil.rmtree(mark.parent, ignore_errors=True)
                removed += 1
    return removed


def _offered(environment: Path, report: dict[str, Any], requirement: str) -> list[_Offered]:
    """The cartridges of the distributions that were asked for, as pip's report names them."""
    site = site_folder(environment)
    asked = {_normal(one["metadata"]["name"]) for one in report["install"] if one.get("requested")} - {OWN_DISTRIBUTION}
    found: list[_Offered] = []
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        name = distribution.metadata["Name"]
        if _normal(name) not in asked:
            continue
        for point in distribution.entry_points.select(group=ENTRY_POINT_GROUP):
            path = site.joinpath(*point.value.split(".")) / "manifest.json"
            try:
                manifest = Manifest.from_json(path.read_bytes(), place=str(path))
            except OSError:
                message = f"{name} has no {path.relative_to(site)}: its author has to put it into the package."
                raise failure(Code.MANIFEST_DRIFT, message) from None
            found.append(
                _Offered(
                    manifest=manifest,
                    manifest_path=path,
                    module=point.value,
                    distribution=name,
                    version=distribution.version,
                )
            )
    if not found:
        message = f"{requirement} offers no cartridge: it has no entry point of the group {ENTRY_POINT_GROUP}."
        raise failure(Code.BAD_ARGUMENT, message, argument="DISTRIBUTION")
    return found


def _register(environment: Path, offered: Sequence[_Offered], folder: Path) -> list[Registered]:
    done: list[Registered] = []
    replaced: set[Path] = set()
    with guarded(folder):
        lock = read_lock(folder)
        for one in offered:
            digest = installed_hash(environment, one.distribution)
            installed = Installed(distribution=one.distribution, version=one.version, environment=environment)
            command = (str(environment / "bin" / "python"), "-P", "-m", "cartdeck_sdk", one.module)
            file = CartridgeFile(command=command, manifest=one.manifest_path, installed=installed)
            path = folder / f"{one.manifest.name}-{one.version}" / DESCRIPTION_FILE
            replaced |= environments_of([path])
            lock.add(one.manifest.name, one.version, digest)
            write_lock(folder, lock)
            (environment / _UNFINISHED).unlink(missing_ok=True)
            replace_text(path, render_cartridge_file(file))
            done.append(Registered(name=one.manifest.name, version=one.version, file=path))
    for old in replaced - {environment}:
        shutil.rmtree(old, ignore_errors=True)
    return done


def environments_of(files: Sequence[Path]) -> set[Path]:
    """The environments that these files name, of those that lie in our folder: nothing else is ever removed."""
    found: set[Path] = set()
    for path in files:
        with contextlib.suppress(OSError):
            named = re.search(r'^environment = "(.+)"$', path.read_text("utf-8"), re.MULTILINE)
            if named is not None and Path(named[1]).parent == environments_folder():
                found.add(Path(named[1]))
    return found


def _normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
