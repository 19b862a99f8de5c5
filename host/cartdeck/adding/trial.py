"""Owns the trial of a model that a catalog would name: the least call that loads it, and one whose answer says that it
works.

It does not know a server; it makes the calls that one would make for the same entry.
"""

import contextlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cartdeck.adding.job import Job
from cartdeck.adding.sample_picture import sample_picture
from cartdeck.adding.sample_voice import SECONDS, sample_voice
from cartdeck.catalog.catalog import Named
from cartdeck.catalog.choosing import arguments_of, ranked
from cartdeck.catalog.consistency import CAPS
from cartdeck.catalog.entry import Capability
from cartdeck.catalog.this_machine import this_machine
from cartdeck.engine import Engine
from cartdeck.events import Result
from cartdeck_protocol.caps import load_shared_definition
from cartdeck_protocol.errors import CartdeckError, Code, failure

TRIED: Final = (Capability.CHAT, Capability.COMPLETION, Capability.EMBEDDINGS, Capability.SPEECH)
"""One of these is tried: the first that the model is for."""
_QUESTION: Final = "Say hello in one short sentence."
_BEGINNING: Final = "The capital of France is"
_LOOK: Final = "What is in the image?"
_TEXTS: Final = ("A man is eating food.", "The girl reads a book.")
_TOKENS: Final = 32
_SHOWN: Final = 80


def _dialogue(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


_LEAST: Final[Mapping[Capability, dict[str, Any]]] = {
    Capability.CHAT: {"messages": _dialogue("."), "max-tokens": 1},
    Capability.COMPLETION: {"prompt": ".", "max-tokens": 1},
    Capability.EMBEDDINGS: {"texts": ["."]},
}
"""The smallest request that has a model loaded. Of speech none is smaller than the trial itself."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How a model is called, as an entry of the catalog has it."""

    capability: Capability
    cap: str
    arguments: Mapping[str, Any]
    sees: bool = False
    """Whether it is to be shown a picture as well."""

    async def start(self, job: Job) -> None:
        """Have it loaded. Raises the call's error."""
        least = _LEAST.get(self.capability)
        if least is None:
            least = {"audio": sample_voice()}
        result = await job.ask(self.cap, {**self.arguments, **least})
        timing: Any = result.provenance.get("timing") or {}
        load_s = timing.get("load_s")
        where = ", ".join(str(result.provenance[key]) for key in ("device", "dtype") if result.provenance.get(key))
        text = f"loaded in {load_s:.1f} s" if isinstance(load_s, int | float) and load_s else "it is loaded"
        job.say(text + (f" ({where})" if where else ""), load_s=load_s, device=result.provenance.get("device"))

    async def smoke_test(self, job: Job) -> None:
        """Ask it something. Raises the call's error; BAD_MODEL_FILE or NON_FINITE_OUTPUT for an answer that is none."""
        match self.capability:
            case Capability.EMBEDDINGS:
                result = await job.ask(self.cap, {**self.arguments, "texts": list(_TEXTS)})
                length = _vector_length(result)
                job.say(f"a vector of {length} numbers for a text", dimensions=length)
            case Capability.SPEECH:
                result = await job.ask(self.cap, {**self.arguments, "audio": sample_voice()})
                text = result.text.strip()
                job.say(f"{SECONDS:g} s of a made voice were written down as {text[:_SHOWN]!r}", transcript=text[:1000])
            case _:
                is_chat = self.capability is Capability.CHAT
                asked = {"messages": _dialogue(_QUESTION)} if is_chat else {"prompt": _BEGINNING}
                result = await job.ask(self.cap, {**self.arguments, **asked, "max-tokens": _TOKENS, "temperature": 0})
                picture = await self._look(job) if is_chat and self.sees else None
                _say_text(job, result, picture)

    async def _look(self, job: Job) -> str:
        """What it says of a picture of a red disc."""
        parts = [{"type": "text", "text": _LOOK}, {"type": "image_url", "image_url": {"url": sample_picture()}}]
        asked = {"messages": _dialogue(parts), "max-tokens": _TOKENS, "temperature": 0}
        result = await job.ask(self.cap, {**self.arguments, **asked}, part=(0.5, 1.0))
        return " ".join(result.text.split())

    async def unload(self, engine: Engine) -> None:
        """End the process that was started for it, once its calls are over."""
        with contextlib.suppress(CartdeckError):  # the engine is being closed
            await engine.unload(self.cap, self.arguments)


def trial_of(named: Named) -> Trial:
    """The trial of a model as the catalog has it. Raises UNSUPPORTED for one that is for nothing that can be tried."""
    entry = named.entry
    found = [one for one in TRIED if one in entry.capabilities]
    if not found or entry.source is None:
        message = f"{named.name} is for {', '.join(entry.capabilities)}, which cannot be tried"
        raise failure(Code.UNSUPPORTED, message, argument="name")
    cap = CAPS[found[0]]
    known = load_shared_definition(cap).arguments
    profile = next(iter(ranked(entry, this_machine())), None)
    arguments = {key: value for key, value in arguments_of(named, profile).items() if key in known}
    backend = "" if entry.backend is None else f";{entry.backend}"
    sees = Capability.VISION in entry.capabilities
    return Trial(found[0], f"cap:{cap}{backend}", {"model": entry.source, **arguments}, sees)


def _vector_length(result: Result) -> int:
    vectors = [bytes(item) for item in result.items]
    lengths = {len(vector) // 4 for vector in vectors}
    if len(vectors) != len(_TEXTS) or len(lengths) != 1 or not (length := lengths.pop()):
        message = f"{len(_TEXTS)} texts gave {len(vectors)} vectors; expected one for each, all of one length"
        raise failure(Code.BAD_MODEL_FILE, message)
    for vector in vectors:
        numbers = struct.unpack(f"<{length}f", vector)
        if not all(map(math.isfinite, numbers)):
            raise failure(Code.NON_FINITE_OUTPUT, "its vectors hold what is no number; the weights are damaged")
        if not any(numbers):
            raise failure(Code.BAD_MODEL_FILE, "its vectors are nothing but zeros; the weights are damaged")
    return length


def _say_text(job: Job, result: Result, picture: str | None) -> None:
    usage: Any = result.provenance.get("usage") or {}
    count = int(usage.get("completion_tokens") or 0)
    text = " ".join(result.text.split())
    if not count:
        raise failure(Code.BAD_MODEL_FILE, "it answered nothing: the first token ended its answer")
    speed = _tokens_per_s(result, count)
    told = f"{text[:_SHOWN]!r}, {count} tokens" + (f", {speed:.1f} tokens/s" if speed is not None else "")
    if picture is not None:
        told += f"; of a red disc {picture[:_SHOWN]!r}"
        job.say(told, of_a_picture=picture[:1000])
    job.say(told, answer=text[:1000], tokens=count, tokens_per_s=None if speed is None else round(speed, 2))


def _tokens_per_s(result: Result, count: int) -> float | None:
    """Tokens behind the first in a second; None for an answer of one."""
    timing: Any = result.provenance.get("timing") or {}
    before_s = sum(float(timing.get(part) or 0) for part in ("obtain_s", "load_s", "first_token_s"))
    spent_s = float(timing.get("total_s") or 0) - before_s
    return (count - 1) / spent_s if count > 1 and spent_s > 0 else None
