"""Owns the HELLO of the other end: versions compared, limits agreed on.

It does not know what follows the greeting.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from cartdeck_protocol.errors import Code
from cartdeck_protocol.wire.events import HelloReceived
from cartdeck_protocol.wire.kinds import API_VERSION, PROTOCOL_VERSION
from cartdeck_protocol.wire.limits import Limits
from cartdeck_protocol.wire.sender import Sender
from cartdeck_protocol.wire.violation import RemoteProtocolError


def greet(
    connection: Sender, meta: dict[str, Any], violation: Callable[[str, str | None], RemoteProtocolError]
) -> HelloReceived:
    """Take the other end's HELLO. VERSION_MISMATCH names both versions; a cartridge answers with its own HELLO even
    then, so that the host can say the same."""
    is_cartridge = connection.role.value == 1
    if is_cartridge and not connection.hello_sent:
        connection.send_hello()
    software = str(meta.get("software", ""))
    for name, ours in (("protocol", PROTOCOL_VERSION), ("api", API_VERSION)):
        theirs = meta[name]
        if theirs != ours:
            them, us = ("host", "cartridge") if is_cartridge else ("cartridge", "host")
            raise RemoteProtocolError(
                f"the {us} speaks {name} version {ours}, the {them} ({software or 'unnamed'}) version {theirs}",
                code=Code.VERSION_MISMATCH,
                key=name,
            )
    limits_meta = cast("dict[str, Any]", meta["limits"])
    try:
        theirs = Limits.from_wire(limits_meta)
    except ValueError as error:
        raise violation(f"limits: {error}", "limits") from error
    features = cast("list[Any]", meta["features"])
    if not all(isinstance(name, str) for name in features):
        raise violation("features must be a list of text", "features")
    connection.their_limits = theirs
    connection.max_chunk = min(connection.limits.max_chunk, theirs.max_chunk)
    connection.limits = replace(connection.limits, max_chunk=connection.max_chunk)
    connection.features = frozenset(cast("list[str]", features))
    connection.is_greeted = True
    return HelloReceived(theirs, connection.features, software, meta.get("manifest", b""))
