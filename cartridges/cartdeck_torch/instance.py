"""Owns the one model of this process and the worker of its device: obtained and loaded by the first request that needs
it, shared by the next.

It does not know caps. A request that gives up while it obtains or loads leaves that to the next one.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cartdeck_modelkit.libraries import check_installed
from cartdeck_modelkit.machine import default_threads
from cartdeck_modelkit.phases import LoadReport, ObtainedModel, keeping_alive, obtain_model, run_load
from cartdeck_modelkit.provenance import Provenance
from cartdeck_modelkit.reservation import reserve_memory
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.progress import LOADING
from cartdeck_sdk import Output, Request
from cartdeck_torch.device import Device
from cartdeck_torch.family import WITHOUT_GGUF, Task, check_kind
from cartdeck_torch.folder import ModelFolder, check_spec, read_folder
from cartdeck_torch.job import Job
from cartdeck_torch.memory_plan import plan_memory
from cartdeck_torch.parallel.group import RankGroup, start_ranks
from cartdeck_torch.parallel.shares import ARGUMENT, check_shares
from cartdeck_torch.settings import LoadSettings, choose_device
from cartdeck_torch.slab import Handle
from cartdeck_torch.worker import DeviceWorker

ENGINE_LIBRARY: Final = "torch"
LIBRARIES: Final = ("torch", "transformers")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model as its requests know it; itself it stays with the worker, under `handle`."""

    handle: Handle
    folder: ModelFolder
    device: str
    dtype: str
    threads: int
    engine_version: str
    notices: tuple[str, ...]


class Instance:
    """A model, its device's worker, and what it was made from."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._wanted: tuple[str, LoadSettings] | None = None
        self._obtained: ObtainedModel | None = None
        self._loaded: Loaded | None = None
        self._worker: DeviceWorker | None = None
        self._ranks: RankGroup | None = None
        """Started and not taken yet."""

    @property
    def worker(self) -> DeviceWorker:
        """The worker of the device that the model is on. To be asked for once the model is ready."""
        assert self._worker is not None
        return self._worker

    def submit(self, work: Callable[[Any, Job], None]) -> Job:
        """Have `work(model, job)` run in its turn, with the model that is ready."""
        assert self._loaded is not None
        return self.worker.submit(self._loaded.handle, work)

    @property
    def fault(self) -> CartdeckError | None:
        """Why the device is lost; None while it is not."""
        return None if self._worker is None else self._worker.fault

    async def ready(self, request: Request, output: Output, provenance: Provenance, *, task: Task) -> Loaded:
        """The loaded model that the request names, one that is made for `task`; what is known goes into `provenance`.

        Raises what obtaining and loading raise, and `UNSUPPORTED` for a model or settings other than this process
        holds: the host starts another process for those.
        """
        wanted = (request["model"], _settings(request))
        await self._wait_for_turn(output)
        try:
            if self._wanted is not None and self._loaded is not None and wanted != self._wanted:
                raise failure(
                    Code.UNSUPPORTED,
                    f"this process holds {self._wanted}, and the request wants {wanted}; start another one for it",
                    argument="model",
                )
            self._wanted = wanted
            await self._obtain(request, provenance, task=task)
            loaded = await self._load(request, output, provenance, task=task)
        finally:
            self._turn.release()
        check_kind(loaded.folder, task)
        provenance.engine_version = loaded.engine_version
        provenance.device, provenance.dtype = loaded.device, loaded.dtype
        provenance.settings = {"threads": loaded.threads}
        if loaded.notices:
            provenance.settings["notices"] = list(loaded.notices)
        return loaded

    async def _wait_for_turn(self, output: Output) -> None:
        def say() -> None:
            output.progress(0.0, "Waiting for the model, which another request is loading", phase="queue")

        if self._turn.locked():
            say()
        async with keeping_alive(say):
            await self._turn.acquire()

    async def _obtain(self, request: Request, provenance: Provenance, *, task: Task) -> None:
        if self._obtained is None:
            check_spec(request["model"], has_gguf=task not in WITHOUT_GGUF)
            check_installed(*LIBRARIES, extra="torch")
            self._obtained = await obtain_model(request, request["model"])
            provenance.timing.obtain_s = self._obtained.obtain_s
        provenance.model.revision = self._obtained.revision
        provenance.model.sha256 = self._obtained.sha256

    async def _load(self, request: Request, output: Output, provenance: Provenance, *, task: Task) -> Loaded:
        if self._loaded is not None:
            return self._loaded
        assert self._obtained is not None
        assert self._wanted is not None
        try:
            folder = await asyncio.to_thread(read_folder, self._obtained.path, has_gguf=task not in WITHOUT_GGUF)
            check_kind(folder, task)
            settings = self._wanted[1]
            if settings.tensor_parallel > 1:
                check_shares(folder, settings.tensor_parallel)
            await reserve_memory(request, plan_memory(folder, settings))
            started = time.monotonic()
            await output.run_with_keepalive(
                LOADING.base,
                "Importing PyTorch",
                lambda _: self._own_worker(settings).start(_open).result(),
                phase="load",
            )
            loaded = await run_load(
                output,
                folder.name,
                folder.size_bytes,
                lambda report: self._load_once(request, folder, settings, report),
            )
        except BaseException:
            self._obtained = None  # the files may have gone or been mended: the next request asks again
            raise
        provenance.timing.load_s = time.monotonic() - started
        for notice in loaded.notices:
            output.log("info", notice)
        return loaded

    def _load_once(self, request: Request, folder: ModelFolder, settings: LoadSettings, report: LoadReport) -> Loaded:
        """Runs in a worker thread of the SDK. A load that ends although its request gave up is kept for the next."""

        def on_progress(fraction: float) -> None:
            report(fraction)
            request.raise_if_cancelled()

        worker = self._own_worker(settings)
        try:
            handle = worker.load(
                lambda device: _open_model(folder, settings, device, on_progress, self._take_ranks()), folder.name
            ).result()
        except CartdeckError as error:
            error.phase = error.phase or "load"  # by which a host knows that it may make room and try again
            raise
        loaded = worker.start(lambda device: device).result()  # its plain attributes are read, no tensor
        described = worker.use(handle, lambda model: (model.dtype, model.notice)).result()
        self._loaded = Loaded(
            handle=handle,
            folder=folder,
            device=loaded.name,
            dtype=described[0],
            threads=settings.own_threads(default_threads()),
            engine_version=_engine_version(),
            notices=tuple(one for one in (loaded.notice, described[1]) if one),
        )
        return self._loaded

    def _own_worker(self, settings: LoadSettings) -> DeviceWorker:
        if self._worker is None:
            threads = settings.own_threads(default_threads())
            self._worker = DeviceWorker(lambda: self._open_device(settings, threads))
        return self._worker

    def _open_device(self, settings: LoadSettings, threads: int) -> Device:
        """Runs on the worker's thread. Ranks begin first: what they import takes as long as what is imported here."""
        if settings.tensor_parallel > 1:
            self._ranks = start_ranks(settings.tensor_parallel)
        try:
            return _open_device(settings.device, threads=threads)
        except BaseException:
            ranks = self._take_ranks()
            if ranks is not None:
                ranks.close()
            raise

    def _take_ranks(self) -> RankGroup | None:
        ranks, self._ranks = self._ranks, None
        return ranks


def _open(_: Device) -> None:
    """A job that asks nothing of the device but to be there."""


def _settings(request: Request) -> LoadSettings:
    arguments = request.definition.arguments
    return LoadSettings(
        threads=request["threads"],
        device=choose_device(request["device"], request["gpu-layers"]),
        dtype=request["dtype"],
        kv_cache=request["kv-cache"] if "kv-cache" in arguments else "dynamic",
        context_size=request["context-size"] if "context-size" in arguments else 0,
        tensor_parallel=request[ARGUMENT] if ARGUMENT in arguments else 1,
    )


def _open_device(name: str, *, threads: int) -> Device:
    """Runs on the worker's thread: the libraries are imported here, at the first load."""
    # Files come through the models cartridge; nothing here asks a network. The hub's client reads this at its import.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from cartdeck_torch.engine import torch_device  # noqa: PLC0415 - heavy: only when a model is loaded
    except (ImportError, OSError) as error:
        raise failure(
            Code.CARTRIDGE_UNAVAILABLE,
            f"torch or transformers cannot be loaded ({error}); install them with: pip install 'cartdeck[torch]'",
            phase="load",
        ) from error
    torch_device.settle()
    return torch_device.open_device(name, threads=threads)


def _open_model(
    folder: ModelFolder, settings: LoadSettings, device: Any, report: Callable[[float], None], ranks: RankGroup | None
) -> Any:
    from cartdeck_torch.engine.models import open_model  # noqa: PLC0415 - heavy: only when a model is loaded

    return open_model(folder, settings, device, report=report, ranks=ranks)


def _engine_version() -> str:
    from cartdeck_torch.engine.torch_device import VERSION  # noqa: PLC0415 - heavy: only when a model is loaded

    return VERSION
