"""`python -P -m cartdeck_sdk PACKAGE`: how a host starts a cartridge written with this kit."""

import sys

from cartdeck_protocol.errors import CartdeckError
from cartdeck_sdk.serve import serve_package


def main() -> None:
    if len(sys.argv) != 2:
        print("usage: python -P -m cartdeck_sdk PACKAGE (a host starts it)", file=sys.stderr)
        raise SystemExit(2)
    try:
        serve_package(sys.argv[1])
    except CartdeckError as error:
        print(f"cartdeck_sdk: {error.code}: {error.message} {error.remedy}", file=sys.stderr)
        raise SystemExit(1) from None


main()
