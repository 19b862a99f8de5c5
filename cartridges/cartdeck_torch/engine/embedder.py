# pyright: basic
# Of torch's names many have no types.
"""Owns vectors of texts from encoder models: batches without padding, pooling, unit norm.

It does not know requests. Of a batch the linear layers see all tokens in one row, and attention sees texts of one
length at a time: nothing is padded, so nothing needs a mask, and a text's vector does not depend on its company.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention

from cartdeck_torch.batching import equal_runs
from cartdeck_torch.engine.loading import load_weights
from cartdeck_torch.engine.tokens import TextTokens, Tokens
from cartdeck_torch.engine.torch_device import TorchDevice
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.pooling import embedding_shape
from cartdeck_torch.settings import LoadSettings

_POOLED = {"add_pooling_layer": False}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _POOLED),
    "camembert": ("CamembertModel", _POOLED),
    "distilbert": ("DistilBertModel", {}),
    "electra": ("ElectraModel", {}),
    "mpnet": ("MPNetModel", _POOLED),
    "roberta": ("RobertaModel", _POOLED),
    "xlm-roberta": ("XLMRobertaModel", _POOLED),
}
"""The class in transformers; each is imported when it is named, and takes a second."""
_HEADS = (
    "pooler.", "cls.", "lm_head.", "classifier.", "pre_classifier.", "vocab_", "qa_outputs.",
    "discriminator_predictions.", "generator_", "embeddings.position_ids",
)  # fmt: skip


class TextEmbedder:
    """An encoder on its device."""

    def __init__(
        self, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Callable[[float], None]
    ) -> None:
        self.shape = embedding_shape(folder)
        kind, options = _KINDS[folder.model_type]
        prefixes = ("", f"{folder.model_type}.", "bert.", "roberta.")
        unused = [prefix + head for prefix in prefixes for head in _HEADS]
        self.tokens = TextTokens(folder, max_tokens=self.shape.max_tokens)
        self.model, dtype, self.notice = load_weights(
            getattr(transformers, kind), folder, settings, device, report=report, unused=unused, **options
        )
        self.tokens.vocabulary_size = self.model.get_input_embeddings().weight.shape[0]
        self.device = device.device
        self.dtype = str(dtype).removeprefix("torch.")
        self._forward = self._packed if folder.model_type == "bert" and not self.model.config.is_decoder else self._runs
        if self._forward == self._packed:
            self._activation = self.model.encoder.layer[0].intermediate.intermediate_act_fn

    def encode(self, texts: Sequence[str], *, truncate: str) -> tuple[list[Tokens], int | None]:
        """As `TextTokens.encode`."""
        return self.tokens.encode(texts, truncate=truncate)

    def embed(self, batch: Sequence[Sequence[int]], *, pooling: str | None, normalize: bool) -> list[bytes | None]:
        """The vector of each text of the batch, little-endian float32; None for one that holds numbers that are not
        finite, computed alone too. Texts of one length should be neighbours."""
        vectors = self._vectors(batch, pooling, normalize=normalize)
        for index in np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
            vectors[index] = self._vectors([batch[index]], pooling, normalize=normalize)[0]
        return [vector.astype("<f4").tobytes() if np.isfinite(vector).all() else None for vector in vectors]

    def _vectors(self, batch: Sequence[Sequence[int]], pooling: str | None, *, normalize: bool) -> np.ndarray:
        runs = equal_runs([len(ids) for ids in batch])
        with torch.inference_mode():
            hidden = self._forward(batch, runs)
            vectors = self._pool(hidden, runs, pooling or self.shape.pooling)
            if normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
            return vectors.cpu().numpy()

    def _pool(self, hidden: torch.Tensor, runs: list[tuple[int, int]], pooling: str) -> torch.Tensor:
        """From [tokens, width] to [texts, width], float32."""
        parts = []
        first = 0
        for count, length in runs:
            part = hidden[first : first + count * length].view(count, length, -1)
            if pooling == "mean":
                parts.append(part.float().mean(dim=1))
            else:
                parts.append(part[:, 0 if pooling == "cls" else -1].float())
            first += count * length
        return torch.cat(parts)

    def _runs(self, batch: Sequence[Sequence[int]], runs: list[tuple[int, int]]) -> torch.Tensor:
        """The library's own pass over each run of texts of one length."""
        parts = []
        first = 0
        for count, length in runs:
            ids = torch.tensor([list(one) for one in batch[first : first + count]], device=self.device)
            parts.append(self.model(input_ids=ids).last_hidden_state.reshape(count * length, -1))
            first += count
        return torch.cat(parts)

    def _packed(self, batch: Sequence[Sequence[int]], runs: list[tuple[int, int]]) -> torch.Tensor:
        """BERT's pass over all tokens of the batch in one row: Devlin et al. 2018, section 3."""
        ids = torch.tensor([one for text in batch for one in text], device=self.device)
        places = torch.cat([torch.arange(length).repeat(count) for count, length in runs]).to(self.device)
        table = self.model.embeddings
        hidden = table.word_embeddings(ids) + table.token_type_embeddings.weight[0] + table.position_embeddings(places)
        hidden = table.LayerNorm(hidden)
        for layer in self.model.encoder.layer:
            attention = layer.attention
            mixed = self._attend(attention.self, hidden, runs)
            hidden = attention.output.LayerNorm(attention.output.dense(mixed) + hidden)
            inner = self._activation(layer.intermediate.dense(hidden))
            hidden = layer.output.LayerNorm(layer.output.dense(inner) + hidden)
        return hidden

    def _attend(self, attention: Any, hidden: torch.Tensor, runs: list[tuple[int, int]]) -> torch.Tensor:
        query, key, value = attention.query(hidden), attention.key(hidden), attention.value(hidden)
        heads, width = attention.num_attention_heads, attention.attention_head_size
        parts = []
        first = 0
        for count, length in runs:
            last = first + count * length
            split = [one[first:last].view(count, length, heads, width).transpose(1, 2) for one in (query, key, value)]
            mixed = scaled_dot_product_attention(*split, scale=attention.scaling)
            parts.append(mixed.transpose(1, 2).reshape(count * length, heads * width))
            first = last
        return parts[0] if len(parts) == 1 else torch.cat(parts)
