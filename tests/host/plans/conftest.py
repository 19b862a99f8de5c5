"""Caps to compile plans with, and the cartridge `mill` of tests/data for those that run."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine, Settings
from cartdeck.discovery import Cartridge
from cartdeck.plans import Plan, PlanRun
from cartdeck.router import Router
from cartdeck_protocol.caps import Manifest, build_manifest, load_shared_definition

SOURCE = Path(__file__).parents[2] / "data" / "cartridges" / "mill"
ECHO = Path(__file__).parents[3] / "cartridges" / "cartdeck_echo"


def mill_manifest(capacity: int = 4) -> Manifest:
    text = (SOURCE / "manifest.toml").read_text("utf-8").replace("capacity = 4", f"capacity = {capacity}")
    return build_manifest(
        text, lambda alias: path.read_text("utf-8") if (path := SOURCE / f"{alias}.toml").exists() else None
    )


def made_up(name: str, urn: str, *, main: str = "", more: str = "", is_sequence: bool = False) -> str:
    """A definition for the compiler alone."""
    text = f"urn = '{urn}'\ntitle = 'x'\ndocumentation = 'x'\n"
    if main:
        text += f"[arguments.{main}]\nis_main = true\nrequired = true\ndocumentation = 'x'\n"
    return text + more + f"[output]\nis_sequence = {str(is_sequence).lower()}\ndocumentation = 'x'\n"


@pytest.fixture(scope="session")
def router() -> Router:
    """The caps of mill and echo, those of the shared definitions, and a few that are made up."""
    own = {
        "transcribe-speech": made_up(
            "transcribe-speech", 'cap:transcribe-speech;in="media:audio";out="media:enc=utf-8;transcript"', main="audio"
        )
        + "[outputs.segments]\nmedia = 'media:fmt=json;record'\nis_sequence = true\ndocumentation = 'x'\n",
        "embed-text": made_up(
            "embed-text", 'cap:embed-text;in="media:enc=utf-8;text";out="media:embedding;f32"', is_sequence=True,
            more="[arguments.text]\nis_main = true\nrequired = true\nis_sequence = true\ndocumentation = 'x'\n",
        ),
        "describe-image": made_up(
            "describe-image", 'cap:describe-image;in="media:image";out="media:enc=utf-8;image-description"',
            main="image",
            more="[arguments.prompt]\nmedia = 'media:enc=utf-8;prompt'\ndocumentation = 'x'\ndefault = 'What is it?'\n",
        ),
    }  # fmt: skip
    models = build_manifest(
        'name = "models"\nversion = "1.0.0"\ntitle = "x"\ndescription = "x"\nholds_instances = true\ncapacity = 2\n'
        'tags = ["made"]\n'
        'caps = ["download-model", "generate-text", "model-info", "transcribe-speech", "embed-text", "describe-image"]',
        own.get,
    )
    echo = Manifest.from_json((ECHO / "manifest.json").read_bytes())
    assert load_shared_definition("generate-text") is not None
    manifests = (models, echo, mill_manifest())
    return Router([Cartridge(one, ("nothing",), one.name) for one in manifests], ())


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Declare the cartridge `mill`, with a capacity, as a program of another environment is."""

    def declare(capacity: int = 4) -> None:
        package = tmp_path / "packages" / "mill"
        package.mkdir(parents=True)
        (package / "manifest.json").write_bytes(mill_manifest(capacity).to_json())
        (package / "__init__.py").write_bytes((SOURCE / "__init__.py").read_bytes())
        folder = tmp_path / "cartridges" / "mill"
        folder.mkdir(parents=True)
        (folder / "cartridge.toml").write_text(
            f'command = ["{sys.executable}", "-P", "-m", "cartdeck_sdk", "mill"]\n'
            f'manifest = "{package / "manifest.json"}"\n',
            "utf-8",
        )
        known = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(package.parent), known])))

    return declare


@pytest.fixture
async def milled(
    quick: Callable[..., Settings], nothing_left: None, mill: Callable[..., None]
) -> AsyncIterator[Engine]:
    """An engine with mill and echo."""
    mill()
    async with Engine(quick()) as engine:
        yield engine


@pytest.fixture
def told() -> Callable[..., Any]:
    """Run a plan to its end; the run, and its events."""

    async def run(engine: Engine, plan: Plan | str, inputs: Any = None, **options: Any) -> tuple[PlanRun, list[Any]]:
        events: list[Any] = []
        run = PlanRun(engine, plan, inputs, **options)
        try:
            async with run:
                async for event in run:
                    events.append(event)
        except Exception as error:
            if run.error is not error:
                raise
        return run, events

    return run
