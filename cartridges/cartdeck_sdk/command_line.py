"""Owns `python -m cartdeck_x …`: what a cartridge answers to a person. It claims no pipes.

It does not know the wire, and imports nothing heavy: `manifest` must be quick.
"""

import sys

from cartdeck_protocol.errors import CartdeckError
from cartdeck_sdk.manifest_file import read_manifest

_USAGE = """usage: python -m {package} manifest

  manifest   print the caps, arguments and defaults of this cartridge as JSON

A host starts the cartridge itself. Example: cartdeck caps
"""


def main(package: str) -> None:
    """Run the command line of the cartridge in `package`."""
    arguments = sys.argv[1:]
    if arguments == ["manifest"]:
        try:
            sys.stdout.write(read_manifest(package).decode())
        except CartdeckError as error:
            print(f"{error.code}: {error.message}", file=sys.stderr)
            raise SystemExit(1) from None
        return
    is_help = arguments in (["--help"], ["-h"])
    print(_USAGE.format(package=package), end="", file=sys.stdout if is_help else sys.stderr)
    raise SystemExit(0 if is_help else 2)
