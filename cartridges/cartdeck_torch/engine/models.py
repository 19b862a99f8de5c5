# pyright: basic
# Of the engine's names many have no types.
"""Owns which class of the engine a folder's model becomes.

It does not know what they do. Each is imported when it is needed: transformers' models take a second each.
"""

from collections.abc import Callable
from typing import Any

from cartdeck_torch.engine.torch_device import TorchDevice
from cartdeck_torch.family import CAUSAL, ENCODERS, SEEING
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.parallel.group import RankGroup
from cartdeck_torch.settings import LoadSettings


def open_model(
    folder: ModelFolder,
    settings: LoadSettings,
    device: TorchDevice,
    *,
    report: Callable[[float], None],
    ranks: RankGroup | None = None,
) -> Any:
    """The model of a checked folder on the device; `report(fraction)` may raise to give the load up.

    `ranks` are the other processes where there are to be some, started before. Each model has `dtype`, `notice`, and
    what its caps need.
    """
    if settings.tensor_parallel > 1:
        return _parallel_class()(folder, settings, device, report=report, ranks=ranks)
    return _class_of(folder.model_type)(folder, settings, device, report=report)


def _class_of(model_type: str) -> Any:
    if model_type in ENCODERS:
        from cartdeck_torch.engine.embedder import TextEmbedder  # noqa: PLC0415 - see above

        return TextEmbedder
    if model_type == "clip":
        from cartdeck_torch.engine.clip import ClipEmbedder  # noqa: PLC0415 - see above

        return ClipEmbedder
    if model_type == "blip":
        from cartdeck_torch.engine.blip import Captioner  # noqa: PLC0415 - see above

        return Captioner
    if model_type == "whisper":
        from cartdeck_torch.engine.whisper import Transcriber  # noqa: PLC0415 - see above

        return Transcriber
    if model_type in (*CAUSAL, *SEEING):
        from cartdeck_torch.engine.causal import TextGenerator  # noqa: PLC0415 - see above

        return TextGenerator
    raise AssertionError(f"{model_type} was let through and has no class")


def _parallel_class() -> Any:
    from cartdeck_torch.engine.parallel_text import ParallelTextGenerator  # noqa: PLC0415 - see above

    return ParallelTextGenerator
