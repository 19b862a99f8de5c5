"""Owns what may be wrong with a decoded frame or meta, by the table of the wire.

It does not know bytes, nor who is told of the fault.
"""

from collections.abc import Iterable
from typing import Any, Final

from cartdeck_protocol.wire.kinds import KEYS, META, TYPES, UINT, Key, Kind
from cartdeck_protocol.wire.limits import MAX_DEPTH

_MOST_UINT: Final = (1 << 63) - 1

# What the table says, in the form that is quickest to check. kind → (key → type, required keys), and for metas
# kind → (field → types, required fields).
_ROWS: Final[dict[int, tuple[dict[int, type], frozenset[int]]]] = {
    int(kind): ({int(key): TYPES[key] for key in (*required, *allowed)}, frozenset(map(int, required)))
    for kind, (required, allowed) in KEYS.items()
}
_META_ROWS: Final[dict[int, tuple[dict[str, tuple[type, ...]], frozenset[str]]]] = {
    int(kind): (
        {name: types for name, (types, _) in fields.items()},
        frozenset(name for name, (_, is_required) in fields.items() if is_required),
    )
    for kind, fields in META.items()
}
_CONTAINERS: Final = (dict, list)
_WORDS: Final[dict[type, str]] = {
    int: "uint", bool: "bool", float: "number", str: "text", bytes: "bin", dict: "map", list: "array",
    type(None): "nil",
}  # fmt: skip  # one line says the pairs


def frame_fault(fields: dict[int, Any]) -> tuple[str, str] | None:
    """What is wrong with a decoded map, and the key at fault."""
    kind: Any = fields.get(1)
    row = _ROWS.get(kind) if type(kind) is int else None
    if row is None:
        return f"unknown kind {kind!r}", "kind"
    types, required = row
    for key, value in fields.items():
        if type(key) is not int:  # True and 1.0 would be found under 1
            return f"a key of a frame must be uint, found {type(key).__name__}", repr(key)[:40]
        wanted = types.get(key)
        if wanted is not None and (type(value) is not wanted or (wanted is int and not 0 <= value <= _MOST_UINT)):
            return _type_fault(kind, key, fields)
    if not fields.keys() >= required:
        return _type_fault(kind, min(required - fields.keys()), fields)
    meta = fields.get(5)
    if meta:
        fault = plain_fault(meta)
        if fault is not None:
            return fault, "meta"
    return None


def _type_fault(kind: int, key: int, fields: dict[int, Any]) -> tuple[str, str]:
    name = Key(key).name.lower()
    wanted = _WORDS[TYPES[key]]
    if key not in fields:
        return f"{Kind(kind).name} lacks {name} ({wanted})", name
    value = fields[key]
    found = f"{value}" if type(value) is int else _word(value)
    return f"{Kind(kind).name}'s {name} must be {wanted}, found {found}", name


def plain_fault(container: dict[Any, Any] | list[Any], levels: int = MAX_DEPTH) -> str | None:
    """What is wrong inside a meta, itself the first of `levels`: too deep, or a map whose keys are not text."""
    values: Iterable[Any] = container
    if isinstance(container, dict):
        values = container.values()
        for key in container:
            if type(key) is not str:
                return f"a key of a meta must be text, found {_word(key)}"
    for value in values:
        if type(value) in _CONTAINERS:
            fault = plain_fault(value, levels - 1) if levels > 1 else f"nested deeper than {MAX_DEPTH}"
            if fault is not None:
                return fault
    return None


def meta_fault(kind: int, meta: dict[str, Any]) -> str | None:
    """What is wrong with the fields of a meta, by the table."""
    table, required = _META_ROWS[kind]
    for name, value in meta.items():
        types = table.get(name)
        if types is not None and (type(value) not in types or (types is UINT and value < 0)):
            wanted = "uint" if types is UINT else _WORDS[types[-1]]
            found = f"{value}" if type(value) is int else _word(value)
            return f"{Kind(kind).name}'s meta {name} must be {wanted}, found {found}"
    if not meta.keys() >= required:
        return f"{Kind(kind).name}'s meta lacks {min(required - meta.keys())}"
    return None


def _word(value: Any) -> str:
    """The wire's word for the type of a decoded value."""
    return "int" if type(value) is int else _WORDS[type(value)]
