"""Owns reading a dialogue of texts in OpenAI's shape.

It does not know templates. Models of texts alone take it: images among the messages are refused by name.
"""

from typing import Any, Final, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_MESSAGES: Final = 10_000
ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read_messages(record: Any, *, system: str | None = None) -> list[dict[str, Any]]:
    """The messages of `{"messages": […]}` as a template takes them; `system` is a system text for one that has none.

    Raises `EMPTY_INPUT` without a message, `BAD_ARGUMENT` with the `index` of one that has another shape, `UNSUPPORTED`
    for an image.
    """
    given: Any = cast("dict[str, Any]", record).get("messages") if isinstance(record, dict) else None
    if not isinstance(given, list):
        example = '{"messages": [{"role": "user", "content": "Hi"}]}'
        raise failure(Code.BAD_ARGUMENT, f"expected a record such as {example}", argument="messages")
    entries = cast("list[Any]", given)
    if not entries:
        raise failure(Code.EMPTY_INPUT, "the dialogue has no message", argument="messages")
    if len(entries) > MOST_MESSAGES:
        message = f"the dialogue has {len(entries):,} messages, expected at most {MOST_MESSAGES:,}"
        raise failure(Code.BAD_ARGUMENT, message, argument="messages")
    messages = [_message(index, entry) for index, entry in enumerate(entries)]
    if system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _message(index: int, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise _wrong(index, f"found {type(entry).__name__}, expected a record with role and content")
    message = cast("dict[str, Any]", entry)
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise _wrong(index, f"found the role {message.get('role')!r:.50}, expected one of {', '.join(ROLES)}")
    unknown = sorted(set(message) - {"role", "content", "name", "tool_calls", "tool_call_id", "refusal"})
    if unknown:
        raise _wrong(index, f"found the keys {', '.join(unknown)[:200]}, which are not known")
    kept = {key: value for key, value in message.items() if key in ("name", "tool_calls", "tool_call_id") and value}
    return {"role": role, "content": _text(index, message.get("content")), **kept}


def _text(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(index, f"found content of {type(content).__name__}, expected a text or a list of parts")
    texts: list[str] = []
    for part in cast("list[Any]", content):
        plain = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        kind, text = plain.get("type"), plain.get("text")
        if kind in ("image_url", "input_audio", "file"):
            message = f"message {index} has a part of the type {kind}, and this model takes texts alone"
            raise failure(Code.UNSUPPORTED, message, argument="messages", details={"index": index})
        if kind != "text" or not isinstance(text, str):
            raise _wrong(index, f"found a part {part!r:.100}, expected one such as {{'type': 'text', 'text': 'Hi'}}")
        texts.append(text)
    return "".join(texts)


def _wrong(index: int, what: str) -> CartdeckError:
    message = f"message {index} of the dialogue: {what}"
    return failure(Code.BAD_ARGUMENT, message, argument="messages", details={"index": index})
