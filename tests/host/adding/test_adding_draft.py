"""What a catalog's entry says of a model: what it is for, and its name."""

from typing import Any

import pytest

from cartdeck.adding.candidate import Answer
from cartdeck.adding.draft import capabilities_of
from cartdeck.adding.repository import Repository, parse_repository, repository_of
from cartdeck_protocol.errors import CartdeckError, Code

COMMIT = "0123456789" * 4


class Named:
    path = "m.gguf"

    def __init__(self, projector: str | None = None) -> None:
        self.projector = projector


def for_what(info: dict[str, Any], made_for: tuple[str, ...] | None = None, projector: str | None = None) -> list[str]:
    answer = Answer(is_known=True, made_for=made_for)
    return capabilities_of(Named(projector), info, answer)  # type: ignore[arg-type] - two of its values are looked at


@pytest.mark.parametrize(
    ("info", "made_for", "expected"),
    [
        ({"template": "{{ messages }}"}, None, ["chat", "completion"]),
        ({"template": "{% if tools %}"}, None, ["chat", "completion", "tools"]),
        ({"template": None}, None, ["completion"]),
        ({"pooling": "mean", "is_causal": False}, None, ["embeddings"]),
        ({"pooling": "last", "template": "x"}, None, ["embeddings"]),
        ({"pooling": None, "is_causal": False}, None, ["embeddings"]),
        ({}, ("embed-image", "embed-text"), ["embeddings"]),
        ({}, ("transcribe-speech",), ["speech"]),
        ({"template": "x"}, ("chat", "generate-text"), ["chat", "completion"]),
        ({"template": "x"}, ("chat", "describe-image", "generate-text"), ["chat", "completion", "vision"]),
        ({}, ("chat", "generate-text"), ["completion"]),
    ],
)
def test_a_model_is_for_what_its_own_description_says(info: Any, made_for: Any, expected: list[str]) -> None:
    assert for_what(info, made_for) == expected


def test_a_projector_gives_eyes_to_a_model_of_dialogues_alone() -> None:
    assert for_what({"template": "x"}, projector="mmproj.gguf") == ["chat", "completion", "vision"]
    assert for_what({"template": None}, projector="mmproj.gguf") == ["completion"]
    assert for_what({"pooling": "mean", "is_causal": False}, projector="mmproj.gguf") == ["embeddings"]


@pytest.mark.parametrize(
    ("info", "made_for", "words"),
    [
        ({"kind": "adapter"}, None, "'adapter', and no model by itself"),
        ({"pooling": "rank", "is_causal": False}, None, "its pooling is rank"),
        ({}, ("describe-image",), "it is for describe-image"),
    ],
)
def test_what_is_for_nothing_that_is_served_is_refused(info: Any, made_for: Any, words: str) -> None:
    with pytest.raises(CartdeckError, match=words) as caught:
        for_what(info, made_for)
    assert caught.value.code is Code.UNSUPPORTED


@pytest.mark.parametrize(
    ("text", "repository", "name"),
    [
        ("owner/Small-GGUF", Repository("owner/Small-GGUF"), "Small"),
        ("hf:owner/m@dev:Q8_0", Repository("owner/m", "dev", "Q8_0"), "m"),
        ("owner/_m.gguf", Repository("owner/_m.gguf"), "m"),
        (f"hf:owner/m@{COMMIT}:q/m.gguf", Repository("owner/m", COMMIT, "q/m.gguf"), "m"),
    ],
)
def test_a_repository_is_read_with_what_is_said_of_it(text: str, repository: Repository, name: str) -> None:
    found = parse_repository(text)
    assert (found, found.short_name) == (repository, name)
    assert found.is_pinned is (COMMIT in text)
    assert repository_of(repository.spec) == repository


@pytest.mark.parametrize("text", ["", "owner", "a/b/c", "https://hub.example/owner/name", "/etc/passwd", "owner/name@"])
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        parse_repository(text)
    assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "repository")
    assert repository_of(text) is None
