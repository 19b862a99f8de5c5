"""Owns the look at this machine before a model is fetched: which quantization to take, and whether memory will do.

It does not know transfers. A model that does not fit in memory is fetched all the same, since it may be for another
machine or another day: the caller is told.
"""

import shutil

from cartdeck_modelkit.machine import available_memory_bytes
from cartdeck_models.fit import Room
from cartdeck_models.hub.advice import Listing, advise, judge_choice
from cartdeck_models.hub.cache import HubCache, has_size
from cartdeck_models.hub.listing import RepositoryFile
from cartdeck_models.hub.repository import Repository
from cartdeck_models.hub.selection import Choice, gguf_candidates
from cartdeck_models.spec import HubSpec

LEAST_BYTES = 64 * 1024 * 1024
"""A smaller model is not looked at: reading its header would take longer than the question is worth."""
PLENTY_TIMES, PLENTY_BYTES = 4, 1_000_000_000


class BeforeFetch:
    """The look, for a repository whose files are listed. `room` is what this machine has now, unless it is given."""

    def __init__(
        self, cache: HubCache, repository: Repository, files: list[RepositoryFile], *, room: Room | None = None
    ) -> None:
        self._listing = Listing[RepositoryFile](
            files,
            lambda file, first, end: repository.read_range(file.path, first, end),
            lambda file: has_size(cache.blob_path(repository.name, file.blob_id), file),
        )
        self._room = room or Room(available_memory_bytes(), shutil.disk_usage(cache.root).free)

    def quantization(self, spec: HubSpec) -> str | None:
        """The quantization that fits this machine best, where the spec leaves the choice and there is one.

        Raises what reading a range does.
        """
        if spec.file is not None or spec.include or len(gguf_candidates(self._listing.files, spec)) < 2:
            return None
        advised = advise(self._listing, spec, self._room).advised
        return None if advised is None else advised.candidate.quantization

    def memory_note(self, choice: Choice[RepositoryFile]) -> str | None:
        """What to tell of `choice`, if it does not fit in the memory that is free now. Raises as `quantization`."""
        if choice.size_bytes < LEAST_BYTES or self._is_plentiful(choice.size_bytes):
            return None
        verdict = judge_choice(self._listing, choice, self._room)
        return f"{verdict.candidate.path}: {verdict.sentence}" if verdict.fits_memory is False else None

    def _is_plentiful(self, size_bytes: int) -> bool:
        """Whether memory will do whatever the header says, so that it need not be read."""
        free = self._room.memory_bytes
        return free is not None and free >= PLENTY_TIMES * size_bytes + PLENTY_BYTES
