"""Owns `/v1/embeddings`: texts or token ids in, vectors out, as numbers or as base64 of little-endian float32.

It does not know how vectors are made.
"""

import base64
import math
import struct
from typing import Any, Final, Literal

from starlette.requests import Request

from cartdeck.server.body import read_json
from cartdeck.server.fields import Count, Name, Noted, as_list, as_record
from cartdeck.server.json_response import json_response
from cartdeck.server.models.directory import Kind, ServedModel
from cartdeck.server.refusal import named_as
from cartdeck.server.service import Service, collect_all
from cartdeck.unread_weights import with_reader
from cartdeck_protocol.errors import CartdeckError, Code, failure

_DETOKENIZE: Final = "cap:detokenize"
_NAMES: Final = {"texts": "input"}


class EmbeddingRequest(Noted):
    model: Name
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    # Ours, beside OpenAI's:
    truncate: Literal["error", "start", "end"] | None = None
    normalize: bool | None = None
    pooling: Literal["mean", "cls", "last"] | None = None

    def inputs(self, most: int) -> list[Any]:
        """The texts, or the token ids of each. Raises BAD_ARGUMENT."""
        given = [] if _is_token(self.input) else as_list(self.input)
        if given and all(_is_token(one) for one in given):
            given = [given]
        if len(given) > most:
            message = f"input has {len(given)} texts, and at most {most} are taken."
            raise failure(Code.BAD_ARGUMENT, message, argument="input")
        if given and (all(isinstance(one, str) for one in given) or all(_is_tokens(one) for one in given)):
            return given
        message = "input is no text, no list of texts, and no list of token ids, or is empty."
        raise failure(Code.BAD_ARGUMENT, message, argument="input")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(as_list(value)) and all(_is_token(one) for one in as_list(value))


class EmbeddingEndpoint:
    """The endpoint, on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def embed(self, request: Request) -> Any:
        limits = self._service.options.limits
        asked = await read_json(request, EmbeddingRequest, limits)
        inputs = asked.inputs(limits.inputs)
        model = self._service.directory.find(asked.model, Kind.EMBEDDING)
        texts = inputs
        if model.place is None:  # another server knows its tokens itself
            texts = [one if isinstance(one, str) else await self._text_of(request, model, one) for one in inputs]
        given = {"texts": texts, "truncate": asked.truncate, "normalize": asked.normalize, "pooling": asked.pooling}
        with named_as(_NAMES):
            served = self._service.call(Kind.EMBEDDING, asked.model, given, form=asked)
            try:
                [result] = await collect_all([served], request)
            except CartdeckError as error:
                raise with_reader(error, self._service.engine.router, Kind.EMBEDDING.cap) from None
        vectors = [fitted(bytes(one), asked.dimensions, model) for one in result.items]
        is_base64 = asked.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _base64(one) if is_base64 else _numbers(one)}
            for index, one in enumerate(vectors)
        ]
        usage = as_record(result.provenance.get("usage"))
        prompt = int(usage.get("prompt_tokens") or 0)
        counts = {"prompt_tokens": prompt, "total_tokens": prompt}
        counts |= {"is_estimate": True} if usage.get("is_estimate") else {}
        return json_response({"object": "list", "data": data, "model": asked.model, "usage": counts})

    async def _text_of(self, request: Request, model: ServedModel, tokens: list[int]) -> str:
        """The text that token ids of the model stand for. Raises UNSUPPORTED where its cartridge cannot tell."""
        served = self._service.call_cap(_DETOKENIZE, {"model": model.spec, "ids": tokens})
        try:
            [result] = await collect_all([served], request)
        except CartdeckError as error:
            if error.code not in (Code.UNSUPPORTED, Code.NO_SUCH_CAP, Code.BAD_MODEL_FILE, Code.BAD_ARGUMENT):
                raise
            message = f"input holds token ids, which cannot be turned into text with {model.name}: {error.message}"
            raise failure(Code.UNSUPPORTED, message, argument="input") from None
        return result.text


def fitted(vector: bytes, dimensions: int | None, model: ServedModel) -> bytes:
    """The vector with so many numbers; one that is cut is scaled to the length 1 again.

    Raises UNSUPPORTED for a length that the model does not have and was not made to be cut to.
    """
    count = len(vector) // 4
    if dimensions is None or dimensions == count:
        return vector
    if dimensions not in model.dimensions or dimensions > count:
        lengths = ", ".join(str(one) for one in sorted({count, *model.dimensions}))
        message = f"dimensions is {dimensions}; the vectors of {model.name} can have: {lengths}."
        raise failure(Code.UNSUPPORTED, message, argument="dimensions")
    cut = struct.unpack(f"<{dimensions}f", vector[: 4 * dimensions])
    length = math.sqrt(math.fsum(one * one for one in cut)) or 1.0
    return struct.pack(f"<{dimensions}f", *(one / length for one in cut))


def _numbers(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode("ascii")
