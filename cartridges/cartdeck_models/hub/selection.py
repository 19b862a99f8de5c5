"""Owns which files of a repository a model spec asks for.

It is pure: it sees a listing and a spec, and knows no network, no disk and no memory.
"""

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic

from cartdeck_models.hub.gguf_name import (
    F,
    WeightFiles,
    best_projector,
    group_weights,
    is_gguf,
    is_model,
    is_projector,
    is_quantization,
    last_part,
    normal_quantization,
    preference,
)
from cartdeck_models.hub.safetensors_choice import companions, is_weights, main_weights
from cartdeck_models.near_name import near_names, near_sentence
from cartdeck_models.spec import HubSpec
from cartdeck_models.task import size_text
from cartdeck_protocol.errors import CartdeckError, Code, failure

UNSAFE_SUFFIXES: Final = (
    ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".mar", ".dill", ".h5", ".keras",
)  # fmt: skip  # a list to scan
"""Formats that run code when they are read, or that nothing here reads."""
MOST_CANDIDATES: Final = 40


@dataclass(frozen=True, slots=True)
class Choice(Generic[F]):
    """The files to fetch, and what of them stands for the model.

    `main` is the file whose path is the answer, the first part of a split one; where it is None the answer is the
    folder `folder` of the repository ("" for its root). `projector` is among `files`.
    """

    files: tuple[F, ...]
    main: F | None = None
    folder: str = ""
    quantization: str | None = None
    projector: F | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def choose_files(
    files: Sequence[F], spec: HubSpec, *, quantization: str | None = None, wants_projector: bool = False
) -> Choice[F]:
    """What `spec` asks for among `files`, the whole listing of its repository.

    `quantization` is what the fit advises, for a spec that names none; `wants_projector` adds the vision projector
    that lies beside a GGUF model. Raises FILE_NOT_FOUND with near names or with what the repository holds,
    BAD_ARGUMENT with `candidates` for a choice that is ambiguous, UNSAFE_WEIGHTS for formats that run code,
    MISSING_SHARD for a split model that is not whole.
    """
    left = [file for file in files if not matches(file.path, spec.exclude)]
    safe = [file for file in left if not is_unsafe(file.path)]
    included = [file for file in safe if matches(file.path, spec.include)]
    if spec.file is not None:
        choice = _named(spec, spec.file, left=left, safe=safe)
    elif spec.include:
        return _included(spec, included, left)
    else:
        choice = _default(spec, left=left, safe=safe, quantization=quantization)
    if wants_projector:
        choice = _with_projector(spec, choice, safe)
    chosen = {file.path for file in choice.files}
    return _replaced(choice, [file for file in included if file.path not in chosen])


def gguf_candidates(files: Sequence[F], spec: HubSpec) -> list[WeightFiles[F]]:
    """The GGUF models that `spec` may mean, each with all its parts; empty where it means no GGUF model."""
    left = [file for file in files if not matches(file.path, spec.exclude) and is_model(file.path)]
    if spec.file is not None:
        left = files_named(spec.file, left)
    elif spec.include:
        left = [file for file in left if matches(file.path, spec.include)]
    return whole_groups(left, files)


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether one of `globs` fits the whole path or its last part; one that ends in `/` means all in that folder."""
    return any(_fits(path, glob) for glob in globs)


def is_unsafe(path: str) -> bool:
    return path.lower().endswith(UNSAFE_SUFFIXES)


def _fits(path: str, glob: str) -> bool:
    if glob.endswith("/"):
        return path.startswith(glob)
    return path == glob or fnmatch.fnmatchcase(path, glob) or fnmatch.fnmatchcase(last_part(path), glob)


def _named(spec: HubSpec, name: str, *, left: Sequence[F], safe: Sequence[F]) -> Choice[F]:
    """The choice for a spec that names a file, a glob, a folder or a quantization."""
    found = files_named(name, safe)
    if not found:
        raise _nothing_named(spec, name, left)
    models = [file for file in found if is_model(file.path)] or [file for file in found if is_gguf(file.path)]
    weights = [file for file in found if is_weights(file.path)]
    if models:
        return _gguf(spec, whole_groups(models, safe), name)
    if weights:
        return _safetensors(spec, whole_groups(weights, safe), safe)
    if len(found) > 1:
        raise _ambiguous(spec, f"{name!r} fits {len(found)} files", [WeightFiles((file,), None) for file in found])
    return Choice((found[0],), found[0])


def files_named(name: str, files: Iterable[F]) -> list[F]:
    """The files that `name` means: the one at this path; else of this last part, this glob, or this quantization."""
    files = list(files)
    found = [file for file in files if file.path == name] or [file for file in files if last_part(file.path) == name]
    found = found or [file for file in files if _fits(file.path, name)]
    if found:
        return found
    if is_quantization(name):
        groups = group_weights(file for file in files if is_model(file.path) or is_weights(file.path))
        wanted = normal_quantization(name)
        for strip in ("", "UD-"):
            chosen = [group for group in groups if (group.quantization or "").removeprefix(strip) == wanted]
            if chosen:
                return [file for group in chosen for file in group.files]
    return []


def whole_groups(some: Sequence[F], files: Sequence[F]) -> list[WeightFiles[F]]:
    """The models that `some` of the files belong to, with the parts that `some` leaves out."""
    paths = {file.path for file in some}
    return [group for group in group_weights(files) if any(file.path in paths for file in group.files)]


def _gguf(spec: HubSpec, groups: list[WeightFiles[F]], said: str) -> Choice[F]:
    if len(groups) > 1:
        raise _ambiguous(spec, f"{said!r} fits {len(groups)} models", groups)
    return _of_group(spec, groups[0])


def _of_group(spec: HubSpec, group: WeightFiles[F]) -> Choice[F]:
    if group.missing:
        raise failure(
            Code.MISSING_SHARD,
            f"{spec.repository} lists {len(group.files)} parts of {group.path}, and not {', '.join(group.missing[:3])}"
            + ("." if len(group.missing) <= 3 else f" and {len(group.missing) - 3} more."),
            argument="model",
            details={"missing": list(group.missing[:100])},
        )
    return Choice(group.files, group.files[0], quantization=group.quantization)


def _default(spec: HubSpec, *, left: Sequence[F], safe: Sequence[F], quantization: str | None) -> Choice[F]:
    """The choice for a spec that says nothing: a GGUF model of the default quantization, else the safetensors."""
    groups = group_weights(file for file in safe if is_model(file.path))
    if groups:
        wanted = quantization or min((group.quantization for group in groups), key=preference)
        chosen = [group for group in groups if group.quantization == wanted]
        if len(chosen) != 1:
            what = f"{spec.repository} holds {len(chosen)} GGUF models" + (f" of {wanted}" if wanted else "")
            raise _ambiguous(spec, what, chosen or groups)
        return _of_group(spec, chosen[0])
    weights = group_weights(file for file in safe if is_weights(file.path))
    if weights:
        return _safetensors(spec, weights, safe)
    raise _no_model(spec, left)


def _safetensors(spec: HubSpec, groups: list[WeightFiles[F]], files: Sequence[F]) -> Choice[F]:
    group = groups[0] if len(groups) == 1 else main_weights(groups)
    if group is None:
        raise _ambiguous(spec, f"{spec.repository} holds {len(groups)} sets of safetensors weights", groups)
    folder = group.path.rpartition("/")[0]
    chosen = _of_group(spec, group)
    return Choice((*chosen.files, *companions(group, files)), None, folder)


def _included(spec: HubSpec, included: list[F], left: Sequence[F]) -> Choice[F]:
    """The choice for a spec with globs alone: all that they fit, each split model whole."""
    if not included:
        unsafe = [file.path for file in left if matches(file.path, spec.include)]
        if unsafe:
            raise _unsafe(spec, unsafe)
        raise failure(
            Code.FILE_NOT_FOUND,
            f"Nothing in {spec.repository} fits {', '.join(spec.include)}. It holds {_summary(left)}.",
            argument="model",
        )
    groups = group_weights(file for file in included if is_model(file.path))
    if len(groups) == 1 and not any(is_weights(file.path) for file in included):
        chosen = _of_group(spec, groups[0])
        projector = best_projector(included)
        parts = {file.path for file in chosen.files}
        more = [file for file in included if file.path not in parts]
        return Choice((*chosen.files, *more), chosen.main, "", chosen.quantization, projector)
    if len(included) == 1:
        return Choice(tuple(included), included[0])
    folders = {file.path.rpartition("/")[0] for file in included}
    return Choice(tuple(included), None, folders.pop() if len(folders) == 1 else "")


def _with_projector(spec: HubSpec, choice: Choice[F], files: Sequence[F]) -> Choice[F]:
    if choice.main is None or not is_model(choice.main.path):
        return choice  # safetensors hold their own
    beside = choice.main.path.rpartition("/")[0]
    projector = best_projector([file for file in files if file.path.rpartition("/")[0] == beside]) or best_projector(
        files
    )
    if projector is None:
        raise failure(
            Code.FILE_NOT_FOUND,
            f"{spec.repository} lists no vision projector (a GGUF file named mmproj…) for {choice.main.path}.",
            argument="model",
            details={"missing": "projector"},
        )
    files_with = choice.files if projector in choice.files else (*choice.files, projector)
    return Choice(files_with, choice.main, choice.folder, choice.quantization, projector)


def _replaced(choice: Choice[F], more: list[F]) -> Choice[F]:
    """`choice` with `more` files, of which a projector may be one."""
    if not more:
        return choice
    projector = choice.projector or best_projector(more)
    return Choice((*choice.files, *more), choice.main, choice.folder, choice.quantization, projector)


def _ambiguous(spec: HubSpec, found: str, groups: Sequence[WeightFiles[Any]]) -> CartdeckError:
    shown = [f"{group.path} ({_size_and_parts(group)})" for group in groups[:MOST_CANDIDATES]]
    more = f", and {len(groups) - MOST_CANDIDATES} more" if len(groups) > MOST_CANDIDATES else ""
    return failure(
        Code.BAD_ARGUMENT,
        f"{found}: {', '.join(shown)}{more}. Name one: hf:{spec.repository}:{groups[0].path}",
        argument="model",
        details={
            "candidates": [
                {"path": group.path, "size_bytes": group.size_bytes, "files": len(group.files)}
                for group in groups[:200]
            ]
        },
    )


def _size_and_parts(group: WeightFiles[Any]) -> str:
    return size_text(group.size_bytes) + (f" in {len(group.files)} parts" if len(group.files) > 1 else "")


def _nothing_named(spec: HubSpec, name: str, left: Sequence[F]) -> CartdeckError:
    unsafe = [file.path for file in files_named(name, left) if is_unsafe(file.path)]
    if unsafe:
        return _unsafe(spec, unsafe)
    near = near_names(name, (file.path for file in left))
    if is_quantization(name):
        known = sorted(
            {group.quantization or "" for group in group_weights(f for f in left if is_model(f.path))} - {""}
        )
        near = known or near
    return failure(
        Code.FILE_NOT_FOUND,
        f"{spec.repository} holds no file {name!r}." + near_sentence(near, otherwise=f" It holds {_summary(left)}."),
        argument="model",
        details={"near": near},
    )


def _unsafe(spec: HubSpec, paths: Sequence[str]) -> CartdeckError:
    return failure(
        Code.UNSAFE_WEIGHTS,
        f"{paths[0]} of {spec.repository} is in a format that can run code when it is read; it is not fetched. "
        "Expected GGUF or safetensors.",
        argument="model",
        details={"files": list(paths[:100])},
    )


def _no_model(spec: HubSpec, left: Sequence[F]) -> CartdeckError:
    if any(is_projector(file.path) for file in left):
        hint = " Its GGUF files are no models by themselves; name one to have it alone."
    elif any(is_unsafe(file.path) for file in left):
        hint = " Files that can run code when they are read (.bin, .pt, pickles) are never fetched."
    else:
        hint = " Name a file (hf:owner/name:FILE) to have it alone."
    return failure(
        Code.UNSAFE_WEIGHTS if any(is_unsafe(file.path) for file in left) else Code.FILE_NOT_FOUND,
        f"{spec.repository} holds neither a GGUF model nor safetensors weights. It holds {_summary(left)}.{hint}",
        argument="model",
        details={"files": [file.path for file in left[:100]]},
    )


def _summary(files: Sequence[F]) -> str:
    """What is there by suffix: `3 .bin (5.0 GB), 2 .json (1.2 kB)`; the largest first."""
    counts, sizes = Counter[str](), Counter[str]()
    for file in files:
        name = last_part(file.path)
        suffix = "." + name.rpartition(".")[2].lower() if "." in name[1:] else name
        counts[suffix] += 1
        sizes[suffix] += file.size_bytes
    shown = [f"{counts[suffix]} {suffix} ({size_text(size)})" for suffix, size in sizes.most_common(8)]
    return ", ".join(shown) + (", …" if len(sizes) > 8 else "") if shown else "no files at all"


__all__ = ["Choice", "F", "choose_files", "files_named", "gguf_candidates", "is_unsafe", "matches", "whole_groups"]
