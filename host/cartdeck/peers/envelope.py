"""Owns how a frame looks in a trace: its envelope as plain values, without payloads unless asked, never with a secret.

It does not know where frames come from, nor where the record goes.
"""

import base64
import codecs
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from cartdeck_protocol.wire import Key, Kind

MOST_PAYLOAD_BYTES: Final = 64 * 1024
"""Of one payload, where payloads are asked for."""
_MOST_SECRET_BYTES: Final = 4096
_MOST_TEXT: Final = 2000
_MOST_ENTRIES: Final = 100
_LEAST_SECRET: Final = 6
"""Characters: hiding a shorter value wherever it appears would hide words."""
HIDDEN: Final = "***"

_NAMES: Final = {
    int(Key.STREAM): "stream",
    int(Key.CAP): "cap",
    int(Key.MEDIA): "media",
    int(Key.CHUNK_INDEX): "chunk_index",
    int(Key.CHUNK_COUNT): "chunk_count",
    int(Key.IS_SEQUENCE): "is_sequence",
    int(Key.CREDIT): "credit",
    int(Key.NAME): "name",
}
_Decoder: Final = codecs.getincrementaldecoder("utf-8")
_KINDS: Final = {int(kind): kind.name for kind in Kind}

_NAMED: Final = r"(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|credentials?|authorization)"
_SECRET_NAME: Final = re.compile(rf"(?:^|[-_.]){_NAMED}$", re.IGNORECASE)
_SECRET_TEXT: Final = re.compile(
    rf"\b(?:hf|gh[a-z]|github_pat|glpat|sk|pypi|xox[a-z])[-_][A-Za-z0-9_-]{{8,}}"
    rf"|(?<=://)[^/\s@'\"]+(?=@)"
    rf"|(?<=\bBearer )[^\s'\"]+|(?<=\bBasic )[^\s'\"]+"
    rf"|(?<=\bsignature=)[^\s&'\"]+"
    rf"|{_NAMED}['\"]?\s*[=:]\s*['\"]?(?:(?:Bearer|Basic)\s+)?[^\s'\",;}}&]+",
    re.IGNORECASE,
)


class Envelope:
    """Makes records. `secrets` are values that are hidden wherever they appear, as a whole, in one frame."""

    def __init__(self, secrets: Iterable[str], *, with_payloads: bool) -> None:
        self.with_payloads = with_payloads
        known = sorted({one for one in secrets if one}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def record(self, fields: Mapping[Any, Any], *, is_hidden: bool = False) -> dict[str, Any]:
        """What a trace says of a decoded frame. With `is_hidden` its payload is left out even where payloads are
        asked for."""
        kind = fields.get(1)
        record: dict[str, Any] = {"kind": _KINDS.get(cast("int", kind), f"kind {kind}"), "id": fields.get(2)}
        for key, name in _NAMES.items():
            if key in fields:
                record[name] = self._plain(fields[key])
        payload = fields.get(6)
        if isinstance(payload, bytes):
            record["payload_bytes"] = len(payload)
            if self.with_payloads:
                record["payload"] = HIDDEN if is_hidden else self._payload(payload)
        meta = fields.get(5)
        if meta:
            record["meta"] = self._plain(meta)
        return record

    def text(self, text: str) -> str:
        """`text` without secrets, cut where it is very long."""
        text = self._without_secrets(text)
        return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}… ({len(text)} characters)"

    def _payload(self, data: bytes) -> Any:
        shown = data[: MOST_PAYLOAD_BYTES + _MOST_SECRET_BYTES]  # so that no half of a secret stands at the end
        try:
            text = _Decoder().decode(shown)  # a character that is cut at the end is left out
        except UnicodeDecodeError:
            # Each byte as one character, so that a secret is found between bytes that are no text.
            cleaned = self._without_secrets(shown.decode("latin-1")).encode("latin-1", "replace")
            return {"base64": base64.b64encode(cleaned[:MOST_PAYLOAD_BYTES]).decode("ascii")}
        return self._without_secrets(text)[:MOST_PAYLOAD_BYTES]

    def _without_secrets(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _SECRET_TEXT.sub(HIDDEN, text)

    def _plain(self, value: Any, name: str = "") -> Any:
        if is_secret_name(name):
            return HIDDEN
        if isinstance(value, bytes):
            return self._payload(value) if self.with_payloads else {"bytes": len(value)}
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            entries = list(cast("dict[Any, Any]", value).items())[:_MOST_ENTRIES]
            return {self.text(str(key)): self._plain(one, str(key)) for key, one in entries}
        if isinstance(value, list | tuple):
            return [self._plain(one) for one in list(cast("list[Any]", value))[:_MOST_ENTRIES]]
        return value if isinstance(value, bool | int | float | None) else str(value)


def is_secret_name(name: str) -> bool:
    """Whether an argument or a variable of that name holds a secret: "token", "HF_TOKEN", "api-key"; not "tokens"."""
    return bool(_SECRET_NAME.search(name))


def secrets_of(environment: Mapping[str, str] | None = None) -> list[str]:
    """The values of variables that are named as secrets are."""
    source = os.environ if environment is None else environment
    return [value for name, value in source.items() if is_secret_name(name) and len(value) >= _LEAST_SECRET]
