"""Owns the caps about vectors: embed-text, embedding-dimensions.

It does not know llama.cpp; importing it loads no engine.
"""

import asyncio
import json
import sys
import time
from asyncio import CancelledError
from typing import Any, Final

from cartdeck_gguf.abort_flag import AbortFlag
from cartdeck_gguf.embedding import (
    BATCH_TOKENS,
    MOST_TEXTS,
    Embedder,
    Vector,
    check_embedder,
    dimensions_of,
    longest_text,
    unit,
)
from cartdeck_gguf.embedding_batch import pack_by_length
from cartdeck_gguf.instance import refuse_safetensors_arguments
from cartdeck_gguf.memory_plan import vector_context_bytes
from cartdeck_gguf.pooling import USABLE, Pooling, choose_pooling, own_pooling
from cartdeck_gguf.serving import cartridge, instance, new_provenance, obtain, run_on
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.owner import Owner
from cartdeck_modelkit.phases import LoadReport, ObtainedModel, keeping_alive, run_load
from cartdeck_modelkit.provenance import Provenance
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.progress import INFERENCE
from cartdeck_sdk import Output, Request

WINDOW_TEXTS: Final = 256
"""So many texts that are there at once are packed together; more wait for the next time."""


class EmbedderOfProcess:
    """The model that this process keeps for `embed-text`: loaded by the first request, shared by the next."""

    def __init__(self) -> None:
        self.owner = Owner("embedding-owner")
        self._turn = asyncio.Lock()
        self._wanted: tuple[str, int, int] | None = None
        self._obtained: ObtainedModel | None = None
        self._embedder: Embedder | None = None

    async def ready(self, request: Request, output: Output, provenance: Provenance) -> Embedder:
        """The model that the request names; to be used on the owner's thread alone.

        Raises what obtaining and loading raise, and `UNSUPPORTED` for another model than the process holds.
        """
        refuse_safetensors_arguments(request)
        wanted = (request["model"], request["threads"], request["gpu-layers"])
        async with self._turn:
            if self._embedder is None or self._obtained is None:
                self._wanted = wanted
                self._obtained = await obtain(request, provenance)
                started = time.monotonic()
                self._embedder = await self._load(request, output, self._obtained)
                provenance.timing.load_s = time.monotonic() - started
            elif wanted != self._wanted:
                message = f"this process holds {self._wanted}, and the request wants {wanted}; start another one for it"
                raise failure(Code.UNSUPPORTED, message, argument="model")
            embedder = self._embedder
        provenance.model.revision, provenance.model.sha256 = self._obtained.revision, self._obtained.sha256
        provenance.engine_version = embedder.engine_version
        provenance.device, provenance.dtype = embedder.device, embedder.dtype
        provenance.settings = {"max_tokens": embedder.max_tokens, "threads": embedder.threads}
        return embedder

    async def make_room(self, request: Request, header: Header, tokens: int) -> None:
        """Memory for a context that computes so many tokens at once: it grows with the longest text, and stays."""
        needed = vector_context_bytes(header, tokens)
        if needed > instance.holdings.size_of("vector context"):
            await instance.holdings.hold(request, "vector context", needed)

    async def _load(self, request: Request, output: Output, obtained: ObtainedModel) -> Embedder:
        headers = await asyncio.to_thread(check_embedder, obtained.path)
        weights = sum(tensor.size_bytes or 0 for header in headers for tensor in header.tensors)
        there = instance.in_memory(request["model"])
        if there is None:
            await instance.holdings.hold(request, "vector weights", weights)
        await self.make_room(request, headers[0], BATCH_TOKENS)
        lines: list[tuple[str, str]] = []

        def load(report: LoadReport) -> Embedder:
            def on_progress(fraction: float) -> bool:
                report(fraction)
                return not request.is_cancelled

            embedder = Embedder(
                headers,
                threads=request["threads"],
                gpu_layers=request["gpu-layers"],
                listener=lambda level, line: lines.append((level, line)),
                on_progress=on_progress,
                weights=None if there is None else there.model,
            )
            if request.is_cancelled:  # nobody takes it
                embedder.close()
            return embedder

        try:
            return await run_load(
                output, obtained.path.name, weights, lambda report: self.owner.call(lambda: load(report))
            )
        finally:
            for level, line in lines:
                output.log(level, line)


kept: Final = EmbedderOfProcess()


@cartridge.handles("embed-text", needs=("texts", "model", "normalize", "truncate", "threads", "gpu-layers"))
async def embed_text(request: Request, output: Output) -> None:
    """Gives a vector for each text, in order."""
    provenance = new_provenance(request["model"])
    flag = AbortFlag()
    try:
        embedder = await kept.ready(request, output, provenance)
        pooling = choose_pooling(embedder.header, request["pooling"])
        provenance.settings["pooling"] = pooling.name.lower()
        work = Embedding(request, output, provenance, embedder, pooling=pooling, flag=flag)
        async with keeping_alive(work.report):
            await work.run()
    except CancelledError:
        flag.set()
        provenance.finish_reason = "cancelled"
        raise
    finally:
        output.finish(provenance=provenance.record())


class Embedding:
    """The texts of one request on their way to vectors."""

    def __init__(
        self,
        request: Request,
        output: Output,
        provenance: Provenance,
        embedder: Embedder,
        *,
        pooling: Pooling,
        flag: AbortFlag,
    ) -> None:
        self._request = request
        self._output = output
        self._provenance = provenance
        self._embedder = embedder
        self._pooling = pooling
        self._flag = flag
        self._truncate: str = request["truncate"]
        self._normalizes: bool = request["normalize"]
        self._texts = Texts(request)
        self._done = 0

    def report(self) -> None:
        """Says how many texts are done; of how many, once all have come."""
        total = self._texts.total
        fraction = INFERENCE.base if not total else INFERENCE.at(self._done / total)
        self._output.progress(fraction, "Embedding", phase="inference", work=self._done, total=total)

    async def run(self) -> None:
        """Takes the texts that are there, gives their vectors, until all have come.

        A text that cannot be embedded is raised before those that came with it are computed.
        """
        reader = asyncio.create_task(self._texts.read())
        try:
            while texts := await self._texts.take(WINDOW_TEXTS):
                await self._embed_window(texts)
            if not self._done:
                message = "no text was given; expected a sequence of one or more"
                raise failure(Code.EMPTY_INPUT, message, argument="texts")
        finally:
            reader.cancel()

    async def _embed_window(self, texts: list[str]) -> None:
        prepared = await run_on(kept.owner, lambda: self._prepare(texts))
        vectors: list[bytes] = [b""] * len(prepared)
        lengths = list(map(len, prepared))
        await kept.make_room(self._request, self._embedder.header, max(BATCH_TOKENS, *lengths))
        for batch in pack_by_length(lengths, most_tokens=BATCH_TOKENS, most_texts=MOST_TEXTS):
            ids = [prepared[index] for index in batch]
            for index, vector in zip(batch, await run_on(kept.owner, lambda ids=ids: self._compute(ids)), strict=True):
                vectors[index] = vector
            self._provenance.usage.prompt_tokens += sum(map(len, ids))
            self._done += len(batch)
            self.report()
        for vector in vectors:
            await self._output.item(vector)

    def _prepare(self, texts: list[str]) -> list[list[int]]:
        prepared: list[list[int]] = []
        for index, text in enumerate(texts, start=self._done):
            try:
                ids, was_cut = self._embedder.prepare(text, truncate=self._truncate, index=index)
            except CartdeckError as error:
                error.details.setdefault("index", index)
                raise
            self._provenance.truncated = self._provenance.truncated or was_cut
            prepared.append(ids)
        return prepared

    def _compute(self, ids: list[list[int]]) -> list[bytes]:
        vectors = self._embedder.embed(ids, self._pooling, self._flag)
        return [_packed(unit(vector) if self._normalizes else vector) for vector in vectors]


class Texts:
    """The texts of a request as they come, read ahead of whoever takes them."""

    def __init__(self, request: Request) -> None:
        self._stream = request.stream("texts")
        self._queue: asyncio.Queue[Any] = asyncio.Queue(2 * WINDOW_TEXTS)
        self._end: list[CartdeckError] = []
        self._count = 0
        self.total: int | None = None

    async def read(self) -> None:
        """Reads to the end; an error of the stream is raised by `take` in its place."""
        try:
            async for text in self._stream:
                self._count += 1
                await self._queue.put(text)
            self.total = self._count
        except CartdeckError as error:
            self._end.append(error)
        await self._queue.put(None)

    async def take(self, most: int) -> list[str]:
        """What has come, one text at least; none at the end. Raises `INVALID_TEXT` for what is no text."""
        found: list[Any] = [await self._queue.get()]
        while found[-1] is not None and len(found) < most and not self._queue.empty():
            found.append(self._queue.get_nowait())
        if found[-1] is None:
            found.pop()
            self._queue.put_nowait(None)  # the end stays where it is
            if not found and self._end:
                raise self._end[0]
        return [_as_text(one) for one in found]


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise failure(Code.INVALID_TEXT, f"a text is no UTF-8: {error}", argument="texts") from None
    if not isinstance(value, str):
        message = f"an item is {type(value).__name__}, expected a text"
        raise failure(Code.BAD_ARGUMENT, message, argument="texts")
    return value


def _packed(vector: Vector) -> bytes:
    if sys.byteorder == "big":
        vector.byteswap()
    return vector.tobytes()


@cartridge.handles("embedding-dimensions", needs=("model",))
async def embedding_dimensions(request: Request, output: Output) -> None:
    """Says how long the model's vectors are, from its header."""
    provenance = new_provenance(request["model"])
    obtained = await obtain(request, provenance, needs_engine=False)
    headers = await asyncio.to_thread(check_embedder, obtained.path)
    await output.write(json.dumps(describe_embeddings(headers[0])))
    output.finish(provenance=provenance.record())


def describe_embeddings(header: Header) -> dict[str, Any]:
    """The record of `embedding-dimensions`."""
    own = own_pooling(header)
    return {
        "dimensions": dimensions_of(header),
        "max_tokens": longest_text(header),
        "pooling": own.name.lower() if own is not None and own in USABLE else None,
    }
