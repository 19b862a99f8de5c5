"""What a handler reads of its call: a mistake of its own is told, and is no silent None."""

from typing import Any, cast

import pytest

from cartdeck_protocol.caps import parse_definition
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_sdk.request import Request

TOML = """
urn = 'cap:in="media:enc=utf-8;word";join;out="media:enc=utf-8;text"'
title = "Join"
documentation = "Joins words."
[arguments.words]
is_main = true
required = true
is_sequence = true
documentation = "Words."
[arguments.between]
media = "media:between;enc=utf-8"
documentation = "What stands between them."
[output]
documentation = "The words."
"""
REQUEST = Request(cast("Any", None), parse_definition(TOML, alias="join"), cast("Any", None))


def test_an_optional_argument_that_was_not_given_is_none() -> None:
    assert REQUEST["between"] is None


@pytest.mark.parametrize("name", ["words", "media:enc=utf-8;word"])
def test_what_comes_as_a_stream_is_no_value(name: str) -> None:
    with pytest.raises(CartdeckError, match=r"iterate over request\.stream") as caught:
        REQUEST[name]
    assert caught.value.code is Code.HANDLER_FAILED


def test_what_comes_whole_is_no_stream() -> None:
    with pytest.raises(CartdeckError, match=r"read it as request\['between'\]"):
        REQUEST.stream("between")
