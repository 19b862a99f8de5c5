# pyright: basic
# Of torch's names many have no types.
"""Owns one rank's share of a language model: which part of each tensor is read, and where parts are joined.

It does not know what is computed with it. The heads of attention and the inner values of MLPs and experts are divided,
each rank's result is a part of a sum; what stands at the edges (projections of linear attention, the numbers of the
vocabulary) is divided by its outputs and put together; embeddings, norms and routers are whole on every rank.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig

from cartdeck_torch.engine.collective import add_up, put_together
from cartdeck_torch.engine.eyes import language_class
from cartdeck_torch.engine.loading import UNUSED_BY_TEXT, Report, check_tensors, refusing
from cartdeck_torch.engine.torch_device import TorchDevice, choose_dtype
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.settings import LoadSettings


class Division(Enum):
    """How a module's tensors are divided."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"
    PAIRED = "paired"
    """Outputs of two projections that lie one behind the other in one tensor, each divided."""
    JOINED = "joined"
    """By outputs, which every rank is given whole again."""


_DIVISIONS = (
    (r"\.self_attn\.[qkv]_proj\.(weight|bias)", Division.OUTPUTS),
    (r"\.self_attn\.o_proj\.(weight|bias)", Division.INPUTS),
    (r"\.linear_attn\.(in_proj_\w+|out_proj)\.(weight|bias)", Division.JOINED),
    (r"\.mlp\.(shared_expert\.)?(gate|up)_proj\.(weight|bias)", Division.OUTPUTS),
    (r"\.mlp\.(shared_expert\.)?down_proj\.(weight|bias)", Division.INPUTS),
    (r"\.mlp\.experts\.gate_up_proj", Division.PAIRED),
    (r"\.mlp\.experts\.down_proj", Division.INPUTS),
    (r"(^|\.)lm_head\.weight", Division.JOINED),
)
_EYES = re.compile(r"(^|\.)(visual|vision_tower|vision_model|multi_modal_projector|connector)\.")
"""Modules that make images into tokens: whole on every rank."""
_OTHER_NAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^model\.", "model.language_model."),
        (r"^model\.language_model\.", "language_model.model."),
        (r"^model\.language_model\.", "model."),
        (r"^lm_head\.", "language_model.lm_head."),
        (r"^model\.(visual|vision_tower|multi_modal_projector)\.", r"\1."),
        (r"^model\.vision_tower\.", "vision_tower.vision_model."),
        (r"^model\.vision_tower\.", "model.vision_tower.vision_model."),
    )
)
"""How files call tensors otherwise than transformers' modules do: those of a text's model that has eyes in its files
and is used without them, and those that were written by earlier versions."""


_JOINS = {Division.INPUTS: add_up, Division.JOINED: put_together}


@dataclass(frozen=True, slots=True)
class Share:
    """The part `rank` of `ranks`."""

    rank: int
    ranks: int

    def cut(self, tensor: Any, dim: int, *, first: int = 0, size: int | None = None) -> torch.Tensor:
        """This rank's part of `tensor` in `dim`, of the values from `first` on; `tensor` may be a slice of a file, of
        which the rest is not read then."""
        shape = tensor.get_shape() if hasattr(tensor, "get_shape") else tensor.shape
        width = (shape[dim] - first if size is None else size) // self.ranks
        begin = first + self.rank * width
        return tensor[(*[slice(None)] * dim, slice(begin, begin + width))]


def load_share(
    folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, share: Share, report: Report
) -> tuple[Any, torch.dtype, str | None]:
    """As `load_weights`, for a part of a causal language model; the group is joined already."""
    dtype, notice = choose_dtype(settings.dtype, folder.main_dtype, device)
    with refusing(folder), torch.device("meta"):
        config = AutoConfig.from_pretrained(str(folder.path), local_files_only=True, trust_remote_code=False)
        model = language_class(folder).from_config(config, dtype=dtype, trust_remote_code=False)
    _compute_buffers(model, device.device)  # before the weights: modules are told to begin anew, weights and all
    _Reader(folder, share, device.device).fill(model, report)
    model.tie_weights()
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not left, f"nothing says what {left[:3]} are"
    model.eval()
    return model, dtype, notice


class _Reader:
    """Reads one rank's part of each tensor."""

    def __init__(self, folder: ModelFolder, share: Share, device: torch.device) -> None:
        self._folder = folder
        self._share = share
        self._device = device
        self._files = {name: file for file, entries in folder.weights.items() for name in entries}
        self._shapes = {name: entry.shape for entries in folder.weights.values() for name, entry in entries.items()}
        self._used: set[str] = set()
        self._open: dict[Any, Any] = {}
        self._joins: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}

    def fill(self, model: Any, report: Report) -> None:
        wanted = dict(model.named_parameters())
        sources = {name: self._sources(name, tensor) for name, tensor in wanted.items()}
        missing = [name for name, found in sources.items() if not found]
        wrong = [name for name, found in sources.items() if found and not self._fits(found, wanted[name])]
        self._used |= {name for found in sources.values() for name in found}
        extra = [name for name in self._files if name not in self._used]
        if model.config.tie_word_embeddings:
            extra = [name for name in extra if not name.endswith("lm_head.weight")]
        info = {"missing_keys": missing, "unexpected_keys": extra, "mismatched_keys": wrong}
        check_tensors(self._folder, info, UNUSED_BY_TEXT)
        total, done = sum(tensor.numel() for tensor in wanted.values()), 0
        for name, tensor in wanted.items():
            self._put(model, name, tensor, sources[name])
            done += tensor.numel()
            report(done / total)
        self._open.clear()
        for place, join in self._joins.items():
            model.get_submodule(place).register_forward_hook(_after(join))

    def _sources(self, name: str, tensor: torch.Tensor) -> list[str]:
        """The tensors of the files that `name` is made of: itself, or those of single experts."""
        for own in (name, *(pattern.sub(other, name) for pattern, other in _OTHER_NAMES)):
            if own in self._files:
                return [own]
            head, mark, kind = own.rpartition(".experts.")
            if mark:
                parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
                names = [f"{head}.experts.{e}.{part}.weight" for e in range(tensor.shape[0]) for part in parts]
                if all(one in self._files for one in names):
                    return names
        return []

    def _fits(self, sources: list[str], tensor: torch.Tensor) -> bool:
        if len(sources) == 1 and self._shapes[sources[0]] == tuple(tensor.shape):
            return True
        each = len(sources) // tensor.shape[0] if tensor.dim() == 3 else 0  # one tensor of an expert, or two
        one = (tensor.shape[1] // each, tensor.shape[2]) if each else ()
        return bool(each) and all(self._shapes[name] == one for name in sources)

    def _put(self, model: Any, name: str, meta: torch.Tensor, sources: list[str]) -> None:
        place, _, own = name.rpartition(".")
        module = model.get_submodule(place)
        division = _division(name, meta, self._share)
        if len(sources) > 1:
            each = len(sources) // meta.shape[0]
            dim = 0 if division is Division.PAIRED else 1
            rows = [self._share.cut(self._slice(one), dim) for one in sources]
            part = torch.stack([torch.cat(rows[e : e + each]) for e in range(0, len(rows), each)])
        else:
            part = self._part(self._slice(sources[0]), meta, division)
        if own == "bias" and division is Division.INPUTS and self._share.rank:
            module.bias = None  # it is added once
            return
        if division in _JOINS:
            self._joins[place] = _JOINS[division]
        made = part.to(device=self._device, dtype=meta.dtype).contiguous()
        module._parameters[own] = torch.nn.Parameter(made, requires_grad=False)
        if isinstance(module, torch.nn.Linear) and own == "weight":
            module.out_features, module.in_features = made.shape

    def _part(self, source: Any, meta: torch.Tensor, division: Division | None) -> torch.Tensor:
        share = self._share
        if division is None or (division is Division.INPUTS and meta.dim() == 1):
            return source[:]
        if division is Division.PAIRED:
            half = meta.shape[1] // 2
            return torch.cat([share.cut(source, 1, first=first, size=half) for first in (0, half)], dim=1)
        return share.cut(source, meta.dim() - 1 if division is Division.INPUTS else 0)

    def _slice(self, name: str) -> Any:
        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(str(file), framework="pt")
        return self._open[file].get_slice(name)


def _compute_buffers(model: Any, device: torch.device) -> None:
    """What modules compute for themselves and no file holds: angles of positions, the numbers of patches."""
    for place, module in model.named_modules():
        names = [name for name, tensor in module.named_buffers(recurse=False) if tensor.is_meta]
        if not names:
            continue
        for name in names:
            made = torch.empty_like(module._buffers[name], device=device)
            nothing = float("nan") if made.is_floating_point() else torch.iinfo(made.dtype).min
            module._buffers[name] = made.fill_(nothing)
        _owner(model, place)._init_weights(module)
        for name in names:
            first = module._buffers[name].flatten()[:1]
            is_made = bool(torch.isfinite(first).all()) and float(first.min()) >= 0
            assert is_made, f"nothing says what {name} of {type(module)} is"


def _owner(model: Any, place: str) -> Any:
    """The innermost of transformers' models around a module: it knows how the module begins."""
    while not hasattr(model.get_submodule(place), "_init_weights"):
        place = place.rpartition(".")[0]
    return model.get_submodule(place)


def _division(name: str, meta: torch.Tensor, share: Share) -> Division | None:
    """None for what is whole on every rank: also what is put together anyway and does not divide."""
    if _EYES.search(name):
        return None
    found = next((division for pattern, division in _DIVISIONS if re.search(f"{pattern}$", name)), None)
    return None if found is Division.JOINED and meta.shape[0] % share.ranks else found


def _after(join: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda _module, _inputs, output: join(output)
