"""The rules of the house: who may import whom, what things are called, how large a file may be.

Imports are read with `ast`, those inside functions and under TYPE_CHECKING too; nothing is executed, but for the last
test, which asks each cartridge what its import loads.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("protocol", "host", "cartridges")
STANDARD_LIBRARY = frozenset(sys.stdlib_module_names)

# What a library for sans-I/O code has no business with.
IMPURE = frozenset({"anyio", "asyncio", "os", "socket", "subprocess", "threading", "time", "logging"})

# Package -> what it may import beside the standard library and itself. Whatever is not here is forbidden.
ALLOWED: dict[str, frozenset[str]] = {
    "cartdeck_protocol": frozenset({"msgpack"}),
    "cartdeck": frozenset({"cartdeck_protocol", "anyio", "msgpack", "platformdirs", "pydantic", "rich", "typer"}),
    "cartdeck_sdk": frozenset({"cartdeck_protocol", "anyio"}),
    "cartdeck_modelkit": frozenset(
        {"cartdeck_protocol", "cartdeck_sdk", "anyio", "av", "jinja2", "llguidance"}
        | {"numpy", "PIL", "soundfile", "soxr"}
    ),
    "cartdeck_conformance": frozenset({"cartdeck_protocol", "anyio"}),
    "cartdeck_echo": frozenset({"cartdeck_protocol", "cartdeck_sdk", "anyio"}),
    "cartdeck_models": frozenset(
        {
            "cartdeck_protocol",
            "cartdeck_sdk",
            "cartdeck_modelkit",
            "anyio",
            "filelock",
            "httpcore2",
            "httpx2",
            "huggingface_hub",
            "platformdirs",
        }
    ),
    "cartdeck_gguf": frozenset(
        {"cartdeck_protocol", "cartdeck_sdk", "cartdeck_modelkit", "anyio", "llama_cpp", "numpy"}
    ),
    "cartdeck_torch": frozenset(
        {
            "cartdeck_protocol",
            "cartdeck_sdk",
            "cartdeck_modelkit",
            "anyio",
            "jinja2",
            "torch",
            "transformers",
            "tokenizers",
            "safetensors",
            "numpy",
            "silero_vad",
        }
    ),
}
# Libraries that take long to import: each in the one module of its cartridge that wraps it, or in the one sub-package
# where a module would be too large, inside a function or not.
HEAVY = frozenset(
    {
        "llama_cpp",
        "llguidance",
        "numpy",
        "torch",
        "transformers",
        "tokenizers",
        "huggingface_hub",
        "safetensors",
        "silero_vad",
        "PIL",
        "soundfile",
        "soxr",
        "av",
    }
)
CARTRIDGES = ("cartdeck_echo", "cartdeck_models", "cartdeck_gguf", "cartdeck_torch")
WRAPPERS = ("cartdeck_torch.engine",)  # sub-packages that wrap a library

FORBIDDEN_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "base", "core", "misc", "manager"})
LONGEST_MODULE = 400  # lines; the aim is 100 to 300


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path
    package: str

    @property
    def source(self) -> str:
        return self.path.read_text("utf-8")

    @property
    def home(self) -> str:
        """The module, or the sub-package that wraps a library, of which it is a part."""
        return next((one for one in WRAPPERS if f"{self.name}.".startswith(f"{one}.")), str(self))

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Import:
    importer: Module
    target: str
    """The module as far as the statement names it: `a.b` for `import a.b`, `a.b.c` for `from a.b import c`."""
    line: int
    level: int

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path, parts[0])
    return found


@cache
def imports() -> tuple[Import, ...]:
    return tuple(one for module in modules().values() for one in imports_of(module))


def imports_of(module: Module) -> Iterator[Import]:
    for node in ast.walk(ast.parse(module.source, str(module))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(module, name.name, node.lineno, 0)
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                yield Import(module, f"{node.module}.{name.name}", node.lineno, node.level)


def packages() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).iterdir()) if (path / "__init__.py").exists()]


def test_the_house_has_the_packages_it_names() -> None:
    assert {path.name for path in packages()} == set(ALLOWED)


def test_every_import_is_allowed_by_the_rules() -> None:
    wrong: list[str] = []
    for one in imports():
        allowed = ALLOWED.get(one.importer.package, frozenset[str]()) | {one.importer.package}
        if one.importer.name.startswith("cartdeck.cli"):
            allowed |= {"cartdeck_conformance"}
        if one.importer.name == "cartdeck.catalog.editing":
            allowed |= {"filelock", "tomlkit"}
        if one.importer.name.startswith("cartdeck.server."):
            allowed |= {"prometheus_client", "pydantic_core", "starlette", "uvicorn"}
        if one.importer.name == "cartdeck.server.external.servers":
            allowed |= {"httpx2"}
        if one.top not in allowed | STANDARD_LIBRARY:
            wrong.append(str(one))
    assert not wrong, "\n".join(wrong)


def test_the_protocol_is_pure() -> None:
    wrong = [str(one) for one in imports() if one.importer.package == "cartdeck_protocol" and one.top in IMPURE]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_imports_typer_and_rich() -> None:
    wrong = [
        str(one)
        for one in imports()
        if one.top in {"typer", "rich"} and not one.importer.name.startswith("cartdeck.cli.")
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_in_the_engine_imports_the_command_line() -> None:
    wrong = [
        str(one)
        for one in imports()
        if one.target.startswith("cartdeck.cli") and not one.importer.name.startswith("cartdeck.cli")
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_are_absolute_and_name_what_they_take() -> None:
    wrong = [str(one) for one in imports() if one.level or one.target.endswith(".*")]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_heavy_library_has_one_home_in_a_package(package: str) -> None:
    homes: dict[str, set[str]] = {}
    for one in imports():
        if one.importer.package == package and one.top in HEAVY:
            homes.setdefault(one.top, set()).add(one.importer.home)
    assert all(len(places) == 1 for places in homes.values()), homes


def test_modules_import_downwards_without_a_cycle() -> None:
    graph = {name: sorted(targets_inside(name)) for name in modules()}
    cycle = find_cycle(graph)
    assert cycle is None, "import cycle: " + " -> ".join(cycle or [])


def targets_inside(name: str) -> set[str]:
    """The modules of ours that `name` imports. The packages above a module count only where they are named."""
    found: set[str] = set()
    for one in imports():
        if one.importer.name == name:
            target = one.target if one.target in modules() else one.target.rpartition(".")[0]
            if target in modules() and target != name:
                found.add(target)
    return found


def find_cycle(graph: dict[str, list[str]]) -> list[str] | None:
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for target in graph[name]:
            cycle = visit(target, [*path, name])
            if cycle is not None:
                return cycle
        done.add(name)
        return None

    return next((cycle for name in graph if (cycle := visit(name, [])) is not None), None)


def test_the_search_for_cycles_finds_one() -> None:
    cycle = find_cycle({"a": ["b"], "b": ["c"], "c": ["d", "b"], "d": []})
    assert cycle == ["b", "c", "b"]
    assert find_cycle({"a": ["b", "c"], "b": ["c"], "c": []}) is None


def test_the_three_folders_hold_our_packages_and_a_readme_alone() -> None:
    # With an editable install the folders are on the import path: `cartridges/torch` would be imported as torch.
    for folder in FOLDERS:
        entries = {path.name for path in (ROOT / folder).iterdir() if path.name != "__pycache__"}
        strangers = {name for name in entries if not re.fullmatch(r"cartdeck(_[a-z]+)?", name)} - {"README.md"}
        assert not strangers, f"{folder}/ holds {sorted(strangers)}"
        assert (ROOT / folder / "README.md").exists(), f"{folder}/ has no README.md"


def test_every_package_is_typed() -> None:
    missing = [str(path) for path in packages() if not (path / "py.typed").exists()]
    assert not missing, missing


def test_every_cartridge_ships_its_manifest_and_its_command_line() -> None:
    for name in CARTRIDGES:
        for file in ("manifest.toml", "manifest.json", "__main__.py"):
            assert (ROOT / "cartridges" / name / file).exists(), f"cartridges/{name}/{file} is missing"


def test_no_module_has_a_name_that_says_nothing() -> None:
    wrong = [str(module) for module in modules().values() if set(module.name.split(".")) & FORBIDDEN_NAMES]
    assert not wrong, wrong


def test_every_module_says_what_it_owns() -> None:
    missing = [str(m) for m in modules().values() if m.source.strip() and not ast.get_docstring(ast.parse(m.source))]
    assert not missing, missing


def test_no_module_outgrows_its_reader() -> None:
    lengths = {str(module): len(module.source.splitlines()) for module in modules().values()}
    too_long = {name: length for name, length in lengths.items() if length > LONGEST_MODULE}
    assert not too_long, too_long


def test_types_are_basic_in_one_module_of_a_cartridge_at_most() -> None:
    basic: dict[str, set[str]] = {}
    for module in modules().values():
        if re.search(r"^#\s*pyright:\s*basic", module.source, re.MULTILINE):
            basic.setdefault(module.package, set()).add(module.home)
    assert set(basic) <= set(CARTRIDGES), basic
    assert all(len(places) == 1 for places in basic.values()), basic


def test_tests_have_unique_names_and_no_packages() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if "data" not in path.relative_to(ROOT / "tests").parts]
    assert not [path for path in files if path.name == "__init__.py"]
    names = sorted(path.name for path in files if path.name != "conftest.py")
    assert not [first for first, second in pairwise(names) if first == second]


@pytest.mark.parametrize(
    "package", [*CARTRIDGES, "cartdeck", "cartdeck_sdk", "cartdeck_modelkit", "cartdeck_conformance"]
)
def test_an_import_of_the_package_loads_no_heavy_library(package: str) -> None:
    program = f"import {package}, sys; print(*sorted(set(sys.modules) & {set(HEAVY)!r}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
