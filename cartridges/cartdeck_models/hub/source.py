"""Owns obtaining a model of a hub: what its spec means, which files are missing, and fetching them side by side.

It does not know callers: one call of `fetch` is one transfer for a spec, and each file is one transfer for all specs.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cartdeck_models.disk import check_room, disk_errors
from cartdeck_models.flight import Flights
from cartdeck_models.hub.before_fetch import BeforeFetch
from cartdeck_models.hub.cache import HubCache, has_size
from cartdeck_models.hub.client import HubClient
from cartdeck_models.hub.fetcher import Fetched, Fetcher, is_brief
from cartdeck_models.hub.listing import RepositoryFile
from cartdeck_models.hub.part import kept_bytes
from cartdeck_models.hub.plan import DEFAULT_REVISION, Plan, offline_error, plan_from_cache
from cartdeck_models.hub.remembered import Memory, Remembered, RememberedFile
from cartdeck_models.hub.repository import Repository, is_commit
from cartdeck_models.hub.selection import choose_files
from cartdeck_models.hub.tally import Tally
from cartdeck_models.obtained import Obtained, ObtainedFile
from cartdeck_models.settings import MODELS_DIR, Settings
from cartdeck_models.spec import HubSpec
from cartdeck_models.task import Advance, Task
from cartdeck_models.verified import Verified
from cartdeck_protocol.errors import CartdeckError, Code

SOURCE = "hub"
LOOKING_UP, FITTING = "look_up", "fit"
LARGE_BYTES = 32 * 1024 * 1024
"""Files from this size on are fetched one after another, each over several connections; smaller ones side by side."""
_UNREACHED = (Code.ENDPOINT_UNREACHABLE, Code.RATE_LIMITED, Code.DOWNLOAD_STALLED, Code.DOWNLOAD_INTERRUPTED)


class HubSource:
    """Models of the hub that the settings name. Its methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cache = HubCache(settings.hub_cache_dir, uses_symlinks=settings.hub.uses_symlinks)
        self._memory = Memory(settings.models_dir / "specs")
        self._fetcher = Fetcher(self._cache, Verified(settings.models_dir / "verified"), settings)
        self._flights: Flights[Fetched] = Flights()
        self._client: HubClient | None = None
        self._client_lock = threading.Lock()

    def cached(self, spec: HubSpec) -> Obtained | None:
        """The model where the hub need not be asked: its commit is sure, and all that it gave last time is here."""
        remembered = self._memory.recall(spec.key)
        if remembered is None:
            return None
        is_sure = remembered.commit == spec.revision or self._settings.hub.is_offline
        return self._recalled(spec, remembered) if is_sure else None

    def fetch(self, spec: HubSpec, task: Task) -> Obtained:
        """Make the model present. Raises the typed errors of `plan`, `repository`, `selection` and `fetcher`,
        INSUFFICIENT_STORAGE, and NOT_WRITABLE where the cache cannot be written."""
        task.report(Advance(None, f"Looking for {spec.repository}", LOOKING_UP))
        with disk_errors(self._cache.root, what=spec.repository, setting=self._folder_setting):
            if self._settings.hub.is_offline:
                return self._offline(spec, task)
            return self._online(spec, self._asked_client(), task)

    def stop(self, limit_s: float) -> None:
        """Stop all transfers of files, waiting `limit_s` seconds at most, and close the connections that rest."""
        have_ended = self._flights.stop(limit_s)
        with self._client_lock:
            if self._client is not None and have_ended:
                self._client.close()
                self._client = None

    def _asked_client(self) -> HubClient:
        """The one client of all transfers: a file's may outlive the call that began it."""
        with self._client_lock:
            if self._client is None:
                self._client = HubClient(self._settings.hub)
            else:
                self._client.renew_token()
            return self._client

    # what it means

    def _offline(self, spec: HubSpec, task: Task) -> Obtained:
        commit = self._known_commit(spec)
        plan = None if commit is None else plan_from_cache(spec, commit, self._cache)
        found = None if plan is None else self._checked(spec, plan, task)
        if found is None:
            raise offline_error(spec, commit)
        return found

    def _online(self, spec: HubSpec, client: HubClient, task: Task) -> Obtained:
        revision = spec.revision or DEFAULT_REVISION
        if is_commit(revision):
            plan = plan_from_cache(spec, revision, self._cache)
            found = None if plan is None else self._checked(spec, plan, task)
            if found is not None:
                return found
        fallback = self._last_known(spec)
        repository = Repository(
            client, spec, task, stall_limit_s=self._settings.stall_limit_s, is_hasty=fallback is not None
        )
        try:
            commit = repository.commit
        except CartdeckError as error:
            if fallback is None or error.code not in _UNREACHED:
                raise
            return self._without_asking(spec, fallback, error, task)
        self._cache.prepare(spec.repository)
        self._cache.remember_commit(spec.repository, revision, commit)
        remembered = self._memory.recall(spec.key)
        found = self._recalled(spec, remembered) if remembered is not None and remembered.commit == commit else None
        return found if found is not None else self._obtain(spec, self._plan(spec, repository), repository, task)

    def _last_known(self, spec: HubSpec) -> Callable[[Task], Obtained | None] | None:
        """How to give the model as it was last known, where all of it is here."""
        remembered = self._memory.recall(spec.key)
        recalled = None if remembered is None else self._recalled(spec, remembered)
        if recalled is not None:
            return lambda _: recalled
        commit = self._known_commit(spec)
        try:
            plan = None if commit is None else plan_from_cache(spec, commit, self._cache)
        except CartdeckError:
            return None  # what the spec means may have changed since
        return None if plan is None else lambda task: self._checked(spec, plan, task)

    def _without_asking(
        self, spec: HubSpec, fallback: Callable[[Task], Obtained | None], error: CartdeckError, task: Task
    ) -> Obtained:
        task.report(Advance(None, f"{error.message} Using what is in the cache of {spec.repository}.", LOOKING_UP))
        found = fallback(task)
        if found is None:
            raise error
        return found

    def _known_commit(self, spec: HubSpec) -> str | None:
        revision = spec.revision or DEFAULT_REVISION
        return revision if is_commit(revision) else self._cache.commit_of(spec.repository, revision)

    def _plan(self, spec: HubSpec, repository: Repository) -> Plan:
        files = self._cache.listing(spec.repository, repository.commit)
        if files is None:
            files = repository.list_files()
            self._cache.keep_listing(spec.repository, repository.commit, files)
        look = BeforeFetch(self._cache, repository, files)
        choice = choose_files(files, spec, quantization=look.quantization(spec), wants_projector=spec.with_projector)
        return Plan(repository.commit, choice, look.memory_note(choice))

    # making it present

    def _obtain(self, spec: HubSpec, plan: Plan, repository: Repository, task: Task) -> Obtained:
        files = plan.choice.files
        missing = [file for file in files if self._cache.find(spec.repository, plan.commit, file) is None]
        need = self._need(spec, missing)
        check_room(self._cache.root, need, what=spec.repository, setting=self._folder_setting)
        if plan.note is not None:
            task.report(Advance(None, plan.note, FITTING))
        tally = Tally(task, spec.repository, files)
        tally.say()
        fetched = self._fetch_all(files, repository, tally)
        tally.say()
        return replace(self._kept(spec, plan, fetched), note=plan.note)

    @property
    def _folder_setting(self) -> str:
        """What to set for another folder."""
        return MODELS_DIR if self._settings.hub.cache_dir is None else "HF_HUB_CACHE"

    def _need(self, spec: HubSpec, files: list[RepositoryFile]) -> int:
        """How many bytes must still come, without what earlier transfers left."""
        need = 0
        for file in files:
            kept = kept_bytes(self._cache.parts_folder(spec.repository, file.blob_id), file.blob_id, file.size_bytes)
            need += file.size_bytes - kept
        return need

    def _fetch_all(self, files: tuple[RepositoryFile, ...], repository: Repository, tally: Tally) -> list[Fetched]:
        """All files, the small ones side by side, then each large one. The first error ends the others."""
        found: dict[int, Fetched] = {}
        small = [index for index, file in enumerate(files) if file.size_bytes < LARGE_BYTES]
        large = [index for index, file in enumerate(files) if file.size_bytes >= LARGE_BYTES]
        errors: list[BaseException] = []

        def work(queue: list[int]) -> None:
            while not errors:
                try:
                    index = queue.pop(0)
                except IndexError:
                    return
                try:
                    task = tally.task_of(index, files[index], is_over=lambda: bool(errors))
                    found[index] = self._one(files[index], repository, task)
                    tally.finish(index, found[index].size_bytes)
                except BaseException as error:
                    errors.append(error)  # raised by the thread that waits for this one

        count = min(2 * self._settings.hub.connections, len(small))
        threads = [threading.Thread(target=work, args=(small,), name="files", daemon=True) for _ in range(count - 1)]
        for thread in threads:
            thread.start()
        work(small)
        for thread in threads:
            thread.join()
        work(large)
        if errors:
            raise errors[0]
        return [found[index] for index in range(len(files))]

    def _one(self, file: RepositoryFile, repository: Repository, task: Task) -> Fetched:
        place = "" if self._settings.hub.uses_symlinks else f"{repository.commit}/{file.path}"
        key = f"{repository.name} {file.blob_id} {place}"
        run = self._flights.run_here if is_brief(file) else self._flights.run
        fetched = run(key, lambda own: self._fetcher.fetch(repository, file, own), task)
        at_hand = self._cache.find(repository.name, repository.commit, file)
        return Fetched(at_hand or fetched.place, fetched.size_bytes, fetched.sha256, fetched.resumed_bytes)

    def _checked(self, spec: HubSpec, plan: Plan, task: Task) -> Obtained | None:
        """The model whose files are all here; what was never hashed is hashed now, without any request.

        None where one of them is not what it should be.
        """
        tally = Tally(task, spec.repository, plan.choice.files)
        fetched: list[Fetched] = []
        for index, file in enumerate(plan.choice.files):
            found = self._fetcher.check(spec.repository, plan.commit, file, tally.task_of(index, file))
            if found is None:
                return None
            tally.finish(index, found.size_bytes)
            fetched.append(found)
        return self._kept(spec, plan, fetched)

    # the answer

    def _kept(self, spec: HubSpec, plan: Plan, fetched: list[Fetched]) -> Obtained:
        choice = plan.choice
        files = tuple(
            RememberedFile(file.path, found.size_bytes, found.sha256)
            for file, found in zip(choice.files, fetched, strict=True)
        )
        main = None if choice.main is None else choice.main.path
        remembered = Remembered(spec.canonical, plan.commit, files, main, choice.folder)
        self._memory.keep(spec.key, remembered)
        return self._obtained(spec, remembered, sum(found.resumed_bytes for found in fetched))

    def _recalled(self, spec: HubSpec, remembered: Remembered) -> Obtained | None:
        for file in remembered.files:
            listed = RepositoryFile(file.path, file.size_bytes)
            if not has_size(self._cache.snapshot_path(spec.repository, remembered.commit, file.path), listed):
                return None
        return self._obtained(spec, remembered, 0)

    def _obtained(self, spec: HubSpec, remembered: Remembered, resumed_bytes: int) -> Obtained:
        def place(path: str) -> Path:
            return self._cache.snapshot_path(spec.repository, remembered.commit, path)

        files = tuple(ObtainedFile(place(file.path), file.size_bytes, file.sha256) for file in remembered.files)
        main = remembered.main
        single = next((file.sha256 for file in remembered.files if file.path == main), None)
        return Obtained(
            path=place(remembered.folder if main is None else main),
            files=files,
            source=SOURCE,
            revision=remembered.commit,
            sha256=single if len(files) == 1 else None,
            resumed_bytes=resumed_bytes,
        )
