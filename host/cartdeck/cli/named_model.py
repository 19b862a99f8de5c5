"""Owns what `--model NAME` means where a catalog has the name: the cartridge, the source and the settings of a call.

It does not know the commands, nor what a server does beside: other servers, guards, stand-ins.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cartdeck.cli.model_spec import SPECS, check_spec
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck.cli.asking import Ask
    from cartdeck.cli.text_options import Choice
    from cartdeck.server.models.directory import Kind, ServedModel
    from cartdeck.server.models.pin import Pin

_DOWNLOAD: Final = "cap:download-model"


@dataclass(frozen=True, slots=True)
class Meant:
    """What is to be called."""

    cap: str
    arguments: dict[str, Any]
    pins: "tuple[Pin, ...]" = ()
    """What its sources were with their first download; not compared yet."""


def meant(cap: str, arguments: Mapping[str, Any], catalog: Path | None, *, profile: str | None = None) -> Meant:
    """What a call of `cap` means whose model may be a name: of `catalog`, or, where there is one, of this user's.

    The model is taken in `profile`, else in the best that fits. A name wins over a file that is called so; `./NAME` is
    the file. What is given wins over the catalog's defaults, but for its `max_tokens`, which is the most that there is.
    A spec stays as it is.

    Raises MODEL_NOT_FOUND with names that are near, BAD_ARGUMENT for a wrong profile, UNSUPPORTED for a model that is
    not for that or that a server alone can ask, and what `load_catalog` raises.
    """
    name = arguments.get("model")
    if name is None and (catalog is not None or profile is not None):
        message = "--catalog and --profile say what names mean; give one of them with --model."
        raise failure(Code.MISSING_ARGUMENT, message, argument="--model")
    alias = cap.removeprefix("cap:")
    model = None if name is None else _found(name, alias, catalog, profile)
    if model is None:
        if profile is not None:
            message = f"--profile is for a name of a catalog, and {str(name)[:200]} is none."
            raise failure(Code.BAD_ARGUMENT, message, argument="--profile")
        return Meant(cap, dict(arguments))
    _check(model, alias)
    from cartdeck_protocol.caps import load_shared_definition

    known = load_shared_definition(alias).arguments
    defaults = {key: value for key, value in model.arguments.items() if key in known}
    backend = "" if model.backend is None else f";{model.backend}"
    given = {key: value for key, value in arguments.items() if key != "model"}
    pins = tuple(one for one in model.pins if one.argument not in given)
    return Meant(f"cap:{alias}{backend}", {"model": model.spec, **defaults, **_bounded(given, model)}, pins)


def resolved(
    cap: str, arguments: Mapping[str, Any], choice: "Choice", *, is_quiet: bool, is_verbose: bool
) -> tuple[str, dict[str, Any]]:
    """As `meant`, its files fetched and compared with the first download, which is written into the catalog. Raises
    HASH_MISMATCH too, and what `check_spec` raises, before a cartridge starts."""
    found = meant(cap, arguments, choice.catalog, profile=choice.profile)
    given = found.arguments
    if given.get("model") is not None:
        check_spec(given["model"], argument="--model", takes=f"a name of the catalog, {SPECS}")
    if found.pins:
        from cartdeck.cli.asking import run_asking
        from cartdeck.server.models.origins import Origins

        async def work(ask: "Ask") -> None:
            nonlocal given
            origins = Origins(lambda _cap, _arguments: False)
            for pin in found.pins:
                result = await ask(_DOWNLOAD, {"model": pin.spec})
                details: Any = json.loads(result.output("details"))
                given = pin.applied(given, await origins.settle(pin, details))

        run_asking(work, is_quiet=is_quiet, is_verbose=is_verbose)
    return found.cap, given


def catalog_asked(name: str, catalog: Path | None) -> Path | None:
    """The catalog in which a model of that name is looked for: `catalog`, or this user's. None for what looks like a
    spec at once, as what is needed to read a catalog takes a while to load, and where this user has none."""
    if name[:1] in (".", "/", "~", "{") or ":" in name:
        return None
    from cartdeck.catalog.catalog_file import CATALOG_VARIABLE, catalog_path

    path = catalog or catalog_path()
    return path if catalog is not None or os.environ.get(CATALOG_VARIABLE) or path.exists() else None


def is_meant_as_spec(name: str, error: CartdeckError) -> bool:
    """Whether what a catalog does not have is a repository, or a file that is there."""
    return error.code is Code.MODEL_NOT_FOUND and ("/" in name or os.path.lexists(name))


def _found(name: str, alias: str, catalog: Path | None, profile: str | None) -> "ServedModel | None":
    """The model of that name; None for a spec, and where there is no catalog."""
    path = catalog_asked(name, catalog)
    if path is None:
        return None
    from cartdeck.server.models.catalog_directory import CatalogDirectory
    from cartdeck.server.models.directory import Kind

    kinds = {
        "chat": Kind.CHAT,
        "generate-text": Kind.COMPLETION,
        "embed-text": Kind.EMBEDDING,
        "transcribe-speech": Kind.TRANSCRIPTION,
        "describe-image": Kind.CHAT,
    }
    try:
        directory, kind = CatalogDirectory(path, _Nothing()), kinds[alias]
        return directory.find(name, kind) if profile is None else directory.find_in(name, kind, profile=profile)
    except CartdeckError as error:
        if is_meant_as_spec(name, error):
            return None
        raise


class _Nothing:
    """A directory without models: behind the catalog there are specs alone."""

    is_guarded = False

    def find(self, name: str, kind: "Kind") -> "ServedModel":
        message = f"The catalog has no model {name[:200]!r}; `cartdeck catalog add` adds one."
        raise failure(Code.MODEL_NOT_FOUND, message, argument="model", details={"near": []})

    def models(self) -> "Sequence[ServedModel]":
        return ()


def _check(model: "ServedModel", alias: str) -> None:
    """Raises UNSUPPORTED for what the catalog says that a call alone would pass over."""
    from cartdeck.catalog.entry import Capability

    message = None
    if alias == "describe-image" and Capability.VISION not in (model.capabilities or ()):
        can = ", ".join(sorted(model.capabilities or ()))
        message = f"The model {model.name} does not see; the catalog has it for: {can}."
    elif model.place is not None:
        message = f"Another server answers for {model.name}; `cartdeck serve` asks it, this command does not."
    elif model.guards:
        guards = ", ".join(one.name for one in model.guards)
        message = (
            f"The model {model.name} is guarded by {guards}: `cartdeck serve` asks guards, this command does not. "
            f"Its source is {model.spec}."
        )
    if message is not None:
        raise failure(Code.UNSUPPORTED, message, argument="--model")


def _bounded(given: Mapping[str, Any], model: "ServedModel") -> dict[str, Any]:
    """What was given, a number of tokens within the model's own limit. As options have it, it is a text."""
    wanted, most = given.get("max-tokens"), model.most_tokens
    if most is not None and isinstance(wanted, str) and wanted.isdecimal() and int(wanted) > most:
        return {**given, "max-tokens": most}
    return dict(given)
