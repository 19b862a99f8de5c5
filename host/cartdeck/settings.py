"""Owns the settings: every duration and limit of the engine, with its default, read from one TOML file.

It does not know what the numbers steer; each is explained where it is declared, and host/README.md has the table.
"""

import os
import tomllib
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cartdeck.pool.machine_memory import total_memory_bytes
from cartdeck_protocol.errors import Code, failure

CONFIG_VARIABLE: Final = "CARTDECK_CONFIG"
KIB: Final = 1024
MIB: Final = 1024 * KIB
_LONGEST_SHOWN: Final = 200
_BUDGET_SHARE: Final = 0.85
"""The rest is for the host, the cartridges that hold no instance, and the machine's own business."""


class _Section(BaseModel):
    # Strict about names: a misspelt setting would otherwise be a limit that silently is not there.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StartSettings(_Section):
    """How long a process may take until it is ready."""

    step_s: float = Field(default=15.0, gt=0)
    """One step of the handshake, extended while the process writes to stderr or uses CPU time."""
    hard_s: float = Field(default=120.0, gt=0)
    """The whole handshake, whatever the process does meanwhile."""


class StopSettings(_Section):
    """The ladder that ends a process: close stdin, TERM the group, KILL the group."""

    close_s: float = Field(default=2.0, ge=0)
    """From the closed stdin to TERM."""
    term_s: float = Field(default=2.0, ge=0)
    """From TERM to KILL."""
    kill_s: float = Field(default=2.0, gt=0)
    """From KILL until the engine stops waiting for the process to be reaped."""
    silence_s: float = Field(default=0.1, ge=0)
    """A dead process's pipe is read to its end, or until it was silent for so long."""


class RestartSettings(_Section):
    """What follows failures before a session's first answer. Counted per session key."""

    first_s: float = Field(default=10.0, ge=0)
    """The pause after the first failure; each further one doubles it."""
    longest_s: float = Field(default=300.0, ge=0)
    quarantine_after: int = Field(default=5, ge=1)
    """So many failures in a row end the tries, until a reset or another manifest."""


class HealthSettings(_Section):
    heartbeat_s: float = Field(default=5.0, gt=0)
    """How often a cartridge shows that its process lives. Handed to it in its environment."""
    missed_heartbeats: int = Field(default=3, ge=1)
    """So many missing ones: no new calls go there; and it is hung if CPU time and stderr stand still too."""
    keepalive_s: float = Field(default=5.0, gt=0)
    """How often long work repeats its last progress. Handed to the cartridge in its environment."""


class CallSettings(_Section):
    """The clocks of one call, and what it may hold."""

    silence_s: float = Field(default=120.0, gt=0)
    """Without any frame for so long a call ends as TIMED_OUT. A peer call's frames count for its callers."""
    stall_s: float = Field(default=900.0, gt=0)
    """Without more work, progress, data or a new phase for so long a call ends as STALLED."""
    reader_s: float = Field(default=300.0, gt=0)
    """A caller that takes nothing of what waits for it for so long ends its call as READER_STALLED."""
    cancel_s: float = Field(default=2.0, gt=0)
    """From CANCEL until the engine answers the caller itself."""
    abandon_s: float = Field(default=30.0, gt=0)
    """From CANCEL until a process that still has not answered is ended, whatever else is open there."""
    tick_s: float = Field(default=1.0, gt=0)
    """How often a session looks at its clocks."""
    keep_bytes: int = Field(default=8 * MIB, ge=0)
    """How much of an iterated call's output its result keeps."""
    log_lines: int = Field(default=1000, ge=1)
    """How many log lines wait for a caller that does not take them; older ones are dropped and counted."""
    peer_depth: int = Field(default=16, ge=1)
    """How many calls a chain of peer calls may have."""


class WireSettings(_Section):
    """What the host accepts on a connection; protocol/README.md has the rules."""

    max_chunk_bytes: int = Field(default=256 * KIB, ge=KIB, le=8 * MIB)
    initial_credit: int = Field(default=4, ge=1, le=65_536)
    """Chunks of one stream that may be on their way before any was taken."""
    grown_credit: int = Field(default=32, ge=1, le=65_536)
    """The same for small chunks, and half of it for large ones that are read fast, while the reserve covers it."""
    reserve_bytes: int = Field(default=24 * MIB, ge=0)
    """What all windows that grew may hold together, at worst."""
    backlog_bytes: int = Field(default=48 * MIB, ge=MIB)
    """Output that waits in memory for callers to take it, of all calls together."""
    backlog_file_bytes: int = Field(default=1024 * MIB, ge=0)
    """What comes beyond `backlog_bytes` waits in a temporary file; beyond this, the call that it came for ends."""
    max_item_bytes: int = Field(default=64 * MIB, ge=KIB, le=1024 * MIB)
    pipe_bytes: int = Field(default=MIB, ge=0)
    """The size asked for each frame pipe. The kernel may refuse it, which costs speed alone."""


class InstanceSettings(_Section):
    """How many sessions that hold an instance (a loaded model) may live at once."""

    limit: int = Field(default=4, ge=1)
    queue: int = Field(default=256, ge=0)
    """Calls that may wait, for each session key, for a place or for a process that is starting."""
    idle_s: float = Field(default=0.0, ge=0)
    """An instance that no call used for so long is unloaded; 0 keeps it until its place is needed."""


def default_memory_budget_bytes() -> int:
    """85 % of the memory of this machine, or of the control group of this process; 0 where the system does not say."""
    return int((total_memory_bytes() or 0) * _BUDGET_SHARE)


class MemorySettings(_Section):
    """How much memory all sessions that hold an instance may take together."""

    budget_bytes: int = Field(default_factory=default_memory_budget_bytes, ge=0)
    """0 is no limit."""
    wait_s: float = Field(default=120.0, ge=0)
    """How long one that is about to load waits for memory that busy sessions hold."""


class ModelsSettings(_Section):
    """What the cartridges that use the network are told of the hub and the caches, in their environment. An empty text,
    and the default of the others, leaves it to the variables that the engine itself was started with."""

    endpoint: str = ""
    """The hub's URL: HF_ENDPOINT."""
    offline: bool = False
    """True asks no hub for anything: HF_HUB_OFFLINE."""
    xet: bool = True
    """False fetches over plain HTTP alone: HF_HUB_DISABLE_XET."""
    cache_folder: str = ""
    """Where models of a hub are kept, in the layout of huggingface_hub: HF_HUB_CACHE."""
    folder: str = ""
    """Where the others are kept, and those of a hub where `cache_folder` names no place: CARTDECK_MODELS_DIR."""

    def variables(self) -> dict[str, str]:
        """The environment variables that say it."""
        named = {"HF_ENDPOINT": self.endpoint, "HF_HUB_CACHE": self.cache_folder, "CARTDECK_MODELS_DIR": self.folder}
        said = {name: value for name, value in named.items() if value}
        if self.offline:
            said["HF_HUB_OFFLINE"] = "1"
        if not self.xet:
            said["HF_HUB_DISABLE_XET"] = "1"
        return said


class IsolationSettings(_Section):
    """What processes are kept from."""

    network: Literal["auto", "off"] = "auto"
    """`auto`: cartridges that do not ask for the network reach none, where this system allows it; `off`: all may."""
    private_folder: bool = True
    """Each process has a temporary folder of its own (TMPDIR), which is removed after it."""


class LimitSettings(_Section):
    """What one process of a cartridge may take. 0 is no limit, and leaves it to the cartridge's own file."""

    memory_bytes: int = Field(default=0, ge=0)
    """RSS. A process that holds more is ended, and its callers get OUT_OF_MEMORY."""
    open_files: int = Field(default=0, ge=0)
    niceness: int = Field(default=0, ge=0, le=19)
    """How far it stands back for others that want the CPU."""


class LogSettings(_Section):
    """What is kept of a cartridge's stderr."""

    ring_bytes: int = Field(default=256 * KIB, ge=KIB)
    line_bytes: int = Field(default=4 * KIB, ge=64)
    """A longer line is split."""
    error_lines: int = Field(default=20, ge=0)
    """The last lines that go into the error when a process dies."""


def default_cartridge_folders() -> tuple[Path, ...]:
    return (platformdirs.user_data_path("cartdeck") / "cartridges",)


class Settings(BaseModel):
    """All settings of an engine. `load_settings` reads them from the configuration file."""

    # Not strict: TOML has no tuples and no paths.
    model_config = ConfigDict(extra="forbid", frozen=True)

    prefer: tuple[str, ...] = ("gguf", "torch")
    """Cartridges in the order in which they win where nothing else decides."""
    cartridge_folders: tuple[Path, ...] = Field(default_factory=default_cartridge_folders)
    """Folders that hold one folder with a cartridge.toml for each cartridge from elsewhere."""
    network: tuple[str, ...] = ("models",)
    """Cartridges that get the hub token, the proxies, certificates, PIP_* and HF_* from the environment, and reach the
    network whatever `isolation` says."""
    pass_environment: tuple[str, ...] = ()
    """Further variable names, or prefixes that end in *, that every cartridge gets."""
    start: StartSettings = StartSettings()
    stop: StopSettings = StopSettings()
    restart: RestartSettings = RestartSettings()
    health: HealthSettings = HealthSettings()
    call: CallSettings = CallSettings()
    wire: WireSettings = WireSettings()
    instances: InstanceSettings = InstanceSettings()
    memory: MemorySettings = Field(default_factory=MemorySettings)
    models: ModelsSettings = ModelsSettings()
    isolation: IsolationSettings = IsolationSettings()
    limits: dict[str, LimitSettings] = Field(default_factory=dict[str, LimitSettings])
    """By the name of a cartridge."""
    log: LogSettings = LogSettings()


def config_path() -> Path:
    """The configuration file: CARTDECK_CONFIG, or `config.toml` in the user's configuration folder."""
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else platformdirs.user_config_path("cartdeck") / "config.toml"


def load_settings(path: Path | None = None) -> Settings:
    """The settings in `path`, or in the file that `config_path()` names; defaults where that one is missing.

    Raises BAD_ARGUMENT for a file that cannot be read or parsed, an unknown setting or a wrong value; FILE_NOT_FOUND
    when a file that was asked for by name is missing.
    """
    is_asked_for = path is not None or bool(os.environ.get(CONFIG_VARIABLE))
    path = path or config_path()
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if is_asked_for:
            raise failure(Code.FILE_NOT_FOUND, f"There is no configuration file at {path}.") from None
        return Settings()
    except (OSError, ValueError, RecursionError) as error:  # no TOML, or a number or a nesting without end
        reason = getattr(error, "strerror", None) or error
        raise failure(Code.BAD_ARGUMENT, f"The configuration file {path} cannot be read: {reason}") from None
    return parse_settings(table, origin=str(path))


def parse_settings(table: dict[str, Any], *, origin: str) -> Settings:
    """The settings of a TOML table. `origin` is what an error names as the place.

    Folders may begin with ~. Raises BAD_ARGUMENT with the path of the setting at fault as `argument`.
    """
    folders = table.get("cartridge_folders")
    if isinstance(folders, list):
        try:
            expanded = [str(Path(f).expanduser()) if isinstance(f, str) else f for f in cast("list[Any]", folders)]
        except RuntimeError as error:  # a user without a home
            message = f"{origin}: cartridge_folders: {error}, found {_shown(folders)}"
            raise failure(Code.BAD_ARGUMENT, message, argument="cartridge_folders") from None
        table = {**table, "cartridge_folders": expanded}
    try:
        return Settings.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            message = f"{name} is no setting; known here: {', '.join(_known_beside(first['loc']))}"
        else:
            message = f"{name}: {first['msg']}, found {_shown(first['input'])}"
        raise failure(Code.BAD_ARGUMENT, f"{origin}: {message}", argument=name) from None


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # TOML can write a number of any length in hexadecimal
        return "a number that is far too long" if isinstance(value, int) else "a value that cannot be shown"
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _known_beside(location: tuple[int | str, ...]) -> list[str]:
    section: Any = Settings
    for part in location[:-1]:
        named = get_args(section)  # of a table by names, such as limits: any name is one
        section = named[1] if named else section.model_fields[part].annotation
    return sorted(section.model_fields)


def render_settings(settings: Settings) -> str:
    """The settings as the TOML that would give them, for `cartdeck config show`."""
    table = settings.model_dump(mode="json")
    lines = [f"{name} = {_toml(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for name, section in table.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in cast("dict[str, Any]", section).items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in cast("list[Any]", value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in escaped) + '"'
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in inner.items()) + "}"
    return repr(value)
