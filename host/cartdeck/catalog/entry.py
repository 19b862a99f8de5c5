"""Owns what one named model may say of itself: its fields, their types and limits.

It does not know the other models of the catalog, nor this machine.
"""

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cartdeck.catalog.source_text import check_source
from cartdeck.catalog.window import ScheduleWindow, overlap

NAME: Final = re.compile(r"[A-Za-z0-9][\w.+-]{0,127}(/[A-Za-z0-9][\w.+-]{0,127})?")
MOST_CONTEXT: Final = 16 * 1024 * 1024
_ENDPOINT: Final = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHA256: Final = r"^[0-9a-f]{64}$"
_OF_WEIGHTS: Final = frozenset({"origin", "projector", "projector_origin", "backend", "profiles", "scaling", "lora"})
"""Keys of a model that is run here."""


class Capability(StrEnum):
    """What a model can do for a client."""

    CHAT = "chat"
    COMPLETION = "completion"
    TOOLS = "tools"
    VISION = "vision"
    EMBEDDINGS = "embeddings"
    SPEECH = "speech"


class Table(BaseModel):
    """One table of a catalog's file."""

    # Strict about names: a misspelt key would otherwise be a limit that silently is not there. Read from JSON, where
    # strict takes a list for a tuple and a text for a choice, and nothing else for what it is not.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(
            "a name has letters, digits and . _ + -, begins with one of the first two, and may be OWNER/NAME"
        )
    return name


def _check_endpoint(url: str) -> str:
    if not _ENDPOINT.fullmatch(url) or "@" in url:
        raise ValueError("expected the address of an API, such as http://127.0.0.1:8080/v1, without a name or password")
    return url.rstrip("/")


def _check_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError("expected the name of an environment variable, such as OPENAI_API_KEY; never the key itself")
    return name


Name = Annotated[str, AfterValidator(_check_name)]
Source = Annotated[str, AfterValidator(check_source)]


class OriginFile(Table):
    """One file as it came with the first download."""

    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=_SHA256)


class Origin(Table):
    """What the source gave when it was first obtained: later downloads must be the same."""

    revision: str = Field(default="", max_length=200)
    files: dict[str, OriginFile] = Field(default_factory=dict[str, OriginFile])


class Profile(Table):
    """One way to run the model, for machines that have what it takes."""

    name: Name
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int | None = Field(default=None, ge=1, le=1024)
    gpu_layers: int | None = Field(default=None, ge=-1, le=10_000)
    """-1 is all layers."""
    tensor_parallel: int | None = Field(default=None, ge=1, le=64)
    context_size: int | None = Field(default=None, ge=1, le=MOST_CONTEXT)
    memory_bytes: int = Field(default=0, ge=0, le=1 << 50)
    """What it takes of the device's memory; 0 is not known, and fits everywhere."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """Of those that fit, the one with the highest is taken."""

    @model_validator(mode="after")
    def _one_split(self) -> Self:
        if self.tensor_parallel not in (None, 1) and self.gpu_layers is not None:
            raise ValueError("give one of them: gpu_layers is for models in GGUF files, tensor_parallel for the others")
        if self.device == "cpu" and self.gpu_layers not in (None, 0):
            raise ValueError('gpu_layers needs device = "cuda"')
        return self

    def arguments(self) -> dict[str, Any]:
        """The arguments of a call that it stands for."""
        named = {
            "threads": self.threads,
            "gpu-layers": self.gpu_layers,
            "tensor-parallel": self.tensor_parallel,
            "context-size": self.context_size,
            "device": "cuda" if self.device == "cuda" and self.gpu_layers is None else None,
        }
        return {name: value for name, value in named.items() if value is not None}


class Scaling(Table):
    """When the model is held in memory."""

    mode: Literal["on-demand", "kept"] = "on-demand"
    """`kept` is loaded when the server starts and never for idleness unloaded."""
    idle_s: float | None = Field(default=None, gt=0, le=30 * 86_400)
    """On demand: unloaded when it was idle for so long."""
    windows: tuple[ScheduleWindow, ...] = Field(default=())
    """Times in which it is held as if it were kept."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.mode == "kept" and self.idle_s is not None:
            raise ValueError('idle_s is for mode = "on-demand": a kept model is never unloaded for idleness')
        if self.mode == "kept" and self.windows:
            raise ValueError('windows are for mode = "on-demand": a kept model is always held')
        if (pair := overlap(self.windows)) is not None:
            raise ValueError(f"windows {pair[0]} and {pair[1]} overlap; join them into one")
        return self


class Adapter(Table):
    """A LoRA adapter, served under its own name."""

    source: Source
    origin: Origin | None = None
    scale: float = Field(default=1.0, gt=0, le=16, allow_inf_nan=False)
    description: str = Field(default="", max_length=2000)


class External(Table):
    """Another OpenAI-compatible server that answers for the model."""

    url: Annotated[str, AfterValidator(_check_endpoint)]
    model: str = Field(default="", max_length=300)
    """Its name there; the name here where this is empty."""
    key_variable: Annotated[str, AfterValidator(_check_variable)] | None = None
    """The environment variable of the server that holds the key."""


class Entry(Table):
    """One named model."""

    description: str = Field(default="", max_length=2000)
    aliases: tuple[Name, ...] = Field(default=())
    source: Source | None = None
    origin: Origin | None = None
    projector: Source | None = None
    projector_origin: Origin | None = None
    backend: Name | None = None
    """The tag of the cartridge that serves it; without one the engine chooses."""
    capabilities: tuple[Capability, ...] = Field(default=(Capability.CHAT, Capability.COMPLETION), min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Defaults of the caps' arguments; a request's own win."""
    context_size: int | None = Field(default=None, ge=1, le=MOST_CONTEXT)
    max_tokens: int | None = Field(default=None, ge=1, le=MOST_CONTEXT)
    """The most tokens that one answer may have; also what it has where a request says nothing."""
    dimensions: tuple[int, ...] = Field(default=())
    """Lengths to which its vectors may be cut, for a model that was made for it."""
    profiles: tuple[Profile, ...] = Field(default=())
    scaling: Scaling = Scaling()
    importance: Literal["critical", "standard", "opportunistic"] = Field(default="standard", alias="class")
    """Who gives way first when memory is short: see `Priority`."""
    guards: tuple[Name, ...] = Field(default=())
    """Tables [guards.NAME]: asked about its requests and its answers."""
    fallback: tuple[Name, ...] = Field(default=())
    """Models that are asked in its place, in this order, when it cannot be loaded."""
    lora: dict[Name, Adapter] = Field(default_factory=dict[str, Adapter])
    external: External | None = None

    @model_validator(mode="after")
    def _one_home(self) -> Self:
        if (self.source is None) == (self.external is None):
            raise ValueError("a model has either a source or an external server, not both and not neither")
        local = self.model_fields_set & _OF_WEIGHTS
        if self.external is not None and local:
            raise ValueError(f"{', '.join(sorted(local))}: of no use to a model that an external server answers for")
        return self

    @model_validator(mode="after")
    def _origin_of_something(self) -> Self:
        if self.projector_origin is not None and self.projector is None:
            raise ValueError("projector_origin: there is no projector that it could be of")
        return self

    @model_validator(mode="after")
    def _possible_sizes(self) -> Self:
        contexts = [self.context_size, *(profile.context_size for profile in self.profiles)]
        least = min((size for size in contexts if size is not None), default=None)
        if self.max_tokens is not None and least is not None and self.max_tokens > least:
            raise ValueError(f"max_tokens {self.max_tokens} is more than the context of {least} tokens holds")
        if any(length < 1 for length in self.dimensions):
            raise ValueError("dimensions: a vector has at least one number")
        names = [profile.name for profile in self.profiles]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two profiles have the name {twice[0]}")
        return self
