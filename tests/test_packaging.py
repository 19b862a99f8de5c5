"""What is in the wheel, and that it runs alone: in a fresh environment, outside the tree, beside hostile files."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CARTRIDGES = ("cartdeck_echo", "cartdeck_models", "cartdeck_gguf", "cartdeck_torch")
PACKAGES = ("cartdeck_protocol", "cartdeck", "cartdeck_sdk", "cartdeck_modelkit", "cartdeck_conformance", *CARTRIDGES)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # The back end alone, without pip: nothing is fetched.
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; what it depends on comes from the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)])
    # Only now, so that pip could see nothing but the fresh environment. A .pth file in the folder that this line adds
    # is not read, so the editable install of the tree does not come along.
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working directory with files that are named like what we import."""
    for name in ("msgpack", "anyio", "typing", "cartdeck_protocol", "llama_cpp"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the working directory was imported')\n")
    return tmp_path


def run(command: list[str], *, cwd: Path | None = None, timeout_s: float = 60) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_holds_the_packages_and_their_types(names: list[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_wheel_holds_the_definitions_and_manifests(names: list[str]) -> None:
    definitions = {
        str(path.relative_to(ROOT / "protocol"))
        for path in (ROOT / "protocol" / "cartdeck_protocol" / "caps" / "definitions").glob("*.toml")
    }
    assert definitions
    assert definitions <= set(names)
    assert {f"{cartridge}/manifest.json" for cartridge in CARTRIDGES} <= set(names)


def test_the_wheel_holds_the_page(names: list[str]) -> None:
    folder = ROOT / "host" / "cartdeck" / "server" / "page"
    files = {str(path.relative_to(ROOT / "host")) for path in folder.rglob("*.*") if path.suffix != ".md"}
    assert len(files) > 20
    assert files <= set(names)


def test_the_wheel_holds_the_licence_and_nothing_of_the_workshop(names: list[str]) -> None:
    assert any(re.fullmatch(r"cartdeck-[^/]+\.dist-info/licenses/LICENSE", name) for name in names)
    assert not [name for name in names if re.search(r"(^|/)(tests?|benchmarks|scripts|__pycache__)/|\.pyc$", name)]


def test_the_version_has_one_home(wheel: Path) -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dynamic"] == ["version"]
    declared = re.search(
        r'^__version__ = "(.+)"$', (ROOT / "host/cartdeck/__init__.py").read_text("utf-8"), re.MULTILINE
    )
    assert declared is not None
    assert wheel.name.split("-")[1] == declared[1]


def test_every_dependency_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    asked = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    asked += [one for extra in project["project"]["optional-dependencies"].values() for one in extra]
    wanted = {re.match(r"[\w-]+", one)[0].lower() for one in asked} - {"cartdeck"}  # type: ignore[index]
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if re.fullmatch(r"[\w.-]+==[\w.+]+", line)}
    assert wanted <= pinned


def test_the_wheel_alone_lists_its_caps_from_another_directory(environment: Path, elsewhere: Path) -> None:
    listed = json.loads(run([str(environment / "bin" / "cartdeck"), "caps", "--json"], cwd=elsewhere))
    assert {"generate-text", "download-model"} <= {cap["alias"] for cap in listed["caps"]}
    where = run(
        [str(environment / "bin" / "python"), "-P", "-c", "import cartdeck; print(cartdeck.__file__)"], cwd=elsewhere
    )
    assert where.startswith(str(environment))


def test_the_wheel_alone_calls_a_cartridge_from_another_directory(environment: Path, elsewhere: Path) -> None:
    command = [str(environment / "bin" / "cartdeck"), "call", "echo", "--arg", "data=hello"]
    assert run(command, cwd=elsewhere) == "hello"


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_wheel_alone_runs_the_demo(environment: Path, elsewhere: Path) -> None:
    printed = run([str(environment / "bin" / "cartdeck"), "demo"], cwd=elsewhere, timeout_s=580)
    assert "Paris" in printed
    assert "tokens/s" in printed
