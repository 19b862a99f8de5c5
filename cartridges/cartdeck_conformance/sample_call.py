"""Owns the call of a cap with its sample: which arguments travel inside the request, which as streams, in which order.

It does not know what becomes of the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cartdeck_conformance.call import Call
from cartdeck_conformance.conversation import Conversation
from cartdeck_protocol.caps import CapDefinition, Sample, sample_bytes, sample_items
from cartdeck_protocol.wire import encode_item


@dataclass(slots=True)
class SampledCap:
    """A cap that can be called, and what its calls have shown so far."""

    definition: CapDefinition
    sample: Sample
    took_s: float | None = None
    """How long the last call took that ended well; None before there was one."""
    made_peer_calls: bool = False
    why_not: str = ""
    """Why its sample could not be exercised."""
    inline: dict[str, bytes] = field(default_factory=dict[str, bytes])
    streams: dict[str, tuple[bytes, bool]] = field(default_factory=dict[str, tuple[bytes, bool]])

    def __post_init__(self) -> None:
        for name, value in self.sample.items():
            argument = self.definition.argument(name)
            if argument.is_sequence:
                items = b"".join(encode_item(item) for item in sample_items(argument, value))
                self.streams[argument.name] = (items, True)
            elif argument.is_stream:
                self.streams[argument.name] = (sample_bytes(argument, value), False)
            else:
                self.inline[argument.name] = sample_bytes(argument, value)

    @property
    def alias(self) -> str:
        return self.definition.alias

    @property
    def instance(self) -> str:
        """What its calls load, as a text: a host asks a process for one such thing only."""
        arguments = self.definition.instance_arguments
        return repr([(one.name, self.sample.get(one.name, one.default)) for one in arguments])

    @property
    def works(self) -> bool:
        return self.took_s is not None

    def begin(self, conversation: Conversation, *, takes: bool = True, changed: dict[str, Any] | None = None) -> Call:
        """Open the call, with what is `changed` of its arguments."""
        given = {**self.inline, **(changed or {})}
        return begin_call(conversation, str(self.definition.urn), given, streams=self.streams, takes=takes)


def begin_call(
    conversation: Conversation,
    cap: str,
    arguments: Mapping[str, bytes],
    *,
    streams: Mapping[str, tuple[bytes, bool]],
    takes: bool = True,
) -> Call:
    """Open a call of `cap`. What is too large for the request follows as streams; streamed arguments, each with whether
    it is a sequence, come last."""
    connection = conversation.connection
    inline = dict(arguments)
    late: dict[str, bytes] = {}
    while inline and sum(map(len, inline.values())) > connection.their_limits.inline_arguments:
        largest = max(inline, key=lambda name: len(inline[name]))
        late[largest] = inline.pop(largest)
    call = conversation.open(cap, inline, takes=takes, complete=not late and not streams)
    for name, data in late.items():
        _send(conversation, call, name, (data, False))
    for name, data in streams.items():
        _send(conversation, call, name, data)
    connection.end(call.exchange)
    return call


def _send(conversation: Conversation, call: Call, name: str, data: tuple[bytes, bool]) -> None:
    content, is_sequence = data
    stream = conversation.connection.open_stream(call.exchange, name=name, is_sequence=is_sequence)
    if content:
        stream.write(content)
    stream.close()
