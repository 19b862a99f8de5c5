"""Owns the cartridge `models`: it obtains models, and is the only one that may use the network.

It does not know model formats. What it does is in `library`; this module only registers it.
"""

from cartdeck_sdk import Cartridge, Output, Request

cartridge = Cartridge("cartdeck_models")


@cartridge.handles("download-model", needs=("model", "per-file", "with-projector"))
async def download_model(request: Request, output: Output) -> None:
    from cartdeck_models.download import download  # noqa: PLC0415 - filelock may be missing when the manifest is asked

    await download(request, output)


@cartridge.handles("fit-model", needs=("model", "context-size"))
async def fit_model(request: Request, output: Output) -> None:
    from cartdeck_models.fitting import fit  # noqa: PLC0415 - as above

    await fit(request, output)


@cartridge.handles("list-models")
async def list_models(request: Request, output: Output) -> None:
    from cartdeck_models import shelf  # noqa: PLC0415 - as above

    del request  # it has no argument
    await shelf.list_models(output)


@cartridge.handles("verify-model", needs=("model",))
async def verify_model(request: Request, output: Output) -> None:
    from cartdeck_models import shelf  # noqa: PLC0415 - as above

    await shelf.verify_model(request, output)


@cartridge.handles("delete-model", needs=("model", "dry-run"))
async def delete_model(request: Request, output: Output) -> None:
    from cartdeck_models import shelf  # noqa: PLC0415 - as above

    await shelf.delete_model(request, output)


@cartridge.handles("models-settings")
async def models_settings(request: Request, output: Output) -> None:
    from cartdeck_models.settings_shown import show  # noqa: PLC0415 - as above

    del request  # it has no argument
    await show(output)


async def _stop() -> None:
    from cartdeck_models.download import close  # noqa: PLC0415 - as above

    await close()


cartridge.on_stop(_stop)
