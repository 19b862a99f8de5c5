"""Owns one call for vectors: texts taken as they come, computed in batches, answered in their order.

It does not know how a vector is computed.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from cartdeck_modelkit.image import RgbImage, decode_image
from cartdeck_modelkit.phases import SHORTEST_INTERVAL_S, keeping_alive
from cartdeck_modelkit.provenance import Provenance
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.progress import INFERENCE
from cartdeck_sdk import Output
from cartdeck_torch.batching import plan_batches
from cartdeck_torch.instance import Loaded
from cartdeck_torch.intake import Intake
from cartdeck_torch.worker import DeviceWorker

IN_FLIGHT: Final = 2
"""Batches of one call that the worker knows of: one runs, one waits, and other calls' batches come between."""


IMAGES_AT_ONCE: Final = 8


class Counter:
    """Reports how many items are done; the total is known once the input has ended."""

    def __init__(self, output: Output, intake: Intake[Any], what: str) -> None:
        self.done = 0
        self._output = output
        self._intake = intake
        self._what = what
        self._last_s = float("-inf")

    def advance(self, count: int) -> None:
        """So many more are done."""
        self.done += count
        now = asyncio.get_running_loop().time()
        if now - self._last_s >= SHORTEST_INTERVAL_S:
            self._last_s = now
            self.repeat()

    def repeat(self) -> None:
        """Says where the call stands."""
        total = self._intake.received if self._intake.is_ended else None
        fraction = INFERENCE.at(self.done / total) if total else INFERENCE.base
        self._output.progress(fraction, self._what, phase="inference", work=self.done, total=total)


class TextEmbedding:
    """One embed-text call."""

    def __init__(self, worker: DeviceWorker, loaded: Loaded, *, pooling: str | None, normalize: bool, truncate: str):
        self._worker = worker
        self._loaded = loaded
        self._pooling = pooling
        self._normalize = normalize
        self._truncate = truncate

    async def run(self, intake: Intake[str], output: Output, provenance: Provenance) -> None:
        """Answers each text with its vector. Raises `CONTEXT_OVERFLOW`, `NON_FINITE_OUTPUT` and `BAD_ARGUMENT` with
        `index`, after the vectors of the texts before it."""
        counter = Counter(output, intake, "Embedding texts")
        async with keeping_alive(counter.repeat):
            counter.repeat()
            async for window in intake.windows():
                await self._embed(window, output, provenance, counter)

    async def _embed(self, window: list[str], output: Output, provenance: Provenance, counter: Counter) -> None:
        first = counter.done
        texts, error = _only_texts(window, first)
        tokens, too_many = await self._ask("encode", texts, truncate=self._truncate)
        if too_many is not None:
            error = _overflow(first + len(tokens), too_many, await self._max_tokens())
        provenance.usage.prompt_tokens += sum(len(one.ids) for one in tokens)
        provenance.truncated = provenance.truncated or any(one.is_cut for one in tokens)
        await self._answer([one.ids for one in tokens], output, provenance, counter)
        if error is not None:
            await asyncio.sleep(0)  # an error drops what has not left yet: let the vectors before it go first
            raise error

    async def _answer(self, ids: list[list[int]], output: Output, provenance: Provenance, counter: Counter) -> None:
        first, sent = counter.done, 0
        vectors: list[Any] = [_MISSING] * len(ids)
        batches = deque(plan_batches([len(one) for one in ids]))
        running: deque[tuple[list[int], asyncio.Future[Any]]] = deque()
        provenance.batched = provenance.batched or any(len(batch) > 1 for batch in batches)
        try:
            while batches or running:
                while batches and len(running) < IN_FLIGHT:
                    batch = batches.popleft()
                    running.append((batch, self._ask_later([ids[index] for index in batch])))
                batch, future = running.popleft()
                for index, vector in zip(batch, await future, strict=True):
                    vectors[index] = vector
                counter.advance(len(batch))
                while sent < len(vectors) and vectors[sent] is not _MISSING:
                    if vectors[sent] is None:
                        await asyncio.sleep(0)  # as above
                        raise _not_finite(first + sent, self._loaded.dtype)
                    await output.item(vectors[sent])
                    sent += 1
        finally:
            for _, future in running:
                future.cancel()

    def _ask_later(self, batch: list[list[int]]) -> "asyncio.Future[Any]":
        return asyncio.wrap_future(
            self._worker.use(
                self._loaded.handle,
                lambda model: model.embed(batch, pooling=self._pooling, normalize=self._normalize),
            )
        )

    async def _ask(self, method: str, *values: Any, **named: Any) -> Any:
        future = self._worker.use(self._loaded.handle, lambda model: getattr(model, method)(*values, **named))
        return await asyncio.wrap_future(future)

    async def _max_tokens(self) -> int:
        future = self._worker.use(self._loaded.handle, lambda model: int(model.shape.max_tokens))
        return await asyncio.wrap_future(future)


class ImageEmbedding:
    """One embed-image call."""

    def __init__(self, worker: DeviceWorker, loaded: Loaded, *, normalize: bool) -> None:
        self._worker = worker
        self._loaded = loaded
        self._normalize = normalize

    async def run(self, intake: Intake[bytes], output: Output, provenance: Provenance) -> None:
        """Answers each image with its vector. Raises `BAD_IMAGE`, `EMPTY_INPUT` and `NON_FINITE_OUTPUT` with `index`,
        after the vectors of the images before it."""
        counter = Counter(output, intake, "Embedding images")
        async with keeping_alive(counter.repeat):
            counter.repeat()
            async for window in intake.windows():
                for first in range(0, len(window), IMAGES_AT_ONCE):
                    part = window[first : first + IMAGES_AT_ONCE]
                    provenance.batched = provenance.batched or len(part) > 1
                    await self._embed(part, output, counter)

    async def _embed(self, files: Sequence[bytes], output: Output, counter: Counter) -> None:
        images, error = await asyncio.to_thread(_decoded, files, counter.done)
        if images:
            future = self._worker.use(
                self._loaded.handle, lambda model: model.embed_images(images, normalize=self._normalize)
            )
            for vector in await asyncio.wrap_future(future):
                if vector is None:
                    error = _not_finite(counter.done, self._loaded.dtype)
                    break
                await output.item(vector)
                counter.advance(1)
        if error is not None:
            await asyncio.sleep(0)  # an error drops what has not left yet: let the vectors before it go first
            raise error


def _decoded(files: Sequence[bytes], first: int) -> tuple[list[RgbImage], CartdeckError | None]:
    """The images up to one that cannot be taken, and the error for that one."""
    images: list[RgbImage] = []
    for data in files:
        try:
            images.append(decode_image(data, argument="images"))
        except CartdeckError as error:
            index = first + len(images)
            error.details["index"] = index
            message = f"image {index}: {error.message}"
            return images, failure(error.code, message, argument="images", phase="inference", details=error.details)
    return images, None


_MISSING: Final = object()


def _only_texts(window: Sequence[Any], first: int) -> tuple[list[str], CartdeckError | None]:
    """The texts up to an item that is none, and the error for that one."""
    for index, item in enumerate(window):
        if not isinstance(item, str):
            message = f"item {first + index} of the texts is {type(item).__name__}, expected a text"
            error = failure(
                Code.BAD_ARGUMENT, message, argument="texts", phase="inference", details={"index": first + index}
            )
            return list(window[:index]), error
    return list(window), None


def _overflow(index: int, tokens: int, max_tokens: int) -> CartdeckError:
    return failure(
        Code.CONTEXT_OVERFLOW,
        f"text {index} has {tokens:,} tokens, and the model sees {max_tokens:,}; shorten it, or set truncate to start "
        "or end",
        argument="texts",
        phase="inference",
        details={"index": index, "tokens": tokens, "max_tokens": max_tokens},
    )


def _not_finite(index: int, dtype: str) -> CartdeckError:
    return failure(
        Code.NON_FINITE_OUTPUT,
        f"the vector of item {index} holds numbers that are not finite, computed alone in {dtype} too",
        phase="inference",
        details={"index": index, "dtype": dtype},
    )
