"""Owns the options that several commands share, each spelt and explained once.

It does not know what the commands do with them.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from cartdeck_protocol.errors import Code, failure


def _check_timeout(seconds: float | None) -> float | None:
    """Raises BAD_ARGUMENT for a time that never comes, or has passed already."""
    if seconds is not None and not 0 < seconds < math.inf:
        message = f"--timeout is {seconds:g}; expected a positive number of seconds."
        raise failure(Code.BAD_ARGUMENT, message, argument="--timeout")
    return seconds


Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="End the call after this time.", callback=_check_timeout),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON record instead of text.")]
Out: TypeAlias = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the output to this file, which appears when whole.")
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Overwrite the output file.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no log.")]
Verbose: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="Show debug lines of the log too.")]

CALLING: Final[Mapping[str, Any]] = {"timeout": Timeout, "as_json": AsJson, "quiet": Quiet, "verbose": Verbose}
"""How a call is made and shown."""
WRITING: Final[Mapping[str, Any]] = {"out": Out, "force": Force}
"""Where its output goes."""
