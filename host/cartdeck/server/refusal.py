"""Owns what becomes of an error over HTTP: its status, its headers, and the error object in OpenAI's shape.

It does not know who raised it. The code table decides the status; what HTTP alone refuses has codes of its own here.
"""

import json
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, ErrorClass, failure

CLIENT_GONE: Final = 499
"""What a log says of a request whose client went away; nobody receives it."""
_RETRY_S: Final = 1.0
_BY_CLASS: Final = {
    ErrorClass.INPUT: 400,
    ErrorClass.RESOURCE: 500,
    ErrorClass.ENVIRONMENT: 500,
    ErrorClass.INTERNAL: 500,
    ErrorClass.USER: CLIENT_GONE,
}
_BY_CODE: Final = {
    Code.NO_SUCH_CAP: 404,
    Code.MODEL_NOT_FOUND: 404,
    Code.FILE_NOT_FOUND: 404,
    Code.REVISION_NOT_FOUND: 404,
    Code.CARTRIDGE_UNAVAILABLE: 501,
    Code.TIMED_OUT: 504,
    Code.STALLED: 504,
    Code.MODEL_IN_USE: 409,
    Code.INSUFFICIENT_STORAGE: 507,
    Code.AUTH_REQUIRED: 502,
    Code.GATED: 502,
    Code.GATED_NOT_ACCEPTED: 502,
    Code.OFFLINE_NOT_CACHED: 502,
    Code.HASH_MISMATCH: 502,
    Code.DOWNLOAD_INTERRUPTED: 502,
    Code.DOWNLOAD_STALLED: 502,
    Code.ENDPOINT_UNREACHABLE: 502,
    Code.READER_STALLED: 408,
    Code.ABORTED: 503,
}
RETRY_HELPS: Final = frozenset(
    {
        Code.QUEUE_FULL, Code.LOCK_TIMEOUT, Code.RATE_LIMITED, Code.CARTRIDGE_DIED, Code.HUNG, Code.DEVICE_FAULT,
        Code.ABORTED,
    }
)  # fmt: skip
"""Codes after which the same request may well work in a moment. An error that says `retry_after_s` is another one."""


_SERVER_ENDS: Final = "Send the request again when the server has been started again."
"""What a client can do about ABORTED: the engine, of which the table's remedy speaks, is not its own."""


@dataclass(slots=True, eq=False)
class Refused(Exception):
    """A request that HTTP itself refuses: nothing of the code table fits."""

    status: int
    code: str
    message: str
    param: str | None = None
    error_class: str = ErrorClass.INPUT.value
    headers: tuple[tuple[str, str], ...] = ()
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An error as it is sent."""

    status: int
    headers: dict[str, str]
    record: dict[str, Any]

    @property
    def body(self) -> bytes:
        return json.dumps({"error": self.record}, ensure_ascii=False, default=str).encode("utf-8", "replace")


def reply_to(error: CartdeckError | Refused) -> Reply:
    """The status, headers and error object for `error`."""
    if isinstance(error, Refused):
        record = _record(error.message, error.status, param=error.param, code=error.code)
        if error.details:
            record["details"] = dict(error.details)
        return Reply(error.status, dict(error.headers), {**record, "class": error.error_class})
    retry_s = retry_after_s(error)
    status = 503 if retry_s is not None else _BY_CODE.get(error.code, _BY_CLASS[error.error_class])
    record = _record(error.message, status, param=error.argument, code=error.code_name)
    is_of_engine = error.code is Code.ABORTED and error.remedy == error.code.remedy
    record |= {"class": error.error_class.value, "remedy": _SERVER_ENDS if is_of_engine else error.remedy}
    if error.phase is not None:
        record["phase"] = error.phase
    if error.details:
        record["details"] = {name: value for name, value in error.details.items() if name != "provenance"}
    headers: dict[str, str] = {}
    if retry_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_s)))
    elif status >= 500:
        headers["x-should-retry"] = "false"  # clients of OpenAI's would try again by themselves
    return Reply(status, headers, record)


def retry_after_s(error: CartdeckError) -> float | None:
    """Seconds after which the same request may work; None where trying again does not help."""
    said: Any = error.details.get("retry_after_s")
    if isinstance(said, int | float) and math.isfinite(said) and error.error_class is not ErrorClass.INPUT:
        return float(said)
    return _RETRY_S if error.code in RETRY_HELPS else None


def _record(message: str, status: int, *, param: str | None, code: str) -> dict[str, Any]:
    return {"message": message, "type": _type_of(status), "param": param, "code": code}


def _type_of(status: int) -> str:
    """OpenAI's word for it."""
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    return "invalid_request_error" if status < 500 or status == 501 else "server_error"


@contextmanager
def named_as(names: Mapping[str, str]) -> Generator[None]:
    """Errors inside name the request's field for an argument of a cap: what the caller wrote, not what we made of it.

    `names` has those that differ by more than a - for a _.
    """
    try:
        yield
    except CartdeckError as error:
        argument = error.argument
        if argument is None:
            raise
        field = names.get(argument, argument.replace("-", "_"))
        if field == argument:
            raise
        renamed = failure(error.code, error.message, phase=error.phase, argument=field, details=error.details)
        renamed.code_name = error.code_name
        raise renamed.with_traceback(None) from None
