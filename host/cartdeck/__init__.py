"""Owns the public names of the engine, each loaded when it is first used.

It does not load them before: `cartdeck --help` must answer in a quarter of a second, and pydantic and anyio alone take
half of that. Nor `typing`: until the command line is there, Ctrl-C is answered by the interpreter, with a traceback.
"""

import sys

TYPE_CHECKING = False

if sys.platform == "win32":
    raise ImportError("cartdeck runs on Linux and macOS; on Windows use it inside WSL.")

if TYPE_CHECKING:
    from cartdeck.blocking import BlockingCall, BlockingEngine, open
    from cartdeck.calls.call import Call
    from cartdeck.engine import Engine
    from cartdeck.events import Data, End, Log, Progress, Result
    from cartdeck.settings import Settings, config_path, load_settings
    from cartdeck.stats import EngineStats, SessionStats
    from cartdeck_protocol.errors import CartdeckError, Code

__version__ = "0.1.0"

_HOMES = {
    "BlockingCall": "cartdeck.blocking",
    "BlockingEngine": "cartdeck.blocking",
    "Call": "cartdeck.calls.call",
    "CartdeckError": "cartdeck_protocol.errors",
    "Code": "cartdeck_protocol.errors",
    "Data": "cartdeck.events",
    "End": "cartdeck.events",
    "Engine": "cartdeck.engine",
    "EngineStats": "cartdeck.stats",
    "Log": "cartdeck.events",
    "Progress": "cartdeck.events",
    "Result": "cartdeck.events",
    "SessionStats": "cartdeck.stats",
    "Settings": "cartdeck.settings",
    "config_path": "cartdeck.settings",
    "load_settings": "cartdeck.settings",
    "open": "cartdeck.blocking",
}

__all__ = [
    "BlockingCall",
    "BlockingEngine",
    "Call",
    "CartdeckError",
    "Code",
    "Data",
    "End",
    "Engine",
    "EngineStats",
    "Log",
    "Progress",
    "Result",
    "SessionStats",
    "Settings",
    "config_path",
    "load_settings",
    "open",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as light as it is, it takes as long as the rest of this module

    value: object = getattr(import_module(home), name)
    globals()[name] = value  # the next look-up does not come here
    return value
