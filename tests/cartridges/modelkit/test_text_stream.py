"""Text leaves as whole code points, and a stop string shows neither its beginning nor its end."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cartdeck_modelkit.text_stream import TextStream


def stream(pieces: list[bytes], stop: list[str] | None = None) -> tuple[list[str], TextStream]:
    text = TextStream(stop or [])
    out = [text.push(piece) for piece in pieces]
    out.append(text.finish())
    return out, text


def test_a_character_split_across_tokens_comes_whole_and_a_cut_one_once() -> None:
    out, _ = stream([b"\xf0\x9f", b"\x91\x8d", b" ok", b"\xe6\xad"])
    assert out == ["", "\U0001f44d", " ok", "", "\ufffd"]


@pytest.mark.parametrize(
    ("stop", "text", "stopped_by"),
    [(["\n"], "sky?", "\n"), (["?\nAl"], "sky", "?\nAl"), (["X"], "sky?\nAli", None)],
)
def test_a_stop_string_across_tokens_leaks_nothing_and_loses_nothing(
    stop: list[str], text: str, stopped_by: str | None
) -> None:
    out, state = stream([b"sky", b"?\n", b"Ali"], stop)
    assert "".join(out) == text
    assert state.stopped_by == stopped_by


def test_text_that_only_began_like_a_stop_string_is_given_out_when_it_is_known() -> None:
    text = TextStream(["<end>"])
    assert text.push(b"a <en") == "a "
    assert text.push(b"try>") == "<entry>"
    assert text.finish() == ""


def test_a_beginning_of_a_stop_string_at_the_end_is_not_lost() -> None:
    out, state = stream([b"fine <en"], ["<end>"])
    assert out == ["fine ", "<en"]
    assert state.stopped_by is None


def test_nothing_comes_after_a_stop_string() -> None:
    text = TextStream(["."])
    assert text.push(b"one. two") == "one"
    assert text.push(b" three") == ""
    assert text.finish() == ""


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert "".join(stream([b"abcd"], ["abcd", "bc"])[0]) == "a"
    assert "".join(stream([b"xabc"], ["c", "abc"])[0]) == "x"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextStream(["a", ""])


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@given(
    data=st.one_of(st.text(alphabet="abc\n👍ß", max_size=40).map(str.encode), st.binary(max_size=24)),
    stop=st.lists(st.text(alphabet="abc\n👍", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
@example(data=b"aab", stop=["ab"], cuts=[1, 2])
def test_any_cut_of_the_same_bytes_gives_the_same_text(data: bytes, stop: list[str], cuts: list[int]) -> None:
    whole = "".join(stream([data], stop)[0])
    parts, state = stream(pieces_of(data, cuts), stop)
    assert "".join(parts) == whole
    plain = data.decode("utf-8", errors="replace")
    assert plain.startswith(whole)
    assert not any(text in whole for text in stop)
    if state.stopped_by is None:
        assert whole == plain
    else:
        assert plain[len(whole) :].startswith(state.stopped_by)
