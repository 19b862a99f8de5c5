"""Settings: every one is known by its path, and a wrong one is refused by it."""

import tomllib
from pathlib import Path

import pytest

from cartdeck import CartdeckError, Code, Settings, load_settings
from cartdeck.settings import config_path, parse_settings, render_settings


def test_defaults_are_those_of_the_design() -> None:
    settings = Settings()
    assert (settings.stop.close_s, settings.stop.term_s) == (2.0, 2.0)
    assert (settings.restart.first_s, settings.restart.longest_s, settings.restart.quarantine_after) == (10, 300, 5)
    assert (settings.health.heartbeat_s, settings.health.missed_heartbeats) == (5.0, 3)
    assert (settings.call.silence_s, settings.call.cancel_s, settings.call.abandon_s) == (120.0, 2.0, 30.0)
    assert settings.call.stall_s > settings.call.silence_s
    assert settings.prefer == ("gguf", "torch")


@pytest.mark.parametrize(
    ("table", "path", "words"),
    [
        ({"start": {"step": 3}}, "start.step", "known here: hard_s, step_s"),
        ({"cal": {}}, "cal", "known here: call,"),
        ({"call": {"silence_s": "120"}}, "call.silence_s", "valid number"),
        ({"call": {"silence_s": 0}}, "call.silence_s", "greater than 0"),
        ({"health": {"missed_heartbeats": True}}, "health.missed_heartbeats", "valid integer"),
        ({"start": 3}, "start", "dictionary"),
        ({"cartridge_folders": ["~no-such-user/x"]}, "cartridge_folders", "no-such-user"),
        pytest.param({"call": {"log_lines": -(16**5000)}}, "call.log_lines", "far too long", id="a long integer"),
        pytest.param({"call": {"silence_s": 16**5000}}, "call.silence_s", "far too long", id="a long number"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(table: dict[str, object], path: str, words: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        parse_settings(table, origin="config.toml")
    assert caught.value.code is Code.BAD_ARGUMENT
    assert caught.value.argument == path
    assert words in str(caught.value)
    assert str(caught.value).startswith("config.toml: ")


@pytest.mark.parametrize("text", ["prefer = " + "[" * 5000 + "]" * 5000, "[call]\nlog_lines = " + "1" * 5000])
def test_a_file_with_a_nesting_or_a_number_without_end_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(CartdeckError, match="cannot be read") as caught:
        load_settings(path)
    assert caught.value.code is Code.BAD_ARGUMENT


def test_what_is_shown_gives_the_same_settings_when_it_is_read(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" \\ name'
    settings = parse_settings({"cartridge_folders": [str(folder)], "prefer": ["torch"]}, origin="test")
    shown = render_settings(settings)
    assert parse_settings(tomllib.loads(shown), origin="test") == settings


def test_the_file_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('prefer = ["echo"]\n[call]\nsilence_s = 7\n', "utf-8")
    monkeypatch.setenv("CARTDECK_CONFIG", str(path))
    assert config_path() == path
    settings = load_settings()
    assert settings.prefer == ("echo",)
    assert settings.call.silence_s == 7.0


def test_a_named_file_that_is_missing_is_an_error_and_the_usual_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CARTDECK_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_settings() == Settings()
    monkeypatch.setenv("CARTDECK_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(CartdeckError, match="no configuration file") as caught:
        load_settings()
    assert caught.value.code is Code.FILE_NOT_FOUND


def test_a_file_that_is_no_toml_says_where(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("prefer = [", "utf-8")
    with pytest.raises(CartdeckError, match=r"broken\.toml cannot be read") as caught:
        load_settings(path)
    assert caught.value.code is Code.BAD_ARGUMENT


def test_a_home_folder_is_expanded() -> None:
    settings = parse_settings({"cartridge_folders": ["~/mine"]}, origin="test")
    assert settings.cartridge_folders == (Path.home() / "mine",)


def test_what_the_settings_say_of_models_becomes_variables_and_silence_leaves_the_environment_alone() -> None:
    assert Settings().models.variables() == {}
    table = {"endpoint": "http://hub", "offline": True, "xet": False, "cache_folder": "~/hub", "folder": "/models"}
    assert parse_settings({"models": table}, origin="test").models.variables() == {
        "HF_ENDPOINT": "http://hub",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_CACHE": "~/hub",
        "CARTDECK_MODELS_DIR": "/models",
    }


def test_limits_are_by_the_name_of_a_cartridge_and_are_shown_as_they_are_read() -> None:
    settings = parse_settings({"limits": {"my-own": {"niceness": 3}}}, origin="test")
    assert settings.limits["my-own"].niceness == 3
    assert parse_settings(tomllib.loads(render_settings(settings)), origin="test") == settings
    with pytest.raises(CartdeckError, match=r"limits\.my-own\.nicenes is no setting; known here: memory_bytes, nicen"):
        parse_settings({"limits": {"my-own": {"nicenes": 3}}}, origin="test")
