"""Owns `cartdeck check`: the conformance kit on one cartridge, its progress, and its report.

It does not know what is checked, nor how.
"""

import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from cartdeck.cli.options import AsJson
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck.discovery import Cartridge
    from cartdeck.settings import Settings
    from cartdeck_conformance import Check, Durations, Report


_TARGET: Final = "COMMAND|NAME|FOLDER"


@dataclass(frozen=True, slots=True)
class Target:
    """What is checked: the command that serves it. Of a cartridge also its manifest on disk, the folder it works in,
    and the environment that a host gives it."""

    command: tuple[str, ...]
    manifest: bytes | None = None
    folder: Path | None = None
    environment: Mapping[str, str] | None = None


def check(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar=_TARGET,
            help="A cartridge as `cartdeck cartridges` lists it, a folder that holds cartridge.toml, or a command that "
            "serves one, in quotes or behind --.",
        ),
    ],
    fast: Annotated[bool, typer.Option("--fast", help="Send less, and start fewer processes.")] = False,
    only: Annotated[
        list[int] | None, typer.Option("--only", metavar="NUMBER", help="Run this check alone, and what it needs.")
    ] = None,
    sample: Annotated[
        list[str] | None,
        typer.Option(
            "--sample", metavar="CAP.NAME=VALUE|@FILE", help="An argument to call a cap with, in place of its sample."
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="CAP=VALUE|@FILE", help="How to answer when it calls this cap as a peer."),
    ] = None,
    sample_limit: Annotated[
        float | None,
        typer.Option(
            "--sample-limit",
            metavar="SECONDS",
            help="How long a sample may take; 300 s, and 60 s from its first output on, if left out.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import json_line
    from cartdeck.cli.running import run_interruptible
    from cartdeck_conformance import Options, check_cartridge_async

    found = _target(target)
    options = Options(
        samples=_samples(sample or []),
        peers=dict(_pair(one, "--peer") for one in peer or []),
        manifest=found.manifest,
        folder=found.folder,
        environment=found.environment,
        durations=_durations(sample_limit),
        on_check=_ignore if as_json or not os.isatty(2) else _show,
    )

    async def work() -> "Report":
        try:
            return await check_cartridge_async(found.command, fast=fast, only=set(only or ()), options=options)
        except ValueError as error:
            raise failure(Code.BAD_ARGUMENT, f"{error}.", argument="--only") from None
        finally:
            if options.on_check is _show:
                sys.stderr.write("\r\x1b[K")

    report = run_interruptible(work)
    if as_json:
        print_text(json_line(report.to_plain()))
    else:
        _print(report)
    if not report.passed:
        raise typer.Exit(1)


check.__doc__ = """Check a cartridge against the wire, hostile input and all, without a host.

It ends with 0 when no check failed and with 1 when one did. What could not be exercised is listed, and is no failure:
a cap without a sample, a peer call that nobody answers for.

A cartridge is started as a host starts it: in its working directory, with the environment that it would get.

Example: cartdeck check echo --fast
"""


def _target(words: Sequence[str]) -> Target:
    """Raises BAD_ARGUMENT for what is none of them, CARTRIDGE_UNAVAILABLE for a cartridge that lacks something,
    HASH_MISMATCH for one that a host will not start either, and what `cartridge_in` raises."""
    from cartdeck.discovery import cartridge_in, discover
    from cartdeck.settings import load_settings

    names = ""
    if len(words) == 1:
        settings = load_settings()
        cartridges = discover(settings).cartridges
        for one in cartridges:
            if one.name == words[0]:
                return _as_installed(one, settings)
        folder = _folder(words[0])
        if folder is not None:
            return _as_installed(cartridge_in(folder, settings), settings)
        names = ", ".join(one.name for one in cartridges)
    command = tuple(words) if len(words) > 1 else tuple(_split(words[0]))
    if not command or shutil.which(command[0]) is None:
        known = f" The cartridges are {names}." if names else ""
        message = _of_a_path(words[0]) if len(words) == 1 else None
        message = message or f"{words[0]!r} is neither a cartridge, nor a folder with cartridge.toml, nor a program."
        raise failure(Code.BAD_ARGUMENT, message + known, argument=_TARGET)
    return Target(command)


def _as_installed(cartridge: "Cartridge", settings: "Settings") -> Target:
    """The cartridge as a host would start it. Raises CARTRIDGE_UNAVAILABLE, HASH_MISMATCH."""
    from cartdeck.sessions.launch import environment_of

    if not cartridge.is_available:
        message = f"{cartridge.name} lacks {cartridge.missing_text}"
        raise failure(Code.CARTRIDGE_UNAVAILABLE, message, details={"remedy": "Then check it again."})
    cartridge.verify()
    return Target(
        cartridge.command,
        cartridge.manifest.to_json(),
        None if cartridge.file is None else cartridge.file.working_directory,
        environment_of(cartridge, settings),
    )


def _folder(word: str) -> Path | None:
    """The folder of a cartridge.toml, where the word names either of them."""
    from cartdeck.cartridge_file import DESCRIPTION_FILE

    path = Path(os.path.expanduser(word))  # noqa: PTH111 - Path's own raises for the home of nobody
    try:
        if path.name == DESCRIPTION_FILE and path.is_file():
            return path.parent
        return path if word and (path / DESCRIPTION_FILE).is_file() else None
    except (OSError, ValueError):  # a long command, one with a NUL, or what lies where nobody may look
        return None


def _of_a_path(word: str) -> str | None:
    """What is wrong with the path of a folder without cartridge.toml, or of nothing; None for another word."""
    path = Path(os.path.expanduser(word))  # noqa: PTH111 - as in `_folder`
    try:
        if path.is_dir() and (path / "pyproject.toml").is_file():
            name = path.resolve().name
            return (
                f"{word!r} holds a distribution, which is checked once it is installed: pip install -e "
                f"{shlex.quote(word)}, then cartdeck check {name}, or the name that cartdeck cartridges lists."
            )
        if path.is_dir():
            return f"{word!r} is a folder with neither cartridge.toml nor pyproject.toml."
        return f"{word!r} does not exist." if os.sep in word and not word.split()[1:] and not path.exists() else None
    except (OSError, ValueError):  # as in `_folder`
        return None


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise failure(Code.BAD_ARGUMENT, f"{text!r} is no command: {error}.", argument=_TARGET) from None


def _samples(pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By cap and argument; an argument that is given several times is a sequence."""
    found: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        place, value = _pair(pair, "--sample")
        cap, dot, name = place.rpartition(".")
        if not dot:
            message = f"'{pair}' names no argument; expected CAP.NAME=VALUE."
            raise failure(Code.BAD_ARGUMENT, message, argument="--sample")
        given = found.setdefault(cap, {})
        if name in given:
            earlier = given[name]
            value = [*(cast("list[Any]", earlier) if isinstance(earlier, list) else [earlier]), value]
        given[name] = value
    return found


def _pair(text: str, option: str) -> tuple[str, Any]:
    from cartdeck.cli.arguments import parse_arguments

    if not text.partition("=")[0].strip() or "=" not in text:
        form = "CAP.NAME=VALUE" if option == "--sample" else "CAP=VALUE"
        raise failure(Code.BAD_ARGUMENT, f"{text!r} gives nothing; expected {option} {form}.", argument=option)
    name, value = next(iter(parse_arguments([text]).items()))
    if isinstance(value, Path):
        return name, value.read_bytes()
    if not isinstance(value, str):
        raise failure(Code.BAD_ARGUMENT, f"{option} takes a value or a file, not standard input.", argument=option)
    return name, value


def _durations(sample_s: float | None) -> "Durations":
    from cartdeck_conformance import Durations

    if sample_s is None:
        return Durations()
    if not 0 < sample_s < math.inf:
        message = f"--sample-limit is {sample_s:g}; expected a positive number of seconds."
        raise failure(Code.BAD_ARGUMENT, message, argument="--sample-limit")
    return Durations(sample_s=sample_s, output_s=sample_s)


def _ignore(_: "Check") -> None: ...


def _show(check: "Check") -> None:
    sys.stderr.write(f"\r\x1b[K{check}")
    sys.stderr.flush()


def _print(report: "Report") -> None:
    from cartdeck.cli.listing import print_rows, print_text

    rows = [
        [str(one.check.number), one.check.name, str(one.status), f"{one.took_s:.1f} s", one.check.sentence]
        for one in report.results
    ]
    print_rows(["", "check", "result", "took", "what holds"], rows)
    print_text(f"\n{report}\n")
