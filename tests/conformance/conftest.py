"""A model that caps of shipped cartridges are called with, beside those of tests/conftest.py and tests/data."""

import importlib.util
from pathlib import Path


def _of_torch() -> object:
    path = Path(__file__).parents[1] / "cartridges" / "torch" / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest_of_torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_causal


make_causal = _of_torch()
"""The fixture of that name, where torch is installed."""
