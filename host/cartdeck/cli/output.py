"""Owns where a command's output goes: standard output, or a file that appears only when it is whole.

It does not know what the bytes mean, nor where they come from.
"""

import codecs
import contextlib
import errno
import os
import select
import stat
import tempfile
from pathlib import Path
from typing import Final, Protocol, Self

from cartdeck.cli.endings import ReaderGone
from cartdeck_protocol.errors import CartdeckError, Code, failure

STDOUT: Final = 1
STDERR: Final = 2
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# A terminal obeys control characters: text of a model may not move the cursor, rename the window or type for the user.
HARMLESS: Final = {code: None if code == 0x0D else 0xFFFD for code in (*range(0x20), *range(0x7F, 0xA0))}
for _kept in (0x09, 0x0A):
    del HARMLESS[_kept]


class Output(Protocol):
    """Where bytes go. A context manager: what is not committed when it closes is discarded."""

    is_terminal: bool

    def write(self, data: bytes) -> None: ...

    def commit(self) -> None:
        """Says that everything was written."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class StandardOutput:
    """Standard output, unbuffered. Raises ReaderGone when its reader is gone."""

    def __init__(self) -> None:
        self.is_terminal = os.isatty(STDOUT)

    def write(self, data: bytes) -> None:
        write_all(STDOUT, data, name="standard output")

    def commit(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class StandardLine:
    """Whether the text on standard output has ended its last line, for what is shown after it in the same place."""

    def __init__(self) -> None:
        self._is_open = False

    def follow(self, text: bytes) -> None:
        """`text` goes to standard output."""
        if text:
            self._is_open = not text.endswith(b"\n")

    def was_ended(self) -> None:
        """Somebody else has ended the line: the bar does."""
        self._is_open = False

    def end_on_terminal(self) -> None:
        """Ends the line on a terminal, where the shell's prompt would stick to it; a pipe gets every byte as it was."""
        if self._is_open and os.isatty(STDOUT):
            self._is_open = False
            with contextlib.suppress(OSError):  # the terminal has gone
                os.write(STDOUT, b"\n")

    def leave(self) -> str:
        """What standard error must write first to begin a line: a newline, where it goes to the same place."""
        if not self._is_open or not _is_same_place(STDOUT, STDERR):
            return ""
        self._is_open = False
        return "\n"


STANDARD_LINE: Final = StandardLine()
"""There is one standard output."""


def _is_same_place(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


class FileOutput:
    """A file, written beside its place and moved there by `commit`; a device or a named pipe is written straight.

    It is checked and opened at once, before any work: BAD_ARGUMENT when it exists already and not `force`, or
    cannot be created there.
    """

    is_terminal = False

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path = path
        self._force = force
        self._part: Path | None = None
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise self._refusal(f"cannot be written: {error.strerror}") from None

    def _open(self) -> int:
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            mode = None
        if mode is not None and stat.S_ISDIR(mode):
            raise self._refusal("is a folder; a file was expected")
        if mode is not None and not stat.S_ISREG(mode):
            return os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        if mode is not None and not self._force:
            raise self._exists()
        target = self.path.resolve()  # through a link: the link stays, the file it names is replaced
        descriptor, part = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        self._part = Path(part)
        os.fchmod(descriptor, 0o666 & ~_umask() if mode is None else stat.S_IMODE(mode))
        return descriptor

    def write(self, data: bytes) -> None:
        write_all(self._descriptor, data, name=str(self.path))

    def commit(self) -> None:
        if self._part is not None:
            if not self._force and self.path.exists():
                raise self._exists()
            self._part.replace(self.path.resolve())
            self._part = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if self._part is not None:
            with contextlib.suppress(FileNotFoundError):
                self._part.unlink()

    def _exists(self) -> CartdeckError:
        return self._refusal("exists already; choose another name, or add --force to overwrite it")

    def _refusal(self, why: str) -> CartdeckError:
        return failure(Code.BAD_ARGUMENT, f"The output file {self.path} {why}.", argument="--out")


def open_output(path: Path | None, *, force: bool) -> Output:
    """The output that `--out` names; standard output when it names none, or `-`."""
    return StandardOutput() if path is None or str(path) == "-" else FileOutput(path, force=force)


class TerminalText:
    """Makes bytes fit for a terminal: whole characters, and no control characters but tab and newline.

    BAD_ARGUMENT for what is no text at all.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        try:
            return self._decoder.decode(data, is_last).translate(HARMLESS).encode()
        except UnicodeDecodeError:
            raise failure(
                Code.BAD_ARGUMENT,
                "The output is no text, and a terminal cannot show it. Write it to a file with --out FILE, or have it "
                "as a record with --json.",
                argument="--out",
            ) from None


def write_all(descriptor: int, data: bytes, *, name: str) -> None:
    """Writes all of `data`, however long that takes.

    Raises ReaderGone for a closed pipe, INSUFFICIENT_STORAGE for a full disk, DEVICE_FAULT for another failure.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # the terminal's other user made it non-blocking
            select.select([], [descriptor], [])
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EBADF):
                raise ReaderGone from None
            code = Code.INSUFFICIENT_STORAGE if error.errno in NO_SPACE else Code.DEVICE_FAULT
            raise failure(code, f"Writing to {name} failed: {error.strerror}.") from None


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
