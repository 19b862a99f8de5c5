# pyright: basic
# Of transformers' names many have no types.
"""Owns bringing a checked folder's weights into a model: safetensors alone, nothing missing, nothing left over.

It does not know what the model is for.
"""

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.device import Meaning, meaning_of
from cartdeck_torch.engine.torch_device import TorchDevice, choose_dtype
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.settings import LoadSettings

UNUSED_BY_TEXT = ("mtp.", "model.mtp.", "visual.", "model.visual.")
"""Layers that predict further tokens, and towers for images: files may hold them, plain text needs none."""

Report = Callable[[float], None]
"""Called with the part of the weights that is there; what it raises gives the load up."""


def load_weights(
    kind: Any, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Report, unused=(), **options
) -> tuple[Any, torch.dtype, str | None]:
    """A model of the class `kind` on the device, the type it computes in, and what is to be said of that type.

    `unused`: beginnings of the names of tensors that files of this kind may hold and that are not used here. Raises
    `BAD_MODEL_FILE` for tensors that are missing, left over or of another shape, and what `report` raises.
    """
    dtype, notice = choose_dtype(settings.dtype, folder.main_dtype, device)
    with refusing(folder), _reporting(report):
        model, info = kind.from_pretrained(
            str(folder.path),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are listed then, and refused below
            **options,
        )
    check_tensors(folder, info, tuple(unused))
    model.eval()
    return model.to(device.device), dtype, notice


@contextmanager
def refusing(folder: ModelFolder):
    """What the block raises of the folder's files becomes `BAD_MODEL_FILE`, whatever class the libraries give it; an
    error of the device's stays what it is."""
    try:
        yield
    except CartdeckError:
        raise
    except Exception as error:
        if meaning_of(error) is not Meaning.ORDINARY:
            raise
        words = " ".join(str(error).split())
        raise _bad(folder, words[:500] or repr(error)) from error


def check_ids(ids: Iterable[int], vocabulary_size: int, *, name: str) -> None:
    """Raises `BAD_MODEL_FILE` for a token that the model has no vector for: on a GPU it would cost the device."""
    largest = max(ids, default=0)
    if largest >= vocabulary_size:
        raise failure(
            Code.BAD_MODEL_FILE,
            f"the tokenizer of {name} gave the token {largest}, and the model has {vocabulary_size} tokens; "
            "the two do not belong together",
            phase="inference",
            details={"token": largest, "vocabulary_size": vocabulary_size},
        )


def check_tensors(folder: ModelFolder, info: dict, unused: tuple[str, ...]) -> None:
    """Raises `BAD_MODEL_FILE` for the `missing_keys`, `unexpected_keys` (but for those that begin as `unused`) and
    `mismatched_keys` of a load."""
    missing = sorted(info["missing_keys"])
    extra = sorted(key for key in info["unexpected_keys"] if not key.startswith(unused))
    mismatched = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])
    for what, names in (("lacks", missing), ("has no use for", extra), ("has another shape for", mismatched)):
        if names:
            raise _bad(
                folder,
                f"it {what} {len(names)} tensors: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}",
                tensors=names[:50],
            )


def _bad(folder: ModelFolder, found: str, **details: Any) -> CartdeckError:
    return failure(
        Code.BAD_MODEL_FILE,
        f"{folder.path} is no whole {folder.model_type} model: {found}",
        phase="load",
        details={"path": str(folder.path), "found": found, **details},
    )


@contextmanager
def _reporting(report: Report):
    """transformers' own bar over the parameters becomes `report`. The hook is the library's, for the whole process; one
    load runs at a time."""

    def hook(_factory: Any, args: Any, kwargs: Any) -> "_Bar":
        return _Bar(args[0] if args else kwargs.get("iterable"), kwargs.get("total"), report)

    before = transformers_logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(before)


class _Bar:
    """Stands for a tqdm bar."""

    def __init__(self, iterable: Any, total: int | None, report: Report) -> None:
        self._iterable = iterable
        self._total = total or (len(iterable) if hasattr(iterable, "__len__") else 0)
        self._report = report
        self._done = 0

    def __iter__(self):
        for item in self._iterable or ():
            yield item
            self.update()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __len__(self) -> int:
        return self._total

    def update(self, count: int = 1) -> None:
        self._done += count
        if self._total:
            self._report(min(1.0, self._done / self._total))

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None
