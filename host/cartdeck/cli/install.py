"""Owns `cartdeck install` and `cartdeck uninstall`: cartridges that come from elsewhere, and go again.

It does not know how an environment is made, nor what pip does.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cartdeck.cli.options import Quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cartdeck.settings import Settings


def install(
    distribution: Annotated[
        str,
        typer.Argument(
            metavar="DISTRIBUTION",
            help="What pip takes: a name, NAME==VERSION, a wheel, a folder; or a folder that holds cartridge.toml.",
        ),
    ],
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Into an environment of its own, beside other versions of it.")
    ] = False,
    beside: Annotated[
        list[str] | None, typer.Option("--with", metavar="REQUIREMENT", help="Install this too; may be repeated.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Install a cartridge. Ctrl-C ends it, and leaves nothing half-installed in an environment of its own.

    A folder that holds cartridge.toml is registered where it lies, whatever language it is written in. In offline mode
    (models.offline, HF_HUB_OFFLINE) pip takes only what is on this machine.

    Example: cartdeck install ./shout --isolated
    """
    from cartdeck.cartridge_file import DESCRIPTION_FILE
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.running import run_interruptible
    from cartdeck.installing.isolated import install_isolated
    from cartdeck.installing.offline import offline_reason
    from cartdeck.installing.registration import link_folder, missing_program
    from cartdeck.settings import load_settings

    settings, tell = load_settings(), _teller(quiet)
    path = _place(distribution)
    if _is_there(path / DESCRIPTION_FILE):
        link = link_folder(path, _folder(settings))
        print_text(f"{link} -> {path.absolute()}\n")
        program = missing_program(path)
        if program is not None:
            tell(f"Its command {program} is not there yet, or cannot be run; no call succeeds until it is built.")
        else:
            _tell_why_unused(link / DESCRIPTION_FILE, settings, tell)
        return
    requirement = str(path.absolute()) if _is_there(path) else distribution
    if not isolated:
        print_text(run_interruptible(lambda: _install_here(requirement, beside or [], settings, tell)))
        return

    async def work() -> str:
        folder, offline = _folder(settings), offline_reason(settings)
        done = await install_isolated(requirement, beside=beside or [], folder=folder, tell=tell, offline=offline)
        return "".join(f"{one.name} {one.version} in {one.file}\n" for one in done)

    print_text(run_interruptible(work))


def _tell_why_unused(file: Path, settings: "Settings", tell: "Callable[[str], None]") -> None:
    """Say what keeps the cartridge that was registered from being found, as another one of its name does."""
    from cartdeck.discovery import discover

    for one in discover(settings).broken:
        if one.origin == str(file):
            tell(f"It is registered, but not used: {one.error.message}.")


def _place(distribution: str) -> Path:
    """The path that it may be. Raises BAD_ARGUMENT for nothing, FILE_NOT_FOUND for a path where nothing is."""
    from cartdeck.cartridge_file import DESCRIPTION_FILE
    from cartdeck_protocol.errors import Code, failure

    if not distribution.strip():
        message = "DISTRIBUTION is empty; expected what pip takes, or a folder that holds cartridge.toml."
        raise failure(Code.BAD_ARGUMENT, message, argument="DISTRIBUTION")
    path = Path(os.path.expanduser(distribution))  # noqa: PTH111 - Path's own raises for the home of nobody
    plain = Path(str(path).partition("[")[0])  # pip takes extras behind a path too
    if distribution.startswith(("./", "../", "/", "~")) and not _is_there(path) and not _is_there(plain):
        raise failure(Code.FILE_NOT_FOUND, f"There is nothing at {distribution[:200]}.", argument="DISTRIBUTION")
    return path.parent if path.name == DESCRIPTION_FILE and _is_there(path) else path


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # longer than a name may be, as an address that pip takes is, or behind what may not be looked into
        return False


def uninstall(
    name: Annotated[
        str, typer.Argument(metavar="NAME[==VERSION]", help="A cartridge, as `cartdeck cartridges` has it.")
    ],
    quiet: Quiet = False,
) -> None:
    """Remove a cartridge: one version, or all of them without one.

    Example: cartdeck uninstall shout==1.0.0
    """
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.running import run_interruptible
    from cartdeck.installing.registration import unregister
    from cartdeck.settings import load_settings

    settings = load_settings()
    plain, _, version = name.partition("==")
    gone = [one for folder in settings.cartridge_folders for one in unregister(folder, plain, version or None)]
    if not gone:
        distribution = _distribution_of(plain, version, settings)
        run_interruptible(lambda: _uninstall_here(distribution, _teller(quiet)))
        gone = [version]
    print_text("".join(f"{plain} {one}".strip() + " is gone\n" for one in gone))


def _folder(settings: "Settings") -> Path:
    """Where cartridges are registered: the first of the cartridge folders."""
    from cartdeck_protocol.errors import Code, failure

    if not settings.cartridge_folders:
        message = "The setting cartridge_folders names no folder, so there is no place to register a cartridge."
        raise failure(Code.BAD_ARGUMENT, message, argument="cartridge_folders")
    return settings.cartridge_folders[0]


async def _install_here(
    requirement: str, beside: "Sequence[str]", settings: "Settings", tell: "Callable[[str], None]"
) -> str:
    """Into this Python's own environment; what was found there afterwards."""
    import importlib

    import anyio.to_thread

    from cartdeck.discovery import discover
    from cartdeck.installing.offline import offline_reason
    from cartdeck.installing.pip_install import pip_install
    from cartdeck_protocol.errors import Code, failure

    before = {(one.name, one.version) for one in discover(settings).cartridges}
    await pip_install((requirement, *beside), offline=offline_reason(settings), tell=tell)
    importlib.invalidate_caches()
    found = await anyio.to_thread.run_sync(discover, settings)
    new = [one for one in found.cartridges if (one.name, one.version) not in before]
    if not new and not found.cartridges:
        raise failure(Code.BAD_ARGUMENT, f"{requirement} is installed, but offers no cartridge.")
    return "".join(f"{one.name} {one.version} in this environment\n" for one in new) or "installed; nothing is new\n"


async def _uninstall_here(distribution: str, tell: "Callable[[str], None]") -> None:
    from cartdeck.installing.pip_run import run_pip

    await run_pip(("uninstall", "--yes", "--", distribution), tell=tell)


def _distribution_of(name: str, version: str, settings: "Settings") -> str:
    """The distribution that brought a cartridge into this environment. Raises BAD_ARGUMENT where that is none."""
    import importlib.metadata

    from cartdeck.discovery import ENTRY_POINT_GROUP, discover
    from cartdeck.installing.pip_install import OWN_DISTRIBUTION
    from cartdeck_protocol.errors import Code, failure

    found = next((one for one in discover(settings).cartridges if one.name == name), None)
    for distribution in importlib.metadata.distributions():
        for point in distribution.entry_points.select(group=ENTRY_POINT_GROUP):
            if found is None or found.origin != f"the package {point.value}":
                continue
            brought_by = distribution.metadata["Name"]
            if brought_by == OWN_DISTRIBUTION:
                raise failure(Code.BAD_ARGUMENT, f"{name} is a part of cartdeck itself.", argument="NAME")
            if version in ("", distribution.version):
                return brought_by
    what = f"{name!r} {version}".strip()
    raise failure(Code.BAD_ARGUMENT, f"There is no cartridge {what} that could be removed here.", argument="NAME")


def _teller(is_quiet: bool) -> "Callable[[str], None]":
    return (lambda _: None) if is_quiet else lambda line: typer.echo(line, err=True)
