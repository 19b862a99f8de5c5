"""Owns the arguments of a call: Python values checked against the definition, and made into what is sent.

It does not know sessions or frames. All that can be checked is checked before a process is started: names, types,
ranges, files that are not there.
"""

import os
import stat
from collections.abc import AsyncIterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from cartdeck.calls.instance import InstanceForm
from cartdeck_protocol.caps import ArgumentDefinition, CapDefinition, ValueKind, check_value, encode_value
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Limits, encode_item

INLINE_BYTES: Final = Limits().inline_arguments
_PATH_TAGS: Final = frozenset({"model-spec", "file-path"})
"""Media tags of text that names a file: a Path stands for its text there, not for what it holds."""
_PLAIN: Final = frozenset({str, bytes, int, float, bool})
_STREAMED_KINDS: Final = frozenset({ValueKind.TEXT, ValueKind.BYTES, ValueKind.JSON})
_LASTING: Final[tuple[type, ...]] = (bytes, str, Path, list, tuple)
"""Sources that are as good after they were read."""
_SMALL_SEQUENCE: Final = 64
"""A list of at most so many items is checked and encoded at once: a task costs more than that."""


@dataclass(slots=True)
class ArgumentStream:
    """An argument that is sent as a stream. `source` is bytes, a Path, or something to iterate over."""

    definition: ArgumentDefinition
    source: Any
    items: list[bytes] | None = None
    """The items of a short list or a single one, checked and encoded: nothing is left that could go wrong."""


@dataclass(slots=True)
class Prepared:
    """The arguments of one call. `instance` is the canonical text of the instance arguments, defaults included."""

    inline: dict[str, bytes] = field(default_factory=dict[str, bytes])
    streams: list[ArgumentStream] = field(default_factory=list[ArgumentStream])
    instance: str = ""
    is_complete: bool = True
    """No argument stream follows the request."""

    @property
    def can_be_sent_again(self) -> bool:
        """Nothing is used up when it is sent."""
        return all(one.items is not None or isinstance(one.source, _LASTING) for one in self.streams)


def prepare(definition: CapDefinition, instance: InstanceForm, arguments: Mapping[str, Any]) -> Prepared:
    """Check and encode a caller's arguments.

    A value may be text, bytes, a number, whatever JSON takes, a Path (read as a stream; for an instance argument it is
    the text of the path), or an iterable, also an async one, of parts or items. None means absent. Raises
    UNKNOWN_ARGUMENT, MISSING_ARGUMENT, BAD_ARGUMENT, INVALID_TEXT or FILE_NOT_FOUND, naming the argument.
    """
    prepared = Prepared()
    inline, streams = prepared.inline, prepared.streams
    size = 0
    for name, value in arguments.items():
        one = definition.arguments.get(name) or definition.argument(name)
        if value is None:
            continue
        if one.name in inline or (streams and any(stream.definition is one for stream in streams)):
            raise failure(Code.BAD_ARGUMENT, f"{one.name} is given twice, by both of its names", argument=one.name)
        try:
            encoded = _encode_whole(one, value)
            items = _encode_items(one, value) if one.is_sequence else None
        except CartdeckError:
            raise
        except Exception as error:  # a value with methods of its own that fail
            message = f"{one.name}: a {type(value).__name__} that cannot be looked at: {type(error).__name__}"
            raise failure(Code.BAD_ARGUMENT, message, argument=one.name) from error
        if encoded is None:
            streams.append(ArgumentStream(one, value, items))
        elif size + len(encoded) <= INLINE_BYTES or one.is_instance:
            inline[one.name] = encoded
            size += len(encoded)
        else:
            streams.append(ArgumentStream(one, encoded))
    if not instance.required <= inline.keys():
        definition.check_complete([*inline, *(stream.definition.name for stream in streams)])
    if size > INLINE_BYTES:
        _make_room(definition, prepared, size)
    prepared.instance = instance.text(inline)
    prepared.is_complete = not streams
    if len(streams) > 1:  # whoever serves it begins with the first that it reads as it comes: the others are there then
        streams.sort(key=lambda one: one.definition.is_stream or one.definition.is_sequence)
    return prepared


def _make_room(definition: CapDefinition, prepared: Prepared, size: int) -> None:
    """Large instance arguments came behind others: those others become streams, the largest first."""
    movable = [name for name in prepared.inline if not definition.arguments[name].is_instance]
    for name in sorted(movable, key=lambda name: -len(prepared.inline[name])):
        if size <= INLINE_BYTES:
            return
        data = prepared.inline.pop(name)
        size -= len(data)
        prepared.streams.append(ArgumentStream(definition.arguments[name], data))
    if size > INLINE_BYTES:
        largest = max(prepared.inline, key=lambda name: len(prepared.inline[name]))
        raise failure(
            Code.BAD_ARGUMENT,
            f"The arguments that choose the instance are {size} bytes together; at most {INLINE_BYTES} fit. "
            f"The largest is {largest}.",
            argument=largest,
        )


def _encode_whole(one: ArgumentDefinition, value: Any) -> bytes | None:
    """The bytes of a value that is there as a whole; None for one that is read or iterated over."""
    if type(value) in _PLAIN and not one.is_sequence:  # nearly all of them; the checks below look up abstract classes
        return encode_value(one, value)
    if isinstance(value, Path):
        if one.is_instance or not _PATH_TAGS.isdisjoint(one.media.tags):
            try:
                return encode_value(one, str(value.expanduser().absolute()))
            except (ValueError, RuntimeError) as error:  # a user without a home
                message = f"{one.name}: {value!s:.200} is no path: {error}"
                raise failure(Code.BAD_ARGUMENT, message, argument=one.name) from None
        if one.kind not in _STREAMED_KINDS:
            raise failure(
                Code.BAD_ARGUMENT, f"{one.name} is {one.kind.value}, it cannot be read from a file",
                argument=one.name,
            )  # fmt: skip  # one thought
        check_file(value, one.name)
        return None
    if one.is_sequence:
        return None
    if isinstance(value, AsyncIterable | Iterator):
        if one.is_instance or one.kind not in _STREAMED_KINDS:
            raise failure(Code.BAD_ARGUMENT, f"{one.name} is one value, it cannot be iterated over", argument=one.name)
        return None
    return encode_value(one, value)


def _encode_items(one: ArgumentDefinition, value: Any) -> list[bytes] | None:
    """The items of a sequence that is there as a whole and short; None for one that a task must feed."""
    if isinstance(value, str | bytes | Mapping | int | float):
        return [encode_element(one, value)]
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if len(items) <= _SMALL_SEQUENCE and not any(isinstance(item, Path) for item in items):
            return [encode_element(one, item) for item in items]
    return None


def encode_element(definition: ArgumentDefinition, item: Any) -> bytes:
    """One item of a sequence, or one part of a byte stream. BAD_ARGUMENT says what was wanted."""
    if definition.is_sequence:
        return encode_item(check_value(definition, item))
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(cast("bytes", item))
    message = f"a part of {definition.name} must be bytes or text, found {type(item).__name__}"
    raise failure(Code.BAD_ARGUMENT, message, argument=definition.name)


def check_file(path: Path, argument: str) -> None:
    """Raises FILE_NOT_FOUND or BAD_ARGUMENT unless `path` can be read as a stream."""
    open_file(path, argument).close()


def open_file(path: Path, argument: str) -> BinaryIO:
    """Open a regular file without waiting for anybody: a pipe without a writer would hold up whoever opens it.

    Raises FILE_NOT_FOUND or BAD_ARGUMENT.
    """
    try:
        path = path.expanduser()
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        message = f"{path!s:.200} cannot be read: {error.strerror}"
        raise failure(Code.FILE_NOT_FOUND, message, argument=argument) from None
    except (ValueError, RuntimeError) as error:  # a NUL in the name; a user without a home
        raise failure(Code.BAD_ARGUMENT, f"{path!s:.200} is no path: {error}", argument=argument) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
    message = f"{path} is {what}; {argument} is read from a file. A pipe can be handed over opened, or as its parts"
    raise failure(Code.BAD_ARGUMENT, message, argument=argument)


def prepare_peer(
    definition: CapDefinition, instance: InstanceForm, encoded: Mapping[str, bytes], *, is_complete: bool
) -> Prepared:
    """The arguments of a peer call, as they came in its REQ, under their short names.

    Streams may still follow, so what is required is left to the one who serves it; but an instance argument must be
    here, since it decides where the call goes. Raises UNKNOWN_ARGUMENT, MISSING_ARGUMENT or what decoding finds.
    """
    named = {definition.argument(name).name: data for name, data in encoded.items()}
    missing = [one for one in instance.arguments if one.required and one.name not in named]
    if missing:
        name = missing[0].name
        raise failure(
            Code.MISSING_ARGUMENT,
            f"{definition.alias} needs {name} in the request itself, not as a stream: it chooses the instance",
            argument=name,
        )
    return Prepared(inline=named, instance=instance.text(named), is_complete=is_complete)


def prepare_instance(definition: CapDefinition, instance: InstanceForm, arguments: Mapping[str, Any]) -> Prepared:
    """The instance arguments alone, of a call that is not made: for loading and unloading. Other known arguments are
    passed over. Raises UNKNOWN_ARGUMENT or BAD_ARGUMENT."""
    encoded: dict[str, bytes] = {}
    for name, value in arguments.items():
        one = definition.argument(name)
        data = _encode_whole(one, value) if one.is_instance and value is not None else None
        if data is not None:
            encoded[one.name] = data
    return Prepared(inline=encoded, instance=instance.text(encoded))
