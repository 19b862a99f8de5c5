"""Who gave an option is told of the option, wherever a message names the cap's argument."""

import pytest

from cartdeck.cli.option_names import with_options
from cartdeck_protocol.errors import Code, failure

OPTIONS = ("--model", "--beams", "--projector", "--quiet")


@pytest.mark.parametrize(
    ("argument", "message", "told"),
    [
        ("beams", "beams: found the number 99", "--beams: found the number 99"),
        ("beams", "beams is 99; of beams 16 are the most", "--beams is 99; of beams 16 are the most"),
        ("model", "transcribe-speech needs model, which was not given", "transcribe-speech needs --model, which was"),
        (
            "projector",
            "a projector is needed; name it with projector, or",
            "a projector is needed; name it with --proj",
        ),
        ("audio", "audio: nothing can be heard", "audio: nothing can be heard"),
        ("--model", "--model is no spec", "--model is no spec"),
        (None, "beams: no one asked", "beams: no one asked"),
    ],
)
def test_a_message_names_the_option_where_the_command_has_one(argument: str | None, message: str, told: str) -> None:
    error = failure(Code.BAD_ARGUMENT, message, argument=argument, details={"kept": 1})
    found = with_options(error, OPTIONS)
    assert found.message.startswith(told)
    assert (found.code, found.details) == (Code.BAD_ARGUMENT, {"kept": 1})
    assert found.argument == (f"--{argument}" if f"--{argument}" in OPTIONS else argument)
