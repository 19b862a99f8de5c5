"""Owns the answers to a cartridge's peer calls: what the kit was told, and what a host answers itself.

It does not know the pipe.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from cartdeck_protocol.caps import CapUrn, UrnError, load_shared_definition, shared_aliases
from cartdeck_protocol.errors import CartdeckError

PeerAnswer: TypeAlias = bytes | str | Mapping[str, bytes | str] | CartdeckError
"""The main output; or outputs by name, "" for the main one; or the error to answer with."""
Answer: TypeAlias = dict[str, bytes] | CartdeckError

_MEMORY: Final = "reserve-memory"
_MODEL: Final = "download-model"


class Peers:
    """Answers by the alias or the URN of a cap. `identity`, `reserve-memory`, and `download-model` of a path that is
    here, are answered as a host does."""

    def __init__(self, told: Mapping[str, PeerAnswer] | None = None) -> None:
        """Raises UrnError for a name that begins with `cap:` and is no URN."""
        shared = shared_aliases()
        self._told: list[tuple[str, CapUrn | None, PeerAnswer]] = []
        for name, answer in (told or {}).items():
            urn = CapUrn.parse(name) if name.startswith("cap:") else None
            if urn is None and name in shared:
                urn = load_shared_definition(name).urn
            self._told.append((name, urn, answer))

    def answer(self, cap: str, arguments: Mapping[str, bytes]) -> Answer | None:
        """The outputs for a call of `cap`, or its error; None where nobody said how to answer."""
        try:
            asked = CapUrn.parse(cap)
        except UrnError:
            return None
        for name, urn, answer in self._told:
            if name == cap or (urn is not None and (urn == asked or urn.serves(asked))) or name in asked.tags:
                return _plain(answer)
        if asked == CapUrn.parse("cap:effect=none"):
            return {"": arguments.get("data", b"")}
        if _MEMORY in asked.tags:
            record = {"granted_bytes": _number(arguments.get("bytes", b"0")), "budget_bytes": None, "free_bytes": None}
            return {"": json.dumps(record).encode()}
        if _MODEL in asked.tags and _is_here(arguments.get("model", b"")):
            return {"": arguments["model"]}
        return None


def _plain(answer: PeerAnswer) -> Answer:
    if isinstance(answer, CartdeckError):
        return answer
    outputs: Mapping[str, bytes | str] = {"": answer} if isinstance(answer, bytes | str) else answer
    return {name: data.encode() if isinstance(data, str) else data for name, data in outputs.items()}


def _is_here(path: bytes) -> bool:
    try:
        return Path(path.decode()).is_absolute() and Path(path.decode()).exists()
    except ValueError:  # no text, or a NUL in it
        return False


def _number(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        return 0
