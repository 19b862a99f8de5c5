"""Cartridges in environments of their own: brought whole or not at all, side by side, and checked before each start."""

import asyncio
import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cartdeck import Engine, Settings
from cartdeck.discovery import discover
from cartdeck.installing.isolated import environments_folder, install_isolated, sweep_unfinished
from cartdeck.installing.lock_file import read_lock
from cartdeck.installing.offline import offline_reason, refuse_addresses
from cartdeck.installing.pip_install import progress_form
from cartdeck.installing.registration import link_folder, missing_program, pin, unregister
from cartdeck.installing.version_order import is_version_in, version_key
from cartdeck.scaffold.new_cartridge import new_cartridge
from cartdeck.sessions.leftover import engine_mark
from cartdeck_protocol.errors import CartdeckError, Code

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(180)


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str | bytes]) -> Path:
    """A wheel with these files; `entry_points.txt` among them goes to its metadata."""
    info = f"{name}-{version}.dist-info"
    contents = {
        (f"{info}/{path}" if path == "entry_points.txt" else path): text.encode() if isinstance(text, str) else text
        for path, text in files.items()
    }
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for path, data in contents.items()
    ]
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, data in contents.items():
            archive.writestr(inside, data)
    return path


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels, so that nothing is fetched: the kit as a path to this tree, a cartridge in two versions."""
    folder = tmp_path_factory.mktemp("wheels")
    paths = [*(str(ROOT / part) for part in ("protocol", "host", "cartridges")), sysconfig.get_path("purelib")]
    make_wheel(folder, "cartdeck", "9.9.9", {"cartdeck_tree.pth": "\n".join(paths) + "\n"})
    for version in ("1.9.0", "1.10.0"):
        made = folder / f"shout-{version}"
        new_cartridge("shout", cap=None, language="python", folder=made)
        files: dict[str, str | bytes] = {
            str(path.relative_to(made)): path.read_bytes() for path in (made / "shout").iterdir() if path.is_file()
        }
        files["shout/handlers.py"] = (
            (made / "shout" / "handlers.py")
            .read_text("utf-8")
            .replace("given.upper()", f'given.upper() + " {version}"')
        )
        files["entry_points.txt"] = "[cartdeck.cartridges]\nshout = shout\n"
        make_wheel(folder, "shout", version, files)
    make_wheel(folder, "nothing_here", "1.0", {"nothing_here/__init__.py": ""})
    return folder


@pytest.fixture
def settings(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: Callable[..., Settings]) -> Settings:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_COMPILE", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", shelf.as_uri())  # pip splits the variable at spaces
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return quick()


def bring(settings: Settings, requirement: str, *, offline: str = "") -> list[str]:
    folder = settings.cartridge_folders[0]

    async def work() -> list[str]:
        lines: list[str] = []
        done = await install_isolated(
            requirement, beside=["cartdeck"], folder=folder, tell=lines.append, offline=offline
        )
        assert lines
        return [f"{one.name} {one.version}" for one in done]

    return asyncio.run(work())


async def say(settings: Settings) -> str:
    async with Engine(settings) as engine:
        return (await engine.run("cap:shout", {"text": "hello"}, timeout_s=60)).text


def environments() -> list[Path]:
    return sorted(environments_folder().glob("*"))


def test_versions_stand_side_by_side_and_the_newest_or_the_one_asked_for_is_used(settings: Settings) -> None:
    folder = settings.cartridge_folders[0]
    assert bring(settings, "shout==1.10.0") == ["shout 1.10.0"]
    assert bring(settings, "shout==1.9.0") == ["shout 1.9.0"]
    assert asyncio.run(say(settings)) == "HELLO 1.10.0"
    [passed] = discover(settings).passed_over
    assert passed.cartridge.version == "1.9.0"
    assert passed.reason.startswith("1.10.0 from")
    pin(folder, "shout", "1.9.0")
    assert asyncio.run(say(settings)) == "HELLO 1.9.0"
    with pytest.raises(CartdeckError, match=r"installed are 1\.10\.0, 1\.9\.0"):
        pin(folder, "shout", "3")

    [environment] = [one for one in environments() if one.name.startswith("shout-1-9")]
    [handlers] = environment.glob("lib/python3*/site-packages/shout/handlers.py")
    handlers.write_text(handlers.read_text("utf-8") + "# changed\n", "utf-8")
    with pytest.raises(CartdeckError, match="is not what was installed") as caught:
        asyncio.run(say(settings))
    assert caught.value.code is Code.HASH_MISMATCH
    assert "cartdeck install" in caught.value.remedy

    assert unregister(folder, "shout", "1.9.0") == ["1.9.0"]
    assert asyncio.run(say(settings)) == "HELLO 1.10.0"
    assert unregister(folder, "shout") == ["1.10.0"]
    assert environments() == []
    assert read_lock(folder).versions == {}
    assert not any(one.name == "shout" for one in discover(settings).cartridges)


def test_the_commands_install_list_choose_and_remove(settings: Settings, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'cartridge_folders = ["{settings.cartridge_folders[0]}"]\n', "utf-8")

    def command(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "cartdeck"), *words],
            env={**os.environ, "CARTDECK_CONFIG": str(config)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout or done.stderr

    assert command("install", "shout==1.9.0", "--isolated", "--with", "cartdeck").startswith("shout 1.9.0 in ")
    found = {one["name"]: one for one in json.loads(command("cartridges", "--json"))["cartridges"]}
    assert found["shout"]["version"] == "1.9.0"
    assert found["shout"]["installed_hash"].startswith("sha256:")
    command("cartridges", "use", "shout", "1.9.0")
    assert read_lock(settings.cartridge_folders[0]).pinned == {"shout": "1.9.0"}
    assert "is not there" in command("cartridges", "use", "shout", "2", status=2)

    [handlers] = environments()[0].glob("lib/python3*/site-packages/shout/handlers.py")
    handlers.write_text(handlers.read_text("utf-8") + "# changed\n", "utf-8")
    [changed] = [one for one in json.loads(command("cartridges", "--json"))["cartridges"] if one["name"] == "shout"]
    assert (changed["is_available"], changed["changed"]["code"]) == (False, "HASH_MISMATCH")
    assert "changed since it was installed, will not start" in command("cartridges")
    assert "cartdeck install" in command("check", "shout", "--only", "1", status=6)

    assert command("uninstall", "shout==1.9.0") == "shout 1.9.0 is gone\n"
    assert environments() == []
    assert "no cartridge 'shout'" in command("uninstall", "shout", status=2)
    for nothing in ("./no-such-folder", "~no-such-user/folder", f"./{'a' * 300}"):
        assert f"nothing at {nothing[:20]}" in " ".join(command("install", nothing, status=2).split())
    assert "part of cartdeck itself" in command("uninstall", "echo", status=2)


@pytest.mark.parametrize(
    ("requirement", "code", "words"),
    [
        ("no-such-distribution-here", Code.START_FAILED, "Could not find a version"),
        ("nothing_here", Code.BAD_ARGUMENT, "offers no cartridge"),
        ("cartdeck==99", Code.CARTRIDGE_UNAVAILABLE, "finds no cartdeck"),
    ],
)
def test_what_fails_leaves_nothing(settings: Settings, requirement: str, code: Code, words: str) -> None:
    with pytest.raises(CartdeckError, match=words) as caught:
        bring(settings, requirement)
    assert caught.value.code is code
    assert environments() == []
    assert not list(settings.cartridge_folders[0].glob("*/cartridge.toml"))


def test_offline_what_lies_here_is_installed_and_nothing_else(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    assert bring(settings, "shout==1.9.0", offline="models.offline") == ["shout 1.9.0"]
    for requirement, words in (
        ("no-such-distribution-here", "pip finds no no-such-distribution-here on this machine"),
        ("six @ https://example.org/six.whl", "is not on this machine"),
    ):
        with pytest.raises(CartdeckError, match=words) as caught:
            bring(settings, requirement, offline="models.offline")
        assert caught.value.code is Code.OFFLINE_NOT_CACHED
        assert "PIP_FIND_LINKS" in caught.value.remedy
    assert len(environments()) == 1


def test_offline_is_what_the_settings_or_the_hubs_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert offline_reason(Settings()) == ""
    assert offline_reason(Settings.model_validate({"models": {"offline": True}})) == "models.offline"
    monkeypatch.setenv("HF_HUB_OFFLINE", "true")
    assert offline_reason(Settings()) == "HF_HUB_OFFLINE"


@pytest.mark.parametrize(
    "requirement", ["git+https://a/b.git", "x @ https://a/b.whl", "http://a/b.zip", "git+ssh://a/b"]
)
def test_offline_an_address_is_refused_before_pip_starts(requirement: str) -> None:
    refuse_addresses(["shout", "./shout-1.0-py3-none-any.whl", "file:///a/b.whl", "git+file:///a/b"], "models.offline")
    with pytest.raises(CartdeckError, match=r"offline mode is set \(models.offline\)"):
        refuse_addresses([requirement], "models.offline")


def test_an_older_pip_is_asked_for_nothing_that_it_does_not_know() -> None:
    assert [progress_form(version) for version in ("", "23.2.1", "24.0", "24.1", "26.0")] == ["off"] * 3 + ["raw"] * 2


def test_what_is_cancelled_leaves_nothing(settings: Settings) -> None:
    async def work() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(
            install_isolated(
                "shout", beside=["cartdeck"], folder=settings.cartridge_folders[0], tell=lambda _: begun.set()
            )
        )
        await asyncio.wait_for(begun.wait(), 60)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert environments() == []


def test_what_a_killed_process_left_is_swept(settings: Settings) -> None:
    left, own = environments_folder() / "left", environments_folder() / "own"
    for folder, mark in ((left, f"{os.getpid()}-1-{engine_mark().rpartition('-')[2]}"), (own, "what is that")):
        folder.mkdir(parents=True)
        (folder / "unfinished").write_text(mark, "utf-8")
    assert sweep_unfinished() == 1
    assert environments() == [own]


def test_a_folder_whose_manifest_is_not_there_is_told_how_to_make_it(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "cartridge.toml").write_text('command = ["true"]\nmanifest = "none.json"\n', "utf-8")
    with pytest.raises(CartdeckError, match=r"names the manifest .*none\.json, which cannot be read") as caught:
        link_folder(tmp_path, settings.cartridge_folders[0])
    assert caught.value.code is Code.FILE_NOT_FOUND
    assert f"python -m cartdeck_sdk.manifest {tmp_path}" in caught.value.remedy


def test_a_folder_with_a_cartridge_file_is_registered_where_it_lies(settings: Settings, tmp_path: Path) -> None:
    source = tmp_path / "elsewhere"
    new_cartridge("whisper-it", cap=None, language="python", folder=source)
    (source / "cartridge.toml").write_text(
        f'command = ["{sys.executable}", "-P", "-m", "cartdeck_sdk", "whisper_it"]\n'
        'manifest = "whisper_it/manifest.json"\nworking_directory = "{folder}"\nenvironment = ["PYTHONPATH"]\n',
        "utf-8",
    )
    link = link_folder(source, settings.cartridge_folders[0])
    assert link.name == "whisper-it"
    assert missing_program(source) is None
    [found] = [one for one in discover(settings).cartridges if one.name == "whisper-it"]
    assert found.file is not None
    assert found.file.working_directory == link
    assert unregister(settings.cartridge_folders[0], "whisper-it") == [""]
    assert (source / "cartridge.toml").exists()
    assert not link.is_symlink()


def test_a_place_where_nothing_can_be_registered_is_told_with_the_setting_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "cartridge.toml").write_text('command = ["true"]\n', "utf-8")
    (tmp_path / "file").touch()
    with pytest.raises(CartdeckError, match=r"cannot be written: .* the setting cartridge_folders names it") as caught:
        link_folder(tmp_path, tmp_path / "file" / "cartridges")
    assert caught.value.code is Code.NOT_WRITABLE


def test_a_program_that_is_still_to_be_built_is_named(tmp_path: Path) -> None:
    (tmp_path / "cartridge.toml").write_text('command = ["./echo"]\n', "utf-8")
    assert missing_program(tmp_path) == str(tmp_path / "echo")
    (tmp_path / "echo").write_text("#!/bin/sh\n", "utf-8")
    (tmp_path / "echo").chmod(0o755)
    assert missing_program(tmp_path) is None


def test_versions_have_the_order_of_python_packages() -> None:
    ordered = [
        "what",
        "1.0.dev1",
        "1.0a1",
        "1.0b2",
        "1.0rc1",
        "1.0",
        "1.0+local.1",
        "1.0.post1",
        "1.2",
        "1.10",
        "2!0.1",
    ]
    assert sorted(random.Random(7).sample(ordered, len(ordered)), key=version_key) == ordered
    assert version_key("1.0") == version_key("1.0.0") == version_key("v1")


@pytest.mark.parametrize(
    ("version", "wanted", "is_in"),
    [
        ("2.11.0+cpu", ">=2.11,<3", True),
        ("3.0", "<3,>=2", False),
        ("24.0", ">=24.1", False),
        ("1.0", "==1.0.0", True),
        ("1.0+cpu", "==1.0", True),
        ("1.2", "!=1.2", False),
        ("1.2", "~=9.9", True),
        ("1.2", "==1.*", True),
        ("0.3", "", True),
    ],
)
def test_a_version_is_held_against_what_is_wanted(version: str, wanted: str, is_in: bool) -> None:
    assert is_version_in(version, wanted) is is_in
