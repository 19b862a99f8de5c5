"""Vectors of texts, computed in this process: right whatever their company, cut where asked, refused where unsound."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.batching import plan_batches
from cartdeck_torch.device import DeviceMemory
from cartdeck_torch.folder import read_folder
from cartdeck_torch.settings import LoadSettings

BertFolder = Callable[..., Path]


def open_embedder(path: Path, **settings: Any) -> Any:
    from cartdeck_torch.engine.models import open_model
    from cartdeck_torch.engine.torch_device import open_device

    device = open_device("cpu", threads=1)
    return open_model(read_folder(path), LoadSettings(threads=1, **settings), device, report=lambda _: None)


def vectors_of(embedder: Any, texts: Sequence[str], *, truncate: str = "error", pooling: str | None = None) -> Any:
    tokens, too_many = embedder.encode(texts, truncate=truncate)
    assert too_many is None
    found: list[Any] = [None] * len(texts)
    for batch in plan_batches([len(one.ids) for one in tokens]):
        vectors = embedder.embed([tokens[index].ids for index in batch], pooling=pooling, normalize=True)
        for index, vector in zip(batch, vectors, strict=True):
            found[index] = np.frombuffer(vector, "<f4")
    return np.stack(found)


def error_of(path: Path, **settings: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        open_embedder(path, **settings)
    return caught.value


@pytest.fixture(scope="module")
def embedder(tiny_bert: Path) -> Any:
    return open_embedder(tiny_bert)


def test_a_text_has_the_same_vector_alone_and_beside_a_long_one(embedder: Any) -> None:
    short, long = "hi", "word " * 400
    alone = vectors_of(embedder, [short])[0]
    beside = vectors_of(embedder, [short, long])
    turned = vectors_of(embedder, [long, short])
    assert np.abs(beside[0] - alone).max() < 1e-4
    assert np.abs(turned[1] - alone).max() < 1e-4
    assert np.abs(turned[0] - beside[1]).max() < 1e-4
    assert np.linalg.norm(turned, axis=1) == pytest.approx([1, 1], abs=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_without_padding_are_those_of_the_library_with_padding(tiny_bert: Path, pooling: str) -> None:
    import torch
    import transformers

    texts = ["a man is eating food", "the girl reads", "a man is eating bread .", "hi"]
    ours = vectors_of(open_embedder(tiny_bert), texts, pooling=pooling)
    model = transformers.BertModel.from_pretrained(tiny_bert, add_pooling_layer=False)
    tokens, _ = open_embedder(tiny_bert).encode(texts, truncate="error")
    longest = max(len(one.ids) for one in tokens)
    ids = torch.tensor([one.ids + [0] * (longest - len(one.ids)) for one in tokens])
    mask = torch.tensor([[1] * len(one.ids) + [0] * (longest - len(one.ids)) for one in tokens])
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    lengths = mask.sum(1)
    theirs = {
        "mean": (hidden * mask[..., None]).sum(1) / lengths[:, None],
        "cls": hidden[:, 0],
        "last": hidden[torch.arange(4), lengths - 1],
    }[pooling]
    theirs = torch.nn.functional.normalize(theirs, dim=1).numpy()
    assert (ours * theirs).sum(1).min() > 0.99999


def test_the_real_model_gives_the_numbers_it_is_known_for(minilm: Path) -> None:
    embedder = open_embedder(minilm)
    assert (embedder.shape.dimensions, embedder.shape.max_tokens, embedder.shape.pooling) == (384, 256, "mean")
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]
    vectors = vectors_of(embedder, texts)
    assert vectors[0][:5] == pytest.approx([0.03324, 0.00441, -0.00628, 0.04838, -0.13870], abs=1e-5)
    assert vectors[0] @ vectors[1] == pytest.approx(0.7553, abs=1e-4)
    assert vectors[0] @ vectors[2] == pytest.approx(-0.1050, abs=1e-4)


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "mpnet", "electra"])
def test_other_encoders_embed_too(make_encoder: BertFolder, kind: str) -> None:
    changes: dict[str, Any] = {}
    if kind == "distilbert":
        changes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    if kind == "electra":
        changes = {"embedding_size": 32}
    embedder = open_embedder(make_encoder(kind, **changes))
    alone = vectors_of(embedder, ["a man is eating food"])
    beside = vectors_of(embedder, ["the girl reads", "a man is eating food", "hi ."])
    assert np.abs(alone[0] - beside[1]).max() < 1e-5


@pytest.mark.parametrize("words", [509, 510, 511, 5000])
def test_a_text_longer_than_the_model_sees_is_refused_or_cut_never_an_index_error(embedder: Any, words: int) -> None:
    text = "hi " + "word " * (words - 2) + "food"
    tokens, too_many = embedder.encode([text], truncate="error")
    if words <= 510:  # and two marks
        assert too_many is None
        assert len(tokens[0].ids) == words + 2
        return
    assert (tokens, too_many) == ([], words + 2)
    for truncate, kept in (("end", "hi"), ("start", "food")):
        ((cut,), _) = embedder.encode([text], truncate=truncate)
        assert cut.is_cut
        assert len(cut.ids) == 512
        whole, _ = embedder.encode([kept], truncate="error")
        assert cut.ids[1 if truncate == "end" else -2] == whole[0].ids[1]
        assert np.isfinite(vectors_of(embedder, [text], truncate=truncate)).all()


def test_half_precision_becomes_single_on_a_cpu_and_it_is_said(make_encoder: BertFolder) -> None:
    embedder = open_embedder(make_encoder("bert", dtype="float16"))
    assert embedder.dtype == "float32"
    assert "float32 is used" in embedder.notice
    assert np.isfinite(vectors_of(embedder, ["a man is eating food"])).all()
    kept = open_embedder(make_encoder("bert", dtype="bfloat16"))
    assert (kept.dtype, kept.notice) == ("bfloat16", None)


def test_weights_of_a_type_that_is_not_computed_in_are_refused_by_its_name() -> None:
    from cartdeck_torch.engine.torch_device import choose_dtype, open_device

    with pytest.raises(CartdeckError, match="F8_E4M3") as caught:
        choose_dtype("auto", "F8_E4M3", open_device("cpu", threads=1))
    assert caught.value.code is Code.UNSUPPORTED


def test_a_row_of_no_numbers_is_computed_alone_and_then_reported(embedder: Any) -> None:
    tokens, _ = embedder.encode(["a man", "the girl reads", "hi"], truncate="error")
    table = embedder.model.embeddings.word_embeddings.weight
    broken = tokens[1].ids[1]
    before = table[broken].clone()
    table[broken] = float("nan")
    try:
        vectors = embedder.embed([one.ids for one in tokens], pooling=None, normalize=True)
    finally:
        table[broken] = before
    assert vectors[1] is None
    assert np.isfinite(np.frombuffer(vectors[0], "<f4")).all()
    assert np.isfinite(np.frombuffer(vectors[2], "<f4")).all()


def test_tensors_that_are_missing_or_left_over_or_of_another_shape_refuse_the_load(
    tiny_bert: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    def damaged(name: str, change: Callable[[dict[str, Any]], Any]) -> CartdeckError:
        folder = tmp_path / name
        shutil.copytree(tiny_bert, folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return error_of(folder)

    key = "encoder.layer.1.output.dense.weight"
    missing = damaged("missing", lambda tensors: tensors.pop(key))
    assert missing.code is Code.BAD_MODEL_FILE
    assert f"lacks 1 tensors: {key}" in missing.message
    extra = damaged("extra", lambda tensors: tensors.update({"encoder.layer.7.thing": tensors[key].clone()}))
    assert "no use for 1 tensors: encoder.layer.7.thing" in extra.message
    shape = damaged("shape", lambda tensors: tensors.update({key: tensors[key][:, :5].clone()}))
    assert shape.code is Code.BAD_MODEL_FILE
    assert "output.dense.weight" in shape.message


def test_remote_code_is_never_run(tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "remote"
    shutil.copytree(tiny_bert, folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "evil.Evil", "AutoConfig": "evil.EvilConfig"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    open_embedder(folder)  # the built-in class of that kind
    assert not (tmp_path / "marker").exists()


def test_a_token_without_a_vector_is_refused_before_the_device_sees_it(tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "strange"
    shutil.copytree(tiny_bert, folder)
    record = json.loads((folder / "tokenizer.json").read_text())
    record["model"]["vocab"]["zebra"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(record))
    with pytest.raises(CartdeckError) as caught:
        open_embedder(folder).encode(["zebra"], truncate="error")
    assert caught.value.code is Code.BAD_MODEL_FILE
    assert caught.value.details == {"token": 5000, "vocabulary_size": 19}


def test_a_load_that_is_given_up_ends_there(tiny_bert: Path) -> None:
    from cartdeck_protocol.errors import failure
    from cartdeck_torch.engine.models import open_model
    from cartdeck_torch.engine.torch_device import open_device

    seen: list[float] = []

    def report(fraction: float) -> None:
        seen.append(fraction)
        if len(seen) == 3:
            raise failure(Code.CANCELLED, "given up")

    device = open_device("cpu", threads=1)
    with pytest.raises(CartdeckError, match="given up"):
        open_model(read_folder(tiny_bert), LoadSettings(), device, report=report)
    assert len(seen) == 3
    open_model(read_folder(tiny_bert), LoadSettings(), device, report=seen.append)
    assert seen[-1] == 1.0


def test_places_begin_behind_the_padding_whichever_token_that_is(make_encoder: BertFolder) -> None:
    embedder = open_embedder(make_encoder("roberta", max_position_embeddings=32, pad_token_id=9))
    assert embedder.shape.max_tokens == 22
    assert vectors_of(embedder, ["word " * 50], truncate="end").shape == (1, 32)


def test_a_gpu_that_is_there_and_cannot_be_used_is_left_for_the_cpu_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process has it alone, or its driver is too old: torch says so when it is first touched."""
    import torch

    from cartdeck_torch.engine.torch_device import describe_devices, open_device

    def refuse(*_: Any) -> None:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore words")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    found = open_device("auto", threads=1)
    assert (found.name, found.memory()) == ("cpu", DeviceMemory(free_bytes=0, total_bytes=0))
    assert found.notice == (
        "no GPU can be used here (cuda:0: CUDA error: CUDA-capable device(s) is/are busy or unavailable)"
    )
    with pytest.raises(CartdeckError, match="busy or unavailable") as caught:
        open_device("cuda:0", threads=1)
    assert (caught.value.code, caught.value.argument) == (Code.UNSUPPORTED, "device")
    with pytest.raises(CartdeckError, match=r"cuda:3 .*\(cpu, cuda:0\)"):
        open_device("cuda:3", threads=1)
    assert [one["name"] for one in describe_devices()] == ["cpu"]
