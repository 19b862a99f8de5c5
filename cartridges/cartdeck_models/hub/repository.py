"""Owns one repository of a hub at one commit: which commit a revision is, which files it lists, and bytes of a file.

It does not know the cache, nor which files a spec wants. Every request waits and tries again as `patience` says.
"""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from cartdeck_models.hub.client import BrokenError, HubClient, RefusedError, StrangeAnswerError
from cartdeck_models.hub.listing import RepositoryFile, files_of_page
from cartdeck_models.hub.patience import Patience
from cartdeck_models.hub.refusal import Asked
from cartdeck_models.near_name import near_names, near_sentence
from cartdeck_models.settings import Settings
from cartdeck_models.spec import HubSpec
from cartdeck_models.task import Task
from cartdeck_protocol.errors import CartdeckError, Code, failure

T = TypeVar("T")
DEFAULT_REVISION = "main"
MOST_FILES = 100_000
MOST_SKIPPED = 8 * 1024 * 1024
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str) -> bool:
    """Whether `revision` is a whole commit hash, which never means anything else later."""
    return _COMMIT.fullmatch(revision) is not None


class Repository:
    """The repository of `spec`. All that it raises is typed: see `refusal`, `patience` and `listing`."""

    def __init__(
        self, client: HubClient, spec: HubSpec, task: Task, *, stall_limit_s: float, is_hasty: bool = False
    ) -> None:
        """`is_hasty`: whoever asks has another answer at hand, so the first failure to find the commit is told."""
        self.client = client
        self.name = spec.repository
        self.revision = spec.revision or DEFAULT_REVISION
        self._task = task
        self._stall_limit_s = stall_limit_s
        self._is_hasty = is_hasty

    @cached_property
    def commit(self) -> str:
        """The commit that the revision means now: one request, none for a commit hash."""
        if is_commit(self.revision):
            return self.revision
        try:
            found, _ = self._asking(
                lambda: self.client.get_json(self._api("revision", self.revision)), is_hasty=self._is_hasty
            )
        except CartdeckError as error:
            raise self._with_near_revisions(error) from None
        values = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        commit = values.get("sha")
        if not isinstance(commit, str) or not is_commit(commit):
            raise self._strange("names no commit")
        return commit

    def list_files(self) -> list[RepositoryFile]:
        """All files at the commit. Raises UNSAFE_FILENAME for a listing with a name that leads outside its folder."""
        url: str | None = self._api("tree", self.commit, query="recursive=true&expand=false")
        files: list[RepositoryFile] = []
        seen: set[str] = set()
        while url is not None:
            if url in seen or len(files) > MOST_FILES:
                raise self._strange(f"lists more than {MOST_FILES:,} files, or the same page again")
            seen.add(url)
            page_url = url
            page, url = self._asking(lambda page_url=page_url: self.client.get_json(page_url))
            if not isinstance(page, list):
                raise self._strange("lists its files in an unknown form")
            try:
                files += files_of_page(cast("list[Any]", page))
            except ValueError as error:
                raise self._strange(str(error)) from None
        return files

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file, fewer where it ends before. Raises UNSUPPORTED where the hub has no ranges
        and `start` lies beyond what a sensible client would throw away."""
        return self._asking(lambda: self._range(path, start, end), path=path)

    def asked(self, path: str | None = None) -> Asked:
        return Asked(self.client.endpoint, self.name, self.revision, path, self.client.has_token)

    def file_url(self, path: str) -> str:
        return self.client.file_url(self.name, self.commit, path)

    def _range(self, path: str, start: int, end: int) -> bytes:
        found = bytearray()
        with self.client.opened(self.file_url(path), first=start, end=end) as body:
            skip = start - body.first
            if skip < 0 or skip > MOST_SKIPPED:
                raise failure(
                    Code.UNSUPPORTED,
                    f"{urlsplit(body.url).hostname} does not give parts of a file ({path}), only the whole of it.",
                    argument="model",
                )
            for piece in body.pieces():
                found += piece
                if len(found) >= skip + end - start:
                    break
        return bytes(found[skip : skip + end - start])

    def _asking(self, request: Callable[[], T], *, path: str | None = None, is_hasty: bool = False) -> T:
        patience = Patience(self._task, self.asked(path), self._stall_limit_s, is_hasty=is_hasty)
        while True:
            self._task.raise_if_cancelled("look_up")
            try:
                return request()
            except (RefusedError, BrokenError, StrangeAnswerError) as trouble:
                patience.after(trouble)

    def _api(self, *parts: str, query: str = "") -> str:
        return self.client.api_url(self.name, *parts, query=query)

    def _with_near_revisions(self, error: CartdeckError) -> CartdeckError:
        """`error`, with the branches and tags there are where it is that the revision is not among them."""
        if error.code is not Code.REVISION_NOT_FOUND:
            return error
        try:
            found, _ = self.client.get_json(self._api("refs"))
        except (RefusedError, BrokenError, StrangeAnswerError):
            return error
        names = _names_of_refs(found)
        near = near_names(self.revision, names) or names[:5]
        message = error.message + near_sentence(near)
        return failure(error.code, message, argument="model", details={**error.details, "near": near})

    def _strange(self, what: str) -> CartdeckError:
        return failure(
            Code.ENDPOINT_UNREACHABLE,
            f"The answer of {urlsplit(self.client.endpoint).hostname} for {self.name} is not that of a hub: it {what}. "
            "Check HF_ENDPOINT.",
            details={"repository": self.name},
        )


@contextmanager
def opened_repository(spec: HubSpec, settings: Settings, task: Task) -> Generator[Repository]:
    """The repository of `spec` with a client of its own. Raises OFFLINE_NOT_CACHED in offline mode."""
    if settings.hub.is_offline:
        raise failure(
            Code.OFFLINE_NOT_CACHED,
            f"Offline mode is set (HF_HUB_OFFLINE), so {spec.repository} cannot be asked about.",
            argument="model",
        )
    client = HubClient(settings.hub)
    try:
        yield Repository(client, spec, task, stall_limit_s=settings.stall_limit_s)
    finally:
        client.close()


def _names_of_refs(found: Any) -> list[str]:
    values = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    groups = [values.get(kind) for kind in ("branches", "tags")]
    items = [item for group in groups if isinstance(group, list) for item in cast("list[Any]", group)]
    names = [cast("dict[str, Any]", item).get("name") for item in items if isinstance(item, dict)]
    return [name for name in names if isinstance(name, str)]


__all__ = ["Repository", "RepositoryFile", "is_commit", "opened_repository"]
