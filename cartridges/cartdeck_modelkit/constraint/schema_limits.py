"""Owns the limits of a JSON schema: its size, its depth, where its references lead.

It does not know what makes texts of a schema. What would overrun a compiler's stack, or lead it round and round, is
refused here by name.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_CHARACTERS: Final = 262_144
DEEPEST_NESTING: Final = 100
MOST_VALUES: Final = 20_000
LARGEST_COUNT: Final = 10_000
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_OWN_KEY: Final = "x-guidance"


def check_schema(schema: Any) -> str:
    """The schema as JSON text, its keys in their order.

    Raises `UNSUPPORTED_SCHEMA`, with `keyword` and `path` (a JSON pointer), for one that is larger, deeper or more
    repetitive than the limits, refers to another document, to nothing or to itself, or sets the compiler's own options.
    """
    if not isinstance(schema, dict):
        raise refused(f"found {type(schema).__name__}, expected a JSON object")
    for depth, path, value in _values(schema):
        if depth > DEEPEST_NESTING:
            raise refused(f"it is nested more than {DEEPEST_NESTING} deep", path=path[:200])
        if isinstance(value, dict):
            _check_keys(cast("dict[str, Any]", value), path)
    _check_references(cast("dict[str, Any]", schema))
    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > MOST_CHARACTERS:
        raise refused(f"it has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are taken")
    return text


def refused(what: str, *, keyword: str | None = None, path: str | None = None) -> CartdeckError:
    """The error for a schema that cannot be held to."""
    details = {name: value for name, value in (("keyword", keyword), ("path", path)) if value is not None}
    where = f" at {path or 'its root'}" if path is not None else ""
    message = f"this JSON schema cannot be held to{where}: {what}"
    return failure(Code.UNSUPPORTED_SCHEMA, message, argument="json-schema", details=details)


def _values(schema: Any) -> Iterator[tuple[int, str, Any]]:
    """Every value in the schema with its depth and its place, without Python's own stack."""
    waiting: list[tuple[int, str, Any]] = [(0, "", schema)]
    count = 0
    while waiting:
        depth, path, value = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            raise refused(f"it has more than {MOST_VALUES:,} values")
        yield depth, path, value
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            waiting.extend((depth + 1, f"{path}/{_escaped(key)}", inner) for key, inner in items)
        elif isinstance(value, list):
            inners = enumerate(cast("list[Any]", value))
            waiting.extend((depth + 1, f"{path}/{index}", inner) for index, inner in inners)


def _check_keys(schema: dict[str, Any], path: str) -> None:
    if _OWN_KEY in schema:
        raise refused(f"{_OWN_KEY} is not taken: it could switch keywords off", keyword=_OWN_KEY, path=path)
    for name in _COUNTS:
        value = schema.get(name)
        if isinstance(value, int | float) and value > LARGEST_COUNT:
            raise refused(f"{name} is {value}, and at most {LARGEST_COUNT:,} is taken", keyword=name, path=path)


def _check_references(schema: dict[str, Any]) -> None:
    references = {path: value["$ref"] for _, path, value in _values(schema) if _has_reference(value)}
    for path, first in references.items():
        seen, target = [path], first
        while target:
            if not target.startswith("#"):
                raise refused(f"$ref leads to another document: {target!r:.100}", keyword="$ref", path=path)
            place = target[1:].rstrip("/")
            if not _leads_somewhere(schema, place):
                raise refused(f"$ref leads to nothing: {target!r:.100}", keyword="$ref", path=path)
            if place in seen:
                loop = " → ".join(f"#{one}" for one in [*seen[seen.index(place) :], place])
                raise refused(f"$ref leads to itself: {loop}", keyword="$ref", path=path)
            seen.append(place)
            target = references.get(place, "")


def _has_reference(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(cast("dict[str, Any]", value).get("$ref"), str)


def _leads_somewhere(schema: Any, place: str) -> bool:
    at: Any = schema
    for part in place.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, dict) and name in at:
            at = cast("dict[str, Any]", at)[name]
        elif isinstance(at, list) and name.isdigit() and int(name) < len(cast("list[Any]", at)):
            at = cast("list[Any]", at)[int(name)]
        else:
            return False
    return not place or place.startswith("/")


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
