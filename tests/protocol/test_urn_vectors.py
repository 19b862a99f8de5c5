"""The measured URN vectors: parse, conformance, dispatch, the one-key truth table, specificity."""

import json
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol.caps import CapUrn, MediaUrn, UrnError

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "urn_vectors.json").read_text())
FORMS: list[str] = VECTORS["one_key_truth_table"]["forms"]


def named(group: str) -> list[Any]:
    return [pytest.param(vector, id=vector["id"]) for vector in VECTORS[group]]


def parse(text: str) -> CapUrn | MediaUrn:
    return CapUrn.parse(text) if text.lower().startswith("cap:") else MediaUrn.parse(text)


def media(form: str) -> MediaUrn:
    return MediaUrn.parse("media:" if form == "missing" else f"media:{form}")


@pytest.mark.parametrize("vector", named("parse"))
def test_a_text_parses_to_its_canonical_text_or_is_refused(vector: dict[str, Any]) -> None:
    if vector["canonical"] is None:
        with pytest.raises(UrnError) as caught:
            parse(vector["input"])
        assert 0 <= caught.value.position <= len(vector["input"])
        assert caught.value.text == vector["input"]
    else:
        assert str(parse(vector["input"])) == vector["canonical"]


@pytest.mark.parametrize("vector", named("media"))
def test_media_urns_relate_as_measured(vector: dict[str, Any]) -> None:
    a, b = MediaUrn.parse(vector["a"]), MediaUrn.parse(vector["b"])
    assert a.conforms_to(b) is vector["conforms"]
    assert a.is_equivalent(b) is vector["equivalent"]
    assert a.is_comparable(b) is vector["comparable"]


@pytest.mark.parametrize("vector", named("dispatch"))
def test_a_candidate_serves_a_request_as_measured(vector: dict[str, Any]) -> None:
    candidate, request = CapUrn.parse(vector["candidate"]), CapUrn.parse(vector["request"])
    assert candidate.serves(request) is vector["dispatch"]
    assert request.serves(candidate) is vector["reversed"]


@pytest.mark.parametrize("row", range(len(FORMS)), ids=FORMS)
def test_one_key_conforms_as_in_the_truth_table(row: int) -> None:
    found = "".join("Y" if media(FORMS[row]).conforms_to(media(form)) else "n" for form in FORMS)
    assert found == VECTORS["one_key_truth_table"]["conforms_open"][row]


def test_a_tag_that_a_candidate_lacks_is_absent() -> None:
    candidate = CapUrn.parse("cap:op")
    requests = [CapUrn.parse("cap:op" if form == "missing" else f"cap:op;{form}") for form in FORMS]
    found = "".join("Y" if candidate.serves(request) else "n" for request in requests)
    assert found == VECTORS["one_key_truth_table"]["satisfies_closed_row_missing"]


@pytest.mark.parametrize("vector", VECTORS["specificity"], ids=lambda vector: vector["urn"])
def test_specificity_is_as_measured(vector: dict[str, Any]) -> None:
    assert CapUrn.parse(vector["urn"]).specificity == vector["score"]
