"""Owns `cartdeck embed`: a vector for each text.

It does not know models; the cap's definition decides what may be asked.
"""

import array
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import AsJson, Force, Quiet, Timeout, Verbose
from cartdeck_protocol.errors import CartdeckError, Code, failure, from_wire

CAP = "cap:embed-text"
NUMBERS_SHOWN = 4


def embed(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts; a single - reads standard input, a text in each line."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="LINES", help="Take the texts from this file, one in each line.")
    ] = None,
    model: opt.Model = None,
    catalog: opt.CatalogFile = None,
    profile: opt.Profile = None,
    pooling: Annotated[
        str | None, typer.Option("--pooling", metavar="WAY", help="mean, cls or last; else what the model says.")
    ] = None,
    truncate: Annotated[
        str | None, typer.Option("--truncate", metavar="SIDE", help="Cut texts that are too long: start or end.")
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option("--normalize/--as-it-is", help="Scale each vector to length 1, the default, or leave it so."),
    ] = None,
    threads: opt.Threads = None,
    gpu_layers: opt.GpuLayers = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the vectors to this .npy file instead.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Give a vector for each text: texts that mean the same lie near each other.

    A terminal shows the beginning of each; else each vector is a JSON list in a line of its own.

    \b
    Example: cartdeck embed "A man is eating food." "A man eats." --model ./all-minilm.gguf --json
    """
    from cartdeck.cli.asking import Ask, run_asking
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.named_model import resolved
    from cartdeck.cli.output import StandardOutput
    from cartdeck.cli.render import json_line
    from cartdeck.cli.vector_file import check_free, write_vectors
    from cartdeck.plain import plain

    if out is not None:
        check_free(out, is_forced=force)  # now, not behind an hour of vectors
    wanted = _texts(texts, file)
    arguments = opt.given(
        model=model, pooling=pooling, truncate=truncate, normalize=normalize, threads=threads, gpu_layers=gpu_layers
    )
    choice = opt.Choice(catalog, profile)
    cap, arguments = resolved(CAP, arguments | {"texts": wanted}, choice, is_quiet=quiet, is_verbose=verbose)

    async def work(ask: Ask) -> None:
        try:
            result = await ask(cap, arguments)
        except CartdeckError as error:
            error = _with_reader(error)
            raise error if file is None else _of_line(error, file) from None
        if out is not None:
            write_vectors(out, result.items, is_forced=force)
            return
        vectors = [numbers_of(item) for item in result.items]
        if as_json:
            dimensions = len(vectors[0]) if vectors else 0
            record: dict[str, Any] = {"dimensions": dimensions, "vectors": vectors}
            print_text(json_line(record | {"provenance": plain(result.provenance)}))
        elif StandardOutput().is_terminal:
            rows = [[text, beginning_of(vector)] for text, vector in zip(wanted, vectors, strict=True)]
            print_rows(["text", "vector"], rows)
        else:
            print_text("".join(map(json_line, vectors)))

    run_asking(work, timeout_s=timeout, is_quiet=quiet, is_verbose=verbose)


def numbers_of(item: bytes) -> list[float]:
    """The numbers of a vector, each with the digits that a 32-bit one has."""
    vector = array.array("f", item)
    if sys.byteorder == "big":
        vector.byteswap()
    return [float(f"{number:.9g}") for number in vector]


def beginning_of(vector: list[float]) -> str:
    """A vector as a person sees it."""
    shown = ", ".join(f"{number:.4f}" for number in vector[:NUMBERS_SHOWN])
    return f"[{shown}, … {len(vector)} numbers]"


def _of_line(error: CartdeckError, file: Path) -> CartdeckError:
    """The error, its message beginning with the file and the line where it is about one of the texts."""
    index = error.details.get("index")
    if error.argument != "texts" or not isinstance(index, int):
        return error
    return from_wire({**error.to_wire(), "message": f"{file}, line {index + 1}: {error.message}"})


def _with_reader(error: CartdeckError) -> CartdeckError:
    """The error; where the model is in files of a cartridge that lacks its libraries, what brings those."""
    if error.code is not Code.BAD_MODEL_FILE:
        return error
    from cartdeck.cli.plan_file import router_here
    from cartdeck.unread_weights import with_reader

    return with_reader(error, router_here(), "embed-text")


def _texts(texts: list[str] | None, file: Path | None) -> list[str]:
    """The texts that were named in one way or the other."""
    if (file is None) == (not texts):
        found = "neither is" if file is None else "both are"
        raise failure(Code.BAD_ARGUMENT, f"Give texts or --file; {found} there.", argument="TEXT")
    if file is None:
        return _lines_of_input() if texts == ["-"] else texts or []
    try:
        return file.expanduser().read_text("utf-8").splitlines()
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}."
        raise failure(Code.FILE_NOT_FOUND, message, argument="--file") from None
    except UnicodeDecodeError as error:
        raise failure(Code.INVALID_TEXT, f"{file} is no UTF-8 text: {error}.", argument="--file") from None


def _lines_of_input() -> list[str]:
    try:
        return sys.stdin.buffer.read().decode().splitlines()
    except UnicodeDecodeError as error:
        raise failure(Code.INVALID_TEXT, f"Standard input is no UTF-8 text: {error}.", argument="TEXT") from None
