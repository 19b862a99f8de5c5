"""Owns the making of a new cartridge: its name checked, its words chosen, its manifest generated, its files written.

It does not know what the files say beyond those words; the templates of each language stand beside this module.
"""

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from typing import Final

from cartdeck.scaffold.cap_shape import CapShape, default_urn, shape_of
from cartdeck.scaffold.writing import write_cartridge
from cartdeck_protocol.caps import Manifest, ValueKind, build_manifest
from cartdeck_protocol.errors import Code, failure

LANGUAGES: Final = ("python", "node")
_LONGEST_NAME: Final = 80
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def new_cartridge(name: str, *, cap: str | None, language: str, folder: Path) -> list[str]:
    """Write a cartridge `name` into `folder`, which is new or empty; the paths that were written, sorted.

    `cap` is the URN of what it serves, or None for one of text. Raises BAD_ARGUMENT for a name, a URN or a folder that
    cannot be used, and INSUFFICIENT_STORAGE.
    """
    _check_name(name, language)
    shape = shape_of(cap if cap is not None else default_urn(name), name=name)
    words = {
        "name": name,
        "package": name.replace("-", "_"),
        "tests": "tests",  # the folder of templates has another name: ours are left out of the wheel by theirs
        "title": name.replace("-", " ").capitalize(),
        "alias": shape.alias,
        "function": shape.alias.replace("-", "_") + ("_" if keyword.iskeyword(shape.alias) else ""),
        "urn": str(shape.urn),
        "sample": shape.sample.rstrip("\n"),
        "imports": "\nimport json\n" if shape.gives is ValueKind.JSON else "",
        "body": _python_body(shape),
        "node_body": _node_body(shape),
        "call_arguments": f" --arg {shape.argument}={_shell_sample(shape)}" if shape.argument else "",
    }
    manifest = _manifest(shape, words)
    if language == "node":
        own = {f"{shape.alias}.toml": shape.definition.encode(), "manifest.json": manifest.to_json()}
        return write_cartridge("node", folder, words, more=own)
    package = words["package"]
    definition = {f"{package}/{shape.alias}.toml": shape.definition.encode()}
    more = {**definition, f"{package}/manifest.json": manifest.to_json()}
    return write_cartridge("python", folder, words, more=more)


def _manifest(shape: CapShape, words: dict[str, str]) -> Manifest:
    text = (
        f'name = "{words["name"]}"\nversion = "0.1.0"\ntitle = "{words["title"]}"\n'
        f'description = "Say here what it is good for."\ncaps = ["{shape.alias}"]\n{shape.sample}'
    )
    return build_manifest(text, lambda alias: shape.definition if alias == shape.alias else None)


def _check_name(name: str, language: str) -> None:
    if language not in LANGUAGES:
        message = f"--language: found {language!r}, expected one of {', '.join(LANGUAGES)}."
        raise failure(Code.BAD_ARGUMENT, message, argument="--language")
    if not _NAME.fullmatch(name):
        message = (
            f"{name!r} is no name for a cartridge: small letters, digits and single hyphens, such as 'read-signs'."
        )
        raise failure(Code.BAD_ARGUMENT, message, argument="NAME")
    if len(name) > _LONGEST_NAME:
        message = f"The name has {len(name)} characters; expected at most {_LONGEST_NAME}."
        raise failure(Code.BAD_ARGUMENT, message, argument="NAME")
    package = name.replace("-", "_")
    if language == "python" and (
        keyword.iskeyword(package)
        or package in sys.stdlib_module_names
        or importlib.util.find_spec(package) is not None
    ):
        message = f"{package} is a word of Python, or a package that is installed already; choose another name."
        raise failure(Code.BAD_ARGUMENT, message, argument="NAME")


def _python_body(shape: CapShape) -> str:
    lines = [f'given = request["{shape.argument}"]'] if shape.argument else []
    if shape.gives is None or (shape.argument and "given" not in shape.answer):
        lines.append('output.log("info", f"got {given!r:.80}")' if shape.argument else 'output.log("info", "done")')
    if shape.gives is not None:
        lines.append(f"await output.write({shape.answer})")
    return "\n".join(f"    {line}" for line in lines)


def _node_body(shape: CapShape) -> str:
    lines = [] if shape.gives is None else [f"await call.write({shape.node_answer});"]
    if shape.argument and "given." not in "".join(lines):
        lines.insert(0, f"call.log('info', `got ${{given.{shape.argument}}}`);")
    return "\n".join(f"    {line}" for line in lines)


def _shell_sample(shape: CapShape) -> str:
    value = shape.sample.partition(" = ")[2].strip()
    return value.strip("\"'") if shape.takes in (ValueKind.TEXT, ValueKind.BYTES) else "..."
