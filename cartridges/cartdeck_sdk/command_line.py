"""Owns `python -m cartdeck_x …`: what a cartridge answers to a person, without a host.

It does not know the wire, and imports nothing heavy before it must: `manifest` and `--help` are quick.
"""

import os
import sys
from typing import Final

from cartdeck_protocol.errors import CartdeckError, ErrorClass

_STATUS: Final = {
    ErrorClass.INPUT: 2,
    ErrorClass.INTERNAL: 4,
    ErrorClass.RESOURCE: 5,
    ErrorClass.ENVIRONMENT: 6,
    ErrorClass.USER: 130,
}
"""The exit codes of `cartdeck`, so that a script need not know which of the two it calls."""
_READER_GONE: Final = 141


def main(package: str) -> None:
    """Run the command line of the cartridge in `package`."""
    try:
        _run(package, sys.argv[1:])
        sys.stdout.flush()
    except CartdeckError as error:
        print(f"error: {error.message} [{error.code_name}] {error.remedy}", file=sys.stderr)
        raise SystemExit(_STATUS[error.error_class]) from None
    except BrokenPipeError:  # who read standard output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(_READER_GONE) from None


def _run(package: str, words: list[str]) -> None:
    from cartdeck_sdk.manifest_file import read_manifest  # noqa: PLC0415  # what `manifest` needs comes first

    if words == ["manifest"]:
        sys.stdout.write(read_manifest(package).decode())
        return
    from cartdeck_protocol.caps import Manifest  # noqa: PLC0415  # it reads definitions: not for `manifest`
    from cartdeck_sdk.cap_help import cap_help, overview  # noqa: PLC0415  # the same

    manifest = Manifest.from_json(read_manifest(package))
    if not words or words[0] in ("--help", "-h"):
        print(overview(package, manifest), end="", file=sys.stdout if words else sys.stderr)
        raise SystemExit(0 if words else 2)
    definition = manifest.cap(words[0])
    if "--help" in words or "-h" in words:
        print(cap_help(package, definition), end="")
        return
    from cartdeck_sdk.cap_words import read_words  # noqa: PLC0415  # the same
    from cartdeck_sdk.lone_call import run_lone_call  # noqa: PLC0415  # the same

    asked = read_words(definition, words[1:])
    run_lone_call(package, definition, asked)
