"""Owns what is loaded beside a model: LoRA adapters, and the projector of a model that sees.

It does not know how a model is loaded, nor texts. Each is checked before the engine is trusted with it: llama.cpp gives
a null pointer for an adapter that it cannot take, and ends the process where that is used.
"""

import asyncio
import ctypes
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from cartdeck_gguf.loading import import_engine, native_log
from cartdeck_gguf.model_kind import ADAPTER, kind_of_other, not_wanted
from cartdeck_gguf.projector import check_projector, find_projector
from cartdeck_gguf.soundness import unsound
from cartdeck_modelkit.gguf.header import Header, read_header
from cartdeck_modelkit.gguf.memory import projector_compute_bytes
from cartdeck_modelkit.phases import ObtainedModel, obtain_model
from cartdeck_modelkit.provenance import ModelIdentity
from cartdeck_modelkit.refusal import blaming
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_sdk import Output, Request

if TYPE_CHECKING:
    from cartdeck_gguf.context import Context
    from cartdeck_gguf.llama import Model

MOST_ADAPTERS: Final = 16
LARGEST_SCALE: Final = 100.0
_NOT_COMPUTED: Final = frozenset({"I8", "I16", "I32", "I64", "F64"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request names, by specs: part of what tells one process from another."""

    adapters: tuple[tuple[str, float], ...] = ()
    projector: str | None = None


@dataclass(frozen=True, slots=True)
class Attachments:
    """Files on this machine that were found to fit the model."""

    adapters: tuple[tuple[Path, float], ...] = ()
    projector: Path | None = None
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    """What is told of them: {adapters: [{spec, revision, sha256, scale}], projector: {spec, revision, sha256}}, as far
    as there are any; of a projector that nobody named the spec is where it lies."""

    @property
    def size_bytes(self) -> int:
        """What they take in memory: their files' sizes, and what the projector needs to see an image."""
        size_bytes = sum(path.stat().st_size for path, _ in self.adapters)
        if self.projector is not None:
            header = read_header(self.projector)
            size_bytes += header.size_bytes + projector_compute_bytes(header)
        return size_bytes


def read_wanted(request: Request) -> Wanted:
    """What the request's arguments `lora` and `projector` name. Raises `BAD_ARGUMENT`."""
    known = request.definition.arguments
    adapters = _read_adapters(request["lora"]) if "lora" in known else ()
    return Wanted(adapters, (request["projector"] or None) if "projector" in known else None)


def _read_adapters(given: Any) -> tuple[tuple[str, float], ...]:
    entries = cast("list[Any]", given) if isinstance(given, list) else [] if given is None else [given]
    if len(entries) > MOST_ADAPTERS:
        message = f"{len(entries)} adapters, and at most {MOST_ADAPTERS} are taken"
        raise failure(Code.BAD_ARGUMENT, message, argument="lora")
    return tuple(_read_adapter(entry, index) for index, entry in enumerate(entries))


def _read_adapter(entry: Any, index: int) -> tuple[str, float]:
    record = cast("Mapping[str, Any]", entry) if isinstance(entry, Mapping) else {"model": entry}
    spec, scale = record.get("model"), record.get("scale", 1.0)
    is_scale = type(scale) in (int, float) and math.isfinite(scale) and abs(scale) <= LARGEST_SCALE
    if not isinstance(spec, str) or not spec or not is_scale or set(record) - {"model", "scale"}:
        raise failure(
            Code.BAD_ARGUMENT,
            f"lora has {entry!r:.100} at index {index}, expected a model spec, or a record of model and scale "
            f"(-{LARGEST_SCALE:g} to {LARGEST_SCALE:g})",
            argument="lora",
            details={"index": index},
        )
    return spec, float(scale)


async def obtain_seeing_model(request: Request) -> ObtainedModel:
    """The files of the request's model with its projector. Raises the peer's error, and `UNSUPPORTED` for a repository
    that has no projector: before anything large of it is fetched."""
    try:
        return await obtain_model(request, request["model"], with_projector=True)
    except CartdeckError as error:
        if error.details.get("missing") != "projector":
            raise
        raise sees_nothing(request["model"], "its repository has none") from error


def sees_nothing(name: str, why: str) -> CartdeckError:
    """The error for a model that is shown an image and has no projector."""
    return failure(
        Code.UNSUPPORTED,
        f"{name} sees no images: a vision projector (a GGUF file named mmproj…) is needed, none was named, and {why}; "
        "name the one that belongs to this model with projector, or use a model that comes with one",
        argument="projector",
    )


async def obtain_attachments(
    request: Request, output: Output, wanted: Wanted, *, model: Header, came_with: ObtainedModel
) -> Attachments:
    """The files of what is wanted, fetched and checked. Where no projector is named, for a cap that takes one, the one
    that came with the model or lies beside it, if it fits.

    Raises what obtaining raises, and what `check_adapter` and `check_projector` say of a file that was named.
    """
    adapters: list[tuple[Path, float]] = []
    record: dict[str, Any] = {}
    for index, (spec, scale) in enumerate(wanted.adapters):
        with blaming("lora", index=index):
            obtained = await obtain_model(request, spec)
            await asyncio.to_thread(check_adapter, obtained.path, model)
        adapters.append((obtained.path, scale))
        record.setdefault("adapters", []).append({**_identity(spec, obtained), "scale": scale})
    projector: Path | None = None
    if wanted.projector is not None:
        with blaming("projector"):
            obtained = await obtain_model(request, wanted.projector)
            await asyncio.to_thread(check_projector, obtained.path, model)
        projector = obtained.path
        record["projector"] = _identity(wanted.projector, obtained)
    elif "projector" in request.definition.arguments:
        try:
            with blaming("projector"):
                found = await asyncio.to_thread(_find_fitting, model, came_with)
            if found is not None:
                projector = found.path
                record["projector"] = _identity(str(found.path), found)
        except CartdeckError as error:
            if request.alias == "describe-image":
                raise
            output.log("warning", f"images cannot be seen: {error.message}")
    return Attachments(tuple(adapters), projector, record)


def _identity(spec: str, obtained: ObtainedModel) -> dict[str, Any]:
    return asdict(ModelIdentity(spec, obtained.revision, obtained.sha256))


def _find_fitting(model: Header, came_with: ObtainedModel) -> ObtainedModel | None:
    """The projector that came with the model, or lies beside it; None where there is none. Raises what
    `check_projector` says of it."""
    fetched = [file for file in came_with.files if "mmproj" in Path(file["path"]).name.lower()]
    if len(fetched) == 1:
        found = ObtainedModel(Path(fetched[0]["path"]), tuple(fetched), came_with.revision)
    else:
        path = find_projector(model.path)
        found = None if path is None else ObtainedModel(path)
    if found is not None:
        check_projector(found.path, model)
    return found


def check_adapter(path: Path, model: Header) -> None:
    """Raises what `read_header` raises, and `BAD_MODEL_FILE` for what is no LoRA adapter of such a model."""
    header = read_header(path)
    header.check_complete()
    found = kind_of_other(header)
    kind = header.text("adapter.type")
    if found != ADAPTER or kind != "lora":
        found = f"an adapter of the type {kind}" if found == ADAPTER else found
        raise not_wanted(header, found or f"a model ({header.architecture})", ADAPTER)
    if not isinstance(header.metadata.get("adapter.lora.alpha"), float):
        raise unsound(header, "its adapter.lora.alpha is no number with a fraction")  # the engine aborts
    whole = next((tensor for tensor in header.tensors if tensor.type_name in _NOT_COMPUTED), None)
    if whole is not None:
        raise unsound(
            header, f"its tensor {whole.name} is of the type {whole.type_name}"
        )  # the engine has no product of it
    if header.architecture != model.architecture:
        what = f"{ADAPTER} for {header.architecture} models"
        raise not_wanted(header, what, f"one for {model.architecture} models")


def apply_adapters(model: "Model", context: "Context", adapters: tuple[tuple[Path, float], ...]) -> None:
    """Has the context compute with the adapters; on the thread that owns both. They are freed with the model.

    Raises `BAD_MODEL_FILE` with the engine's reason for one that it cannot take.
    """
    native = import_engine().NATIVE
    handles: list[Any] = []
    for path, _ in adapters:
        handle = native.llama_adapter_lora_init(model.handle, os.fsencode(path))
        if not handle:
            said = "; ".join(native_log.errors()[-2:]) or "it gave no reason"
            raise failure(
                Code.BAD_MODEL_FILE,
                f"the engine cannot use the adapter {path.name} with {model.path.name}: {said[:300]}",
                argument="lora",
                phase="load",
                details={"found": said[:300], "log": native_log.tail()},
            )
        handles.append(handle)
    if handles:
        count = len(handles)
        pointers = (native.llama_adapter_lora_p_ctypes * count)(*handles)
        scales = (ctypes.c_float * count)(*(scale for _, scale in adapters))
        status = native.llama_set_adapters_lora(context.handle, pointers, count, scales)
        if status:
            raise failure(
                Code.BAD_MODEL_FILE, f"the engine refused the adapters ({status})", argument="lora", phase="load"
            )
