"""Owns `cartdeck generate`: text from a prompt.

It knows no default, no range and no type: an option that is given is sent as it is spelt, and the cap's definition
decides.
"""

from typing import Annotated

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import AsJson, Force, Out, Quiet, Timeout, Verbose

EXAMPLE = """Continue a prompt with a language model.

The text is printed as it comes. What is not given has the default that `cartdeck caps generate-text` shows.

With --json-schema or --grammar the text is held to what the file says.

\b
Example: cartdeck generate "The capital of France is" --max-tokens 16 --temperature 0"""
CAP = "cap:generate-text"


def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help="The text to continue; - reads standard input, less one newline at its end."
        ),
    ],
    model: opt.Model = None,
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
    n: opt.Texts = None,
    logprobs: opt.Logprobs = None,
    top_logprobs: opt.TopLogprobs = None,
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
    as_json: AsJson = False,
    out: Out = None,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from cartdeck.cli.arguments import read_text
    from cartdeck.cli.running import CallOptions, run_call

    arguments = opt.given(
        model=model,
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
        n=n,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
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
    arguments["prompt"] = read_text(prompt, name="prompt")
    run_call(
        CAP,
        arguments,
        CallOptions(timeout_s=timeout, as_json=as_json, out=out, force=force, is_quiet=quiet, is_verbose=verbose),
    )


generate.__doc__ = EXAMPLE
