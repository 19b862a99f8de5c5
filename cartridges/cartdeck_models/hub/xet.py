"""Owns bringing one file through Xet, the hub's storage of deduplicated chunks, and noticing that it stands still.

It does not know plain HTTP: where Xet fails or stalls, its caller goes on without it. The library that speaks Xet has
connections and threads of its own and no way to be asked, so what counts here is the bytes that it puts on the disk.
"""

import threading
import time
from pathlib import Path

from cartdeck_models.hub.client import BrokenError, HubClient, RefusedError, StrangeAnswerError
from cartdeck_models.hub.listing import RepositoryFile
from cartdeck_models.hub.patience import STALLED
from cartdeck_models.hub.refusal import PHASE
from cartdeck_models.task import Advance, Task

LEAST_BYTES = 64 * 1024 * 1024
"""Below this, asking for access to the storage takes longer than it saves."""
WATCH_S = 0.1
END_LIMIT_S = 2.0


class XetFailedError(Exception):
    """It came to nothing; plain HTTP is left."""


class XetTransfer:
    """One file of the repository `name` at `commit`."""

    def __init__(self, client: HubClient, name: str, commit: str, *, quiet_limit_s: float) -> None:
        self._client = client
        self._name = name
        self._commit = commit
        self._quiet_limit_s = quiet_limit_s
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def run(self, file: RepositoryFile, target: Path, task: Task) -> None:
        """Write the whole content to `target`. Raises XetFailedError, and CANCELLED."""
        assert file.xet_hash is not None
        try:
            self._client.check_xet(self._name, self._commit)
        except (RefusedError, BrokenError, StrangeAnswerError) as error:
            raise XetFailedError(str(error)) from None
        thread = threading.Thread(target=self._fetch, args=(file, target), name="xet", daemon=True)
        thread.start()
        try:
            self._watch(file, target, task)
        finally:
            if not self._ended.is_set():
                self._client.stop_xet()
                thread.join(END_LIMIT_S)
        if self._error is not None:
            raise XetFailedError(f"{type(self._error).__name__}") from None
        if target.stat().st_size != file.size_bytes:
            raise XetFailedError(f"it wrote {target.stat().st_size} bytes of {file.size_bytes}")

    def _watch(self, file: RepositoryFile, target: Path, task: Task) -> None:
        """Report the growth on the disk. Raises XetFailedError once there was none for the quiet limit."""
        written, moved_s = 0, time.monotonic()
        while not self._ended.wait(WATCH_S):
            task.raise_if_cancelled(PHASE)
            found = min(bytes_on_disk(target), file.size_bytes)
            now_s = time.monotonic()
            if found > written:
                written, moved_s = found, now_s
                task.report(Advance(None, "", PHASE, written, file.size_bytes))
            elif now_s - moved_s > self._quiet_limit_s:
                message = f"nothing came through Xet for {self._quiet_limit_s:g} s: going on over plain HTTP"
                task.report(Advance(None, message, STALLED, written, file.size_bytes))
                raise XetFailedError("it stands still")

    def _fetch(self, file: RepositoryFile, target: Path) -> None:
        try:
            assert file.xet_hash is not None
            self._client.fetch_by_xet(
                self._name, self._commit, xet_hash=file.xet_hash, size=file.size_bytes, target=target
            )
        except BaseException as error:
            self._error = error  # a foreign library's, Rust panics among them: told by whoever watches
        finally:
            self._ended.set()


def bytes_on_disk(path: Path) -> int:
    """How much of the file has come: the blocks that it takes, since its length may be set at once."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
