"""Where models are kept, and the words and sizes that people read."""

from pathlib import Path

import platformdirs
import pytest

from cartdeck_models.settings import Settings
from cartdeck_models.task import Meter, size_of_text, size_text
from cartdeck_protocol.errors import CartdeckError, Code


def test_the_cache_is_in_the_user_s_cache_folder_unless_named(tmp_path: Path) -> None:
    assert Settings.from_environment({}).models_dir == platformdirs.user_cache_path("cartdeck") / "models"
    assert Settings.from_environment({"CARTDECK_MODELS_DIR": str(tmp_path)}).models_dir == tmp_path
    assert Settings.from_environment({"CARTDECK_MODELS_DIR": "x"}).models_dir == Path("x").absolute()


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "soon"])
def test_a_limit_is_a_positive_number_of_seconds(text: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        Settings.from_environment({"CARTDECK_MODELS_LOCK_LIMIT_S": text})

    assert caught.value.code is Code.BAD_ARGUMENT
    assert "CARTDECK_MODELS_LOCK_LIMIT_S" in caught.value.message


def test_sizes_are_in_decimal_units() -> None:
    assert [size_text(size) for size in (5, 1_500, 92_871_040, 5e9)] == ["5 B", "1.5 kB", "92.9 MB", "5.0 GB"]
    assert size_of_text(45_000_000, 92_871_040) == "45.0 of 92.9 MB"
    assert size_of_text(45, None) == "45 B"


def test_the_rate_is_that_of_the_last_seconds() -> None:
    meter = Meter("x.gguf")
    meter.message(0, 100_000_000, now_s=0)
    meter.message(50_000_000, 100_000_000, now_s=5)

    assert meter.message(52_000_000, 100_000_000, now_s=10) == "x.gguf: 52.0 of 100.0 MB, 0.4 MB/s, 120 s left".replace(
        "0.4 MB", "400.0 kB"
    )


def test_a_count_that_starts_anew_starts_the_rate_anew() -> None:
    meter = Meter("x")
    meter.message(50, 100, now_s=0)

    assert meter.message(0, 100, now_s=1) == "x: 0 of 100 B"
    assert meter.message(10, 100, now_s=2) == "x: 10 of 100 B, 10 B/s, 9 s left"


def test_an_unknown_total_tells_no_time_left() -> None:
    meter = Meter("x")
    meter.message(0, None, now_s=0)

    assert meter.message(2_000_000, None, now_s=1) == "x: 2.0 MB, 2.0 MB/s"
