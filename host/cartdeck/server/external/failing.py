"""Owns what is said when another server fails: whose fault it is, and what its own words are.

It does not know how it was asked. A refusal of the request (400 and its like) is the caller's, by the field that the
other server names; a key, a name or an address that does not fit is of the catalog; the rest is of that server.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from cartdeck.server.external.place import Place
from cartdeck.server.fields import as_record
from cartdeck_protocol.errors import CartdeckError, Code, ErrorClass, failure

LONGEST_MESSAGE: Final = 2000
_OF_REQUEST: Final = frozenset({400, 405, 409, 411, 413, 414, 415, 422})
_RETRY_S: Final = 5.0


def refused(place: Place, status: int, headers: Mapping[str, str], body: bytes) -> CartdeckError:
    """The error for an answer that is none of 2xx."""
    said = _error_record(body)
    message = place.hidden(_message(said, body))
    details: dict[str, Any] = {"server": place.url, "status": status}
    if 300 <= status < 400:
        return _failure(Code.ENDPOINT_UNREACHABLE, f"{place} is elsewhere ({status}): correct its address.", details)
    if status in (401, 403):
        whose = f"the key in {place.key_variable}" if place.key_variable else "a request without a key (key_variable)"
        return _failure(Code.AUTH_REQUIRED, f"{place} refuses {whose}: {message}", details)
    if status == 404:
        return _failure(
            Code.MODEL_NOT_FOUND, f"{place} knows no model {place.model}: {message}", details, argument="model"
        )
    if status == 429:
        details["retry_after_s"] = _retry_after_s(headers)
        return _failure(Code.RATE_LIMITED, f"{place} takes no more requests now: {message}", details)
    if status == 503:
        details["retry_after_s"] = _retry_after_s(headers)
    if status >= 500:
        return _failure(Code.ENDPOINT_UNREACHABLE, f"{place} fails with {status}: {message}", details)
    return of_request(place, said, message, details)


def of_request(place: Place, said: Mapping[str, Any], message: str, details: dict[str, Any]) -> CartdeckError:
    """The error for a request that the other server refuses: by its code where it is one of ours."""
    code = Code.__members__.get(str(said.get("code")), Code.BAD_ARGUMENT)
    if code.error_class is not ErrorClass.INPUT or code is Code.MODEL_NOT_FOUND:
        code = Code.BAD_ARGUMENT
    named = said.get("param")
    argument = named if isinstance(named, str) and named else None
    return _failure(code, f"{place} refuses the request: {message}", details, argument=argument)


def told_in_stream(place: Place, record: Any) -> CartdeckError:
    """The error that an event of its stream tells."""
    said = as_record(record) if isinstance(record, Mapping) else {"message": record}
    message = place.hidden(_message(said, b""))
    details: dict[str, Any] = {"server": place.url}
    if said.get("class") == ErrorClass.INPUT.value or said.get("type") == "invalid_request_error":
        return of_request(place, said, message, {**details, "status": 400})
    return _failure(Code.ENDPOINT_UNREACHABLE, f"{place} ended its answer with an error: {message}", details)


def unreachable(place: Place, error: Exception) -> CartdeckError:
    """The error for a server that no request came to."""
    reason = place.hidden(str(error)) or type(error).__name__
    return _failure(Code.ENDPOINT_UNREACHABLE, f"{place} cannot be reached: {reason}.", {"server": place.url})


def broken_off(place: Place, error: Exception | str) -> CartdeckError:
    """The error for an answer that ends in its middle."""
    reason = str(error) or type(error).__name__
    return _failure(Code.ENDPOINT_UNREACHABLE, f"{place} broke its answer off: {reason}.", {"server": place.url})


def not_understood(place: Place, what: str) -> CartdeckError:
    """The error for an answer that is none of OpenAI's."""
    message = f"{place} gave an answer that is none of OpenAI's: {what}."
    return _failure(Code.ENDPOINT_UNREACHABLE, message, {"server": place.url})


def key_problem(place: Place, what: str) -> CartdeckError:
    message = f"The key for {place.url} is expected in the environment variable {place.key_variable}, which {what}."
    return _failure(Code.AUTH_REQUIRED, message, {"server": place.url})


def _failure(code: Code, message: str, details: dict[str, Any], *, argument: str | None = None) -> CartdeckError:
    return failure(code, message, phase="external", argument=argument, details=details)


def is_about_request(error: CartdeckError) -> bool:
    """Whether another server refused what was asked, and not the model: then no other one need be tried."""
    return error.phase == "external" and error.details.get("status") in _OF_REQUEST and error.argument != "model"


def is_about_counts(error: CartdeckError) -> bool:
    """Whether another server refused to be asked for the counts at the end of a stream."""
    named = f"{error.argument or ''} {error.message}"
    return error.phase == "external" and error.details.get("status") in _OF_REQUEST and "stream_options" in named


def _error_record(body: bytes) -> Mapping[str, Any]:
    try:
        whole = as_record(json.loads(body))
    except (ValueError, RecursionError):
        return {}
    said = whole.get("error", whole.get("detail", whole))  # FastAPI has `detail`
    return as_record(said) if isinstance(said, Mapping) else {"message": said}


def _message(said: Mapping[str, Any], body: bytes) -> str:
    message = said.get("message")
    if message is None:
        message = body.decode("utf-8", "replace").strip()
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False, default=str)
    return (text[:LONGEST_MESSAGE] or "it says nothing more").rstrip(".") + "."


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        told = float(headers.get("retry-after", ""))
    except ValueError:  # a date, or nothing
        return _RETRY_S
    return min(max(told, 0.0), 86_400.0) if math.isfinite(told) else _RETRY_S
