"""Owns whole JSON answers. It does not know what they say."""

import json
from typing import Any

from starlette.responses import Response

from cartdeck.server.refusal import Refused, reply_to
from cartdeck_protocol.errors import CartdeckError


def json_response(data: Any, status: int = 200) -> Response:
    """`data` as JSON; what JSON lacks becomes text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")


def error_response(error: CartdeckError | Refused) -> Response:
    """The error, with its status."""
    reply = reply_to(error)
    return Response(reply.body, reply.status, reply.headers, media_type="application/json")
