"""Owns bringing one small file in the thread that asks for it: nothing is started, and no thread waits for another.

It does not know the cache, nor ranges at once. What `transfer` does for a large file would cost more than its bytes; in
return a cancel is heard only when the server has said something, or nothing for the quiet limit.
"""

from cartdeck_models.hub.client import BrokenError, HubClient, RefusedError, StrangeAnswerError
from cartdeck_models.hub.digest import Digest, Hasher
from cartdeck_models.hub.patience import Patience
from cartdeck_models.hub.refusal import PHASE
from cartdeck_models.hub.small_part import SmallPart
from cartdeck_models.hub.transfer import Wanted
from cartdeck_models.task import Advance, Task


class BriefTransfer:
    """One file. `run` gives its digest; the caller compares it."""

    def __init__(self, client: HubClient, wanted: Wanted, target: SmallPart, task: Task) -> None:
        self._client = client
        self._wanted = wanted
        self._target = target
        self._task = task
        self._patience = Patience(task, wanted.asked, wanted.stall_limit_s, target.done, target.size)

    def run(self) -> Digest:
        """Fetch what is missing. Raises the typed errors of `patience` and `refusal`, and CANCELLED."""
        while self._target.gaps(self._target.size):
            self._task.raise_if_cancelled(PHASE)
            try:
                self._read()
            except (RefusedError, BrokenError, StrangeAnswerError) as trouble:
                self._patience.after(trouble)
        hasher = Hasher(self._target, self._target.size if self._wanted.wants_git else None)
        hasher.catch_up(self._task.is_cancelled)
        self._task.raise_if_cancelled(PHASE)
        self._task.report(Advance(None, "", PHASE, self._target.done, self._target.size))
        return hasher.digest()

    def _read(self) -> None:
        """One connection's worth. An answer is read to its end: only then may its connection serve the next one."""
        target = self._target
        with self._client.opened(self._wanted.url, first=target.done) as body:
            if body.first != target.done:
                target.forget()
            if body.first != target.done:
                raise StrangeAnswerError(f"{self._wanted.asked.host} answers with another part of the file")
            for piece in body.pieces():
                self._task.raise_if_cancelled(PHASE)
                target.write(target.done, piece[: target.size - target.done])
                if target.done > self._patience.work:
                    self._patience.work = target.done
                    self._patience.moved()
        if target.done < target.size:
            raise BrokenError(self._wanted.asked.host, "the connection was cut", was_made=True)
