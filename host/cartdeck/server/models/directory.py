"""Owns what names of models mean to a server: a model's name to its spec, its backend and its defaults.

It does not know requests, nor whether a model is loaded. `ModelDirectory` is the interface; `SpecDirectory`, the one
that needs no file, has the caps' own default models, names from the command line, and specs as they are written.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from cartdeck.catalog.entry import Capability
from cartdeck.catalog.guard import Guard
from cartdeck.near import near_names
from cartdeck.pool.priority import Priority
from cartdeck.router import Router
from cartdeck.server.external.place import Place
from cartdeck.server.models.pin import Pin
from cartdeck_protocol.errors import CartdeckError, Code, failure

DEFAULT_NAME: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.+-]{0,127}")
_PACKAGE: Final = re.compile(r"pypi:([A-Za-z0-9._-]+)(?:==[^/]+)?/")


class Kind(StrEnum):
    """What a model is asked for."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    TRANSCRIPTION = "transcription"

    @property
    def cap(self) -> str:
        return _CAPS[self]


_CAPS: Final = {
    Kind.CHAT: "chat",
    Kind.COMPLETION: "generate-text",
    Kind.EMBEDDING: "embed-text",
    Kind.TRANSCRIPTION: "transcribe-speech",
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as a server knows it."""

    name: str
    spec: str
    kinds: tuple[Kind, ...] = tuple(Kind)
    """What it can be asked for, as far as is known: all without a word on it."""
    backend: str | None = None
    """The tag of the cartridge that serves it; None lets the engine choose."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Defaults of caps' arguments for this model, instance arguments among them; a request's own win."""
    aliases: tuple[str, ...] = ()
    description: str = ""
    dimensions: tuple[int, ...] = ()
    """Lengths to which its vectors may be cut, for a model that was made for it."""
    created: int = 0
    """Seconds since 1970: when it was defined."""
    is_listed: bool = True
    """Whether the directory lists it; False for one that a request named by its spec alone."""
    most_tokens: int | None = None
    """The most that one text may have; a request for more gets so many."""
    stand_ins: tuple["ServedModel", ...] = ()
    """Asked in this order when it cannot be loaded."""
    priority: Priority = Priority.STANDARD
    """Who gives way first when memory is short."""
    guards: tuple["ServedGuard", ...] = ()
    """Asked about its requests and its answers."""
    capabilities: frozenset[Capability] | None = None
    """What it can do, as a catalog says; None leaves it to the model itself."""
    place: Place | None = None
    """Where it is, when another server answers for it."""
    pins: tuple[Pin, ...] = ()
    """What its files were with their first download: of each of its sources that a catalog has fetched."""

    def lacks(self, needs: Mapping[str, Capability]) -> str | None:
        """The field of a request that asks for what the model cannot do; None where there is none.

        `needs` has the fields that ask for something, and what.
        """
        if self.capabilities is None:
            return None
        return next((field for field, need in needs.items() if need not in self.capabilities), None)

    def cap(self, kind: Kind) -> str:
        """The cap that serves a request of that kind."""
        return f"cap:{kind.cap}" if self.backend is None else f"cap:{kind.cap};{self.backend}"

    def arguments_with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments: the model, its defaults, and what the request gives."""
        arguments = {"model": self.spec, **self.arguments, **given}
        wanted = given.get("max-tokens")
        if self.most_tokens is not None and isinstance(wanted, int) and wanted > self.most_tokens:
            arguments["max-tokens"] = self.most_tokens
        return arguments


@dataclass(frozen=True, slots=True)
class ServedGuard:
    """A guard as a server knows it: the model that is asked, and by which rule."""

    name: str
    rule: Guard
    model: ServedModel
    kind: Kind


class ModelDirectory(Protocol):
    """Which models a server has. May change while it runs: nothing of it is kept beyond a request."""

    @property
    def is_guarded(self) -> bool:
        """Whether a model here has guards."""
        ...

    def find(self, name: str, kind: Kind) -> ServedModel:
        """The model of that name or alias. Raises MODEL_NOT_FOUND, or UNSUPPORTED for one that is not of that kind."""
        ...

    def models(self) -> Sequence[ServedModel]:
        """All that have a name, in a lasting order."""
        ...


class SpecDirectory:
    """The default models of the caps, those that were named, and, where `is_open`, any spec as its own name."""

    is_guarded = False

    def __init__(self, router: Router, named: Mapping[str, str] | None = None, *, is_open: bool = True) -> None:
        self._is_open = is_open
        self._created = int(time.time())
        self._defaults: dict[Kind, ServedModel] = {}
        self._models = [ServedModel(name, spec, created=self._created) for name, spec in (named or {}).items()]
        self._models += self._default_models(router)
        self._by_name = {model.name: model for model in reversed(self._models)}

    def _default_models(self, router: Router) -> Iterable[ServedModel]:
        specs: dict[str, list[Kind]] = {}
        for kind in Kind:
            if (spec := _default_spec(router, kind)) is not None:
                specs.setdefault(spec, []).append(kind)
        for spec, kinds in specs.items():
            model = ServedModel(
                short_name(spec), spec, tuple(kinds), aliases=(DEFAULT_NAME,), created=self._created,
                description="The default of the caps.",
            )  # fmt: skip
            self._defaults |= dict.fromkeys(kinds, model)
            yield model

    def find(self, name: str, kind: Kind) -> ServedModel:
        found = self._by_name.get(name)
        if found is None and name == DEFAULT_NAME:
            found = self._defaults.get(kind)
            if found is None:
                message = f"There is no default model for {kind.cap}; name one."
                remedy = "Name a model: one that GET /v1/models lists"
                remedy += ", or a model's spec." if self._is_open else "."
                raise failure(Code.MODEL_NOT_FOUND, message, argument="model", details={"remedy": remedy})
        if found is None and self._is_open and ("/" in name or ":" in name):
            return ServedModel(name, name, is_listed=False)
        if found is None:
            raise no_such_model(name, [*self._by_name, DEFAULT_NAME], is_open=self._is_open)
        if kind not in found.kinds:
            can = ", ".join(found.kinds)
            message = f"The model {name} is none for {kind.cap}; it can be asked for: {can}."
            details = {"remedy": f"Ask it for {can}, or ask another model."}
            raise failure(Code.UNSUPPORTED, message, argument="model", details=details)
        return found

    def models(self) -> Sequence[ServedModel]:
        return self._models


def no_such_model(name: str, known: Sequence[str], *, is_open: bool) -> CartdeckError:
    """The error for a name that nothing has; it lists near ones, or all where they are few."""
    near = near_names(name, known) or list(known)[:8]
    message = f"There is no model {name[:200]!r} here. Known: {', '.join(near)}."
    if is_open:
        message += " A model's spec (a path with a /, hf:…, pypi:…, package:…) is taken as it is."
    return failure(Code.MODEL_NOT_FOUND, message, argument="model", details={"near": near})


def short_name(spec: str) -> str:
    """What a person would call the model of a spec: the file's name without its ending, or the package's."""
    package = _PACKAGE.match(spec)
    if package is not None and spec.partition("#")[0].endswith("/"):
        return package[1]
    name = PurePosixPath(spec.partition("#")[0].rpartition(":")[2]).name
    return name.removesuffix(".gguf") or spec


def parse_named(pairs: Sequence[str]) -> dict[str, str]:
    """NAME=SPEC options as a table. Raises BAD_ARGUMENT for one of another form, or a name that comes twice."""
    named: dict[str, str] = {}
    for pair in pairs:
        name, separator, spec = pair.partition("=")
        if not separator or not spec or not _NAME.fullmatch(name):
            message = f"{pair!r} names no model; expected NAME=SPEC, a name of letters, digits, - . + and _."
            raise failure(Code.BAD_ARGUMENT, message, argument="--model")
        if name in named:
            raise failure(Code.BAD_ARGUMENT, f"The name {name} is given to two models.", argument="--model")
        named[name] = spec
    return named


def _default_spec(router: Router, kind: Kind) -> str | None:
    """The default model of a kind's cap; None where it has none, or nobody serves it here."""
    try:
        definition = router.route_text(f"cap:{kind.cap}", {}).definition
    except CartdeckError:
        return None
    model = definition.arguments.get("model")
    return str(model.default) if model is not None and model.has_default else None
