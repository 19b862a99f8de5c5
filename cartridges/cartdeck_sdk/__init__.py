"""What a cartridge's author imports. Names load when they are used, so that the pipe guard can run before them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cartdeck_sdk.cartridge import Cartridge
    from cartdeck_sdk.keepalive import Report
    from cartdeck_sdk.output import Output, OutputStream, WorkerOutput
    from cartdeck_sdk.peer import Peer
    from cartdeck_sdk.peer_call import PeerCall, PeerResult
    from cartdeck_sdk.received_stream import ReceivedStream
    from cartdeck_sdk.request import Request
    from cartdeck_sdk.serve import serve

_HOMES = {
    "Cartridge": "cartdeck_sdk.cartridge",
    "Output": "cartdeck_sdk.output",
    "OutputStream": "cartdeck_sdk.output",
    "Peer": "cartdeck_sdk.peer",
    "PeerCall": "cartdeck_sdk.peer_call",
    "PeerResult": "cartdeck_sdk.peer_call",
    "ReceivedStream": "cartdeck_sdk.received_stream",
    "Report": "cartdeck_sdk.keepalive",
    "Request": "cartdeck_sdk.request",
    "WorkerOutput": "cartdeck_sdk.output",
    "serve": "cartdeck_sdk.serve",
}

__all__ = [
    "Cartridge",
    "Output",
    "OutputStream",
    "Peer",
    "PeerCall",
    "PeerResult",
    "ReceivedStream",
    "Report",
    "Request",
    "WorkerOutput",
    "serve",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from importlib import import_module  # noqa: PLC0415  # only when a name is used

    return getattr(import_module(home), name)
