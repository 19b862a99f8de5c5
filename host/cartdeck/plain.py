"""Owns what results look like as JSON: records of nothing but what JSON knows.

It does not know who reads them.
"""

import base64
import math
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from cartdeck.events import Result
    from cartdeck_protocol.caps import OutputDefinition


def result_record(cap: str, result: "Result", *, main: "OutputDefinition | None" = None) -> dict[str, Any]:
    """The result as one JSON record: the main output under `text`, `items` or `base64`. Where nothing came of `main`,
    the cap's definition of it, that is an empty text, or no items."""
    outputs = {name: output_record(result, name) for name in result.outputs}
    if main is not None:
        outputs.setdefault("", {"items": []} if main.is_sequence else {"text": ""})
    return {
        "cap": cap,
        **outputs.pop("", {}),
        **({"outputs": outputs} if outputs else {}),
        "progress": result.progress,
        "provenance": plain(result.provenance),
    }


def output_record(result: "Result", name: str) -> dict[str, Any]:
    if result.outputs[name].is_sequence:
        return {"items": plain(result.items_of(name))}
    data = result.output(name)
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return plain(data)


def plain(value: Any) -> Any:
    """The value with nothing but what JSON knows: bytes become {"base64": …}, numbers that JSON lacks become text."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)
