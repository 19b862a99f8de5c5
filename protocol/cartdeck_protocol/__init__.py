"""Owns nothing itself: the names of the protocol, each loaded when it is first used.

It does not know hosts or cartridges; both speak through it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cartdeck_protocol.caps import (
        UNIVERSAL_CAPS,
        ArgumentDefinition,
        CapDefinition,
        CapUrn,
        Manifest,
        MediaUrn,
        OutputDefinition,
        Requirement,
        UrnError,
        ValueKind,
        build_manifest,
        check_value,
        closeness,
        decode_value,
        describe_value,
        encode_value,
        load_shared_definition,
        parse_definition,
        rank,
        shared_aliases,
    )
    from cartdeck_protocol.errors import CartdeckError, Code, ErrorClass, failure, from_wire

__all__ = [
    "UNIVERSAL_CAPS",
    "ArgumentDefinition",
    "CapDefinition",
    "CapUrn",
    "CartdeckError",
    "Code",
    "ErrorClass",
    "Manifest",
    "MediaUrn",
    "OutputDefinition",
    "Requirement",
    "UrnError",
    "ValueKind",
    "build_manifest",
    "check_value",
    "closeness",
    "decode_value",
    "describe_value",
    "encode_value",
    "failure",
    "from_wire",
    "load_shared_definition",
    "parse_definition",
    "rank",
    "shared_aliases",
]

_ERRORS = ("CartdeckError", "Code", "ErrorClass", "failure", "from_wire")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "errors" if name in _ERRORS else "caps"
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
