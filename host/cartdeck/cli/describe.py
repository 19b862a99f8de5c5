"""Owns `cartdeck describe`: what images show, in words.

It does not know image formats: the cartridge looks at the bytes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import AsJson, Force, Out, Quiet, Timeout, Verbose
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck.cli.running import CallOptions

CAP = "cap:describe-image"
EXAMPLE = """Say in words what images show, or answer a question about each.

The model must be one that sees: its projector is named, or lies beside it. Of several images each answer stands in a
line of its own, after the file's name; with --json it is one record a line.

\b
Example: cartdeck describe photo.jpg --model ./model.gguf --projector ./mmproj-model.gguf --prompt "What is this?\""""


def describe(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Image files.")],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="What is asked about each image.")
    ] = None,
    model: opt.Model = None,
    projector: opt.Projector = None,
    system: opt.System = None,
    chat_template: opt.ChatTemplate = None,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = None,
    seed: opt.Seed = None,
    context_size: opt.ContextSize = None,
    threads: opt.Threads = None,
    gpu_layers: opt.GpuLayers = None,
    lora: opt.Lora = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    out: Out = None,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from cartdeck.cli.running import CallOptions, run_call

    arguments = opt.given(
        prompt=prompt,
        model=model,
        projector=projector,
        system=system,
        chat_template=chat_template,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        context_size=context_size,
        threads=threads,
        gpu_layers=gpu_layers,
        lora=lora,
    )
    paths = [_image(path) for path in images]
    options = CallOptions(timeout_s=timeout, as_json=as_json, out=out, force=force, is_quiet=quiet, is_verbose=verbose)
    if len(paths) == 1:
        run_call(CAP, {**arguments, "image": paths[0]}, options)
    elif out is not None:
        message = "--out takes the description of one image; for several, send standard output to a file."
        raise failure(Code.BAD_ARGUMENT, message, argument="--out")
    else:
        _describe_each(paths, arguments, options)


def _describe_each(paths: list[Path], arguments: dict[str, object], options: "CallOptions") -> None:
    from cartdeck.cli.asking import Ask, ask_about, run_asking
    from cartdeck.cli.display import harmless
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import json_line
    from cartdeck.plain import result_record

    async def work(ask: Ask) -> None:
        for path in paths:
            result = await ask_about(ask, CAP, arguments, name="image", path=path)
            if options.as_json:
                print_text(json_line({"image": str(path), **result_record(CAP, result)}))
            else:
                print_text(f"{harmless(str(path))}: {harmless(result.text.strip())}\n")

    run_asking(work, timeout_s=options.timeout_s, is_quiet=options.is_quiet, is_verbose=options.is_verbose)


def _image(path: Path) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise failure(Code.FILE_NOT_FOUND, f"There is no image {path}.", argument="IMAGE")
    if path.is_dir():
        raise failure(Code.BAD_ARGUMENT, f"{path} is a folder; name the images in it.", argument="IMAGE")
    return path


describe.__doc__ = EXAMPLE
