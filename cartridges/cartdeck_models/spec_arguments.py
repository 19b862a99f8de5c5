"""Owns how a request says which model it means: its spec, and the arguments that narrow a spec of a hub.

It does not know what is done with the model.
"""

from dataclasses import replace
from typing import Any

from cartdeck_models.file_name import check_relative
from cartdeck_models.spec import HUB_EXAMPLE, HubSpec, ModelSpec, bad_spec, checked_revision, parse_spec
from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Request


def spec_of(request: Request) -> ModelSpec:
    """The model spec of `request`: its `model`, with `include`, `exclude` and `revision` where they are given.

    Raises what `parse_spec` raises; BAD_ARGUMENT for a spec that says otherwise than an argument beside it, or that is
    not a hub's.
    """
    spec = parse_spec(request["model"])
    include, exclude, revision = request["include"], request["exclude"], request["revision"]
    if not include and not exclude and not revision:
        return spec
    if not isinstance(spec, HubSpec):
        names = [name for name in ("include", "exclude", "revision") if request[name]]
        raise failure(
            Code.BAD_ARGUMENT,
            f"What {' and '.join(names)} would narrow is a model of a hub, and the spec names none. "
            f"Expected for instance {HUB_EXAMPLE}",
            argument=names[0],
        )
    if revision and spec.revision not in (None, revision):
        raise bad_spec(
            request["model"], f"it says revision {spec.revision}, and the argument says {revision}", HUB_EXAMPLE
        )
    return replace(
        spec,
        revision=checked_revision(request["model"], revision) if revision else spec.revision,
        include=(*spec.include, *_globs(include)),
        exclude=(*spec.exclude, *_globs(exclude)),
        is_bare=False,
    )


def _globs(values: list[Any] | None) -> tuple[str, ...]:
    return tuple(check_relative(value) for value in values or ())
