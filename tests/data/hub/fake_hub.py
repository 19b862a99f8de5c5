"""A model hub on loopback: two origins, as the real one has (the hub, and the storage that large files redirect to).

It speaks the routes that clients use, and each fault of networks, storage and access on request. What it answers where
nothing is wrong is checked against huggingface_hub's own client in test_hub_fake.py.
"""

import hashlib
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

PIECE_BYTES = 64 * 1024
LARGE_BYTES = 100_000
"""Files from this size on are kept as LFS files, unless said otherwise."""


@dataclass
class File:
    """A file, and what goes wrong with it. Faults that count are used up one by one, by requests for its content."""

    data: bytes
    is_large: bool | None = None
    has_xet: bool = False
    rate_bytes_s: float = 0.0
    cuts_at: list[int] = field(default_factory=list)
    """Each of the next answers is cut after so many bytes of the file (an offset in it)."""
    bytes_per_connection: int | None = None
    dead_from: int | None = None
    """No answer brings a byte from this offset on: it is cut there."""
    wrong_answers: int = 0
    """So many answers have the right size and wrong bytes."""
    ignores_range: bool = False
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Status and headers of the next answers, instead of the content."""
    stalls_at: int | None = None
    """An answer that reaches this offset sends no more, and stays open; `stalls` of them."""
    stalls: int = 1_000_000
    leaves_out: frozenset[str] = frozenset()
    """Headers that are not sent, in lower case."""
    has_length: bool = True
    listed_as: str | None = None
    """The name in the listing, where it differs."""
    lists_size: bool = True
    redirects_to: str | None = None
    """Where a request for it is sent instead of to the storage."""

    def __post_init__(self) -> None:
        if self.is_large is None:
            self.is_large = len(self.data) >= LARGE_BYTES

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def git_sha1(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.git_sha1


@dataclass
class Repository:
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    page_size: int = 1000
    needs_token: bool = False
    is_gated: bool = False
    members: set[str] = field(default_factory=set)
    """The tokens that may see a gated repository."""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Status and headers of the next answers about the repository, instead of what was asked for."""

    def commit_of(self, revision: str) -> str | None:
        found = self.branches.get(revision) or self.tags.get(revision) or revision
        return found if found in self.commits else None


@dataclass(frozen=True)
class Request:
    origin: str
    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


class FakeHub:
    """The hub. `url` is its endpoint; `requests` has all that reached it, in order."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.repositories: dict[str, Repository] = {}
        self.tokens = {"hf_goodtoken", "hf_membertoken"}
        self.requests: list[Request] = []
        self.sent: Counter[str] = Counter()
        """Bytes of content sent, by file name."""
        self.xet_token_status = 500
        self.xet_stalls = False
        self.next_page_origin = ""
        self.page: bytes | None = None
        """What every request is answered with: a login page of somebody else's, for instance."""
        self.expire_after: int | None = None
        """An address of the storage is good for so many requests."""
        self._signatures: Counter[str] = Counter()
        self.open_transfers = 0
        self.most_transfers = 0
        self.started = threading.Event()
        self.closing = threading.Event()
        self.changed = threading.Condition()
        self._servers: list[ThreadingHTTPServer] = []
        self._threads: list[threading.Thread] = []
        self.url = self._serve("hub")
        self.storage_url = self._serve("storage")

    def add(
        self,
        files: dict[str, bytes | File],
        *,
        name: str = "owner/name",
        branch: str = "main",
        commit: str | None = None,
        **how: Any,
    ) -> Repository:
        """A commit with `files` on `branch`; the repository is made if there is none. Returns it."""
        repository = self.repositories.setdefault(name, Repository())
        for key, value in how.items():
            setattr(repository, key, value)
        found = {path: file if isinstance(file, File) else File(file) for path, file in files.items()}
        commit = commit or hashlib.sha1(f"{name} {len(repository.commits)} {branch}".encode()).hexdigest()
        repository.commits[commit] = found
        repository.branches[branch] = commit
        return repository

    def file(self, path: str, *, name: str = "owner/name", branch: str = "main") -> File:
        repository = self.repositories[name]
        return repository.commits[repository.branches[branch]][path]

    def asked_for(self, text: str) -> list[Request]:
        """The GET requests whose path holds `text`."""
        return [request for request in self.requests if request.method == "GET" and text in request.path]

    def wait_idle(self, limit_s: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.open_transfers == 0, limit_s)

    def close(self) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join(10)

    def count(self, change: int) -> None:
        with self.changed:
            self.open_transfers += change
            self.most_transfers = max(self.most_transfers, self.open_transfers)
            self.changed.notify_all()

    def count_sent(self, path: str, size: int) -> None:
        with self.changed:  # ranges of one file are sent by several threads
            self.sent[path] += size

    def sign(self) -> str:
        signature = f"s3cret{len(self._signatures)}"
        self._signatures[signature] = 0
        return signature

    def is_signed(self, signature: str) -> bool:
        self._signatures[signature] += 1
        is_fresh = self.expire_after is None or self._signatures[signature] <= self.expire_after
        return signature.startswith("s3cret") and is_fresh

    def _serve(self, origin: str) -> str:
        server = _Server(("127.0.0.1", 0), _handler(self, origin))
        if self._tls is not None:
            server.socket = self._tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self._servers.append(server)
        self._threads.append(thread)
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{server.server_port}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no news."""


def _handler(hub: FakeHub, origin: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body behind its headers waits 40 ms for the client's acknowledgement

        def log_message(self, *_: object) -> None: ...

        def handle_any(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.body = self.rfile.read(int(headers.get("content-length", 0)))
            hub.requests.append(Request(origin, self.command, self.path, headers))
            parts = urlsplit(self.path)
            self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            segments = [unquote(part) for part in parts.path.strip("/").split("/")]
            if hub.page is not None:
                self.answer(200, {"Content-Type": "text/html"}, hub.page)
            elif origin == "storage" and segments[0] == "xet":
                self.wait_for_the_client() if hub.xet_stalls else self.refuse(404, {})
            elif origin == "storage":
                self.storage(segments)
            elif segments[:2] == ["api", "models"] and len(segments) >= 4:
                self.api("/".join(segments[2:4]), segments[4:])
            elif "resolve" in segments[2:3]:
                self.resolve("/".join(segments[:2]), segments[3], "/".join(segments[4:]))
            else:
                self.refuse(404, {})

        do_GET = do_HEAD = do_POST = handle_any

        # the hub's own routes

        def entered(self, name: str) -> Repository | None:
            """The repository, unless access to it is refused; that is answered then."""
            repository = hub.repositories.get(name)
            token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
            if token and token not in hub.tokens:
                words = "Invalid credentials in Authorization header"
                return self.refuse(401, {"X-Error-Message": words})
            if repository is None or (repository.needs_token and not token):
                # Without a token the real hub tells a missing repository from a private one no more than this.
                words = "Invalid username or password." if not token else "Repository not found"
                return self.refuse(404 if token else 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": words})
            if repository.answers:
                return self.refuse(*repository.answers.pop(0))
            return repository

        def may_read(self, repository: Repository, name: str) -> bool:
            token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
            if repository.is_gated and token not in repository.members:
                words = f"Access to model {name} is restricted. Visit the page to ask for access."
                self.refuse(403 if token else 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": words})
                return False
            return True

        def api(self, name: str, rest: list[str]) -> None:
            repository = self.entered(name)
            if repository is None:
                return
            what, revision = [*rest, "", ""][:2]
            if what == "refs":
                self.send_json(_refs(repository))
                return
            commit = repository.commit_of(revision or "main")
            if commit is None:
                self.refuse(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"})
            elif what in ("", "revision"):
                self.send_json(self.info(name, repository, commit))
            elif what == "tree":
                self.tree(repository, commit, revision)
            elif what == "paths-info":
                self.paths_info(repository, commit)
            elif what == "xet-read-token":
                access = {"X-Xet-Cas-Url": f"{hub.storage_url}/xet", "X-Xet-Access-Token": "xet-access"}
                self.answer(hub.xet_token_status, {**access, "X-Xet-Token-Expiration": str(int(time.time()) + 3600)})
            else:
                self.refuse(404, {})

        def info(self, name: str, repository: Repository, commit: str) -> dict[str, Any]:
            siblings = [{"rfilename": file.listed_as or path} for path, file in repository.commits[commit].items()]
            return {
                "id": name, "modelId": name, "sha": commit, "private": False, "gated": False, "disabled": False,
                "tags": [], "downloads": 0, "likes": 0, "siblings": siblings,
            }  # fmt: skip

        def tree(self, repository: Repository, commit: str, revision: str) -> None:
            if not self.may_read(repository, revision):
                return
            items = [_tree_item(path, file) for path, file in repository.commits[commit].items()]
            items += [{"type": "directory", "path": folder, "size": 0, "oid": "0" * 40} for folder in _folders(items)]
            start = int(self.query.get("cursor", 0))
            page = items[start : start + repository.page_size]
            more: dict[str, str] = {}
            if start + repository.page_size < len(items):
                following = f"{hub.next_page_origin or hub.url}{urlsplit(self.path).path}"
                more["Link"] = f'<{following}?recursive=true&cursor={start + repository.page_size}>; rel="next"'
            self.send_json(page, more)

        def paths_info(self, repository: Repository, commit: str) -> None:
            text = self.body.decode()
            asked = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
            files = repository.commits[commit]
            self.send_json([_tree_item(path, files[path]) for path in asked if path in files])

        def resolve(self, name: str, revision: str, path: str) -> None:
            repository = self.entered(name)
            if repository is None or not self.may_read(repository, name):
                return
            commit = repository.commit_of(revision)
            if commit is None:
                self.refuse(404, {"X-Error-Code": "RevisionNotFound"})
                return
            file = repository.commits[commit].get(path)
            if file is None:
                self.refuse(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
                return
            common = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "ETag": f'"{file.etag}"'}
            if not file.is_large and file.redirects_to is None:
                self.content(path, file, common)
                return
            where = f"{hub.storage_url}/{quote(name)}/{commit}/{quote(path)}?signature={hub.sign()}"
            common |= {"Location": file.redirects_to or where, "X-Linked-Etag": f'"{file.etag}"'}
            common |= {"X-Linked-Size": str(len(file.data))}
            if file.has_xet:
                common |= {"X-Xet-Hash": hashlib.sha256(b"xet" + file.data).hexdigest()}
                common |= {"Link": f'<{hub.url}/api/models/{name}/xet-read-token/{commit}>; rel="xet-auth"'}
            self.answer(302, {key: value for key, value in common.items() if key.lower() not in file.leaves_out})

        # the storage's

        def storage(self, segments: list[str]) -> None:
            repository = hub.repositories.get("/".join(segments[:2]))
            file = repository.commits[segments[2]].get("/".join(segments[3:])) if repository else None
            if file is None:
                self.refuse(404, {})
            elif not hub.is_signed(self.query.get("signature", "")):
                self.refuse(403, {})
            else:
                self.content("/".join(segments[3:]), file, {"ETag": '"storage-has-its-own"', "Accept-Ranges": "bytes"})

        def content(self, path: str, file: File, headers: dict[str, str]) -> None:
            if self.command == "GET" and file.answers:
                self.refuse(*file.answers.pop(0))
                return
            first, end = 0, len(file.data)
            wanted = self.headers.get("range")
            if wanted and not file.ignores_range:
                start, _, last = wanted.removeprefix("bytes=").partition("-")
                first, end = int(start), min(end, int(last) + 1) if last else end
                if first >= len(file.data):
                    self.refuse(416, {"Content-Range": f"bytes */{len(file.data)}"})
                    return
                headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(file.data)}"
            if file.has_length:
                headers["Content-Length"] = str(end - first)
            else:
                headers["Connection"] = "close"
            is_part = "Content-Range" in headers
            headers = {key: value for key, value in headers.items() if key.lower() not in file.leaves_out}
            self.send_response(206 if is_part else 200)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.send_content(path, file, first, end)

        def send_content(self, path: str, file: File, first: int, end: int) -> None:
            data = file.data
            if file.wrong_answers > 0 and end > first:
                file.wrong_answers -= 1
                data = bytes(byte ^ 0xFF for byte in data[: first + 1]) + data[first + 1 :]
            stop = end
            if file.bytes_per_connection is not None:
                stop = min(stop, first + file.bytes_per_connection)
            if file.cuts_at and first < file.cuts_at[0] < end:
                stop = min(stop, file.cuts_at.pop(0))
            if file.dead_from is not None:
                stop = min(stop, max(first, file.dead_from))
            hub.count(1)
            try:
                for at in range(first, stop, PIECE_BYTES):
                    if file.stalls_at is not None and at >= file.stalls_at and file.stalls > 0:
                        file.stalls -= 1
                        self.wait_for_the_client()
                        return
                    piece = data[at : min(at + PIECE_BYTES, stop)]
                    hub.count_sent(path, len(piece))  # before: whoever has received it all finds it counted
                    try:
                        self.wfile.write(piece)
                    except OSError:
                        hub.count_sent(path, -len(piece))
                        raise
                    hub.started.set()
                    if file.rate_bytes_s and hub.closing.wait(len(piece) / file.rate_bytes_s):
                        return
                if stop < end or not file.has_length:
                    self.close_connection = True
                if stop < end:
                    self.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                self.close_connection = True
            finally:
                hub.count(-1)

        def wait_for_the_client(self) -> None:
            """Send nothing until the client leaves or the hub closes."""
            self.connection.settimeout(0.05)
            while not hub.closing.is_set():
                try:
                    if self.connection.recv(1, socket.MSG_PEEK) == b"":
                        break
                except TimeoutError:
                    continue
            self.close_connection = True

        # answers

        def send_json(self, value: Any, headers: dict[str, str] | None = None) -> None:
            self.answer(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode())

        def refuse(self, status: int, headers: dict[str, str]) -> None:
            self.answer(status, headers, b'{"error": "no"}')

        def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def _tree_item(path: str, file: File) -> dict[str, Any]:
    item: dict[str, Any] = {
        "type": "file",
        "path": file.listed_as or path,
        "size": len(file.data),
        "oid": file.git_sha1,
    }
    if file.is_large:
        item["lfs"] = {"oid": file.sha256, "size": len(file.data), "pointerSize": 134}
    if file.has_xet:
        item["xetHash"] = hashlib.sha256(b"xet" + file.data).hexdigest()
    if not file.lists_size:
        item.pop("size")
        item.get("lfs", {}).pop("size", None)
    return item


def _refs(repository: Repository) -> dict[str, Any]:
    def listed(kind: str, commits: dict[str, str]) -> list[dict[str, str]]:
        return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": commit} for n, commit in commits.items()]

    return {"branches": listed("heads", repository.branches), "tags": listed("tags", repository.tags), "converts": []}


def _folders(items: list[dict[str, Any]]) -> list[str]:
    return sorted({item["path"].rpartition("/")[0] for item in items} - {""})


def serving(tls: ssl.SSLContext | None = None) -> Iterator[FakeHub]:
    """A hub that is closed afterwards, for a fixture; with `tls` on both origins."""
    hub = FakeHub(tls)
    try:
        yield hub
    finally:
        hub.close()


def wait_until(question: Callable[[], bool], limit_s: float) -> bool:
    """Whether the answer became yes in time."""
    end_s = time.monotonic() + limit_s
    while not question():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True
