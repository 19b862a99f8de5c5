"""Owns `cartdeck describe`: what images show, in words.

It does not know image formats: the cartridge looks at the bytes.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.image_file import check_image_file
from cartdeck.cli.options import CALLING, WRITING
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck.cli.running import CallOptions

CAP = "cap:describe-image"
SEES = "hf:ggml-org/SmolVLM-256M-Instruct-GGUF"
"""A small model that brings its projector."""
EXAMPLE = """Say in words what images show, or answer a question about each.

The model must be one that sees: its projector is named, or lies beside it. Of several images each answer stands in a
line of its own, after the file's name; with --json it is one record a line. One that is no image does not end it.

\b
Example: cartdeck describe photo.jpg --model ./model.gguf --projector ./mmproj-model.gguf --prompt "What is this?\""""


@opt.takes(opt.MODEL, {"system": opt.System}, opt.DIALOGUE, opt.SAMPLING, opt.LOADING, CALLING, WRITING)
def describe(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Image files.")],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="What is asked about each image.")
    ] = None,
    **given: Any,
) -> None:
    from cartdeck.cli.named_model import resolved
    from cartdeck.cli.running import run_call, taken_from

    options, choice = taken_from(given), opt.choice_among(given)
    arguments = opt.given(prompt=prompt, **given)
    paths = [_image(path) for path in images]
    _check_sight(arguments)
    if len(paths) == 1:
        check_image_file(paths[0])
    cap, arguments = resolved(CAP, arguments, choice, is_quiet=options.is_quiet, is_verbose=options.is_verbose)
    if len(paths) == 1:
        run_call(cap, {**arguments, "image": paths[0]}, options)
    elif options.out is not None:
        message = "--out takes the description of one image; for several, send standard output to a file."
        raise failure(Code.BAD_ARGUMENT, message, argument="--out")
    else:
        _describe_each(paths, cap, arguments, options=options)


def _describe_each(paths: list[Path], cap: str, arguments: dict[str, object], *, options: "CallOptions") -> None:
    """One after another. One that is no image is told in its place, and the command ends with its code when the others
    are described; any other error ends it."""
    from cartdeck.cli.asking import Ask, ask_about, run_asking
    from cartdeck.cli.display import harmless
    from cartdeck.cli.exit_codes import exit_code
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import error_record, error_text, json_line
    from cartdeck.plain import result_record
    from cartdeck_protocol.caps import load_shared_definition

    main = load_shared_definition(CAP.removeprefix("cap:")).main_output
    bad: list[CartdeckError] = []

    async def work(ask: Ask) -> None:
        for path in paths:
            try:
                check_image_file(path)
                result = await ask_about(ask, cap, arguments, name="image", path=path)
            except CartdeckError as error:
                if error.code is not Code.BAD_IMAGE:
                    raise
                bad.append(error)
                if options.as_json:
                    print_text(json_line({"image": str(path), **error_record(error, exit_code(error))}))
                else:
                    sys.stderr.write(error_text(error))
                continue
            if options.as_json:
                print_text(json_line({"image": str(path), **result_record(cap, result, main=main)}))
            else:
                print_text(f"{harmless(str(path))}: {harmless(result.text.strip())}\n")

    run_asking(work, timeout_s=options.timeout_s, is_quiet=options.is_quiet, is_verbose=options.is_verbose)
    if bad:
        raise typer.Exit(exit_code(bad[0]))


def _check_sight(arguments: Mapping[str, object]) -> None:
    """Raises MISSING_ARGUMENT where neither a model is given nor eyes for the cap's default one, which has none."""
    if not {"model", "projector"} & arguments.keys():
        message = f"describe-image needs model, which was not given: one that sees, for instance {SEES}"
        raise failure(Code.MISSING_ARGUMENT, message, argument="model")


def _image(path: Path) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise failure(Code.FILE_NOT_FOUND, f"There is no image {path}.", argument="IMAGE")
    if path.is_dir():
        raise failure(Code.BAD_ARGUMENT, f"{path} is a folder; name the images in it.", argument="IMAGE")
    return path


describe.__doc__ = EXAMPLE
