"""Owns the caps over what is kept on this machine: list-models, verify-model, delete-model.

It does not know where models come from, nor how the caches are laid out.
"""

import json
from typing import Any

from cartdeck_models.disk import disk_errors
from cartdeck_models.download import library
from cartdeck_models.inventory import Inventory, WheelModel
from cartdeck_models.removal import remove
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Task
from cartdeck_models.verification import PHASE, verify
from cartdeck_sdk import Output, Report, Request

LOOKING, REMOVING = "look_up", "remove"


async def list_models(output: Output) -> None:
    """Answer with one record for each model."""
    inventory = Inventory(library().settings)
    models = await output.run_with_keepalive(0.0, "Looking what is here", lambda _: inventory.models(), phase=LOOKING)
    for model in models:
        await output.item(model.to_plain())


async def verify_model(request: Request, output: Output) -> None:
    """Answer with the record of the verification."""
    spec, inventory = parse_spec(request["model"]), Inventory(library().settings)
    task = Task(lambda _: None, lambda: request.is_cancelled)
    models = await output.run_with_keepalive(
        0.0, "Looking for the model", lambda _: inventory.find(spec), phase=LOOKING
    )

    def checked(report: Report) -> dict[str, Any]:
        with disk_errors(inventory.store.root, what=request["model"]):
            return verify(inventory, models, task, report)

    record = await output.run_with_keepalive(0.0, "Hashing its files", checked, phase=PHASE)
    await output.write(json.dumps(record, ensure_ascii=False))


async def delete_model(request: Request, output: Output) -> None:
    """Answer with the record of what was removed."""
    spec, inventory = parse_spec(request["model"]), Inventory(library().settings)
    is_dry = request["dry-run"]

    def removed(_: Report) -> dict[str, Any]:
        models = inventory.find(spec)
        root = inventory.store.root if isinstance(models[0], WheelModel) else inventory.cache_dir
        with disk_errors(root, what=request["model"]):
            return remove(inventory, models, is_dry=is_dry)

    record = await output.run_with_keepalive(
        0.0,
        "Looking for the model" if is_dry else "Removing the model",
        removed,
        phase=LOOKING if is_dry else REMOVING,
    )
    await output.write(json.dumps(record, ensure_ascii=False))
