"""Owns `cartdeck chat`: a dialogue in the terminal, one line after another.

It does not know templates nor models; the cap's definition decides.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import Quiet, Timeout, Verbose
from cartdeck_protocol.errors import Code, failure

EXAMPLE = """Talk with a language model.

Each line is a message; answers come as they are made. Ctrl-C stops an answer and keeps the dialogue, Ctrl-D ends it.
/image FILE shows an image, /system TEXT sets what the model is told beforehand, /help lists what else there is. With
--json each answer is one record in a line of its own.

Example: cartdeck chat --system "You are a helpful assistant." """


def chat(
    message: Annotated[str | None, typer.Argument(metavar="MESSAGE", help="The first message.")] = None,
    system: opt.System = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="FILE", help="Shown with the first message; may be repeated."),
    ] = None,
    model: opt.Model = None,
    projector: opt.Projector = None,
    chat_template: opt.ChatTemplate = None,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repeat_penalty: opt.RepeatPenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    logit_bias: opt.LogitBias = None,
    seed: opt.Seed = None,
    deterministic: opt.Deterministic = None,
    stop: opt.Stop = None,
    grammar: opt.Grammar = None,
    json_schema: opt.JsonSchema = None,
    context_size: opt.ContextSize = None,
    threads: opt.Threads = None,
    gpu_layers: opt.GpuLayers = None,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    kv_cache: opt.KvCache = None,
    tensor_parallel: opt.TensorParallel = None,
    lora: opt.Lora = None,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each answer as one JSON record.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from cartdeck.cli.conversing import Conversation
    from cartdeck.cli.dialogue import Dialogue
    from cartdeck.cli.running import CallOptions

    arguments = opt.given(
        model=model,
        projector=projector,
        chat_template=chat_template,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=logit_bias,
        seed=seed,
        deterministic=deterministic,
        stop=stop,
        grammar=grammar,
        json_schema=json_schema,
        context_size=context_size,
        threads=threads,
        gpu_layers=gpu_layers,
        device=device,
        dtype=dtype,
        kv_cache=kv_cache,
        tensor_parallel=tensor_parallel,
        lora=lora,
    )
    _check_model(model)
    dialogue = Dialogue(system=system)
    for path in image or []:
        dialogue.show(path)
    options = CallOptions(timeout_s=timeout, as_json=as_json, is_quiet=quiet, is_verbose=verbose)
    Conversation(dialogue, arguments, options, first=message).run()


def _check_model(spec: str | None) -> None:
    """Raises FILE_NOT_FOUND for a local path to nothing, so that it is told before a message is asked for.

    Any other spec, a home folder of nobody among them, is left to the cartridge that looks for the model.
    """
    if spec is None or not (spec.startswith(("/", "./", "../", "~")) or not {"/", ":"} & set(spec)):
        return
    path = os.path.expanduser(spec)  # noqa: PTH111 - Path's own raises for the home of nobody
    if not path.startswith("~") and not os.path.lexists(path):
        message = f"There is no model {path}; --model takes a local path, hf:…, package:… or pypi:…."
        raise failure(Code.FILE_NOT_FOUND, message, argument="model")


chat.__doc__ = EXAMPLE
