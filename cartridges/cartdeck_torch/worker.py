"""Owns the one thread that touches a device: its queue, the models on it, and what becomes of both when it fails.

It does not know torch. No other thread touches a tensor of the device; what a job gives back is plain data.
"""

import gc
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.device import Device, DeviceMemory, Meaning, meaning_of, needed_bytes
from cartdeck_torch.job import Job
from cartdeck_torch.slab import Handle, Slab

T = TypeVar("T")

LONGEST_WORDS: Final = 500


class DeviceWorker:
    """Runs jobs at one device, one at a time, in order, and answers through futures.

    An error after which the device's context is lost makes it drain-only: each job that waits or comes is answered
    `DEVICE_FAULT` at once, and `fault` says why. When memory runs out, models give up what they can compute again, and
    the job is tried once more; then it is `OUT_OF_MEMORY`, and the device goes on.
    """

    def __init__(self, open_device: Callable[[], Device], *, name: str = "device-worker") -> None:
        """`open_device()` runs on the worker's thread, before the first job: it binds the device to that thread."""
        self.fault: CartdeckError | None = None
        self.fault_s: float | None = None
        """When the device was lost, by the monotonic clock."""
        self._open_device = open_device
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._is_busy = False
        self._thread: threading.Thread | None = None
        self._device: Device | None = None
        self._slab = Slab()
        self._is_closed = False

    # any thread

    @property
    def is_healthy(self) -> bool:
        """Whether jobs may still succeed here."""
        return self.fault is None

    def start(self, function: Callable[[Device], T]) -> "Future[T]":
        """Have `function(device)` run in its turn. It is left out when its future was cancelled before. It may run
        twice when memory ran out at the first try."""
        outcome: Future[T] = Future()
        self._put(_Entry(outcome, lambda: self._perform(function, may_retry=lambda: True)))
        return outcome

    def memory(self) -> "Future[DeviceMemory]":
        """What the device has free, and in all."""
        return self.start(lambda device: device.memory())

    def load(self, make: Callable[[Device], Any], label: str) -> "Future[Handle]":
        """Have `make(device)` make a model; its handle."""
        return self.start(lambda device: self._slab.put(make(device), label))

    def drop(self, handle: Handle) -> "Future[None]":
        """Forget the model and give its memory back to the device."""

        def run(device: Device) -> None:
            self._slab.drop(handle)
            _release(device)

        return self.start(run)

    def clear(self, handle: Handle) -> "Future[None]":
        """Have the model forget what it keeps beside its weights, key-value caches for instance."""

        def run(device: Device) -> None:
            _clear(self._slab.get(handle))
            _release(device)

        return self.start(run)

    def use(self, handle: Handle, function: Callable[[Any], T]) -> "Future[T]":
        """`start` for a `function(model)`."""
        return self.start(lambda _: function(self._slab.get(handle)))

    def submit(self, handle: Handle, work: Callable[[Any, Job], None]) -> Job:
        """Have `work(model, job)` run in its turn, as a job that talks to its request; called on the loop's thread.

        It runs a second time, when memory ran out, only if it has said nothing yet.
        """
        job = Job()

        def run() -> None:
            self._perform(lambda _: work(self._slab.get(handle), job), may_retry=lambda: not job.has_said)

        self._put(_Entry(job.outcome, run, job))
        return job

    def shutdown(self) -> "Future[None]":
        """Drop every model, in its turn, and end the thread. Works on a lost device too; later jobs are answered
        `ABORTED`."""
        outcome: Future[None] = Future()

        def run() -> None:
            self._is_closed = True
            self._slab.drop_all()
            if self._device is not None and self.fault is None:
                _release(self._device)

        self._put(_Entry(outcome, run))
        return outcome

    def _put(self, entry: "_Entry") -> None:
        with self._changed:
            if not self._is_closed:
                if entry.job is not None:
                    entry.job.position = len(self._waiting) + self._is_busy
                self._waiting.append(entry)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                self._changed.notify()
                return
        entry.outcome.set_exception(failure(Code.ABORTED, "the device worker was shut down"))

    # the worker's thread

    def _run(self) -> None:
        while not self._is_closed:
            with self._changed:
                while not self._waiting:
                    self._is_busy = False
                    self._changed.wait()
                entry = self._waiting.popleft()
                self._is_busy = True
                self._renumber()
            entry.run()
        with self._changed:
            left, self._waiting = self._waiting, deque()
        for entry in left:
            entry.refuse(failure(Code.ABORTED, "the device worker was shut down"))

    def _renumber(self) -> None:
        for position, entry in enumerate(self._waiting, start=1):
            if entry.job is not None and entry.job.position != position:
                entry.job.position = position
                entry.job.touch()

    def _perform(self, function: Callable[[Device], T], *, may_retry: Callable[[], bool]) -> T:
        device = self._ready()
        outcome = self._try(device, function)
        if isinstance(outcome, _RanOut) and may_retry():
            self._try(device, self._make_room)
            outcome = self._try(device, function)
        if not isinstance(outcome, _RanOut):
            return outcome
        found = self._try(device, _memory_left)
        memory = DeviceMemory() if isinstance(found, _RanOut) else found
        raise failure(
            Code.OUT_OF_MEMORY,
            f"{device.name} has not enough memory for this: {_size(outcome.needed_bytes)} more were needed"
            + (f", and {_size(memory.free_bytes)} are free" if memory.total_bytes else ""),
            details={"need": outcome.needed_bytes, "free": memory.free_bytes or None, "said": outcome.words},
        )

    def _make_room(self, device: Device) -> None:
        for model in self._slab:
            _clear(model)
        _release(device)

    def _ready(self) -> Device:
        if self.fault is not None:
            raise self._fault_again()
        if self._device is None:
            self._device = self._open_device()
        return self._device

    def _try(self, device: Device, function: Callable[[Device], T]) -> "T | _RanOut":
        """The result, or what ran out. Nothing of a failed try is left behind: its frames hold tensors."""
        try:
            return function(device)
        except CartdeckError:
            raise
        except BaseException as error:
            meaning = meaning_of(error)
            if meaning is Meaning.ORDINARY:
                raise
            if meaning is Meaning.POISON:
                raise self._poisoned(device, error) from None
            traceback.clear_frames(error.__traceback__)
            return _RanOut(needed_bytes(error), str(error)[:LONGEST_WORDS])

    def _poisoned(self, device: Device, error: BaseException) -> CartdeckError:
        words = (str(error).strip() or type(error).__name__).splitlines()[0][:LONGEST_WORDS]
        details = {"device": device.name, "error": type(error).__name__, "said": str(error)[:LONGEST_WORDS]}
        message = f"{device.name} failed and can do nothing more in this process: {words}"
        self.fault = failure(Code.DEVICE_FAULT, message, details=details)
        self.fault_s = time.monotonic()
        return self._fault_again()

    def _fault_again(self) -> CartdeckError:
        """A fresh copy: one exception raised to many callers would collect their tracebacks."""
        fault = cast("CartdeckError", self.fault)
        return failure(fault.code, fault.message, phase=fault.phase, details=fault.details)


class _Entry:
    """Something to do, and where its answer goes; `job` where it is a request's that wants to know its place."""

    def __init__(self, outcome: "Future[Any]", function: Callable[[], Any], job: Job | None = None) -> None:
        self.outcome = outcome
        self.job = job
        self._function = function

    def run(self) -> None:
        """Unless its caller left before."""
        if self.job is not None:
            self.job.position = 0
        if self.outcome.set_running_or_notify_cancel():
            try:
                result = self._function()
            except BaseException as error:  # it is raised again on the caller's side
                self.outcome.set_exception(error)
            else:
                self.outcome.set_result(result)
        self._touch()

    def refuse(self, error: CartdeckError) -> None:
        """Answers without doing it."""
        if self.outcome.set_running_or_notify_cancel():
            self.outcome.set_exception(error)
        self._touch()

    def _touch(self) -> None:
        if self.job is not None:
            self.job.touch()


class _RanOut:
    """Stands for a result when memory ran out."""

    def __init__(self, needed: int | None, words: str) -> None:
        self.needed_bytes = needed
        self.words = words


def _clear(model: Any) -> None:
    clear = getattr(model, "clear", None)
    if clear is not None:
        clear()


def _release(device: Device) -> None:
    gc.collect()
    device.release_cached()


def _memory_left(device: Device) -> DeviceMemory:
    _release(device)
    return device.memory()


def _size(size_bytes: int | None) -> str:
    return "some bytes" if size_bytes is None else f"{size_bytes:,} bytes"
