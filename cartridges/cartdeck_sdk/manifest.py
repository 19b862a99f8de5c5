"""Owns `python -m cartdeck_sdk.manifest PACKAGE|FOLDER [--check]`: manifest.json from manifest.toml and
definitions.

It does not know handlers.
"""

import sys
from pathlib import Path
from typing import Final

from cartdeck_protocol.caps import build_manifest
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire.limits import MAX_HELLO
from cartdeck_sdk.manifest_file import MANIFEST_NAME, package_folder

_MOST_BYTES: Final = MAX_HELLO - 4096
"""What fits into HELLO beside the rest of it."""


def generate(package: str) -> bytes:
    """The bytes that manifest.json must have. The package's own definition files win over the shared ones. A folder,
    named by a path that has a slash or is `.`, does for one that is no package: a cartridge in another language."""
    folder = source_folder(package)

    def read_own_definition(alias: str) -> str | None:
        own = folder / f"{alias}.toml"
        return own.read_text("utf-8") if own.is_file() else None

    def read_file(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            message = f"manifest.toml: samples: '@{name}' is {folder / name}, which cannot be read: {error.strerror}"
            raise failure(Code.MANIFEST_DRIFT, message) from None

    text = (folder / "manifest.toml").read_text("utf-8")
    manifest = build_manifest(text, read_own_definition, read_file).to_json()
    if len(manifest) > _MOST_BYTES:
        message = f"{MANIFEST_NAME} would have {len(manifest)} bytes, at most {_MOST_BYTES} fit; take smaller samples"
        raise failure(Code.MANIFEST_DRIFT, message)
    return manifest


def source_folder(package: str) -> Path:
    return Path(package) if "/" in package or package == "." else package_folder(package)


def main() -> None:
    arguments = [one for one in sys.argv[1:] if one != "--check"]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m cartdeck_sdk.manifest PACKAGE|FOLDER [--check]", file=sys.stderr)
        raise SystemExit(0 if arguments in (["-h"], ["--help"]) else 2)
    package = arguments[0]
    try:
        path, wanted = source_folder(package) / MANIFEST_NAME, generate(package)
    except (CartdeckError, OSError, ValueError) as error:
        print(f"{package}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    if "--check" not in sys.argv[1:]:
        path.write_bytes(wanted)
    elif not path.is_file() or path.read_bytes() != wanted:
        print(f"{path} is not what its sources say; run: python -m cartdeck_sdk.manifest {package}", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
