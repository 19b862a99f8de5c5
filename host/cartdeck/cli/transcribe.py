"""Owns `cartdeck transcribe`: what is said in recordings, as text or with times.

It does not know audio formats: the cartridge looks at the bytes.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import AsJson, Quiet, Timeout, Verbose
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck.cli.transcript_sheet import Block

CAP = "cap:transcribe-speech"
EXAMPLE = """Write down what is said in audio files, or translate it into English.

The model must be one made for speech (Whisper). What is said is printed as it is understood. Of several files each text
follows its file's name; with --json it is one record a line.

\b
Example: cartdeck transcribe talk.flac --model ./whisper-base --format srt > talk.srt"""


class Format(StrEnum):
    """How a transcript is written."""

    TEXT = "text"
    JSON = "json"
    SRT = "srt"
    VTT = "vtt"


def transcribe(
    audio: Annotated[list[Path], typer.Argument(metavar="AUDIO", help="Audio files: wav, flac, ogg, mp3, aiff, m4a.")],
    model: opt.Model = None,
    catalog: opt.CatalogFile = None,
    profile: opt.Profile = None,
    language: Annotated[
        str | None, typer.Option("--language", metavar="CODE", help="What is spoken (en, de); else it is found.")
    ] = None,
    translate: Annotated[bool, typer.Option("--translate", help="Write the English translation.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Begin each line with its time.")] = False,
    form: Annotated[Format, typer.Option("--format", metavar="FORM", help="text, json, srt or vtt.")] = Format.TEXT,
    beams: Annotated[
        str | None, typer.Option("--beams", metavar="INTEGER", help="Follow so many readings; slower, often better.")
    ] = None,
    threads: opt.Threads = None,
    gpu_layers: opt.GpuLayers = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from cartdeck import subtitles
    from cartdeck.cli.asking import Ask, ask_about, run_asking
    from cartdeck.cli.bar import open_display
    from cartdeck.cli.display import harmless
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.named_model import resolved
    from cartdeck.cli.transcript_sheet import TranscriptSheet

    paths = [_recording(path) for path in audio]
    arguments = opt.given(model=model, language=language, beams=beams, threads=threads, gpu_layers=gpu_layers)
    arguments |= {"task": "translate"} if translate else {}
    choice = opt.Choice(catalog, profile)
    cap, arguments = resolved(CAP, arguments, choice, is_quiet=quiet, is_verbose=verbose)
    display = open_display(is_quiet=quiet, is_verbose=verbose)
    block = _block(form, with_times=timestamps)

    async def work(ask: Ask) -> None:
        for path in paths:
            if as_json or form is Format.JSON:
                print_text(_record(path, await ask_about(ask, cap, arguments, name="audio", path=path)))
                continue
            lead = f"{harmless(str(path))}: " if len(paths) > 1 and block is None else ""
            header = subtitles.VTT_HEADER if form is Format.VTT else ""
            sheet = TranscriptSheet(block, lead=lead + header, display=display)
            await ask_about(ask, cap, arguments, name="audio", path=path, on_data=sheet.take)
            sheet.finish()

    run_asking(work, timeout_s=timeout, display=display)


def _block(form: Format, *, with_times: bool) -> "Block | None":
    """How a segment is written; None for the plain text."""
    from cartdeck import subtitles

    if form is Format.SRT:
        return subtitles.srt_block
    if form is Format.VTT:
        return lambda _, segment: subtitles.vtt_block(segment)
    return (lambda _, segment: subtitles.timed_line(segment)) if with_times else None


def _record(path: Path, result: Any) -> str:
    from cartdeck.cli.render import json_line
    from cartdeck.cli.transcript_sheet import segment_of
    from cartdeck.plain import plain

    segments = [segment_of(item) for item in result.items_of("segments")]
    record = {"audio": str(path), "text": result.text.strip(), "segments": segments}
    return json_line(record | {"provenance": plain(result.provenance)})


def _recording(path: Path) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise failure(Code.FILE_NOT_FOUND, f"There is no audio file {path}.", argument="AUDIO")
    if path.is_dir():
        raise failure(Code.BAD_ARGUMENT, f"{path} is a folder; name the files in it.", argument="AUDIO")
    return path


transcribe.__doc__ = EXAMPLE
