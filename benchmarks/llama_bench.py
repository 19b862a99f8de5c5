"""Owns llama.cpp's own llama-bench: made once from the sources of the llama-cpp-python that is installed, and kept.

    python benchmarks/llama_bench.py [--where]

The wheel has the libraries and not the program; the source distribution has the program's source. It is fetched by pip,
compiled (half a minute, with `c++` or what CXX names) and linked against the installed libraries, so that both sides of
a comparison run the same machine code. Prints the program's path; --where prints it and builds nothing.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "llama-cpp-python"
LIBRARIES: Final = ("llama-common", "llama", "ggml", "ggml-base", "ggml-cpu")
SOURCES: Final = ("tools/llama-bench/llama-bench.cpp", "tools/llama-bench/main.cpp")


class NotBuilt(Exception):
    """The program cannot be had; the message says why."""


def path() -> Path:
    """Where the program is kept: a name for the version, and for the libraries that it is linked to."""
    version, libraries = importlib.metadata.version(PACKAGE), libraries_folder()
    name = hashlib.sha256(f"{libraries}".encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "cartdeck" / "llama-bench" / f"{version}-{name}" / "llama-bench"


def found() -> Path | None:
    """The program, if it was built."""
    try:
        program = path()
    except (NotBuilt, importlib.metadata.PackageNotFoundError):
        return None
    return program if program.exists() else None


def libraries_folder() -> Path:
    """The folder of the installed libraries, those beside the package: its own copies lack
    the one that llama.cpp's programs share. Raises `NotBuilt`."""
    module = importlib.util.find_spec("llama_cpp")
    if module is None or module.origin is None:
        raise NotBuilt(f"{PACKAGE} is not installed")
    folder = Path(module.origin).parent.parent / "lib"
    missing = [name for name in LIBRARIES if not (folder / f"lib{name}.so").exists()]
    if missing:
        raise NotBuilt(f"{folder} has no lib{missing[0]}.so: this {PACKAGE} was built without it")
    return folder


def build() -> Path:
    """The program, built unless it was. Raises `NotBuilt`."""
    program, libraries = path(), libraries_folder()
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as name:
        folder = Path(name)
        source = fetch_source(folder)
        made = folder / "made"
        run(
            [
                os.environ.get("CXX", "c++"), "-O2", "-DNDEBUG", "-std=c++17",
                *(f"-I{one}" for one in ("include", "ggml/include", "common", "vendor")), *SOURCES,
                f"-L{libraries}", *(f"-l{one}" for one in LIBRARIES), f"-Wl,-rpath,{libraries}", "-o", str(made),
            ],
            folder=source,
        )  # fmt: skip
        made.replace(program)
    return program


def fetch_source(folder: Path) -> Path:
    """llama.cpp's sources of the installed version, unpacked in `folder`. Raises `NotBuilt`."""
    wanted = f"{PACKAGE}=={importlib.metadata.version(PACKAGE)}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, wanted]
    run(pip, folder=folder)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"


def run(command: list[str], *, folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{command[0]}: {error}") from error
    if done.returncode:
        raise NotBuilt(f"{command[0]} failed:\n" + "\n".join(done.stderr.splitlines()[-20:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", action="store_true", help="print where it is kept, build nothing")
    options = parser.parse_args()
    try:
        print(path() if options.where else build())
    except NotBuilt as error:
        raise SystemExit(f"llama-bench: {error}") from error


if __name__ == "__main__":
    main()
