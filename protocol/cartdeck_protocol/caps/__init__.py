"""Owns the vocabulary: URNs, cap definitions, manifests, and the values of arguments.

It does not know the wire, nor who serves a cap. Names are loaded when they are first used, so that reading a
manifest.json brings in no TOML reader.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cartdeck_protocol.caps.argument import ArgumentDefinition, OutputDefinition, ValueKind
    from cartdeck_protocol.caps.cap import CapUrn, closeness, rank
    from cartdeck_protocol.caps.definition import UNIVERSAL_CAPS, CapDefinition
    from cartdeck_protocol.caps.manifest import Manifest, Requirement
    from cartdeck_protocol.caps.media import MediaUrn
    from cartdeck_protocol.caps.sample import Sample, check_sample, sample_bytes, sample_items
    from cartdeck_protocol.caps.source import (
        build_manifest,
        load_shared_definition,
        parse_definition,
        shared_aliases,
    )
    from cartdeck_protocol.caps.tag import UrnError
    from cartdeck_protocol.caps.values import check_value, decode_value, encode_value
    from cartdeck_protocol.caps.wording import describe_value

__all__ = [
    "UNIVERSAL_CAPS",
    "ArgumentDefinition",
    "CapDefinition",
    "CapUrn",
    "Manifest",
    "MediaUrn",
    "OutputDefinition",
    "Requirement",
    "Sample",
    "UrnError",
    "ValueKind",
    "build_manifest",
    "check_sample",
    "check_value",
    "closeness",
    "decode_value",
    "describe_value",
    "encode_value",
    "load_shared_definition",
    "parse_definition",
    "rank",
    "sample_bytes",
    "sample_items",
    "shared_aliases",
]

_HOMES = {
    "argument": ("ArgumentDefinition", "OutputDefinition", "ValueKind"),
    "cap": ("CapUrn", "closeness", "rank"),
    "definition": ("UNIVERSAL_CAPS", "CapDefinition"),
    "manifest": ("Manifest", "Requirement"),
    "media": ("MediaUrn",),
    "sample": ("Sample", "check_sample", "sample_bytes", "sample_items"),
    "source": ("build_manifest", "load_shared_definition", "parse_definition", "shared_aliases"),
    "tag": ("UrnError",),
    "values": ("check_value", "decode_value", "encode_value"),
    "wording": ("describe_value",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
