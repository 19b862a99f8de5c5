"""A text that names no repository is answered with what to write instead."""

import pytest

from cartdeck.adding.repository import parse_repository
from cartdeck_protocol.errors import CartdeckError, Code


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://huggingface.co/owner/name", r"write hf:owner/name\."),
        ("https://huggingface.co/owner/name/blob/main/m.gguf", r"write hf:owner/name:m\.gguf\."),
        ("pypi:one==1/m.gguf", "`cartdeck catalog add NAME pypi:one==1/m.gguf`"),
        ("./my model.gguf", r"`cartdeck catalog add NAME '\./my model\.gguf'`"),
        ("m.gguf", r"`cartdeck catalog add NAME m\.gguf`"),
        ("https://example.org/x", r"expected owner/name or hf:owner/name\[@REVISION\]\[:FILE\]\.$"),
        ("nothing", r"\[:FILE\]\.$"),
    ],
)
def test_what_names_no_repository_is_told_what_to_write(text: str, said: str) -> None:
    with pytest.raises(CartdeckError, match=said) as caught:
        parse_repository(text)
    assert caught.value.code is Code.BAD_ARGUMENT
