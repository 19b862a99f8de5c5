"""Owns `cartdeck demo`: the main job, shown and explained to a newcomer.

It does not know the model's default, nor how the three processes work together: it makes one call and tells of it.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cartdeck.cli.options import Quiet, Timeout

if TYPE_CHECKING:
    from cartdeck.engine import Engine
    from cartdeck.events import Result

CAP = "cap:generate-text;gguf"
PROMPT = "The capital of France is Paris. It is known for"
ARGUMENTS = {"prompt": PROMPT, "max-tokens": 64, "temperature": 0, "repeat-penalty": 1.1}

INTRODUCTION = """\
cartdeck: a language model answers through three processes.

  host    this command: starts the other two, routes their calls, keeps limits
  gguf    loads the model with llama.cpp and generates
  models  obtains the model's file: gguf asks for it, through the host

The first run fetches the model (about 100 MB); later ones find it on the disk.

"""
SUMMARY = """
{tokens} tokens in {inference_s:.2f} s: {speed:.0f} tokens/s.
The model was obtained in {obtain_s:.1f} s and loaded in {load_s:.2f} s.

  model    {spec}
  file     {path}
  sha256   {sha256}
  engine   {engine} on {device}, cartridge {cartridge}

Try next:
  {program} generate "Once upon a time" --max-tokens 64
  {program} generate "Water boils at" --temperature 0 --json
  {program} caps

or, with {python}:
  import cartdeck
  with cartdeck.open() as engine:
      print(engine.run("cap:generate-text", {{"prompt": "Hello, my name is"}}).text)
"""


def demo(timeout: Timeout = None, quiet: Quiet = False) -> None:
    """Watch a small language model answer, in three processes.

    Example: cartdeck demo
    """
    from cartdeck.cli.bar import open_display
    from cartdeck.cli.output import StandardOutput
    from cartdeck.cli.running import CallOptions, in_thread, make_call, run_interruptible, shown
    from cartdeck.engine import Engine

    async def work() -> str:
        display, output = open_display(is_quiet=quiet, is_verbose=False), StandardOutput()
        await in_thread(output.write, INTRODUCTION.encode())
        async with Engine() as engine:
            async with shown(display):
                result = await make_call(
                    engine,
                    CAP,
                    ARGUMENTS,
                    options=CallOptions(timeout_s=timeout),
                    output=output,
                    display=display,
                    lead=PROMPT.encode(),
                )
            await in_thread(output.write, b"" if output.is_terminal else b"\n")
            path = await find_model(engine, result)
        return summary(result.provenance, path)

    StandardOutput().write(run_interruptible(work).encode())


async def find_model(engine: "Engine", result: "Result") -> str:
    """Where the model's file lies: the models cartridge knows, and it is still running."""
    found = await engine.run("cap:download-model", {"model": result.provenance["model"]["spec"]})
    return found.text


def summary(provenance: dict[str, Any], path: str) -> str:
    """What the provenance says of the call, and what to try next."""
    timing, usage, model = provenance["timing"], provenance["usage"], provenance["model"]
    engine, cartridge = provenance["engine"], provenance["cartridge"]
    inference_s = max(1e-6, timing["total_s"] - timing["obtain_s"] - timing["load_s"])
    return SUMMARY.format(
        tokens=usage["completion_tokens"],
        inference_s=inference_s,
        speed=usage["completion_tokens"] / inference_s,
        obtain_s=timing["obtain_s"],
        load_s=timing["load_s"],
        spec=model["spec"],
        path=path,
        sha256=model["sha256"] or "not known: a local file",
        engine=f"{engine['library']} {engine['version']}",
        device=provenance["device"],
        cartridge=f"{cartridge['name']} {cartridge['version']}",
        program=program_name(),
        python=sys.executable,
    )


def program_name() -> str:
    """How the user can run this command again: its name where PATH finds it, else its path."""
    called, found = Path(sys.argv[0]), shutil.which("cartdeck")
    return "cartdeck" if found is not None and called.samefile(found) else os.path.relpath(called)
