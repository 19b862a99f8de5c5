"""Owns why pip failed, as a typed error: the facts of its output, judged in one order.

It does not know pip's lines, nor the process.
"""

from pathlib import Path

from cartdeck_models.disk import disk_full
from cartdeck_models.near_name import near_names
from cartdeck_models.pypi.pip_reading import PipReading
from cartdeck_models.spec import PypiSpec
from cartdeck_models.task import size_of_text
from cartdeck_protocol.errors import CartdeckError, Code, failure

PHASE = "download"
_FOLLOWS = ("ERROR: Could not find a version that satisfies", "ERROR: No matching distribution found")
"""What pip says of an index without the distribution, and of one that it could not ask."""


def pip_failure(spec: PypiSpec, reading: PipReading, *, returncode: int, folder: Path) -> CartdeckError:
    """The error for a pip that ended with `returncode` while it fetched `spec` into `folder`."""
    if reading.disk_full:
        return disk_full(folder, what=reading.file_name or spec.requirement)
    return (
        _refused(spec, reading)
        or _broken_off(spec, reading)
        or _not_found(spec, reading)
        or _unreachable(spec, reading)
        or _unknown(spec, reading, returncode)
    )


def _refused(spec: PypiSpec, reading: PipReading) -> CartdeckError | None:
    if reading.hashes_required:
        return _error(
            Code.UNSUPPORTED,
            reading,
            f"pip is set to require hashes (PIP_REQUIRE_HASHES), which it cannot have for {spec.requirement}. "
            "Unset that for the models cartridge, or fetch the file yourself and give its path.",
        )
    for status in (401, 403, 407):
        if status in reading.statuses:
            return _error(
                Code.AUTH_REQUIRED,
                reading,
                f"{reading.statuses[status]} answers {status}: pip has no access to it. "
                "Set the credentials in pip's configuration (index-url, keyring or ~/.netrc).",
                argument="model",
            )
    if 429 in reading.statuses:
        return _error(Code.RATE_LIMITED, reading, f"{reading.statuses[429]} answers 429, also after pip waited.")
    return None


def _broken_off(spec: PypiSpec, reading: PipReading) -> CartdeckError | None:
    total = reading.total
    is_short = total is not None and reading.work < total
    if reading.hash_mismatch and not is_short:
        return _error(
            Code.HASH_MISMATCH,
            reading,
            f"The wheel of {spec.requirement} has sha256 {reading.got_sha256}; "
            f"the index names {reading.expected_sha256}.",
            details={"expected": reading.expected_sha256, "got": reading.got_sha256},
        )
    # Before 25.1 pip took a connection that was cut for the end, and found a hash that does not match.
    if reading.cut or (reading.hash_mismatch and is_short):
        return _error(
            Code.DOWNLOAD_INTERRUPTED,
            reading,
            f"The transfer of {reading.file_name or spec.requirement} was cut off, also after pip's own retries"
            + (f"; {size_of_text(reading.work, total)} had come." if total else "."),
            details={"got": reading.work, "expected": total},
        )
    return None


def _not_found(spec: PypiSpec, reading: PipReading) -> CartdeckError | None:
    file_url = reading.statuses.get(404) or reading.statuses.get(410)
    if reading.versions is None:
        if file_url is None:
            return None
        return _error(Code.FILE_NOT_FOUND, reading, f"The index lists {file_url}, but it is not there.")
    if reading.unreachable:
        return None
    if spec.version in _skipped_versions(spec, reading):
        return _error(
            Code.UNSUPPORTED,
            reading,
            f"{spec.requirement} has no wheel that this Python can take, only: "
            f"{', '.join(_skipped_versions(spec, reading)[spec.version][:5])}. Expected a distribution with a wheel.",
            argument="model",
        )
    if reading.versions:
        near = near_names(spec.version, reading.versions) or list(reading.versions[-5:])
        return _error(
            Code.REVISION_NOT_FOUND,
            reading,
            f"The distribution {spec.distribution} has no version {spec.version} as a wheel. "
            f"It has for instance {', '.join(near)}.",
            argument="model",
            details={"versions": list(reading.versions[-50:])},
        )
    return _error(
        Code.MODEL_NOT_FOUND,
        reading,
        f"No index that pip is set up for has a wheel of the distribution {spec.distribution} "
        f"(asked for {spec.version}). Check the name, and pip's index-url with `pip config list`.",
        argument="model",
    )


def _skipped_versions(spec: PypiSpec, reading: PipReading) -> dict[str, list[str]]:
    """File names by version of the files that pip saw and could not take."""
    found: dict[str, list[str]] = {}
    for _, url in reading.skipped:
        name = url.rpartition("/")[2]
        if f"-{spec.version}-" in name or f"-{spec.version}." in name:
            found.setdefault(spec.version, []).append(name)
    return found


def _unreachable(spec: PypiSpec, reading: PipReading) -> CartdeckError | None:
    if not reading.unreachable:
        return None
    hosts = "; ".join(f"{host}: {reason}" for host, reason in reading.unreachable.items())
    return _error(
        Code.ENDPOINT_UNREACHABLE,
        reading,
        f"pip could not reach what it needs for {spec.requirement}: {hosts}. "
        "Check the network, the proxy and pip's index-url (`pip config list`).",
        details={
            "hosts": list(reading.unreachable),
            "log": [line for line in reading.complaints if not line.startswith(_FOLLOWS)],
        },
    )


def _unknown(spec: PypiSpec, reading: PipReading, returncode: int) -> CartdeckError:
    why = reading.first_error or reading.last_line or "it said nothing"
    ended = f"was ended by signal {-returncode}" if returncode < 0 else f"ended with exit code {returncode}"
    return _error(
        Code.DOWNLOAD_INTERRUPTED,
        reading,
        f"pip {ended} while it fetched {spec.requirement}: {why}",
        details={"returncode": returncode},
    )


def _error(
    code: Code,
    reading: PipReading,
    message: str,
    *,
    argument: str | None = None,
    details: dict[str, object] | None = None,
) -> CartdeckError:
    details = {"log": list(reading.complaints), **(details or {})}
    return failure(code, message, phase=PHASE, argument=argument, details=details)
