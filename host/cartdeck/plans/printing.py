"""Owns the canonical text of a plan: what is read from it prints as the same text again.

It does not know how text is read, nor caps.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cartdeck.plans.graph import SETTINGS, Step, producers_of, side_value
from cartdeck.plans.order import in_order

Comments = Mapping[tuple[str, ...], Sequence[str]]
"""Lines of comment above a statement, by its names behind its kind: `input`, `step`, `constant`, `settings`, `wiring`,
`naming`."""


def canonical_text(steps: Mapping[str, Step], inputs: Mapping[str, str], comments: Comments) -> str:
    """Declared inputs, then steps with their constants and settings, then wires; steps as they need each other."""
    producers = producers_of(steps)
    order = in_order({name: {producers[s] for s in step.sources if s in producers} for name, step in steps.items()})
    sections = (
        _inputs(inputs, comments),
        (line for name in order for line in _step(steps[name], comments)),
        (line for name in order for line in _wiring(steps[name], comments)),
        _comment(comments.get(("end",), ())),
    )
    texts = ["\n".join(lines) for lines in sections]
    return "\n\n".join(text for text in texts if text) + "\n" if any(texts) else ""


def _inputs(inputs: Mapping[str, str], comments: Comments) -> Iterator[str]:
    for name, media in sorted(inputs.items()):
        yield from _comment(comments.get(("input", name), ()))
        yield f"{name} {media}"


def _step(step: Step, comments: Comments) -> Iterator[str]:
    yield from _comment(comments.get(("step", step.name), ()))
    yield f"{step.name} {step.cap}"
    for name, value in sorted(step.constants.items()):
        yield from _comment(comments.get(("constant", step.name, name), ()))
        yield f"{step.name}.{name} = {json.dumps(value, ensure_ascii=False)}"
    settings = [(name, getattr(step.settings, name)) for name in sorted(SETTINGS)]
    given = [f"{name}={value}" for name, value in settings if value is not None]
    yield from _comment(comments.get(("settings", step.name), ()))
    if given:
        yield f"{step.name} {{{', '.join(given)}}}"


def _wiring(step: Step, comments: Comments) -> Iterator[str]:
    yield from _comment(comments.get(("wiring", step.name), ()))
    source = step.sources[0] if len(step.sources) == 1 else f"({', '.join(step.sources)})"
    yield f"{source} -> {step.name} -> {step.target or '()'}"
    for output, value in sorted(step.sides.items()):
        if value != side_value(step.name, output):
            yield from _comment(comments.get(("naming", step.name, output), ()))
            yield f"{side_value(step.name, output)} -> {value}"


def _comment(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"# {line}".rstrip()
