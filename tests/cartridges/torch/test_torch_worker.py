"""The device worker on a device double: what a lost device, a full one and a caller that left mean for its jobs."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.device import DeviceMemory, Meaning, meaning_of, needed_bytes
from cartdeck_torch.job import Job
from cartdeck_torch.worker import DeviceWorker

LIMIT_S = 10.0


class OutOfMemoryError(RuntimeError):
    """Named as torch names it."""


class AcceleratorError(RuntimeError):
    """Named as torch names it."""


class DeviceDouble:
    """A device with a memory of 1,000 bytes, of which models take some; it says on which thread it was touched."""

    name = "cuda:0"
    notice = None

    def __init__(self) -> None:
        self.used_bytes = 0
        self.cached_bytes = 0
        self.threads: set[int] = {threading.get_ident()}

    def allocate(self, size_bytes: int) -> None:
        if self.used_bytes + self.cached_bytes + size_bytes > 1000:
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size_bytes} bytes. GPU 0 has …")
        self.used_bytes += size_bytes

    def memory(self) -> DeviceMemory:
        self.threads.add(threading.get_ident())
        return DeviceMemory(1000 - self.used_bytes - self.cached_bytes, 1000)

    def release_cached(self) -> None:
        self.threads.add(threading.get_ident())
        self.cached_bytes = 0


class ModelDouble:
    """Takes 100 bytes for its weights, and more for what it keeps beside them."""

    def __init__(self, device: DeviceDouble) -> None:
        self.device = device
        self.kept_bytes = 0
        device.allocate(100)

    def keep(self, size_bytes: int) -> None:
        self.device.allocate(size_bytes)
        self.kept_bytes += size_bytes

    def clear(self) -> None:
        """As torch does: what is freed stays with the process until the cache is emptied."""
        self.device.used_bytes -= self.kept_bytes
        self.device.cached_bytes += self.kept_bytes
        self.kept_bytes = 0


def failing(error: Callable[[], BaseException]) -> Callable[[Any], Any]:
    def function(_: Any) -> Any:
        raise error()

    return function


def code_of(future: Any) -> Code:
    with pytest.raises(CartdeckError) as caught:
        future.result(timeout=LIMIT_S)
    return caught.value.code


async def drained(job: Job, pieces: list[str]) -> None:
    async with asyncio.timeout(LIMIT_S):
        async for piece in job.pieces():
            pieces.append(piece)


@pytest.fixture
def worker() -> DeviceWorker:
    return DeviceWorker(DeviceDouble)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), Meaning.OUT_OF_MEMORY),
        (MemoryError(), Meaning.OUT_OF_MEMORY),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            Meaning.OUT_OF_MEMORY,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), Meaning.OUT_OF_MEMORY),
        (AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"), Meaning.OUT_OF_MEMORY),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
            Meaning.OUT_OF_MEMORY,
        ),
        (AcceleratorError("CUDA error: an illegal memory access was encountered"), Meaning.POISON),
        (AcceleratorError("anything at all"), Meaning.POISON),
        (RuntimeError("CUDA error: device-side assert triggered"), Meaning.POISON),
        (RuntimeError("CUDA error: unspecified launch failure"), Meaning.POISON),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"), Meaning.POISON),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp"), Meaning.POISON),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), Meaning.ORDINARY),
        (IndexError("index out of range in self"), Meaning.ORDINARY),
        (ValueError("a text about a CUDA error"), Meaning.ORDINARY),
    ],
)
def test_an_error_is_memory_poison_or_the_jobs_own(error: BaseException, meaning: Meaning) -> None:
    assert meaning_of(error) is meaning


def test_what_an_allocation_asked_for_is_read_from_its_error() -> None:
    assert needed_bytes(OutOfMemoryError("Tried to allocate 1.50 GiB. GPU")) == 1_610_612_736
    assert needed_bytes(RuntimeError("you tried to allocate 4000 bytes. Error code 12")) == 4000
    assert needed_bytes(MemoryError()) is None


def test_one_thread_opens_the_device_and_does_every_job(worker: DeviceWorker) -> None:
    threads = {worker.start(lambda _: threading.get_ident()).result(LIMIT_S) for _ in range(3)}
    device = worker.start(lambda device: device).result(LIMIT_S)
    assert threads == device.threads
    assert threading.get_ident() not in threads
    assert worker.memory().result(LIMIT_S) == DeviceMemory(1000, 1000)


def test_a_model_that_is_dropped_gives_its_memory_back_and_its_handle_says_so(worker: DeviceWorker) -> None:
    first = worker.load(ModelDouble, "minilm").result(LIMIT_S)
    worker.use(first, lambda model: model.keep(300)).result(LIMIT_S)
    assert worker.memory().result(LIMIT_S).free_bytes == 600
    worker.clear(first).result(LIMIT_S)
    assert worker.memory().result(LIMIT_S).free_bytes == 900
    worker.drop(first).result(LIMIT_S)
    second = worker.load(ModelDouble, "whisper").result(LIMIT_S)
    assert second.slot == first.slot
    with pytest.raises(CartdeckError, match=r"minilm \(slot 0, generation 1\) is stale") as caught:
        worker.use(first, lambda model: model.keep(1)).result(LIMIT_S)
    assert caught.value.code is Code.INTERNAL
    worker.use(second, lambda model: model.keep(1)).result(LIMIT_S)


@pytest.mark.parametrize("words", ["device-side assert triggered", "an illegal memory access was encountered"])
def test_a_lost_device_answers_every_job_at_once_and_still_shuts_down(worker: DeviceWorker, words: str) -> None:
    handle = worker.load(ModelDouble, "minilm").result(LIMIT_S)
    gate = threading.Event()

    def poison(_: Any) -> None:
        gate.wait(LIMIT_S)
        raise AcceleratorError(f"CUDA error: {words}")

    faulted = worker.use(handle, poison)
    ran: list[int] = []
    queued = [worker.use(handle, lambda _: ran.append(1)) for _ in range(5)]
    gate.set()
    assert code_of(faulted) is Code.DEVICE_FAULT
    assert {code_of(future) for future in queued} == {Code.DEVICE_FAULT}
    assert code_of(worker.memory()) is Code.DEVICE_FAULT
    assert not ran
    assert not worker.is_healthy
    assert worker.fault is not None
    assert words in worker.fault.message
    worker.shutdown().result(LIMIT_S)


def test_a_device_that_is_lost_while_memory_goes_back_is_lost_too() -> None:
    class Breaking(DeviceDouble):
        def release_cached(self) -> None:
            raise AcceleratorError("CUDA error: an illegal memory access was encountered")

    worker = DeviceWorker(Breaking)
    assert code_of(worker.start(failing(lambda: OutOfMemoryError("CUDA out of memory.")))) is Code.DEVICE_FAULT
    assert not worker.is_healthy
    assert code_of(worker.memory()) is Code.DEVICE_FAULT


def test_an_ordinary_error_is_its_jobs_alone(worker: DeviceWorker) -> None:
    future = worker.start(failing(lambda: RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        future.result(LIMIT_S)
    assert worker.is_healthy
    assert worker.memory().result(LIMIT_S).total_bytes == 1000


def test_when_memory_runs_out_models_give_up_what_they_keep_and_the_job_is_tried_once_more(
    worker: DeviceWorker,
) -> None:
    keeping = worker.load(ModelDouble, "idle").result(LIMIT_S)
    worker.use(keeping, lambda model: model.keep(700)).result(LIMIT_S)
    wanting = worker.load(ModelDouble, "busy").result(LIMIT_S)
    tries: list[int] = []

    def want(model: Any) -> str:
        tries.append(1)
        model.keep(500)
        return "done"

    assert worker.use(wanting, want).result(LIMIT_S) == "done"
    assert len(tries) == 2


def test_what_does_not_fit_either_way_is_out_of_memory_with_numbers_and_the_device_goes_on(
    worker: DeviceWorker,
) -> None:
    handle = worker.load(ModelDouble, "minilm").result(LIMIT_S)
    with pytest.raises(CartdeckError) as caught:
        worker.use(handle, lambda model: model.keep(5000)).result(LIMIT_S)
    assert caught.value.code is Code.OUT_OF_MEMORY
    assert caught.value.details["need"] == 5000
    assert caught.value.details["free"] == 900
    assert "5,000 bytes more were needed, and 900 bytes are free" in caught.value.message
    worker.use(handle, lambda model: model.keep(5)).result(LIMIT_S)


def test_what_a_failed_try_held_is_let_go_before_the_next(worker: DeviceWorker) -> None:
    class Tensor:
        alive = 0

        def __init__(self) -> None:
            Tensor.alive += 1

        def __del__(self) -> None:
            Tensor.alive -= 1

    seen: list[int] = []

    def work(_: Any) -> None:
        seen.append(Tensor.alive)
        tensor = Tensor()
        raise OutOfMemoryError(f"no room for {id(tensor)}")

    assert code_of(worker.start(work)) is Code.OUT_OF_MEMORY
    assert seen == [0, 0]


def test_a_caller_that_left_before_its_turn_is_not_served(worker: DeviceWorker) -> None:
    gate, ran = threading.Event(), list[str]()
    worker.start(lambda _: gate.wait(LIMIT_S))
    cancelled = worker.start(lambda _: ran.append("cancelled"))
    wanted = worker.start(lambda _: ran.append("wanted"))
    assert cancelled.cancel()
    gate.set()
    wanted.result(LIMIT_S)
    assert ran == ["wanted"]
    with pytest.raises(CancelledError):
        cancelled.result(LIMIT_S)


def test_a_running_job_stops_at_its_next_step_and_its_reader_hears_no_more(worker: DeviceWorker) -> None:
    handle = worker.load(ModelDouble, "smollm").result(LIMIT_S)

    async def run() -> Code:
        begun = threading.Event()

        def work(_: Any, job: Job) -> None:
            while True:
                begun.set()
                job.stop.check()

        job = worker.submit(handle, work)
        await asyncio.to_thread(begun.wait, LIMIT_S)
        job.cancel()
        with pytest.raises(CartdeckError) as caught:
            await drained(job, [])
        return caught.value.code

    assert asyncio.run(run()) is Code.CANCELLED
    assert worker.memory().result(LIMIT_S).total_bytes == 1000


def test_jobs_know_their_place_and_one_that_waits_is_left_out_once_it_is_given_up(worker: DeviceWorker) -> None:
    handle = worker.load(ModelDouble, "smollm").result(LIMIT_S)

    async def run() -> None:
        gate, ran = threading.Event(), list[str]()
        worker.start(lambda _: gate.wait(LIMIT_S))
        first = worker.submit(handle, lambda _, job: job.say("first"))
        second = worker.submit(handle, lambda _, job: ran.append("second"))
        third = worker.submit(handle, lambda _, job: job.put(3))
        assert [first.position, second.position, third.position][1:] == [first.position + 1, first.position + 2]
        second.cancel()
        gate.set()
        pieces: list[str] = []
        await drained(first, pieces)
        await drained(third, [])
        assert ("".join(pieces), third.take(), ran) == ("first", [3], [])
        assert (first.position, third.position) == (0, 0)
        with pytest.raises(CartdeckError, match="before its turn"):
            await drained(second, [])

    asyncio.run(run())


def test_a_job_that_said_something_is_not_done_again(worker: DeviceWorker) -> None:
    handle = worker.load(ModelDouble, "smollm").result(LIMIT_S)

    async def run(*, says: bool) -> tuple[int, str]:
        tries: list[int] = []

        def work(_: Any, job: Job) -> None:
            tries.append(1)
            if says:
                job.say("once")
            raise OutOfMemoryError("CUDA out of memory.")

        job = worker.submit(handle, work)
        pieces: list[str] = []
        with pytest.raises(CartdeckError, match="not enough memory"):
            await drained(job, pieces)
        return len(tries), "".join(pieces)

    assert asyncio.run(run(says=True)) == (1, "once")
    assert asyncio.run(run(says=False)) == (2, "")


def test_after_the_shutdown_nothing_is_done(worker: DeviceWorker) -> None:
    handle = worker.load(ModelDouble, "minilm").result(LIMIT_S)
    worker.shutdown().result(LIMIT_S)
    assert code_of(worker.use(handle, lambda _: None)) is Code.ABORTED
    assert code_of(worker.shutdown()) is Code.ABORTED
