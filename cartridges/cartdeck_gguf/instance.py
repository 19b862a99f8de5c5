"""Owns the one model of this process: obtained and loaded by the first request that needs it, shared by the next.

It does not know caps. A request that gives up while it obtains or loads leaves that to the next one.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cartdeck_gguf.admission import read_text
from cartdeck_gguf.attachments import (
    Attachments,
    Wanted,
    apply_adapters,
    obtain_attachments,
    obtain_seeing_model,
    read_wanted,
)
from cartdeck_gguf.batcher import Batcher
from cartdeck_gguf.constraining import Constrainer
from cartdeck_gguf.cutting import SHORT_CHARACTERS
from cartdeck_gguf.generation import Generation, LogLine, Piece
from cartdeck_gguf.loading import LoadedModel, LoadSettings, check_engine, check_model, import_engine, load, native_log
from cartdeck_gguf.memory_plan import device_share, plan_memory
from cartdeck_gguf.offload import plan_offload
from cartdeck_gguf.projector import Projector
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.owner import Owner
from cartdeck_modelkit.phases import LoadReport, ObtainedModel, keeping_alive, obtain_model, run_load
from cartdeck_modelkit.provenance import Provenance
from cartdeck_modelkit.refusal import refuse_given
from cartdeck_modelkit.reservation import Holdings
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_sdk import Output, Request

NOT_FOR_GGUF: Final = ("device", "dtype", "kv-cache", "tensor-parallel")


def refuse_safetensors_arguments(request: Request) -> None:
    """Raises `UNSUPPORTED` for what was asked of a model in safetensors files."""
    refuse_given(request, *NOT_FOR_GGUF, why="is for models in safetensors files, and this one is a GGUF file")


class Instance:
    """A model, its owner's thread, and what it was made from."""

    def __init__(self) -> None:
        self.owner = Owner("model-owner")
        self._turn = asyncio.Lock()
        self._cutting = asyncio.Lock()
        self._wanted: tuple[str, LoadSettings, Wanted] | None = None
        self._obtained: ObtainedModel | None = None
        self._obtained_projector = False
        self._loaded: LoadedModel | None = None
        self._batcher: Batcher | None = None
        self._constrainer: Constrainer | None = None
        self._has_looked = False
        self._attached: dict[str, Any] = {}
        self.holdings = Holdings()
        self.projector: Projector | None = None
        """The model's eyes, where a request that takes a projector named one or one lay beside the model."""

    @property
    def batcher(self) -> Batcher:
        """Where the loaded model's texts are computed side by side."""
        assert self._batcher is not None, "ask `ready` first"
        return self._batcher

    @property
    def constrainer(self) -> Constrainer:
        """What makes constraints on the loaded model's vocabulary."""
        assert self._constrainer is not None, "ask `ready` first"
        return self._constrainer

    def in_memory(self, spec: str) -> LoadedModel | None:
        """The model of this spec if it is loaded already: its weights and vocabulary may be used beside its texts."""
        is_it = self._wanted is not None and self._wanted[0] == spec
        return self._loaded if is_it else None

    async def generate(self, generation: Generation) -> AsyncGenerator[list[Piece | LogLine]]:
        """What comes of a request's texts, computed beside those of others; [] when something was only counted. Once
        `ready`.

        Raises `UNSUPPORTED_SCHEMA` and `INVALID_GRAMMAR` before anything is computed; `EMPTY_INPUT`,
        `CONTEXT_OVERFLOW`; `CANCELLED`, `NON_FINITE_OUTPUT`, `DEVICE_FAULT`, `READER_STALLED` later on. Leaving early
        gives the request up.
        """
        await self.constrainer.constrain(generation)
        await self._read_long_text(generation)
        batcher = self.batcher
        generation.delivery.on_room = self.owner.wake
        batcher.submit(generation)
        self.owner.wake()
        try:
            async for items in generation.delivery.batches():
                yield items
        finally:
            if not generation.delivery.is_over:
                batcher.cancel(generation)
                self.owner.wake()

    async def _read_long_text(self, generation: Generation) -> None:
        """Cuts a long prompt into tokens beside the owner's thread, which others wait for meanwhile; one after another,
        so that requests stay in the order they came."""
        text, given_up = generation.prompt, threading.Event()
        if self._loaded is None or not isinstance(text, str) or len(text) <= SHORT_CHARACTERS:
            return
        try:
            async with self._cutting:
                generation.prompt = await asyncio.to_thread(read_text, text, self._loaded, given_up.is_set)
        finally:
            given_up.set()

    async def ready(
        self, request: Request, output: Output, provenance: Provenance, *, sees_images: bool = False
    ) -> LoadedModel:
        """The loaded model that the request names; what is known of it goes into `provenance`. `sees_images`: its
        projector is wanted too, and obtained with it.

        Raises what obtaining and loading raise, and `UNSUPPORTED` for a model or settings other than this process
        holds: the host starts another process for those, and for a model that comes without a projector.
        """
        refuse_safetensors_arguments(request)
        settings = LoadSettings(
            context_size=request["context-size"], threads=request["threads"], gpu_layers=request["gpu-layers"]
        )
        wanted = (request["model"], settings, read_wanted(request))
        await self._wait_for_turn(output)
        try:
            if self._loaded is not None and wanted != self._wanted:
                raise failure(
                    Code.UNSUPPORTED,
                    f"this process holds {self._wanted}, and the request wants {wanted}; start another one for it",
                    argument="model",
                )
            self._wanted = wanted
            await self._obtain(request, provenance, with_projector=sees_images)
            loaded = await self._load(request, output, provenance, sees_images=sees_images)
            if "deterministic" in request.definition.arguments and request["deterministic"]:
                await self._hold_apart(request, loaded)
            return loaded
        finally:
            self._turn.release()

    async def _wait_for_turn(self, output: Output) -> None:
        def say() -> None:
            output.progress(0.0, "Waiting for the model, which another request is loading", phase="queue")

        if self._turn.locked():
            say()
        async with keeping_alive(say):
            await self._turn.acquire()

    async def _obtain(self, request: Request, provenance: Provenance, *, with_projector: bool) -> None:
        assert self._wanted is not None
        comes_with_it = with_projector and self.projector is None and self._wanted[2].projector is None
        if self._obtained is None or (comes_with_it and not self._obtained_projector):
            check_engine()
            self.owner.start(import_engine)  # takes a quarter of a second, which obtaining takes too; errors come later
            if comes_with_it:
                self._obtained = await obtain_seeing_model(request)
            else:
                self._obtained = await obtain_model(request, request["model"])
            self._obtained_projector = comes_with_it
            provenance.timing.obtain_s = self._obtained.obtain_s
        provenance.model.revision = self._obtained.revision
        provenance.model.sha256 = self._obtained.sha256

    async def _hold_apart(self, request: Request, loaded: LoadedModel) -> None:
        """Memory for the context of deterministic texts, which is made when the first of them is computed."""
        if loaded.device == "cpu" and not self.holdings.size_of("apart"):
            await self.holdings.hold(request, "apart", loaded.apart_bytes + loaded.parked_bytes)

    async def _load(
        self, request: Request, output: Output, provenance: Provenance, *, sees_images: bool
    ) -> LoadedModel:
        assert self._obtained is not None
        assert self._wanted is not None
        lines: list[tuple[str, str]] = []
        if self._loaded is None or self._needs_eyes(request, sees_images=sees_images):
            try:
                headers = await asyncio.to_thread(check_model, self._obtained.path)
                attachments = await obtain_attachments(
                    request, output, self._wanted[2], model=headers[0], came_with=self._obtained
                )
                settings = await self._reserve(request, headers, attachments)
                started = time.monotonic()
                load_model = partial(load, headers, settings, listener=lambda level, line: lines.append((level, line)))
                loaded = await run_load(
                    output,
                    self._obtained.path.name,
                    _size_bytes(self._obtained),
                    lambda report: self.owner.call(lambda: self._load_once(request, load_model, attachments, report)),
                )
            except BaseException as error:
                if self._loaded is not None:  # what failed came beside it
                    raise
                self._obtained = None  # the file may have gone or been mended: the next request asks again
                if isinstance(error, Exception):  # a load whose request gave up may go on, and holds what was granted
                    with suppress(CartdeckError):
                        for part in ("attachments", "prefixes", "model"):
                            await self.holdings.hold(request, part, 0)
                raise
            finally:
                for level, line in lines:
                    output.log(level, line)
            provenance.timing.load_s = time.monotonic() - started
        else:
            loaded = self._loaded
        provenance.engine_version = loaded.engine_version
        provenance.device, provenance.dtype = loaded.device, loaded.dtype
        provenance.settings = {"context_size": loaded.context_size, "threads": loaded.threads}
        if loaded.gpu_layers:
            provenance.settings["gpu_layers"] = loaded.gpu_layers
        provenance.settings |= {
            name: said for name, said in self._attached.items() if name != "projector" or sees_images
        }
        return loaded

    def _needs_eyes(self, request: Request, *, sees_images: bool) -> bool:
        """Whether a projector is to be looked for: once, and again for a request that is nothing without one."""
        takes_one = "projector" in request.definition.arguments and self.projector is None
        return takes_one and (not self._has_looked or sees_images)

    async def _reserve(self, request: Request, headers: list[Header], attachments: Attachments) -> LoadSettings:
        """The settings, with what the host granted memory for."""
        assert self._wanted is not None
        settings, hold = self._wanted[1], self.holdings.hold
        if self._loaded is not None:
            await hold(request, "attachments", attachments.size_bytes)
            return settings
        device_bytes = await asyncio.to_thread(self.owner.call, lambda: import_engine().device_memory_bytes())
        settings = plan_offload(headers, settings, device_bytes=device_bytes)
        there_is = await hold(request, "model", 0)
        if there_is is None or there_is.budget_bytes is None or there_is.free_bytes is None:
            return settings
        beside = attachments.size_bytes
        plan = plan_memory(
            headers,
            settings,
            budget_bytes=there_is.budget_bytes - beside,
            free_bytes=there_is.free_bytes - beside,
            device_share=device_share(headers[0], settings.gpu_layers, can_use_gpu=device_bytes is not None),
        )
        await hold(request, "attachments", beside)
        await hold(request, "model", plan.size_bytes)
        await hold(request, "prefixes", plan.parked_bytes)
        limit = settings.context_limit or plan.context_limit
        return replace(settings, context_limit=limit, parked_bytes=plan.parked_bytes)

    def _load_once(
        self, request: Request, load_model: Callable[..., LoadedModel], attachments: Attachments, report: LoadReport
    ) -> LoadedModel:
        """Runs on the owner's thread. A load that ends although its request gave up is kept for the next one. With a
        projector the model is the first half of it."""
        share = 1.0 if attachments.projector is None else 0.5

        def on_progress(fraction: float) -> bool:
            report(fraction * share)
            return not request.is_cancelled

        if self._loaded is None:
            loaded = load_model(on_progress=on_progress)
            try:
                loaded.adapt = lambda context: apply_adapters(loaded.model, context, attachments.adapters)
                loaded.adapt(loaded.context)
            except BaseException:
                loaded.close()
                raise
            self._batcher = Batcher(loaded)
            self._constrainer = Constrainer(self.owner, loaded.model)
            self.owner.go_on_with(self._batcher.step)
            self._loaded = loaded
        if attachments.projector is not None and self.projector is None:
            report(share)
            native_log.begin_section()
            self.projector = Projector(attachments.projector, self._loaded.model, threads=self._loaded.threads)
            report(1.0)
        self._attached |= attachments.record
        self._has_looked = self._has_looked or "projector" in request.definition.arguments
        return self._loaded


def _size_bytes(obtained: ObtainedModel) -> int:
    """Of a folder, what its files take."""
    try:
        if obtained.path.is_dir():
            return sum(int(file.get("size_bytes") or 0) for file in obtained.files)
        return obtained.path.stat().st_size
    except OSError:
        return 0
