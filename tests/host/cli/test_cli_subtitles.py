"""Transcripts with times, in each form, and vectors in NumPy's."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Data
from cartdeck.cli.display import Silence
from cartdeck.cli.transcript_sheet import TranscriptSheet
from cartdeck.cli.vector_file import write_vectors
from cartdeck.subtitles import as_srt, as_vtt, srt_block, with_times
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


def test_a_transcript_is_printed_as_its_segments_close_and_ends_with_its_line(capfdbinary: Any) -> None:
    def sheet(block: Any, lead: str = "") -> TranscriptSheet:
        return TranscriptSheet(block, lead=lead, display=Silence())

    text = sheet(None, lead="talk.flac: ")
    seen = []
    for piece in (b"Yes. ", b"", b"No\x1b[2J", b" more. \n"):
        text.take(Data("", piece))
        seen.append(capfdbinary.readouterr().out)
    text.take(Data("segments", SEGMENTS[0]))
    text.finish()
    assert b"".join(seen[:2]) == b"talk.flac: Yes."
    assert b"\x1b" not in seen[2]
    assert seen[3] + capfdbinary.readouterr().out == b" more.\n"
    numbered = sheet(srt_block)
    for segment in SEGMENTS:
        numbered.take(Data("segments", json.dumps(segment).encode()))
    numbered.take(Data("", b"not this"))
    numbered.finish()
    assert capfdbinary.readouterr().out.decode() == as_srt(SEGMENTS)
    for block, lead, wanted in ((None, "", b"\n"), (srt_block, "", b""), (srt_block, "WEBVTT\n", b"WEBVTT\n")):
        sheet(block, lead).finish()
        assert capfdbinary.readouterr().out == wanted


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
    with pytest.raises(CartdeckError, match="There is no folder"):
        write_vectors(tmp_path / "none" / "vectors.npy", [])
