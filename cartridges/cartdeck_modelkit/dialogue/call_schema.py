"""Owns the schema of the arguments that a tool is called with: closed where it was left open, fit to stand in another.

It does not know how a call is written, nor what holds a text to a schema.
"""

from typing import Any, Final, cast

DEFINITIONS: Final = "$defs"

_PLAIN: Final = frozenset(
    {"type", "properties", "required", "title", "description", "default", "examples", "deprecated", "$schema", "$id",
     "$comment", DEFINITIONS, "definitions"}
)  # fmt: skip
"""What a schema may say without saying anything of names beside its `properties`."""


def closed(parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema without leave for names that it does not list, where it says nothing of others. What it admits, the
    open one admits too; a small model would go on inventing names to the end of its tokens.

    Only the outermost object is closed: of one inside it `{"type": "object"}` may well mean any names.
    """
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    is_plain = not set(parameters) - _PLAIN and parameters.get("type", "object") == "object"
    if not is_plain or not isinstance(properties, dict) or not isinstance(required, list):
        return parameters
    if any(not isinstance(name, str) or name not in properties for name in cast("list[Any]", required)):
        return parameters  # no object at all would meet it
    return {"type": "object", **parameters, "additionalProperties": False}


def gather(schemas: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The schemas as they can stand inside of another, and the definitions that this one then needs: a schema with
    references becomes a definition, as they lead from the root of the whole; under an address of its own they would
    not."""
    definitions: dict[str, Any] = {}
    placed: list[dict[str, Any]] = []
    for index, schema in enumerate(schemas):
        moved = _moved(schema, f"#/{DEFINITIONS}/{index}")
        if moved != schema:
            moved.pop("$id", None)
            definitions[str(index)] = moved
        placed.append(schema if moved == schema else {"$ref": f"#/{DEFINITIONS}/{index}"})
    return placed, definitions


def _moved(value: Any, place: str) -> Any:
    if isinstance(value, list):
        return [_moved(one, place) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        key: f"{place}{inner[1:].rstrip('/')}" if key == "$ref" and isinstance(inner, str) else _moved(inner, place)
        for key, inner in cast("dict[str, Any]", value).items()
    }
