"""Owns a request's body on its way in: bounded in size and time, read as JSON or as a form, checked by a model.

It does not know what the fields mean.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from cartdeck.near import near_names
from cartdeck.server.options import RequestLimits
from cartdeck.server.refusal import Refused
from cartdeck_protocol.caps import ArgumentDefinition, decode_value
from cartdeck_protocol.errors import Code, failure

MOST_PARTS: Final = 256
FIELD_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
DRAINED_BYTES: Final = 256 * 1024 * 1024
"""So much of a body that is too large is still taken in, and dropped: a client that is cut off while it sends would not
read the answer."""
_JSON_TYPES: Final = frozenset({"", "application/json", "text/json"})
_JSON_HEADER: Final = "expected application/json: send the header Content-Type: application/json."

Model = TypeVar("Model", bound=BaseModel)


async def read_json(request: Request, kind: type[Model], limits: RequestLimits) -> Model:
    """The JSON body as `kind`. Raises Refused 400, 408, 413 or 415, which name the field where there is one."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in _JSON_TYPES:
        raise Refused(415, "WRONG_MEDIA_TYPE", f"The body is {content_type}; {_JSON_HEADER}")
    return checked(kind, parse_json(await _read(request, limits)))


def parse_json(data: bytes) -> Any:
    """The value; no byte order mark, no NaN, at most 200 levels deep. Raises Refused 400 with the place."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        what = "begins with a byte order mark" if data[:3] == b"\xef\xbb\xbf" else str(error)
        message = f"The body is no JSON text in UTF-8: {what}." if data else "The body is empty; expected JSON."
        raise Refused(400, Code.BAD_ARGUMENT.name, message) from None


def checked(kind: type[Model], value: Any) -> Model:
    """`value` as `kind`. Raises Refused 400 that names the first field at fault."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = near_names(str(first["loc"][-1]), kind.model_fields)
            hint = f" Near it: {', '.join(near)}." if near else ""
            code, message = Code.UNKNOWN_ARGUMENT, f"{name} is no field of this request.{hint}"
        elif first["type"] == "missing":
            code, message = Code.MISSING_ARGUMENT, f"{name} is missing."
        else:
            said = first["msg"].removeprefix("Value error, ")
            code, message = Code.BAD_ARGUMENT, f"{name or 'The body'}: {said}; found {_shown(first['input'])}."
        raise Refused(400, code.name, message, param=name or None) from None


async def _read(request: Request, limits: RequestLimits) -> bytes:
    _check_head(request, most_bytes=limits.json_bytes)
    pieces: list[bytes] = []
    size = 0
    async for piece in _pieces(request, limits.body_s):
        size += len(piece)
        if size <= limits.json_bytes:
            pieces.append(piece)
        elif size > DRAINED_BYTES:
            break
    if size > limits.json_bytes:
        raise too_large(limits.json_bytes)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_head(request: Request, *, most_bytes: int) -> None:
    """A length that is told and beyond all patience is refused before a byte is read, and so is a body that is packed:
    how much comes out of one is not known before."""
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        message = f"The body is encoded as {packed[:40]}; expected it as it is, without Content-Encoding."
        raise Refused(415, "WRONG_MEDIA_TYPE", message, headers=(("connection", "close"),))
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > max(most_bytes, DRAINED_BYTES):
        raise too_large(most_bytes)


def too_large(most_bytes: int) -> Refused:
    message = f"The body is larger than {most_bytes} bytes, which is the most that is taken here."
    return Refused(413, "TOO_LARGE", message, headers=(("connection", "close"),))


async def _pieces(request: Request, pause_s: float) -> AsyncGenerator[bytes]:
    """The body as it comes. Raises Refused 408 when it pauses for too long."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(pause_s):
                piece = await anext(stream, None)
        except TimeoutError:
            message = f"The body paused for more than {pause_s:g} s."
            raise Refused(408, "SLOW_BODY", message, headers=(("connection", "close"),)) from None
        if piece is None:
            return
        if piece:
            yield piece


async def read_form(request: Request, limits: RequestLimits) -> FormData:
    """A multipart body; files beyond a megabyte lie in temporary files until the form is closed.

    Raises Refused 400, 408, 413 or 415.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "multipart/form-data":
        found = f"The body is {content_type}" if content_type else "The request has no header Content-Type"
        message = f"{found}; expected multipart/form-data with its boundary, as curl -F NAME=VALUE sends it."
        raise Refused(415, "WRONG_MEDIA_TYPE", message)
    _check_head(request, most_bytes=limits.upload_bytes)
    parser = MultiPartParser(
        request.headers, _bounded(request, limits), max_files=MOST_PARTS, max_fields=MOST_PARTS,
        max_part_size=FIELD_BYTES,
    )  # fmt: skip
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise Refused(400, Code.BAD_ARGUMENT.name, f"The form cannot be read: {error.message}") from None


async def _bounded(request: Request, limits: RequestLimits) -> AsyncGenerator[bytes]:
    size = 0
    async for piece in _pieces(request, limits.body_s):
        size += len(piece)
        if size > limits.upload_bytes:
            raise too_large(limits.upload_bytes)
        yield piece


def form_parts(form: FormData) -> tuple[dict[str, Any], dict[str, list[UploadFile]]]:
    """The texts and the files of a form, by name; several texts of `NAME[]`, or of one name, are a list."""
    texts: dict[str, Any] = {}
    files: dict[str, list[UploadFile]] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files.setdefault(name, []).append(value)
        elif name.endswith("[]") or name in texts:
            kept = texts.get(name.removesuffix("[]"), [])
            texts[name.removesuffix("[]")] = [*(cast("list[Any]", kept) if isinstance(kept, list) else [kept]), value]
        else:
            texts[name] = value
    return texts, files


def form_fields(form: FormData) -> tuple[dict[str, Any], dict[str, UploadFile]]:
    """As `form_parts`, each file alone. Raises Refused 400 for two of one name."""
    texts, files = form_parts(form)
    return texts, {name: sole_file(name, given) for name, given in files.items()}


def sole_file(name: str, files: Sequence[UploadFile]) -> UploadFile:
    """The file of that name. Raises Refused 400 for several."""
    if len(files) > 1:
        message = f"{name} is given {len(files)} times; expected one file."
        raise Refused(400, Code.BAD_ARGUMENT.name, message, param=name)
    return files[0]


class FilePieces:
    """A file of a form, as an argument takes it: from its beginning, each time that it is asked for."""

    def __init__(self, file: UploadFile) -> None:
        self.file = file

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        await self.file.seek(0)
        while piece := await self.file.read(PIECE_BYTES):
            yield piece


class FileItems:
    """Files of a form as the items of a sequence, each read as a whole when its turn comes."""

    def __init__(self, argument: ArgumentDefinition, files: Sequence[UploadFile]) -> None:
        self._argument = argument
        self._files = files

    async def __aiter__(self) -> AsyncGenerator[Any]:
        """Raises BAD_ARGUMENT or INVALID_TEXT for a file that is no such item."""
        for file in self._files:
            await file.seek(0)
            yield decode_value(self._argument, await file.read())


def refuse_unsupported(given: Any, unsupported: Mapping[str, tuple[tuple[Any, ...], str]]) -> Any:
    """Raises UNSUPPORTED for a field that is known and cannot be served: name -> (values that ask for nothing, what to
    do instead). Those that ask for nothing are left out of what is returned."""
    if not isinstance(given, dict):
        return given
    fields = dict(cast("dict[str, Any]", given))
    for name, (harmless, advice) in unsupported.items():
        if name not in fields:
            continue
        value = fields.pop(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in harmless):
            raise failure(Code.UNSUPPORTED, f"{name} cannot be served here. {advice}", argument=name)
    return fields


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
