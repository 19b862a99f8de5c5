"""Owns the order of versions. It does not know what is versioned.

The order is that of Python's packages (https://packaging.python.org/specifications/version-specifiers/); a text that is
no such version comes before all that are.
"""

import operator
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

VersionKey: TypeAlias = tuple[
    int, int, tuple[int, ...], tuple[int, int], int, int, tuple[tuple[int, int, str], ...], str
]

_VERSION: Final = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<pre_number>\d*))?"
    r"(?P<post>-\d+|[-_.]?(?:post|rev|r)[-_.]?\d*)?"
    r"(?P<dev>[-_.]?dev[-_.]?\d*)?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?"
)
_COMPARISON: Final = re.compile(r"(>=|<=|==|!=|>|<)\s*([^=*\s]+)")
_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_PRE: Final = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_LATEST: Final = 2**63


def version_key(text: str) -> VersionKey:
    """A sort key: the greatest is the newest version."""
    found = _VERSION.fullmatch(text.strip().lower())
    if found is None:
        return (0, 0, (), (0, 0), 0, 0, (), text)
    release = tuple(int(part) for part in found["release"].split("."))
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    dev = _LATEST if found["dev"] is None else _number(found["dev"])
    if found["pre"] is not None:
        pre = (_PRE[found["pre"]], int(found["pre_number"] or 0))
    elif found["dev"] is not None and found["post"] is None:
        pre = (-1, 0)  # 1.0.dev1 comes before 1.0a1
    else:
        pre = (_LATEST, 0)
    post = -1 if found["post"] is None else _number(found["post"])
    local = tuple(
        (1, int(part), "") if part.isdigit() else (0, 0, part)
        for part in re.split(r"[-_.]", found["local"] or "")
        if part
    )
    return (1, int(found["epoch"] or 0), release, pre, post, dev, local, "")


def is_version_in(version: str, wanted: str) -> bool:
    """Whether a version is one of those that `wanted` asks for, such as `>=2.4,<3`. A build's own label, as in
    `2.11.0+cpu`, does not count, and an operator that is none of `>= > <= < == !=` asks for nothing."""
    key = version_key(version.partition("+")[0])
    for one in wanted.split(","):
        found = _COMPARISON.fullmatch(one.strip())
        if found is not None and not _COMPARED[found[1]](key, version_key(found[2])):
            return False
    return True


def _number(text: str) -> int:
    return int("".join(filter(str.isdigit, text)) or 0)
