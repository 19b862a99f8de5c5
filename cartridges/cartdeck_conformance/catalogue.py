"""Owns the list of checks: the number of each, its sentence, and what to do when it fails. Numbers never change.

It does not know how anything is checked.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `number` and `name` are stable; `sentence` says what holds; `remedy` what to do where it does not."""

    number: int
    name: str
    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


HANDSHAKE: Final = Check(
    1,
    "handshake",
    "It answers the host's HELLO with its own, as its first frame, also when the versions differ.",
    "If the process ended, mend what its last line names. Else wait for the host's HELLO, then send yours: protocol, "
    "api, limits, features, manifest (protocol/README.md, 6).",
)
START: Final = Check(
    2,
    "start time",
    "It is ready for requests soon after its start.",
    "Import and load what is heavy when the first request needs it, not before HELLO.",
)
MANIFEST: Final = Check(
    3,
    "manifest",
    "The manifest in HELLO is valid, serves identity and discard, and is the one on disk.",
    "Generate it again (python -m cartdeck_sdk.manifest PACKAGE), install again, and send the bytes of that file.",
)
IDENTITY: Final = Check(
    4,
    "identity",
    "The cap identity gives back its input: inside the request, as a whole stream, in chunks, and empty.",
    "Serve cap:effect=none: the argument data comes back on the main output, byte for byte, then END.",
)
DISCARD: Final = Check(
    5,
    "discard",
    "The cap discard reads its input to the end, gives nothing back, and ends.",
    "Serve cap:discard: take all chunks of data, grant credit for them, then END.",
)
SAMPLES: Final = Check(
    6,
    "samples",
    "Each cap answers a call with its sample.",
    "Mend the handler, or the sample in manifest.toml ([samples.ALIAS]).",
)
OUTPUTS: Final = Check(
    7,
    "outputs",
    "Outputs have the names and the form that the cap's definition says.",
    "Name the stream as the definition does (no name for the main output), and send what its media URN says.",
)
UNKNOWN_CAP: Final = Check(
    8,
    "unknown cap",
    "A cap that is not served is refused with NO_SUCH_CAP, and the next request works.",
    "Answer a REQ whose cap no handler serves with ERR NO_SUCH_CAP.",
)
ARGUMENTS: Final = Check(
    9,
    "arguments",
    "A missing, unknown or unreadable argument is an error of class input.",
    "Check arguments by the definition before the work begins: MISSING_ARGUMENT, UNKNOWN_ARGUMENT, BAD_ARGUMENT.",
)
ERRORS: Final = Check(
    10,
    "errors",
    "Each ERR has a code in capitals, the class that belongs to it, and a message.",
    "Take code and class from the table in protocol/README.md, 14, and say in words what was found.",
)
FRAMES: Final = Check(
    11,
    "frames",
    "Each frame that it sends is one that the wire allows.",
    "Compare the frame that the message names with the tables in protocol/README.md, 1 to 4 and 8.",
)
TERMINALS: Final = Check(
    12,
    "terminals",
    "Each request has one END or ERR, behind the ends of its streams, and nothing after it.",
    "Send STREAM_END for each open stream, then one END or ERR, and nothing more for that id.",
)
PROGRESS: Final = Check(
    13,
    "progress",
    "Progress lies in [0, 1] and never falls; work grows within a phase; END does not fall behind.",
    "Report the progress of the whole request, not of a step, and count work that was really done.",
)
KEEPALIVE: Final = Check(
    14,
    "keepalive",
    "A request that takes long shows a sign of life each CARTDECK_KEEPALIVE_S.",
    "Run long work under output.run_with_keepalive, or repeat the last progress LOG from a timer.",
)
HEARTBEAT: Final = Check(
    15,
    "heartbeat",
    "HEARTBEATs come each CARTDECK_HEARTBEAT_S, also while it computes, and count what is open.",
    "Send HEARTBEAT from a thread of its own, which holds no lock that the work holds.",
)
STDOUT: Final = Check(
    16,
    "stdout",
    "Nothing but frames reaches its stdout.",
    "Move the frame pipe to a private descriptor and point descriptor 1 at stderr before anything else is loaded.",
)
STDERR: Final = Check(
    17,
    "stderr",
    "While all goes well it writes little to stderr, and no traceback.",
    "Log through LOG frames, turn a library's chatter off, and answer exceptions with ERR.",
)
BROKEN_CONNECTION: Final = Check(
    18,
    "broken connection",
    "Bytes that break the framing end the connection and the process, and nothing else.",
    "Refuse what law 1 of protocol/README.md names: say ERR with id 0, and leave.",
)
BROKEN_REQUEST: Final = Check(
    19,
    "broken request",
    "What is wrong inside one request ends that request with the right code; the others go on.",
    "Answer ERR with the code of law 2 of protocol/README.md, and forget the request.",
)
LATE_FRAMES: Final = Check(
    20,
    "late frames",
    "Frames for requests that are over or were never made are passed over and counted.",
    "Look an id up before its frame is dealt with; count stragglers and strays, and say them in HEARTBEAT.",
)
SPLIT: Final = Check(
    21,
    "split bytes",
    "The same bytes mean the same, one at a time, cut anywhere, or many frames at once.",
    "Collect bytes until length and body are whole; take every whole frame out of what was read.",
)
CREDIT_KEPT: Final = Check(
    22,
    "credit kept",
    "It sends no CHUNK without credit, none above max_chunk, and goes on when credit comes.",
    "Count one unit of the host's initial_credit for each CHUNK, and wait at zero until CREDIT comes.",
)
CREDIT_GIVEN: Final = Check(
    23,
    "credit given",
    "It grants credit for what it has taken, so that an input of any length arrives.",
    "Send CREDIT for each half window that was taken, and for what is owed before waiting.",
)
CANCEL: Final = Check(
    24,
    "cancel",
    "A CANCEL at any moment is soon followed by one terminal, CANCELLED or END; other requests go on.",
    "Stop the handler at CANCEL (also one that waits for credit or computes), and answer ERR CANCELLED.",
)
BIG: Final = Check(
    25,
    "big data",
    "Megabytes go in and come out unchanged.",
    "Read while you write: a full pipe must never stop the reading of the other one.",
)
CONCURRENT: Final = Check(
    26,
    "concurrent calls",
    "As many requests as its capacity says are open at once, and each is answered on its own.",
    "Keep the state of each request apart, by its id; or say a smaller capacity in the manifest.",
)
OVERFLOW: Final = Check(
    27,
    "overflow",
    "Requests beyond its capacity are answered too, served later or refused with QUEUE_FULL.",
    "Let them wait, or answer ERR QUEUE_FULL; never drop a REQ.",
)
PEER_CALLS: Final = Check(
    28,
    "peer calls",
    "Its peer calls name their parent, are cancelled with it, and a peer's error ends the request.",
    "Send parent in REQ, CANCEL the peer call when its request is cancelled, and pass its error on.",
)
HOST_DEATH: Final = Check(
    29,
    "death of the host",
    "It leaves when stdin ends or at SIGTERM, whatever it does at that moment, and leaves no process.",
    "End the process at the end of stdin, also while a handler runs, and take children along.",
)
MEMORY: Final = Check(
    30,
    "memory",
    "After many calls it is no larger and has no more open files than after a few.",
    "Drop what belongs to a request when it has ended.",
)

CHECKS: Final = (
    HANDSHAKE, START, MANIFEST, IDENTITY, DISCARD, SAMPLES, OUTPUTS, UNKNOWN_CAP, ARGUMENTS, ERRORS, FRAMES, TERMINALS,
    PROGRESS, KEEPALIVE, HEARTBEAT, STDOUT, STDERR, BROKEN_CONNECTION, BROKEN_REQUEST, LATE_FRAMES, SPLIT, CREDIT_KEPT,
    CREDIT_GIVEN, CANCEL, BIG, CONCURRENT, OVERFLOW, PEER_CALLS, HOST_DEATH, MEMORY,
)  # fmt: skip  # a list to scan
BY_NUMBER: Final = {check.number: check for check in CHECKS}
