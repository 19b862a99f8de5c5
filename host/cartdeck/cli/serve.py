"""Owns `cartdeck serve`: an OpenAI-compatible server on this machine, until a signal ends it.

It does not know what is served.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cartdeck.cli.log_lines import LogLines
from cartdeck.cli.options import AsJson, Quiet
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck.router import Router
    from cartdeck.server.models.directory import ModelDirectory
    from cartdeck.server.options import ServerOptions

EXAMPLE = """Serve models over HTTP, for programs that speak to OpenAI.

It listens on this machine alone, unless --host says otherwise, and ends at Ctrl-C. The model `default` is the one that
`cartdeck generate` takes; any model's spec is a name too.

\b
Example: cartdeck serve --model tiny=./model.gguf"""
LEFT_OUT = {"starlette", "uvicorn", "python_multipart", "prometheus_client"}


def serve(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any that is free.")] = 8080,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME=SPEC", help="Serve this model under a name.")
    ] = None,
    catalog: Annotated[
        Path | None, typer.Option("--catalog", metavar="FILE", help="Named models; else this user's catalog.toml.")
    ] = None,
    named_only: Annotated[
        bool, typer.Option("--named-only", help="Take no model's spec as a name: only those that have one.")
    ] = False,
    allow_unguarded: Annotated[
        bool,
        typer.Option("--allow-unguarded", help="Take specs, caps and plans also beside guarded models."),
    ] = False,
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", metavar="NAME", help="Of the catalog's windows; else this machine's.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="FILE", help="Ask for one of the keys in it, one a line.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option("--allow-origin", metavar="ORIGIN", help="Let web pages of it ask (CORS).")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Answer to this name too.")
    ] = None,
    comment_s: Annotated[
        float, typer.Option("--comment-every", metavar="SECONDS", min=0.05, help="Into a stream that is silent.")
    ] = 15.0,
    grace_s: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", min=0, help="For open requests when it ends.")
    ] = 10.0,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="The most that a call may take.")
    ] = None,
    max_audio_s: Annotated[float, typer.Option("--max-audio", metavar="SECONDS", min=1, help="Of a recording.")] = 4
    * 3600.0,
    max_images: Annotated[int, typer.Option("--max-images", min=0, help="In one dialogue.")] = 16,
    max_json_mb: Annotated[int, typer.Option("--max-json", metavar="MIB", min=1, help="Of a JSON request.")] = 32,
    max_upload_mb: Annotated[int, typer.Option("--max-upload", metavar="MIB", min=1, help="Of a form.")] = 256,
    max_requests: Annotated[int, typer.Option("--max-requests", min=1, help="That are open at once.")] = 1024,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    _check_installed()
    from cartdeck.server.models.directory import parse_named
    from cartdeck.server.options import MIB, RequestLimits, ServerOptions, read_keys

    limits = RequestLimits(
        json_bytes=max_json_mb * MIB,
        upload_bytes=max_upload_mb * MIB,
        images=max_images,
        audio_s=max_audio_s,
        call_s=timeout,
    )
    options = ServerOptions(
        host=host,
        port=port,
        keys=() if api_key_file is None else read_keys(api_key_file),
        origins=tuple(allow_origin or ()),
        hosts=tuple(name.lower() for name in allow_host or ()),
        comment_s=comment_s,
        grace_s=grace_s,
        requests=max_requests,
        allow_unguarded=allow_unguarded,
        time_zone=time_zone,
        limits=limits,
    )
    models = Models(parse_named(model or []), catalog, is_open=not named_only, may_go_around=allow_unguarded)
    _run(options, models, words=Words(as_json=as_json, is_quiet=quiet))


@dataclass(frozen=True, slots=True)
class Models:
    """Which models are served: named here, named in a catalog, and, where `is_open`, any spec; with `may_go_around`
    these also where models of the catalog have guards."""

    named: dict[str, str]
    catalog: Path | None
    is_open: bool
    may_go_around: bool

    def directory(self, router: "Router") -> "ModelDirectory":
        """Raises BAD_ARGUMENT or FILE_NOT_FOUND for a catalog that cannot be used."""
        from cartdeck.catalog.catalog_file import CATALOG_VARIABLE, catalog_path
        from cartdeck.server.models.catalog_directory import CatalogDirectory
        from cartdeck.server.models.directory import SpecDirectory

        behind = SpecDirectory(router, self.named, is_open=self.is_open)
        path = self.catalog or catalog_path()
        is_asked_for = self.catalog is not None or bool(os.environ.get(CATALOG_VARIABLE))
        if not is_asked_for and not path.exists():
            return behind
        return CatalogDirectory(path, behind, may_go_around=self.may_go_around)


class Words:
    """What the command says: where it listens, on standard output; each request, on standard error."""

    def __init__(self, *, as_json: bool, is_quiet: bool) -> None:
        self._as_json = as_json
        self._is_quiet = is_quiet
        self._lines = LogLines(self._dropped)
        handler = _JsonHandler(self._write) if as_json else _PlainHandler(self._lines.write)
        logging.getLogger().addHandler(handler)

    def listening(self, url: str) -> None:
        text = f"cartdeck serves {url}/v1\n"
        if self._as_json:
            text = json.dumps({"event": "listening", "url": url, "base_url": f"{url}/v1", "pid": os.getpid()}) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()

    def stopping(self, number: int, *, grace_s: float) -> None:
        if self._as_json:
            self._write({"event": "stopping", "signal": signal.Signals(number).name, "grace_s": grace_s})
        elif not self._is_quiet:
            self._lines.write(f"stopping: open requests may go on for {grace_s:g} s; once more ends at once\n")

    def news(self, text: str, record: Mapping[str, Any]) -> None:
        if self._as_json:
            self._write(dict(record))
        elif not self._is_quiet:
            self._lines.write(f"{text}\n")

    def request(self, record: dict[str, Any]) -> None:
        if self._is_quiet:
            return
        if self._as_json:
            self._write({"event": "request", **record})
        else:
            self._lines.write(
                f"{record['method']} {record['path']!r:.200} {record['status']} {record['seconds']:.3f} s\n"
            )

    def close(self) -> None:
        """Wait for the last lines, for a moment."""
        self._lines.close()

    def _write(self, record: dict[str, Any]) -> None:
        self._lines.write(self._line(record))

    def _line(self, record: dict[str, Any]) -> str:
        return json.dumps({"time": round(time.time(), 3), **record}, ensure_ascii=False) + "\n"

    def _dropped(self, count: int) -> str:
        if self._as_json:
            return self._line({"event": "dropped", "lines": count})
        return f"{count} lines of this log were dropped: nobody read it\n"


class _JsonHandler(logging.Handler):
    """Lines of the engine and of libraries, as objects among the others."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = write

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self._send({"event": "log", "level": record.levelname.lower(), "logger": record.name, "message": text})


class _PlainHandler(logging.Handler):
    """Lines of the engine and of libraries, as text."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = write

    def emit(self, record: logging.LogRecord) -> None:
        self._send(f"{self.format(record)}\n")


def _check_installed() -> None:
    """Raises CARTRIDGE_UNAVAILABLE with the command that brings what the server needs."""
    from importlib.util import find_spec

    missing = sorted(name for name in LEFT_OUT if find_spec(name) is None)
    if missing:
        message = f"The server needs {', '.join(missing)}"
        command = "pip install 'cartdeck[server]'"
        details = {"install": [command], "remedy": f"Install what it needs: {command}"}
        raise failure(Code.CARTRIDGE_UNAVAILABLE, message, details=details)


def _run(options: "ServerOptions", models: Models, *, words: Words) -> None:
    import asyncio

    from cartdeck.catalog.time_zone import time_zone as time_zone_of
    from cartdeck.cli.endings import SIGNALS, end_at_signals
    from cartdeck.engine import Engine
    from cartdeck.server.listening import HttpServer, listen, url_of
    from cartdeck.server.models.catalog_directory import CatalogDirectory
    from cartdeck.server.models.keeping import Keeper

    zone = time_zone_of(options.time_zone)

    async def work() -> None:
        listener = listen(options)  # before anything starts
        loop = asyncio.get_running_loop()
        async with Engine() as engine:
            directory = models.directory(engine.router)
            server = HttpServer(engine, directory, options, log=words.request)

            def stop(number: int) -> None:
                if server.service.is_stopping:
                    os._exit(128 + number)  # the kernel ends the cartridges with their parent
                words.stopping(number, grace_s=options.grace_s)
                server.stop()

            for number in SIGNALS:
                loop.add_signal_handler(number, stop, number)
            keeping: asyncio.Task[None] | None = None
            if isinstance(directory, CatalogDirectory):
                keeper = Keeper(server.service, directory, tell=words.news, every_s=options.look_s, zone=zone)
                keeping = loop.create_task(keeper.run())
            try:
                await server.run(listener, on_ready=lambda: words.listening(url_of(listener)))
            finally:
                if keeping is not None:
                    keeping.cancel()
                    await asyncio.wait([keeping])
                for number in SIGNALS:
                    loop.remove_signal_handler(number)
                end_at_signals()

    try:
        asyncio.run(work())
    finally:
        words.close()


serve.__doc__ = EXAMPLE
