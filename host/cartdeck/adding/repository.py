"""Owns the text that names a repository of a model hub, and files in it at a revision.

It does not know whether they are there: the models cartridge reads specs in full.
"""

import re
import shlex
from dataclasses import dataclass
from typing import Final

from cartdeck.catalog.source_text import about_address
from cartdeck_protocol.errors import Code, failure

_REPOSITORY: Final = re.compile(
    r"(?:hf:)?(?P<name>[\w][\w.-]{0,95}/[\w][\w.-]{0,95})(?:@(?P<revision>[\w][\w./-]*))?(?::(?P<file>.+))?", re.ASCII
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.+-]+")
_FORMAT: Final = re.compile(r"[-_.]gguf$", re.IGNORECASE)
_LONGEST_NAME: Final = 128
_ELSEWHERE: Final = ("pypi:", "package:", "/", "./", "../", "~")
"""How the specs of models begin that are not on a hub."""
MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class Repository:
    """`owner/name`, and what is said of it: a branch, tag or commit; a file, glob or quantization in it."""

    name: str
    revision: str | None = None
    file: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    @property
    def spec(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        file = f":{self.file}" if self.file else ""
        return f"hf:{self.name}{revision}{file}"

    @property
    def short_name(self) -> str:
        """What a person would call its model: the repository's name without its owner and format."""
        name = _FORMAT.sub("", self.name.partition("/")[2]) or self.name.partition("/")[2]
        return _NOT_IN_NAMES.sub("-", name).lstrip("_.+-")[:_LONGEST_NAME] or "model"


def parse_repository(text: str, *, argument: str = "repository") -> Repository:
    """The repository that the text names. Raises BAD_ARGUMENT for a text of another form."""
    found = _REPOSITORY.fullmatch(text.strip())
    if found is None:
        message = (
            f"{text[:120]!r} names no repository of a hub; expected owner/name or hf:owner/name[@REVISION][:FILE]."
            f"{_instead(text.strip())}"
        )
        raise failure(Code.BAD_ARGUMENT, message, argument=argument)
    return Repository(found["name"], found["revision"], found["file"])


def _instead(text: str) -> str:
    """What a text of another form may mean, as a sentence."""
    if (said := about_address(text)) is not None:
        return f" {said[0].upper()}{said[1:]}." if "write hf:" in said else ""
    if text.startswith(_ELSEWHERE) or text.lower().endswith((".gguf", ".safetensors")):
        return f" `cartdeck catalog add NAME {shlex.quote(text[:120])}` adds a model that is not on a hub."
    return ""


def repository_of(source: str | None) -> Repository | None:
    """The repository of a catalog's source; None for a source of another kind."""
    if source is None or not source.startswith("hf:"):
        return None
    found = _REPOSITORY.fullmatch(source)
    return None if found is None else Repository(found["name"], found["revision"], found["file"])
