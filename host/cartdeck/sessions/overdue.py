"""Owns the judgement on one open request: has it been silent, or without advance, for too long.

It does not know what follows. Pure: a request's clocks and the limits go in, an error or None comes out.
"""

from cartdeck.request import Request
from cartdeck.settings import CallSettings
from cartdeck_protocol.errors import CartdeckError, Code, failure


def overdue(request: Request, now_s: float, limits: CallSettings) -> CartdeckError | None:
    """The error that ends the request now, or None.

    While the reader holds everything up, the cartridge's clocks stand and the reader's runs.
    """
    since_s = request.reader_since_s(now_s)
    if since_s is not None:
        request.heard_at_s = request.advanced_at_s = now_s
        if now_s - since_s <= limits.reader_s:
            return None
        return failure(
            Code.READER_STALLED,
            f"nothing of what {request.title} gave was read for {limits.reader_s:g} s, while it could not go on",
        )
    if now_s - request.last_heard_s(now_s) > limits.silence_s:
        return failure(
            Code.TIMED_OUT,
            f"{request.title} gave no sign for {limits.silence_s:g} s: no data, progress, log line or keepalive",
        )
    if now_s - request.last_advanced_s(now_s) > limits.stall_s:
        return failure(
            Code.STALLED,
            f"{request.title} is alive but did not advance for {limits.stall_s:g} s: no data, more work or new phase",
        )
    return None
