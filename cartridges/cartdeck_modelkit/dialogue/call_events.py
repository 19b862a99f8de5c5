"""Owns passing on an answer that may hold calls of tools: its text as it is, each call to `events` once it is whole.

It does not know which tools there are.
"""

import secrets

from cartdeck_modelkit.dialogue.tool_stream import CallSplitter
from cartdeck_sdk import Output


async def write_with_calls(
    text: str, calls: CallSplitter, output: Output, *, is_last: bool = False, is_cut: bool = False
) -> None:
    """Writes what `text` makes certain. With the last text of an answer `is_last`; `is_cut` says that it did not end by
    itself."""
    index = calls.calls
    found = calls.push(text)
    if is_last:
        found.append(calls.finish(is_cut=is_cut))
    for part in found:
        if not isinstance(part, str):
            record = {"type": "tool_call", "index": index, "id": f"call_{secrets.token_hex(12)}"}
            await output.stream("events").item({**record, "name": part.name, "arguments": part.arguments})
            index += 1
        elif part:
            await output.write(part)
