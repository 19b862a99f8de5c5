"""Owns `cartridge.toml`: how a cartridge of any language or environment is declared, read and written.

It does not know what is done with it: whether the program is there and works is found out elsewhere.
"""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure

DESCRIPTION_FILE: Final = "cartridge.toml"
_KEYS: Final = frozenset({"command", "manifest", "environment", "working_directory", "network", "limits", "installed"})
_LIMIT_KEYS: Final = ("memory_bytes", "open_files", "niceness")
_INSTALLED_KEYS: Final = ("distribution", "version", "environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process may take; 0 is no limit. `niceness` is how far it stands back for others, 0 to 19."""

    memory_bytes: int = 0
    open_files: int = 0
    niceness: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Where a cartridge came from that `cartdeck install` brought. `environment` is the folder that is its own."""

    distribution: str
    version: str
    environment: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CartridgeFile:
    """What one file says. `command` has its folders filled in; `manifest` is None where the program is to be asked."""

    command: tuple[str, ...]
    manifest: Path | None = None
    environment: tuple[str, ...] = ()
    """Further variables that the process gets, by name or as a prefix that ends in *."""
    working_directory: Path | None = None
    network: bool = False
    limits: Limits = Limits()
    installed: Installed | None = None


def read_cartridge_file(path: Path, data: bytes) -> CartridgeFile:
    """What `data`, the bytes of the file at `path`, says. Raises BAD_ARGUMENT, which names the key at fault.

    {folder} stands for the folder of the file, and a program named by a relative path with a slash lies there.
    """
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, a number or a nesting without end
        raise failure(Code.BAD_ARGUMENT, f"{path}: it is not TOML: {error}") from None
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise failure(Code.BAD_ARGUMENT, f"{path}: {unknown[0]} is unknown; known: {', '.join(sorted(_KEYS))}")
    command, manifest = table.get("command"), table.get("manifest")
    if not _is_texts(command) or not command or not isinstance(manifest, str | None):
        raise failure(Code.BAD_ARGUMENT, f"{path}: command must be a list of texts, and manifest a file name")
    if "\0" in "".join([*cast("list[str]", command), manifest or ""]):
        raise failure(Code.BAD_ARGUMENT, f"{path}: command and manifest must be without NUL characters")
    folder = path.parent.absolute()
    parts = [part.replace("{folder}", str(folder)) for part in cast("list[str]", command)]
    if "/" in parts[0]:
        parts[0] = str(folder / parts[0])
    environment, working = table.get("environment", []), table.get("working_directory")
    if not _is_texts(environment):
        raise _refusal(path, "environment", "a list of names of variables, or of prefixes that end in *", environment)
    if not isinstance(working, str | None) or "\0" in (working or ""):
        raise _refusal(path, "working_directory", "a folder", working)
    if not isinstance(table.get("network", False), bool):
        raise _refusal(path, "network", "true or false", table["network"])
    return CartridgeFile(
        command=tuple(parts),
        manifest=None if manifest is None else folder / manifest,
        environment=tuple(cast("list[str]", environment)),
        working_directory=None if working is None else folder / working.replace("{folder}", str(folder)),
        network=table.get("network", False),
        limits=_limits(path, table.get("limits", {})),
        installed=_installed(path, table.get("installed")),
    )


def render_cartridge_file(file: CartridgeFile) -> str:
    """The TOML that `read_cartridge_file` reads as `file`; without folders to fill in, every path is absolute."""
    lines = [f"command = {_toml(list(file.command))}"]
    if file.manifest is not None:
        lines.append(f"manifest = {_toml(str(file.manifest))}")
    if file.network:
        lines.append("network = true")
    if file.installed is not None:
        lines += ["", "[installed]"]
        lines += [f"{key} = {_toml(str(getattr(file.installed, key)))}" for key in _INSTALLED_KEYS]
    return "\n".join(lines) + "\n"


def _limits(path: Path, value: Any) -> Limits:
    if not isinstance(value, dict):
        raise _refusal(path, "limits", f"a table of {', '.join(_LIMIT_KEYS)}", value)
    table = cast("dict[str, Any]", value)
    for key, number in table.items():
        if key not in _LIMIT_KEYS:
            message = f"{path}: limits.{key} is unknown; known: {', '.join(_LIMIT_KEYS)}"
            raise failure(Code.BAD_ARGUMENT, message)
        if type(number) is not int or number < 0 or (key == "niceness" and number > 19):
            wanted = "a number from 0 to 19" if key == "niceness" else "a number from 0 on; 0 is no limit"
            raise _refusal(path, f"limits.{key}", wanted, number)
    return Limits(**table)


def _installed(path: Path, value: Any) -> Installed | None:
    if value is None:
        return None
    table = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if sorted(table) != sorted(_INSTALLED_KEYS) or not all(isinstance(one, str) for one in table.values()):
        raise _refusal(path, "installed", f"a table with the texts {', '.join(_INSTALLED_KEYS)}", value)
    environment = Path(table["environment"])
    return Installed(distribution=table["distribution"], version=table["version"], environment=environment)


def _refusal(path: Path, key: str, wanted: str, found: Any) -> CartdeckError:
    return failure(Code.BAD_ARGUMENT, f"{path}: {key}: found {str(found)[:100]!r}, expected {wanted}")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in cast("list[Any]", value))


def _toml(value: str | list[str]) -> str:
    """JSON's text is TOML's as well, but for characters outside of its first plane, which stay as they are here."""
    return json.dumps(value, ensure_ascii=False)
