"""The search for bytes that an end of the wire does not stand, guided by coverage (atheris, which drives libFuzzer).

    python tests/fuzz/fuzz_wire.py [--corpus FOLDER] [libFuzzer's options: -max_total_time=600, -seed=7, FILE to repeat]

It does not know what must hold: `wire_target` does. An input that breaks it is written to `crash-…` in the corpus's
folder, and the command that repeats it is printed. Growth from input to input is looked at here: objects are counted
now and then, and memory is libFuzzer's `-rss_limit_mb`.
"""

import argparse
import gc
import hashlib
import sys
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["cartdeck_protocol"]):
    import cartdeck_protocol.wire

sys.path.insert(0, str(Path(__file__).parent))
import wire_target

LOOK_EVERY: Final = 20_000
MOST_NEW_OBJECTS: Final = 2_000
"""Between two looks: caches of the interpreter and of the fuzzer fill up; an object kept for each input is ten times
as many."""
RSS_LIMIT_MB: Final = 1024


class Watch:
    """Counts inputs, events and the objects that are alive."""

    def __init__(self) -> None:
        self.inputs = 0
        self.events = 0
        self._objects: int | None = None

    def __call__(self, data: bytes) -> None:
        self.events += wire_target.examine(data)
        self.inputs += 1
        if self.inputs % LOOK_EVERY == 0:
            gc.collect()
            objects = len(gc.get_objects())
            grown = 0 if self._objects is None else objects - self._objects
            self._objects = objects
            print(f"# {self.inputs} inputs, {self.events} events, {objects} objects ({grown:+d})", file=sys.stderr)
            assert grown < MOST_NEW_OBJECTS, f"{grown} more objects after {LOOK_EVERY} inputs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"), help="kept and grown from run to run")
    options, rest = parser.parse_known_args()
    options.corpus.mkdir(parents=True, exist_ok=True)
    for data in wire_target.corpus():
        (options.corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    single = [one for one in rest if not one.startswith("-")]
    folders = [] if single else [str(options.corpus)]
    prefix = f"-artifact_prefix={options.corpus.parent}/"
    print(f"# a finding is repeated by: {sys.executable} {__file__} FILE", file=sys.stderr)
    arguments = [sys.argv[0], prefix, f"-rss_limit_mb={RSS_LIMIT_MB}", "-max_len=4096", "-timeout=5", *rest, *folders]
    atheris.Setup(arguments, Watch())
    atheris.Fuzz()


if __name__ == "__main__":
    assert cartdeck_protocol.wire.Connection is wire_target.wire.Connection
    main()
