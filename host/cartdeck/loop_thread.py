"""Owns a thread in which an event loop runs, and the portal by which others reach it.

It does not know what runs there. anyio's own `start_blocking_portal` is a generator that waits for its loop when it is
dropped; in a fork, which has none of the threads, the interpreter would wait for ever at its end.
"""

import contextlib
import importlib.util
import threading
from concurrent.futures import Future
from types import TracebackType

import anyio
from anyio.from_thread import BlockingPortal


class LoopThread:
    """A loop of its own. A context manager that gives the portal, and raises what keeps the loop from running."""

    def __init__(self, name: str) -> None:
        self._ready: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> BlockingPortal:
        self._thread.start()
        return self._ready.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the tasks that were started through the portal, which an error cancels, and for the thread."""
        portal = self._ready.result()
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            portal.call(portal.stop, kind is not None)
        self._thread.join()

    def _run(self) -> None:
        options = {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
        try:
            anyio.run(self._serve, backend="asyncio", backend_options=options)
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        async with BlockingPortal() as portal:
            self._ready.set_result(portal)
            await portal.sleep_until_stopped()
