"""Owns `cartdeck top`: how a running server does, as a table that is drawn anew, once, or as a record.

It does not know how the figures come about: the server tells them.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from cartdeck.cli.options import AsJson
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from rich.console import Console, Group

PATIENCE_S: Final = 10.0
COLUMNS: Final = ("cartridge", "state", "class", "pid", "requests", "memory", "starts", "restarts")
WIDEST: Final = 1_000_000
MOST_BYTES: Final = 64 * 1024 * 1024


def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's.")] = "http://127.0.0.1:8080",
    every_s: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the table once.")] = False,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="FILE", help="Where the server's key is.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a running server: its sessions, requests, memory, restarts and errors.

    Example: cartdeck top http://127.0.0.1:8080
    """
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import json_line

    key = None
    if api_key_file is not None:
        from cartdeck.server.options import read_keys

        key = read_keys(api_key_file)[0]
    if as_json:
        print_text(json_line(ask(url, key)))
        return
    console = console_here()
    if once or not console.is_terminal:
        console.print(table_of(url, ask(url, key)))
        return
    _watch(url, key, every_s)


def console_here() -> "Console":
    """Standard output. Where it is no terminal it has no width: nothing is folded, to be copied and searched."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=WIDEST)


def _watch(url: str, key: str | None, every_s: float) -> None:
    """Until Ctrl-C, which ends the command."""
    from rich.live import Live
    from rich.text import Text

    from cartdeck_protocol.errors import CartdeckError

    first = ask(url, key)  # where nobody is there now, nobody is waited for
    with Live(table_of(url, first), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            try:
                shown: Group | Text = table_of(url, ask(url, key))
            except CartdeckError as error:
                shown = Text(error.message)
            live.update(shown, refresh=True)


def ask(url: str, key: str | None) -> dict[str, Any]:
    """What the server says. Raises ENDPOINT_UNREACHABLE, BAD_ARGUMENT for what is no server of ours."""
    if not url.startswith(("http://", "https://")):
        raise failure(Code.BAD_ARGUMENT, f"{url!r} is no address; expected http://HOST:PORT.", argument="URL")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    place = url.rstrip("/").removesuffix("/v1") + "/stats"
    asked = urllib.request.Request(place, headers=headers)  # noqa: S310  # the scheme was looked at above
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:  # noqa: S310  # as above
            told = json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            what = "asks for a key: give --api-key-file" if error.code == 401 else f"answers with {error.code}"
        raise failure(Code.BAD_ARGUMENT, f"{place} {what}.", argument="URL") from None
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        what = getattr(reason, "strerror", None) or reason
        message = f"There is no server at {url}: {what}. `cartdeck serve` starts one."
        raise failure(Code.ENDPOINT_UNREACHABLE, message) from None
    except ValueError:
        raise failure(Code.BAD_ARGUMENT, f"{place} gives no JSON: no server of cartdeck.", argument="URL") from None
    if not isinstance(told, dict) or "sessions" not in told:
        raise failure(Code.BAD_ARGUMENT, f"{place} is no server of cartdeck.", argument="URL")
    return cast("dict[str, Any]", told)


def table_of(url: str, told: dict[str, Any]) -> "Group":
    """Lines on the whole, a row for each session, then what is too long for a row: its instance and its last error."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, no_wrap=True)
    for session in told["sessions"]:
        table.add_row(*(Text(cell) for cell in _row(session)))
    long = [Text(line) for session in told["sessions"] for line in _long(session)]
    return Group(*(Text(line) for line in _summary(url, told)), Text(""), table, *([Text("")] if long else []), *long)


def _summary(url: str, told: dict[str, Any]) -> list[str]:
    server, memory = told.get("server", {}), told["memory"]
    budget = _size(memory["budget_bytes"]) if memory["budget_bytes"] else "no limit"
    lines = [
        f"{url}  cartdeck {server.get('version', '?')}  up {_duration(told['uptime_s'])}  "
        f"{server.get('open_requests', 0)} open requests",
        f"memory {_size(memory['used_bytes'])} of {budget}, {memory['waiting']} waiting  "
        f"requests {_phases(told['requests'])}",
    ]
    for name, model in told.get("models", {}).items():
        error = model.get("error")
        window = _window(model["schedule"]) if "schedule" in model else ""
        text = f" [{error['code']}] {error['message']}" if error else ""
        lines.append(f"model {name}: {model['state']}{window}{text}")
    for name, guard in told.get("guards", {}).items():
        counts = ", ".join(f"{count} {word}" for word, count in guard["verdicts"].items())
        down = f"; down: {guard['is_down']}" if "is_down" in guard else ""
        lines.append(f"guard {name}: {guard['state']}, {counts}{down}")
    return [_plain(line) for line in lines]


def _window(schedule: dict[str, Any]) -> str:
    """When the window of a model ends, or the next one begins; times of the server's zone."""
    until, begin = schedule["until"], schedule["next_begin"]
    if until is not None:
        return f", window open until {until[:16].replace('T', ' ')}"
    if begin is None:
        return ", window always open" if schedule["is_open"] else ""
    return f", next window {begin[:16].replace('T', ' ')}" + (" (prewarm)" if schedule["is_held"] else "")


def _row(session: dict[str, Any]) -> list[str]:
    cells = [
        session["cartridge"],
        session["state"],
        session.get("class") or "",
        str(session["pid"] or ""),
        _phases(session["requests"]),
        _size(session["rss_bytes"] or 0),
        str(session["starts"]),
        str(session["restarts"]),
    ]
    return [_plain(cell) for cell in cells]


def _long(session: dict[str, Any]) -> list[str]:
    error, which = session["last_error"], f"{session['cartridge']} {session['pid'] or session['state']}"
    lines = [f"{which}: {session['instance']}"] if session["instance"] else []
    if error is not None:
        lines.append(f"{which}: last error [{error['code']}] {error['message']}")
    return [_plain(line) for line in lines]


def _plain(text: str) -> str:
    from cartdeck.cli.display import harmless

    return harmless(text)


def _phases(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {phase}" for phase, count in counts.items() if count) or "none"


def _size(size_bytes: int) -> str:
    from cartdeck.size import size_text

    return size_text(size_bytes)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
