"""Owns the way from a model spec to a model that is here: which source has it, and whether a transfer is needed.

It does not know the wire or handlers.
"""

import threading
import time
from typing import TYPE_CHECKING

from cartdeck_models.flight import Flights, Seat
from cartdeck_models.local import exists_locally, obtain_local
from cartdeck_models.obtained import Obtained, ObtainedFile
from cartdeck_models.package import obtain_package
from cartdeck_models.pypi.source import PypiSource
from cartdeck_models.record import Record
from cartdeck_models.settings import Settings
from cartdeck_models.spec import HubSpec, LocalSpec, ModelSpec, PackageSpec, PypiSpec
from cartdeck_models.store import Store
from cartdeck_models.task import Task

if TYPE_CHECKING:
    from cartdeck_models.hub.source import HubSource

RemoteSpec = PypiSpec | HubSpec
"""Specs of models that may have to be fetched."""


class Library:
    """Models by spec, with one cache and one transfer per model. Its methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._store = Store(settings.models_dir)
        self._pypi = PypiSource(self._store, settings)
        self._hub_source: HubSource | None = None
        self._hub_lock = threading.Lock()
        self._flights: Flights[Obtained] = Flights()

    def look_up(self, spec: ModelSpec) -> Obtained | None:
        """The model where no transfer is needed; None where `board` must fetch it.

        Raises FILE_NOT_FOUND, MODEL_NOT_FOUND and what else the source finds wrong.
        """
        match spec:
            case LocalSpec():
                return obtain_local(spec.path)
            case PackageSpec():
                return obtain_package(spec)
            case PypiSpec():
                record = self._pypi.cached(spec)
                return None if record is None else self._obtained(record)
            case HubSpec():
                if spec.is_bare and exists_locally(spec.repository):
                    return obtain_local(spec.repository)
                return self._hub().cached(spec)

    def board(self, spec: RemoteSpec) -> Seat[Obtained]:
        """A seat in the transfer of `spec`, which starts unless it is under way."""
        return self._flights.board(_key(spec), lambda task: self._fetch(spec, task))

    def obtain(self, spec: ModelSpec, task: Task) -> Obtained:
        """The model, fetched if need be; blocks meanwhile."""
        found = self.look_up(spec)
        if found is not None:
            return found
        assert isinstance(spec, RemoteSpec), "every other kind of spec is found or refused"
        return self._flights.run(_key(spec), lambda task: self._fetch(spec, task), task)

    def close(self, limit_s: float) -> None:
        """Stop all transfers; wait `limit_s` seconds at most until their processes and connections are gone."""
        end_s = time.monotonic() + limit_s
        self._flights.stop(limit_s)
        if self._hub_source is not None:
            self._hub_source.stop(max(0.0, end_s - time.monotonic()))

    def _fetch(self, spec: RemoteSpec, task: Task) -> Obtained:
        if isinstance(spec, HubSpec):
            return self._hub().fetch(spec, task)
        return self._obtained(self._pypi.fetch(spec, task))

    def _hub(self) -> "HubSource":
        """The hub's models. Made when first asked for, in a worker thread: its library takes long to import."""
        with self._hub_lock:
            if self._hub_source is None:
                from cartdeck_models.hub.source import HubSource  # noqa: PLC0415 - see above

                self._hub_source = HubSource(self.settings)
            return self._hub_source

    def _obtained(self, record: Record) -> Obtained:
        store = self._store
        files = [ObtainedFile(store.file_path(record, file), file.size_bytes, file.sha256) for file in record.files]
        return Obtained(
            path=store.path_of(record),
            files=tuple(files),
            source=record.source,
            revision=record.revision,
            sha256=record.sha256,
        )


def _key(spec: RemoteSpec) -> str:
    return spec.key if isinstance(spec, HubSpec) else f"{spec.canonical}#{spec.sha256}"
