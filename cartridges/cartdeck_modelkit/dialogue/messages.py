"""Owns reading a dialogue in OpenAI's shape: roles, texts, images among them, calls of tools and their results.

It does not know templates nor what an image shows. Images are taken from the request's own bytes, as data URIs: an
address is never followed, neither of the web nor of a file.
"""

import base64
import binascii
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_MESSAGES: Final = 10_000
MOST_IMAGES: Final = 64
ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_KEYS: Final = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "refusal"})
_DATA_URI: Final = re.compile(r"data:(?:image/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)


@dataclass(slots=True)
class Dialogue:
    """Messages as a template takes them, `content` being text with `marker` where an image stands; `images` are the
    bytes of those, in order."""

    messages: list[dict[str, Any]]
    images: list[bytes] = field(default_factory=list[bytes])
    marker: str = ""

    def lead(self, text: str) -> None:
        """Puts `text` at the end of the system text, which is made where there is none."""
        if self.messages and self.messages[0]["role"] == "system":
            first = self.messages[0]
            first["content"] = f"{first['content']}\n\n{text}" if first["content"] else text
        else:
            self.messages.insert(0, {"role": "system", "content": text})


def read_dialogue(record: Any, *, system: str | None = None) -> Dialogue:
    """The dialogue in `{"messages": […]}`; `system` is a system text for one that has none.

    Raises `EMPTY_INPUT` without a message, `BAD_ARGUMENT` with the `index` of a message that has another shape,
    `UNSUPPORTED` for parts that are neither text nor image, `BAD_IMAGE` for an address that holds no image.
    """
    given: Any = as_record(record).get("messages")
    if not isinstance(given, list):
        raise failure(Code.BAD_ARGUMENT, 'expected a record such as {"messages": [{"role": "user", "content": "Hi"}]}',
                      argument="messages")  # fmt: skip
    unknown = sorted(set(cast("Mapping[str, Any]", record)) - {"messages"})
    if unknown:
        message = f"the record has {', '.join(unknown)[:200]} beside messages; settings are arguments of their own"
        raise failure(Code.BAD_ARGUMENT, message, argument="messages")
    entries = cast("list[Any]", given)
    if not entries:
        raise failure(Code.EMPTY_INPUT, "the dialogue has no message", argument="messages")
    if len(entries) > MOST_MESSAGES:
        message = f"the dialogue has {len(entries):,} messages, and at most {MOST_MESSAGES:,} are taken"
        raise failure(Code.BAD_ARGUMENT, message, argument="messages")
    dialogue = Dialogue([], marker=f"<image {secrets.token_hex(12)}>")
    for index, entry in enumerate(entries):
        dialogue.messages.append(_read_message(entry, index, dialogue))
    if system is not None:
        if any(one["role"] == "system" for one in dialogue.messages):
            message = "system is given, and the dialogue has a system message already; expected one of them"
            raise failure(Code.BAD_ARGUMENT, message, argument="system")
        dialogue.lead(system)
    return dialogue


def question_about(image: bytes, prompt: str, *, system: str | None) -> Dialogue:
    """A dialogue of one message: an image and what is asked about it."""
    dialogue = Dialogue([], [image], marker=f"<image {secrets.token_hex(12)}>")
    dialogue.messages.append({"role": "user", "content": dialogue.marker + prompt})
    if system is not None:
        dialogue.lead(system)
    return dialogue


def _read_message(entry: Any, index: int, dialogue: Dialogue) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise _refused(index, f"is {type(entry).__name__}, expected a record with role and content")
    message = cast("Mapping[str, Any]", entry)
    unknown = sorted(set(message) - _KEYS)
    if unknown:
        raise _refused(index, f"has the unknown key {unknown[0]!r:.60}, expected {', '.join(sorted(_KEYS))}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _refused(index, f"has the role {role!r:.60}, expected one of {', '.join(ROLES)}")
    read: dict[str, Any] = {"role": ROLES[role], "content": _read_content(message.get("content"), index, dialogue)}
    calls = message.get("tool_calls")
    if calls:
        read["tool_calls"] = _read_calls(calls, index)
    elif message.get("content") is None:
        raise _refused(index, "has no content")
    for key in ("name", "tool_call_id"):
        value = message.get(key)
        if value is not None and not isinstance(value, str):
            raise _refused(index, f"has {key} of the type {type(value).__name__}, expected text")
        if value is not None:
            read[key] = value
    return read


def _read_content(content: Any, index: int, dialogue: Dialogue) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _refused(index, f"has content of the type {type(content).__name__}, expected text or a list of parts")
    return "".join(_read_part(part, index, dialogue) for part in cast("list[Any]", content))


def _read_part(part: Any, index: int, dialogue: Dialogue) -> str:
    record = as_record(part)
    kind, text = record.get("type"), record.get("text")
    if kind == "text" and isinstance(text, str):
        return text
    if kind == "image_url":
        if len(dialogue.images) == MOST_IMAGES:
            raise _refused(index, f"has one image too many: at most {MOST_IMAGES} are taken")
        dialogue.images.append(_read_data_uri(record.get("image_url"), index))
        return dialogue.marker
    if isinstance(kind, str) and kind not in ("text", "image_url"):
        raise failure(
            Code.UNSUPPORTED,
            f"message {index} has a part of the type {kind!r:.60}; text and image_url can be taken",
            argument="messages",
            details={"index": index},
        )
    raise _refused(index, 'has a part that is none; expected {"type": "text", "text": …} or an image_url')


def _read_data_uri(given: Any, index: int) -> bytes:
    address: Any = cast("Mapping[str, Any]", given).get("url") if isinstance(given, Mapping) else given
    if not isinstance(address, str):
        raise _refused(index, 'has an image without an address; expected {"image_url": {"url": "data:image/…"}}')
    start = _DATA_URI.match(address[:200])
    if start is None:
        message = (
            f"message {index} has an image at {address[:40]!r}; expected the image itself, as "
            "data:image/png;base64,…: no address is followed"
        )
        raise failure(Code.BAD_IMAGE, message, argument="messages", details={"index": index})
    try:
        return base64.b64decode(address[start.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        message = f"message {index} has an image that is no base64: {error}"
        raise failure(Code.BAD_IMAGE, message, argument="messages", details={"index": index}) from None


def _read_calls(calls: Any, index: int) -> list[dict[str, Any]]:
    """Calls with their arguments as records, which is what templates expect."""
    read: list[dict[str, Any]] = []
    for call in cast("list[Any]", calls) if isinstance(calls, list) else [None]:
        record = as_record(call)
        function = as_record(record.get("function"))
        name, arguments = function.get("name"), function.get("arguments", {})
        if not isinstance(name, str):
            raise _refused(index, 'has a tool call without a name; expected {"function": {"name": …, "arguments": …}}')
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError:
                raise _refused(index, f"has a call of {name:.60} whose arguments are no JSON") from None
        function_record: dict[str, Any] = {"name": name, "arguments": arguments}
        read.append({"id": str(record.get("id") or ""), "type": "function", "function": function_record})
    return read


def _refused(index: int, what: str) -> CartdeckError:
    return failure(Code.BAD_ARGUMENT, f"message {index} {what}", argument="messages", details={"index": index})


def as_record(value: Any) -> Mapping[str, Any]:
    """The value as a record; an empty one for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
