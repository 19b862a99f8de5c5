"""The record of what made an answer has every field, known or not, and is plain data."""

import json

from cartdeck_modelkit.provenance import ModelIdentity, Provenance

FIELDS = {
    "model": {"spec", "revision", "sha256"},
    "cartridge": {"name", "version"},
    "engine": {"library", "version"},
    "usage": {"prompt_tokens", "completion_tokens", "cached_tokens"},
    "timing": {"obtain_s", "load_s", "first_token_s", "total_s"},
}
SCALARS = {"device", "dtype", "seed", "batched", "finish_reason", "truncated"}


def test_a_record_has_every_field_from_the_start() -> None:
    provenance = Provenance(
        ModelIdentity("package:m/f"), cartridge_name="gguf", cartridge_version="1", engine_library="engine"
    )
    record = provenance.record()
    assert set(record) == set(FIELDS) | SCALARS | {"settings"}
    assert {name: set(record[name]) for name in FIELDS} == FIELDS
    assert record["finish_reason"] is None
    assert record["timing"]["first_token_s"] is None
    assert record["timing"]["total_s"] >= 0
    json.dumps(record, allow_nan=False)


def test_what_is_filled_in_later_is_in_the_next_record() -> None:
    provenance = Provenance(ModelIdentity("a"), cartridge_name="n", cartridge_version="1", engine_library="e")
    first = provenance.record()
    provenance.usage.completion_tokens = 4
    provenance.finish_reason = "stop"
    provenance.model.sha256 = "ab"
    record = provenance.record()
    assert record["usage"]["completion_tokens"] == 4
    assert record["finish_reason"] == "stop"
    assert record["model"]["sha256"] == "ab"
    assert first["usage"]["completion_tokens"] == 0
