"""Owns the one slow step of the set-up: a llama-cpp-python wheel that is built once per machine and kept.

It does not know virtual environments, make or cartdeck; it prints the wheel's path, and others install it.

The wheel is compiled for the CPU it finds, so it is kept under a name of version, CMAKE_ARGS and CPU flags:

    ~/.cache/cartdeck/wheels/llama-cpp-python-0.3.36-1a2b3c4d5e6f/llama_cpp_python-….whl

Standard library only: it runs on a bare machine, before anything is installed.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "llama-cpp-python"
NEWS_EVERY_S = 60.0
LOG_LINES_SHOWN = 25


class BuildFailed(Exception):
    """The wheel could not be built; the message says why and what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Print the path of a llama-cpp-python wheel for this CPU; build it once."
    )
    parser.add_argument("--where", action="store_true", help="print where the wheel is kept, build nothing")
    options = parser.parse_args()
    version = pinned_version(ROOT / "constraints.txt")
    folder = wheels_folder() / wheel_name(version)
    if options.where:
        print(folder)
        return 0
    try:
        print(obtain_wheel(version, folder))
    except BuildFailed as error:
        tell(f"error: {error}")
        return 1
    return 0


def pinned_version(constraints: Path) -> str:
    """The version that the project was tested with."""
    found = re.search(rf"^{PACKAGE}==(\S+)", constraints.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{constraints} has no line '{PACKAGE}==VERSION': add the version to build.")
    return found[1]


def wheels_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative path is invalid and counts as unset.
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "cartdeck" / "wheels"


def wheel_name(version: str) -> str:
    """The folder's name; two machines share it only when a wheel of one runs on the other."""
    identity = json.dumps(build_identity(version), sort_keys=True)
    return f"{PACKAGE}-{version}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def build_identity(version: str) -> dict[str, str]:
    """All that decides what is inside the wheel."""
    cmake_args = " ".join(os.environ.get("CMAKE_ARGS", "").split())
    # llama.cpp compiles with -march=native unless told otherwise; only then the CPU matters.
    is_portable = re.search(r"-DGGML_NATIVE(:BOOL)?=(OFF|0|FALSE|NO)\b", cmake_args, re.IGNORECASE) is not None
    return {
        "version": version,
        "cmake_args": cmake_args,
        "system": f"{platform.system()}-{platform.machine()}-{'-'.join(platform.libc_ver())}",
        "cpu": "any" if is_portable else cpu_flags(),
    }


def cpu_flags() -> str:
    """The instruction sets of this CPU, sorted; where the system does not list them, the CPU's name."""
    with contextlib.suppress(OSError):
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", listed, re.MULTILINE)
        if found is not None:
            return " ".join(sorted(set(found[1].split())))
    return platform.processor()


def obtain_wheel(version: str, folder: Path) -> Path:
    """The kept wheel; built first where there is none. One builder at a time, the others wait for it."""
    wheel = kept_wheel(folder)
    if wheel is not None:
        return wheel
    folder.parent.mkdir(parents=True, exist_ok=True)
    with build_lock(folder.with_name(folder.name + ".lock")):
        wheel = kept_wheel(folder)  # another builder may have finished while this one waited
        if wheel is None:
            build(version, folder)
            wheel = kept_wheel(folder)
    if wheel is None:
        raise BuildFailed(f"the build left no wheel in {folder}; remove that folder and run it again.")
    return wheel


def kept_wheel(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.whl"))), None)


@contextlib.contextmanager
def build_lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process builds the same wheel; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(version: str, folder: Path) -> None:
    """Builds beside `folder` and renames at the end: a folder of that name is always whole."""
    check_compiler()
    log = folder.with_name(folder.name + ".log")
    minutes = max(1, round(10 / (os.cpu_count() or 1)))
    tell(
        f"building {PACKAGE} {version} for this CPU: about {minutes} min here (5 min on 2 cores), "
        f"once. It is kept in {folder}; the log is {log}"
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=folder.name + ".", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "wheel"
        fresh.mkdir()
        run_pip(version, fresh, log=log, started=started)
        (fresh / "build.json").write_text(json.dumps(build_identity(version), indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    tell(f"built in {time.monotonic() - started:.0f} s")


def check_compiler() -> None:
    names = [os.environ["CXX"].split()[0]] if os.environ.get("CXX", "").strip() else ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in names):
        raise BuildFailed(
            f"no C++ compiler ({', '.join(names)}) was found, and llama.cpp must be compiled. Install one "
            "(Debian, Ubuntu: apt install g++ make; Fedora: dnf install gcc-c++ make; macOS: xcode-select --install), "
            "or use a wheel that you have: make demo LLAMA=/path/to/llama_cpp_python.whl"
        )


def run_pip(version: str, folder: Path, *, log: Path, started: float) -> None:
    """Runs `pip wheel` into `folder`, and says once a minute that it still works."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder)]
    # pip keeps what it built under the source's address alone, blind to CMAKE_ARGS and CPU: never from there.
    command += ["--no-cache-dir", f"--no-binary={PACKAGE}", f"{PACKAGE}=={version}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    status = process.wait(NEWS_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    tell(f"still building, {(time.monotonic() - started) / 60:.0f} min ...")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status != 0:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        raise BuildFailed("\n".join([f"pip could not build it (exit status {status}). The end of {log}:", *last]))


def tell(message: str) -> None:
    print(f"llama wheel: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
