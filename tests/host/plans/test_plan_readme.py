"""The examples of the plans' README are read, and its program runs; its table names every file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cartdeck.plans import Plan, compile_plan
from cartdeck.plans.graph import SETTINGS
from cartdeck.router import Router

FOLDER = Path(__file__).parents[3] / "host" / "cartdeck" / "plans"
README = (FOLDER / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "plan"])
def test_a_plan_of_the_readme_compiles_and_its_canonical_form_is_a_fixed_point(router: Router, text: str) -> None:
    plan = Plan.parse(text)
    assert Plan.parse(plan.to_text()) == plan
    assert Plan.parse(plan.to_text()).to_text() == plan.to_text()
    assert compile_plan(plan, router).steps


@pytest.mark.parametrize("program", [text for kind, text in BLOCKS if kind == "python"])
def test_the_program_of_the_readme_runs(program: str) -> None:
    command = [sys.executable, "-W", "error", "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "'bytes': 2" in done.stdout or '"bytes": 2' in done.stdout
    assert done.stderr == ""


def test_the_table_names_every_file() -> None:
    named = set(re.findall(r"`(\w+\.py)`", README))
    assert named == {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}


def test_every_setting_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)=", README, re.MULTILINE)) == set(SETTINGS)


def test_the_public_names_are_there() -> None:
    from cartdeck import plans

    assert all(getattr(plans, name) is not None for name in plans.__all__)
    assert list(plans.__all__) == sorted(plans.__all__)
