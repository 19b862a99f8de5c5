"""Owns the code table: what can go wrong, whose fault it is, and what to do next.

It does not know who found the error, nor how it travels; the wire's `ERR` frame carries `to_wire()`.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum, unique
from typing import Any, cast


class ErrorClass(StrEnum):
    """Whose fault an error is. `INPUT` and `USER` are permanent; the others may be retried."""

    INPUT = "input"
    RESOURCE = "resource"
    ENVIRONMENT = "environment"
    INTERNAL = "internal"
    USER = "user"

    @property
    def is_permanent(self) -> bool:
        return self in (ErrorClass.INPUT, ErrorClass.USER)


_INPUT, _RESOURCE, _ENVIRONMENT = ErrorClass.INPUT, ErrorClass.RESOURCE, ErrorClass.ENVIRONMENT
_INTERNAL, _USER = ErrorClass.INTERNAL, ErrorClass.USER


@unique
class Code(Enum):
    """The code table: a code's name travels on the wire; its class and remedy are known to both sides.

    A new code is added here, with its class and its sentence of what to do next, and nowhere else.
    """

    # wire
    PROTOCOL_VIOLATION = (_INTERNAL, "Check the cartridge with the wire's specification, protocol/README.md.")
    FRAME_TOO_LARGE = (_INTERNAL, "Send large values as a stream of chunks instead of in one frame.")
    CREDIT_VIOLATION = (_INTERNAL, "Send no chunk before the receiver has granted credit for it.")
    VERSION_MISMATCH = (_ENVIRONMENT, "Install a cartridge and a host that speak the same protocol version.")
    IDENTITY_FAILED = (_INTERNAL, "Restart the cartridge; if it fails again, its framing or dispatch is broken.")
    MANIFEST_DRIFT = (_ENVIRONMENT, "Generate the cartridge's manifest again, or reinstall the cartridge.")
    # routing
    NO_SUCH_CAP = (_INPUT, "List what is there with `cartdeck caps`.")
    AMBIGUOUS_CAP = (_INPUT, "Name one of the candidates by its tag, or set `prefer` in the configuration.")
    CARTRIDGE_UNAVAILABLE = (_ENVIRONMENT, "Install what the cartridge needs; `cartdeck cartridges` shows the command.")
    QUARANTINED = (_ENVIRONMENT, "Mend the cause, then run `cartdeck cartridges reset`.")
    QUEUE_FULL = (_RESOURCE, "Try again when a running call has finished.")
    PEER_CYCLE = (_INPUT, "Break the cycle: a cap may not call itself through its peers.")
    PEER_DEADLOCK = (_INPUT, "Call the peer without the instance that the chain already holds, or raise the limit.")
    # plans
    BAD_PLAN = (_INPUT, "Correct the plan at the place that the message names.")
    PLAN_CYCLE = (_INPUT, "Break the cycle: no step may need what it gives itself.")
    BAD_OUTPUT = (_INTERNAL, "Report it to the cartridge's author: it gave something else than its cap declares.")
    # life
    START_FAILED = (_ENVIRONMENT, "Read the cartridge's last log lines in this error's details.")
    CARTRIDGE_DIED = (_INTERNAL, "Try again: a new process is started. The last log lines are in the details.")
    HUNG = (_INTERNAL, "Try again: the process was ended and a new one is started.")
    STALLED = (_INTERNAL, "The work made no progress; look at the cartridge's log, or raise the limit.")
    READER_STALLED = (_USER, "Read the call's output without long pauses, or raise the limit.")
    TIMED_OUT = (_RESOURCE, "Give the call more time, or ask for less work.")
    CANCELLED = (_USER, "Nothing: the caller asked for it.")
    ABORTED = (_USER, "Start the engine again; it was closed while the call ran.")
    # input
    BAD_ARGUMENT = (_INPUT, "Correct the argument as the message says.")
    UNKNOWN_ARGUMENT = (_INPUT, "Use one of the known arguments that the message lists.")
    MISSING_ARGUMENT = (_INPUT, "Give the argument that the message names.")
    INVALID_TEXT = (_INPUT, "Send valid UTF-8 text.")
    BAD_IMAGE = (_INPUT, "Send an image that a common viewer opens.")
    BAD_AUDIO = (_INPUT, "Send audio that a common player opens.")
    EMPTY_INPUT = (_INPUT, "Send an input that is not empty.")
    INVALID_GRAMMAR = (_INPUT, "Correct the grammar at the place that the message names.")
    UNSUPPORTED_SCHEMA = (_INPUT, "Leave out the schema keyword that the message names.")
    CONTEXT_OVERFLOW = (_INPUT, "Shorten the input, or ask for a larger context.")
    UNSUPPORTED = (_INPUT, "Ask for something that this cartridge can do; the message says what.")
    # model
    MODEL_NOT_FOUND = (_INPUT, "Check the model's name.")
    FILE_NOT_FOUND = (_INPUT, "Check the file's name and path.")
    REVISION_NOT_FOUND = (_INPUT, "Check the revision or version.")
    AUTH_REQUIRED = (_ENVIRONMENT, "Set a hub token.")
    GATED = (_ENVIRONMENT, "Set the token of an account that has access to the model.")
    GATED_NOT_ACCEPTED = (_ENVIRONMENT, "Accept the licence on the model's page.")
    OFFLINE_NOT_CACHED = (_ENVIRONMENT, "Fetch the model once while online.")
    HASH_MISMATCH = (_ENVIRONMENT, "Fetch the file again; if the hash differs again, its source was changed.")
    DOWNLOAD_INTERRUPTED = (_ENVIRONMENT, "Start again: what was fetched is kept.")
    DOWNLOAD_STALLED = (_ENVIRONMENT, "Check the network and start again.")
    LOCK_TIMEOUT = (_RESOURCE, "Wait for the other process that fetches the same file, or end it.")
    MODEL_IN_USE = (_RESOURCE, "Unload the model, or end the process that the message names, then try again.")
    RATE_LIMITED = (_RESOURCE, "Wait as long as the message says, then try again.")
    ENDPOINT_UNREACHABLE = (_ENVIRONMENT, "Check the network and the host that the message names.")
    UNSAFE_FILENAME = (_INPUT, "Do not use this source: a file name in it leads outside its folder.")
    UNSAFE_WEIGHTS = (_INPUT, "Use weights in safetensors or GGUF form.")
    INSUFFICIENT_STORAGE = (_RESOURCE, "Free disk space; the message says how much is needed.")
    NOT_WRITABLE = (
        _ENVIRONMENT,
        "Give this user the right to write there, or name another folder; the message says by which setting.",
    )
    BAD_MODEL_FILE = (_INPUT, "Use a model file of the kind that the message names.")
    MODEL_TRUNCATED = (_INPUT, "Its end is missing: copy it again, or `cartdeck rm` and `cartdeck pull` it.")
    MISSING_SHARD = (_INPUT, "Put all parts of the split model side by side.")
    UNSUPPORTED_ARCHITECTURE = (_INPUT, "Use a model of an architecture that the engine knows.")
    PROJECTOR_MISMATCH = (_INPUT, "Use the projector that belongs to this model.")
    # resource
    OUT_OF_MEMORY = (_RESOURCE, "Use a smaller model or context, or free memory.")
    INSUFFICIENT_MEMORY = (_RESOURCE, "Use a smaller model or context, or unload another model.")
    DEVICE_FAULT = (_RESOURCE, "Check the device and its driver, then try again.")
    NON_FINITE_OUTPUT = (_RESOURCE, "Use another precision or device for this model.")
    # the rest
    HANDLER_FAILED = (_INTERNAL, "Report it to the cartridge's author with the log.")
    INTERNAL = (_INTERNAL, "Report it to the project with the log.")

    def __init__(self, error_class: ErrorClass, remedy: str) -> None:
        self.error_class = error_class
        self.remedy = remedy

    def __str__(self) -> str:
        return self.name


class CartdeckError(Exception):
    """The root of every error that this project raises on purpose.

    `code` is one of the table; `error_class` says whose fault it is; `phase`, `argument` and `details`
    say where, as far as known. `str(error)` is the message alone: what was found and what was expected.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        phase: str | None = None,
        argument: str | None = None,
        details: Mapping[str, Any] | None = None,
        code_name: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.phase = phase
        self.argument = argument
        self.details: dict[str, Any] = dict(details or {})
        self.code_name = code_name or code.name
        """The code as its sender named it: differs from `code` only for one that this table lacks."""

    @property
    def error_class(self) -> ErrorClass:
        return self.code.error_class

    @property
    def remedy(self) -> str:
        """One sentence: what to do next. That of the table, unless the details have a `remedy` that fits better."""
        own = self.details.get("remedy")
        return own if isinstance(own, str) and own else self.code.remedy

    def to_wire(self) -> dict[str, Any]:
        """The meta of an `ERR` frame."""
        meta: dict[str, Any] = {
            "code": self.code_name,
            "class": self.error_class.value,
            "message": self.message,
        }
        if self.phase is not None:
            meta["phase"] = self.phase
        if self.argument is not None:
            meta["argument"] = self.argument
        if self.details:
            meta["details"] = self.details
        return meta

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.to_wire(),))


class InputError(CartdeckError):
    """The request is wrong; the same request fails again."""


class ResourceError(CartdeckError):
    """Memory, disk, time or a queue ran out; a later try may succeed."""


class EnvironmentFailure(CartdeckError):
    """Something outside the project is missing or broken: a package, a network, a file's origin."""


class InternalFailure(CartdeckError):
    """A cartridge or the engine is at fault."""


class UserAbort(CartdeckError):
    """The caller ended the call, by cancelling or by not reading."""


_BY_CLASS: dict[ErrorClass, type[CartdeckError]] = {
    ErrorClass.INPUT: InputError,
    ErrorClass.RESOURCE: ResourceError,
    ErrorClass.ENVIRONMENT: EnvironmentFailure,
    ErrorClass.INTERNAL: InternalFailure,
    ErrorClass.USER: UserAbort,
}


def failure(
    code: Code,
    message: str,
    *,
    phase: str | None = None,
    argument: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> CartdeckError:
    """The exception for `code`, of the subclass that its error class names; raise what it returns."""
    return _BY_CLASS[code.error_class](code, message, phase=phase, argument=argument, details=details)


def from_wire(meta: Mapping[str, Any]) -> CartdeckError:
    """The exception for the meta of an `ERR` frame: the only place where a code becomes an exception.

    A code that this table lacks keeps its name in `code_name` and counts as `HANDLER_FAILED`.
    """
    name = str(meta.get("code", ""))
    code = Code.__members__.get(name, Code.HANDLER_FAILED)
    details = meta.get("details")
    phase, argument = meta.get("phase"), meta.get("argument")
    return _BY_CLASS[code.error_class](
        code,
        str(meta.get("message", "")),
        phase=None if phase is None else str(phase),
        argument=None if argument is None else str(argument),
        details=cast("Mapping[str, Any]", details) if isinstance(details, Mapping) else None,
        code_name=name or None,
    )


def _rebuild(meta: dict[str, Any]) -> CartdeckError:
    return from_wire(meta)
