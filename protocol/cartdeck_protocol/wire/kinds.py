"""Owns the table of the wire: kinds, keys, and what each kind must and may carry.

It does not know how a frame is encoded, nor what a frame means for an exchange.
"""

from enum import IntEnum
from typing import Final

PROTOCOL_VERSION: Final = 1
"""The version of the frames. Two ends with different numbers do not talk."""

API_VERSION: Final = 1
"""The version of what a cartridge may expect of a host (identity cap, peer calls, settings in the environment)."""


class Kind(IntEnum):
    HELLO = 0
    REQ = 1
    CHUNK = 3
    END = 4
    LOG = 5
    ERR = 6
    HEARTBEAT = 7
    STREAM_START = 8
    STREAM_END = 9
    CANCEL = 12
    CREDIT = 13


# The same as plain ints, for code that runs for each frame: to read a member of an enum costs 0.13 µs on Python 3.11,
# and a small frame is dealt with in 4.
HELLO, REQ, CHUNK, END, LOG, ERR, HEARTBEAT, STREAM_START, STREAM_END, CANCEL, CREDIT = map(int, Kind)


class Key(IntEnum):
    KIND = 1
    ID = 2
    META = 5
    PAYLOAD = 6
    CAP = 10
    STREAM = 11
    MEDIA = 12
    CHUNK_INDEX = 14
    CHUNK_COUNT = 15
    IS_SEQUENCE = 17
    CREDIT = 19
    NAME = 21


TYPES: Final[dict[int, type]] = {
    Key.KIND: int,
    Key.ID: int,
    Key.META: dict,
    Key.PAYLOAD: bytes,
    Key.CAP: str,
    Key.STREAM: int,
    Key.MEDIA: str,
    Key.CHUNK_INDEX: int,
    Key.CHUNK_COUNT: int,
    Key.IS_SEQUENCE: bool,
    Key.CREDIT: int,
    Key.NAME: str,
}

_HEAD = (Key.KIND, Key.ID)

# kind → (required keys, allowed keys). Keys the table does not name are ignored, for a later version.
KEYS: Final[dict[int, tuple[tuple[Key, ...], tuple[Key, ...]]]] = {
    Kind.HELLO: ((*_HEAD, Key.META), ()),
    Kind.REQ: ((*_HEAD, Key.CAP), (Key.META,)),
    Kind.CHUNK: ((*_HEAD, Key.STREAM, Key.CHUNK_INDEX, Key.PAYLOAD), ()),
    Kind.END: (_HEAD, (Key.META,)),
    Kind.LOG: ((*_HEAD, Key.META), ()),
    Kind.ERR: ((*_HEAD, Key.META), ()),
    Kind.HEARTBEAT: (_HEAD, (Key.META,)),
    Kind.STREAM_START: ((*_HEAD, Key.STREAM), (Key.MEDIA, Key.IS_SEQUENCE, Key.NAME, Key.PAYLOAD)),
    Kind.STREAM_END: ((*_HEAD, Key.STREAM, Key.CHUNK_COUNT), ()),
    Kind.CANCEL: (_HEAD, (Key.META,)),
    Kind.CREDIT: ((*_HEAD, Key.STREAM, Key.CREDIT), ()),
}

UINT: Final = (int,)
"""A whole number from 0 on; `type(x) is`, so that a bool is none."""
_NUMBER = (int, float)
_TEXT, _MAP, _LIST, _BOOL, _BIN = (str,), (dict,), (list,), (bool,), (bytes,)

# kind → field of its meta → (types, is it required). Other fields are ignored, and other kinds' metas are not read.
META: Final[dict[int, dict[str, tuple[tuple[type, ...], bool]]]] = {
    Kind.HELLO: {
        "protocol": (UINT, True),
        "api": (UINT, True),
        "limits": (_MAP, True),
        "features": (_LIST, True),
        "manifest": (_BIN, False),
        "software": (_TEXT, False),
    },
    Kind.REQ: {"arguments": (_MAP, False), "complete": (_BOOL, False), "parent": (UINT, False)},
    Kind.END: {"progress": (_NUMBER, False), "provenance": (_MAP, False)},
    Kind.LOG: {
        "level": (_TEXT, True),
        "message": (_TEXT, True),
        "progress": (_NUMBER, False),
        "phase": (_TEXT, False),
        "work": (_NUMBER, False),
        "total": (_NUMBER, False),
    },
    Kind.ERR: {
        "code": (_TEXT, True),
        "class": (_TEXT, True),
        "message": (_TEXT, True),
        "phase": (_TEXT, False),
        "argument": (_TEXT, False),
        "details": (_MAP, False),
    },
    Kind.HEARTBEAT: {
        "rss_bytes": (UINT, False),
        "open_requests": (UINT, False),
        "stragglers": (UINT, False),
        "strays": (UINT, False),
    },
    Kind.CANCEL: {"reason": (_TEXT, False)},
}
