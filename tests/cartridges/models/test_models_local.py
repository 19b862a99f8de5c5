"""Models that are here already: by path, and inside installed packages."""

import os
import sys
from pathlib import Path

import pytest

from cartdeck_models.library import Library
from cartdeck_models.local import obtain_local
from cartdeck_models.package import obtain_package
from cartdeck_models.settings import Settings
from cartdeck_models.spec import HubSpec, PackageSpec, parse_spec
from cartdeck_protocol.errors import CartdeckError, Code


def refused(path: str) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        obtain_local(path)
    return caught.value


def test_a_file_is_given_in_place_and_is_not_hashed(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"123")

    found = obtain_local(str(path))

    assert (found.path, found.source, found.sha256, found.revision) == (path, "local", None, None)
    assert [(file.path, file.size_bytes, file.sha256) for file in found.files] == [(path, 3, None)]


def test_a_relative_path_begins_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.gguf").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)

    assert obtain_local("sub/../sub/m.gguf").path == tmp_path / "sub" / "m.gguf"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"1")

    assert obtain_local("~/m.gguf").path == tmp_path / "m.gguf"
    assert refused("~nobody-of-this-name/x").code is Code.FILE_NOT_FOUND


def test_a_folder_is_given_with_its_files_links_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"12345")
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "b").write_bytes(b"1")
    (folder / "a").symlink_to(tmp_path / "blob")
    (folder / "broken").symlink_to(tmp_path / "nothing")
    (folder / "inner" / "loop").symlink_to(folder)

    found = obtain_local(f"{folder}/")

    assert found.path == folder
    assert [(str(file.path.relative_to(folder)), file.size_bytes) for file in found.files] == [("a", 5), ("inner/b", 1)]


def test_a_missing_file_names_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2.Q4_1.gguf").touch()

    error = refused(str(tmp_path / "smollm2.q4_1.gguf"))

    assert error.code is Code.FILE_NOT_FOUND
    assert error.argument == "model"
    assert "Near it: SmolLM2.Q4_1.gguf" in error.message


def test_a_missing_folder_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()

    error = refused(str(tmp_path / "model" / "x" / "y.gguf"))

    assert f"There is no 'model' in {tmp_path}. Near it: models" in error.message


def test_a_link_to_nothing_is_told_from_a_name_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").symlink_to("gone.gguf")
    (tmp_path / "models").symlink_to(tmp_path / "away")

    for path, link, target in (
        ("broken.gguf", "broken.gguf", "gone.gguf"),
        ("models/x/y.gguf", "models", str(tmp_path / "away")),
    ):
        error = refused(str(tmp_path / path))
        assert error.code is Code.FILE_NOT_FOUND
        assert f"{tmp_path / link} is a link to {target}, and there is nothing" in error.message
        assert "Near it" not in error.message


def test_a_bare_word_also_says_what_a_spec_is() -> None:
    assert "A model spec is hf:" in refused("gpt2-cartdeck-test").message


def test_an_empty_folder_and_a_pipe_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")

    assert refused(str(tmp_path / "empty")).code is Code.FILE_NOT_FOUND
    assert refused(str(tmp_path / "pipe")).code is Code.BAD_MODEL_FILE


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()

    assert "leave out the '/'" in refused(f"{tmp_path}/m.gguf/").message
    assert refused(f"{tmp_path}/m.gguf/inner").code is Code.FILE_NOT_FOUND


def test_a_name_that_is_too_long_for_the_disk_is_not_found(tmp_path: Path) -> None:
    assert refused(str(tmp_path / ("x" * 300))).code is Code.FILE_NOT_FOUND


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch(mode=0)

    assert "permission denied" in refused(str(tmp_path / "m.gguf")).message


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that must not be imported: its code fails."""
    folder = tmp_path / "site" / "demo_weights"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "inner" / "m.gguf").write_bytes(b"12")
    (tmp_path / "site" / "single.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


@pytest.mark.parametrize(
    "spec", [PackageSpec("demo_weights", "inner/m.gguf"), PackageSpec("demo_weights.inner", "m.gguf")]
)
def test_a_package_s_file_is_found_without_an_import(package: Path, spec: PackageSpec) -> None:
    found = obtain_package(spec)

    assert found.path == package / "inner" / "m.gguf"
    assert (found.source, found.sha256) == ("package", None)
    assert "demo_weights" not in sys.modules


def test_a_package_s_folder_is_given_with_its_files(package: Path) -> None:
    assert [file.size_bytes for file in obtain_package(PackageSpec("demo_weights", "inner/")).files] == [2]


def test_a_package_installed_meanwhile_is_found(package: Path) -> None:
    with pytest.raises(CartdeckError):
        obtain_package(PackageSpec("demo_later", "x"))
    later = package.parent / "demo_later"
    later.mkdir()
    (later / "x").touch()

    assert obtain_package(PackageSpec("demo_later", "x")).path == later / "x"


@pytest.mark.parametrize(
    ("spec", "code", "named"),
    [
        (PackageSpec("no_such_package_here", "x"), Code.MODEL_NOT_FOUND, "no_such_package_here"),
        (PackageSpec("demo_weights", "inner/m.ggu"), Code.FILE_NOT_FOUND, "Near it: inner/m.gguf"),
        (PackageSpec("demo_weights.outer", "x"), Code.UNSUPPORTED, "no folder"),
        (PackageSpec("single", "x"), Code.UNSUPPORTED, "single module"),
        (PackageSpec("sys", "x"), Code.UNSUPPORTED, "single module"),
    ],
)
def test_a_package_that_does_not_have_it_says_why(package: Path, spec: PackageSpec, code: Code, named: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        obtain_package(spec)

    assert caught.value.code is code
    assert named in caught.value.message


def test_an_owner_and_name_that_lie_here_are_a_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(Settings(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "config.json").touch()

    found = library.look_up(parse_spec("owner/name"))

    assert found is not None
    assert found.path == tmp_path / "owner" / "name"


def test_a_look_up_asks_no_hub_and_makes_no_cache(tmp_path: Path) -> None:
    assert Library(Settings(tmp_path / "cache")).look_up(HubSpec("owner/other", is_bare=True)) is None
    assert not (tmp_path / "cache").exists()
