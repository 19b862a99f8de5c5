"""Owns turning what llama.cpp logged before it refused a model into one typed error.

It does not know how the model was loaded. The wordings are those of llama.cpp's loader; one that is not known here
still gives `BAD_MODEL_FILE` with the engine's own last words.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cartdeck_protocol.errors import CartdeckError, Code, failure

_UNKNOWN_ARCHITECTURE = re.compile(r"(?:unknown|unsupported) model architecture: '([^']*)'")
_UNKNOWN_TOKENIZER = re.compile(r"unknown (?:pre-)?tokenizer(?: type)?: '([^']*)'")
_CUT_OFF = re.compile(r"not within the file bounds|incomplete|unexpectedly reached end")
_MEMORY = re.compile(r"unable to allocate|failed to allocate|out of memory|cudaMalloc failed|bad_alloc", re.IGNORECASE)
_PREAMBLE = re.compile(r"^\w+: |error loading model(?: \w+)?: ")


def load_failure(path: Path, *, errors: Sequence[str], tail: Sequence[str], engine: str) -> CartdeckError:
    """The error for the model at `path`, of which `errors` are the engine's last error lines and `tail` its last lines.

    `UNSUPPORTED_ARCHITECTURE` with `architecture` and `engine`, `MODEL_TRUNCATED`, `OUT_OF_MEMORY` or
    `BAD_MODEL_FILE`; all with `log` in the details.
    """
    said = "\n".join(errors)
    details: dict[str, Any] = {"log": list(tail), "engine": engine, "path": str(path)}
    unknown = _UNKNOWN_ARCHITECTURE.search(said)
    if unknown is not None:
        name = unknown[1]
        details["architecture"] = name
        message = f"{path.name} is a model of the architecture {name!r}, which {engine} does not know"
        return failure(Code.UNSUPPORTED_ARCHITECTURE, message, phase="load", details=details)
    unknown = _UNKNOWN_TOKENIZER.search(said)
    if unknown is not None:
        details["tokenizer"] = unknown[1]
        message = f"{path.name} needs the tokenizer {unknown[1]!r}, which {engine} does not know"
        return failure(Code.UNSUPPORTED_ARCHITECTURE, message, phase="load", details=details)
    reason = first_reason(errors) or "it gave no reason"
    code = Code.BAD_MODEL_FILE
    if _MEMORY.search(said):
        code = Code.OUT_OF_MEMORY
    elif _CUT_OFF.search(said):
        code = Code.MODEL_TRUNCATED
    details["found"] = reason
    return failure(code, f"{engine} cannot load {path.name}: {reason}", phase="load", details=details)


def first_reason(errors: Sequence[str]) -> str:
    """The first error line, which is the cause of the others, without the names of the functions that passed it on."""
    line, before = (errors[0] if errors else ""), ""
    while line != before:
        before, line = line, _PREAMBLE.sub("", line, count=1)
    return line
