"""The fuzzer's target on its corpus, and on a few hundred inputs that are the corpus with some bytes changed."""

import importlib.util
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from cartdeck_protocol import wire

TARGET = Path(__file__).parent / "wire_target.py"
CHANGED = 400


@pytest.fixture(scope="module")
def target() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wire_target", TARGET)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_corpus_is_heard_as_it_should_be_in_every_state(target: ModuleType) -> None:
    inputs = list(target.corpus())
    events = [target.examine(data) for data in inputs]
    assert len(inputs) > 250
    assert sum(events) > len(inputs), "the states are such that most frames mean something"


@pytest.mark.parametrize("seed", range(4))
def test_changed_inputs_break_nothing(target: ModuleType, seed: int) -> None:
    random = Random(seed)
    inputs = list(target.corpus())
    for _ in range(CHANGED // 4):
        data = bytearray(random.choice(inputs))
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(data))
            change = random.randrange(3)
            if change == 0:
                data[at] = random.choice([0, 1, 0x7F, 0x80, 0xC1, 0xFF, random.randrange(256)])
            elif change == 1:
                data[at:at] = data[at : at + random.randint(1, 40)]
            else:
                del data[at : at + random.randint(1, 4)]
        try:
            target.examine(bytes(data))
        except AssertionError:
            sys.stderr.write(f"the input, in hexadecimal: {data.hex()}\n")
            raise


def test_what_breaks_a_law_is_seen(target: ModuleType) -> None:
    """A target that finds nothing on an end that is wrong would find nothing anywhere."""
    subject = target.Subject(target.Role.HOST, 2)
    subject.others[0].is_open = False
    with pytest.raises(AssertionError):
        target.check_radius(subject, b"")
    with pytest.raises(AssertionError):
        target.check_events(subject.end, [object()])
    with pytest.raises(AssertionError):
        target.check_answers(b"\0\0\0\5\x82")
    with pytest.raises(AssertionError):
        target.check_split(target.Subject(target.Role.HOST, 0), [b"\0"], [wire.StrayReceived(5, 9)], b"")
