"""Owns which files are one model: the parts of a split one, and the one that a folder holds.

It does not know what is in them beyond their count.
"""

import os
import re
from pathlib import Path

from cartdeck_modelkit.gguf.header import Header, read_header
from cartdeck_protocol.errors import Code, failure

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)


def read_model(path: Path) -> list[Header]:
    """The headers of every file of the model at `path`, the first one first; any part of a split model stands for it,
    and so does a folder that holds no other GGUF file.

    Raises what `read_header` raises, `BAD_MODEL_FILE` for a folder that holds none or several, with their names,
    `MODEL_TRUNCATED` for a file whose tensors are cut off, `MISSING_SHARD` with the names of the missing parts,
    `BAD_MODEL_FILE` for a part under a name that does not tell its place.
    """
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a path that cannot be; read_header says it well
        path = _only_model_in(path)
    header = read_header(path)
    count = header.integer("split.count") or 1
    headers = [header] if count <= 1 else [read_header(part) for part in _parts(path, count)]
    for one in headers:
        one.check_complete()
    return headers


def _only_model_in(folder: Path) -> Path:
    names = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ".gguf" and path.is_file())
    models: dict[str, str] = {}  # the parts of a split model count once, under what their names share
    for name in names:
        match = _SHARD_NAME.fullmatch(name)
        models.setdefault(f"{match['stem']}-of-{match['count']}" if match else name, name)
    if len(models) == 1:
        return folder / names[0]
    if models:
        named = ", ".join(list(models.values())[:5]) + (", …" if len(models) > 5 else "")
        found, wanted = f"a folder with {len(models)} GGUF models: {named}", "the path of one of them"
    else:
        found, wanted = "a folder without a GGUF file", "a GGUF model file, or a folder that holds one"
    raise failure(
        Code.BAD_MODEL_FILE,
        f"{folder} is {found}. Expected {wanted}.",
        argument="model",
        details={"found": found, "path": str(folder), "files": names[:100]},
    )


def _parts(path: Path, count: int) -> list[Path]:
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise failure(
            Code.BAD_MODEL_FILE,
            f"{path} is one of {count} parts of a split model, and its name must end in -00001-of-{count:05}.gguf "
            "or the like for the others to be found",
            details={"found": "a part of a split model under another name", "path": str(path)},
        )
    parts = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        named = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise failure(
            Code.MISSING_SHARD,
            f"{len(missing)} of the {count} parts of {path.name} are not in {path.parent}: {named}",
            details={"missing": missing[:100]},
        )
    return parts
