"""Transcripts with times, in each form, and vectors in NumPy's."""

import struct
from pathlib import Path

import pytest

from cartdeck.cli.vector_file import write_vectors
from cartdeck.subtitles import as_srt, as_vtt, with_times
from cartdeck_protocol.errors import CartdeckError

SEGMENTS = [
    {"start_s": 0.0, "end_s": 2.6, "text": "The quick <b>fox</b> & co."},
    {"start_s": 3723.4, "end_s": 3725.0, "text": "One\n\ntwo"},
]


def test_subrip_has_numbers_and_commas() -> None:
    assert as_srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:02,600\nThe quick <b>fox</b> & co.\n\n2\n01:02:03,400 --> 01:02:05,000\nOne two\n"
    )
    assert as_srt([]) == ""


def test_webvtt_has_a_header_dots_and_no_markup() -> None:
    assert as_vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.600\nThe quick &lt;b&gt;fox&lt;/b&gt; &amp; co.\n\n"
        "01:02:03.400 --> 01:02:05.000\nOne two\n"
    )
    assert as_vtt([]) == "WEBVTT\n"


def test_lines_begin_with_their_times() -> None:
    assert with_times(SEGMENTS[1:]) == "[62:03.400 - 62:05.000] One two\n"


def test_a_file_of_vectors_is_one_that_numpy_reads(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "vectors.npy"
    write_vectors(path, [struct.pack("<3f", 1, 2, 3), struct.pack("<3f", 4, 5, 6)])
    assert numpy.load(path).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert path.read_bytes().index(b"\n") % 64 == 63
    with pytest.raises(CartdeckError, match="--force"):
        write_vectors(path, [])
    write_vectors(path, [], is_forced=True)
    assert numpy.load(path).shape == (0, 0)
    with pytest.raises(CartdeckError, match="cannot be written"):
        write_vectors(tmp_path / "none" / "vectors.npy", [])
