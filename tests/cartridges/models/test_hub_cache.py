"""The cache: others read what we fetched, we read what others fetched, and what is here is not asked for."""

import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache

from cartdeck_models.settings import HubSettings, Settings
from cartdeck_protocol.errors import Code

LARGE = random.Random(3).randbytes(300_000)
OTHER = random.Random(4).randbytes(300_000)
FILES = {
    "config.json": b'{"model_type": "x"}',
    "tokenizer.json": b"{}",
    "model.safetensors": random.Random(5).randbytes(200_000),
    "model.onnx": LARGE,
    "README.md": b"read me",
    "pytorch_model.bin": b"pickle",
}
SPEC = "hf:owner/name:model.onnx"


@pytest.fixture
def repository(hub) -> Any:
    return hub.add(dict(FILES))


@pytest.fixture
def turn_network_off(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it to turn the network off; it gives the list of what was tried since."""
    tried: list[Any] = []

    def refuse(*address: Any, **_: Any) -> Any:
        tried.append(address)
        raise OSError("the network is off in this test")

    def turn_off() -> list[Any]:
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        monkeypatch.setattr(socket.socket, "connect", refuse)
        return tried

    return turn_off


def commit_of(hub, branch: str = "main") -> str:
    return hub.repositories["owner/name"].branches[branch]


def test_the_hub_s_own_library_finds_all_that_we_fetched(desk, hub, repository) -> None:
    found = desk.obtain("hf:owner/name")
    hub.requests.clear()
    cache, commit = desk.settings.hub_cache_dir, commit_of(hub)

    path = hf_hub_download("owner/name", "model.safetensors", revision=commit, cache_dir=cache, endpoint=hub.url)
    assert Path(path) == found.path / "model.safetensors"
    assert hub.requests == []
    local = hf_hub_download("owner/name", "config.json", cache_dir=cache, local_files_only=True)
    assert Path(local).read_bytes() == FILES["config.json"]
    assert try_to_load_from_cache("owner/name", "tokenizer.json", cache_dir=cache) == str(found.path / "tokenizer.json")
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    folder = snapshot_download("owner/name", cache_dir=cache, local_files_only=True, allow_patterns=names)
    assert sorted(path.name for path in Path(folder).iterdir()) == names
    assert hub.requests == []


def test_the_hub_s_own_library_scans_and_verifies_our_cache(desk, hub, repository) -> None:
    desk.obtain("hf:owner/name")
    scanned = scan_cache_dir(desk.settings.hub_cache_dir)
    repo = next(iter(scanned.repos))
    api = HfApi(endpoint=hub.url, token=False)
    verified = api.verify_repo_checksums("owner/name", cache_dir=desk.settings.hub_cache_dir)

    assert scanned.warnings == []
    assert (repo.repo_id, repo.nb_files) == ("owner/name", 3)
    assert {ref for revision in repo.revisions for ref in revision.refs} == {"main"}
    assert verified.mismatches == []
    assert verified.checked_count == 3


def test_what_lies_in_the_cache_is_a_link_to_content_by_its_hash(desk, hub, repository) -> None:
    path = desk.obtain(SPEC).path

    assert path.is_symlink()
    assert not path.readlink().is_absolute()
    assert path.resolve().name == hub.file("model.onnx").sha256
    assert (desk.settings.hub_cache_dir / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172")


def test_a_set_of_safetensors_comes_with_what_its_reader_needs_and_no_pickle(desk, hub, repository) -> None:
    found = desk.obtain("owner/name")

    assert found.path.is_dir()
    assert sorted(file.path.name for file in found.files) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert all(file.sha256 for file in found.files)
    assert not hub.asked_for("pytorch_model.bin")
    assert any("of 3" in told.message for told in desk.told)


def test_what_huggingface_hub_fetched_is_taken_and_checked_once(desk, hub, repository) -> None:
    cache = desk.settings.hub_cache_dir
    hf_hub_download("owner/name", "model.onnx", cache_dir=cache, endpoint=hub.url, token=False)
    hub.requests.clear()
    found = desk.obtain(SPEC)

    assert found.path.read_bytes() == LARGE
    assert found.sha256 == hub.file("model.onnx").sha256
    assert not hub.asked_for("/resolve/")
    assert [path.stem for path in (desk.root / "verified").rglob("*.json")] == [found.sha256]


def test_wrong_content_that_another_tool_left_is_set_aside_and_fetched_anew(desk, hub, repository) -> None:
    cache = desk.settings.hub_cache_dir
    path = Path(hf_hub_download("owner/name", "model.onnx", cache_dir=cache, endpoint=hub.url, token=False))
    path.resolve().write_bytes(bytes(len(LARGE)))

    assert desk.obtain(SPEC).path.read_bytes() == LARGE


def test_a_second_call_at_a_pinned_commit_asks_nothing(desk, hub, repository) -> None:
    spec = f"hf:owner/name@{commit_of(hub)}:model.onnx"
    first = desk.obtain(spec)
    hub.requests.clear()

    assert desk.obtain(spec) == first
    assert desk.library().look_up(_parsed(spec)) == first
    assert hub.requests == []


def test_a_pinned_commit_that_huggingface_hub_fetched_is_found_without_a_request(desk, hub, repository) -> None:
    cache, commit = desk.settings.hub_cache_dir, commit_of(hub)
    hf_hub_download("owner/name", "model.onnx", cache_dir=cache, endpoint=hub.url, token=False, revision=commit)
    hub.requests.clear()

    assert desk.obtain(f"hf:owner/name@{commit}:model.onnx").path.read_bytes() == LARGE
    assert hub.requests == []


def test_a_second_call_on_a_branch_asks_only_what_it_means_now(desk, hub, repository) -> None:
    first = desk.obtain("owner/name")
    hub.requests.clear()

    assert desk.obtain("owner/name") == first
    assert [request.path for request in hub.requests] == ["/api/models/owner/name/revision/main"]


def test_wrong_content_at_a_pinned_commit_is_fetched_anew_too(desk, hub, repository) -> None:
    cache, commit = desk.settings.hub_cache_dir, commit_of(hub)
    path = hf_hub_download("owner/name", "model.onnx", cache_dir=cache, endpoint=hub.url, token=False, revision=commit)
    Path(path).resolve().write_bytes(bytes(len(LARGE)))

    assert desk.obtain(f"hf:owner/name@{commit}:model.onnx").path.read_bytes() == LARGE


def test_transformers_loads_what_we_fetched_without_the_network(desk, hub, turn_network_off, tmp_path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.set_num_threads(1)
    config = transformers.AutoConfig.for_model("gpt2", n_layer=1, n_embd=8, n_head=2, vocab_size=16)
    made = transformers.AutoModelForCausalLM.from_config(config)
    made.save_pretrained(tmp_path / "made")
    hub.add({path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()})
    found = desk.obtain("owner/name")
    tried = turn_network_off()
    loads = transformers.AutoModelForCausalLM.from_pretrained

    for loaded in (
        loads(found.path, local_files_only=True, use_safetensors=True),
        loads("owner/name", cache_dir=desk.settings.hub_cache_dir, local_files_only=True, use_safetensors=True),
    ):
        assert all(torch.equal(one, other) for one, other in zip(made.parameters(), loaded.parameters(), strict=True))
    assert tried == []


def test_a_branch_that_moved_gives_the_new_commit_and_a_pinned_one_stays(desk, hub, repository) -> None:
    first = desk.obtain(SPEC)
    hub.add({**FILES, "model.onnx": OTHER})
    second = desk.obtain(SPEC)

    assert [first.revision, second.revision] == list(repository.commits)
    assert second.path.read_bytes() == OTHER
    assert first.path.read_bytes() == LARGE
    hub.close()
    assert desk.obtain(f"hf:owner/name@{first.revision}:model.onnx").path == first.path


def test_a_branch_whose_name_goes_on_from_another_s_is_fetched_too(desk, hub, repository) -> None:
    hub.add({"model.onnx": OTHER}, branch="main/next")

    assert desk.obtain(SPEC).path.read_bytes() == LARGE
    assert desk.obtain("hf:owner/name@main/next:model.onnx").path.read_bytes() == OTHER
    assert desk.obtain(SPEC).path.read_bytes() == LARGE


def test_a_file_that_did_not_change_between_commits_is_not_fetched_again(desk, hub, repository) -> None:
    desk.obtain(SPEC)
    hub.add({**FILES, "config.json": b'{"model_type": "y"}'})
    hub.requests.clear()
    found = desk.obtain(SPEC)

    assert found.path.read_bytes() == LARGE
    assert found.revision == commit_of(hub)
    assert not hub.asked_for("/resolve/")


@pytest.mark.parametrize("is_offline", [True, False])
def test_a_cached_model_loads_while_the_network_is_off(desk, hub, repository, turn_network_off, is_offline) -> None:
    first = desk.obtain("owner/name")
    tried = turn_network_off()
    desk.set(is_offline=is_offline)
    started_s = time.monotonic()

    assert desk.obtain("owner/name") == first
    assert desk.obtain("hf:owner/name:config.json").path.read_bytes() == FILES["config.json"]
    assert time.monotonic() - started_s < 20
    if is_offline:
        assert tried == []


def test_offline_mode_says_at_once_what_is_not_cached_and_looks_nothing_up(desk, turn_network_off) -> None:
    tried = turn_network_off()
    desk.set(is_offline=True, endpoint="https://no-such-host.invalid")
    started_s = time.monotonic()
    error = desk.refused(SPEC)

    assert error.code is Code.OFFLINE_NOT_CACHED
    assert time.monotonic() - started_s < 20
    assert "HF_HUB_OFFLINE" in error.message
    assert tried == []


def test_offline_mode_never_gives_a_part_of_a_model(desk, hub, repository) -> None:
    cache = desk.settings.hub_cache_dir
    hf_hub_download("owner/name", "model.onnx", cache_dir=cache, endpoint=hub.url, token=False)
    desk.set(is_offline=True)

    assert desk.obtain(SPEC).path.read_bytes() == LARGE
    assert desk.refused("owner/name").code is Code.OFFLINE_NOT_CACHED


def test_offline_mode_finds_a_gguf_model_that_huggingface_hub_fetched(desk, hub) -> None:
    hub.add({"m.Q4_K_M.gguf": LARGE, "m.Q8_0.gguf": OTHER})
    cache = desk.settings.hub_cache_dir
    hf_hub_download("owner/name", "m.Q8_0.gguf", cache_dir=cache, endpoint=hub.url, token=False)
    desk.set(is_offline=True)

    assert desk.obtain("hf:owner/name:*Q8_0*").path.name == "m.Q8_0.gguf"
    assert desk.obtain("owner/name").path.name == "m.Q8_0.gguf"
    assert desk.refused("hf:owner/name:Q4_K_M").code is Code.OFFLINE_NOT_CACHED


@pytest.mark.parametrize("why", ["setting", "disk"])
def test_where_links_cannot_be_made_content_lies_in_the_snapshot(desk, hub, repository, monkeypatch, why: str) -> None:
    if why == "setting":
        desk.set(uses_symlinks=False)
    else:

        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError("no links here")

        monkeypatch.setattr(Path, "symlink_to", refuse)
    found = desk.obtain("owner/name")

    assert not (found.path / "model.safetensors").is_symlink()
    assert (found.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    hub.requests.clear()
    assert desk.obtain(f"hf:owner/name@{found.revision}").files == found.files
    assert hub.requests == []
    cache = desk.settings.hub_cache_dir
    path = hf_hub_download("owner/name", "model.safetensors", cache_dir=cache, local_files_only=True)
    assert Path(path).read_bytes() == FILES["model.safetensors"]


def test_what_killed_transfers_of_huggingface_hub_left_is_swept(desk, hub, repository) -> None:
    desk.obtain(SPEC)
    blobs = desk.settings.hub_cache_dir / "models--owner--name" / "blobs"
    orphan, running = blobs / f"{'a' * 64}.0123abcd.incomplete", blobs / f"{'b' * 64}.0123abcd.incomplete"
    for path in (orphan, running):
        path.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    desk.obtain("hf:owner/name:config.json")

    assert not orphan.exists()
    assert running.exists()


def test_an_orphan_whose_lock_is_held_stays(desk, hub, repository) -> None:
    from filelock import FileLock

    desk.obtain(SPEC)
    cache = desk.settings.hub_cache_dir
    orphan = cache / "models--owner--name" / "blobs" / f"{'a' * 64}.0123abcd.incomplete"
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    with FileLock(cache / ".locks" / "models--owner--name" / f"{'a' * 64}.lock"):
        desk.obtain("hf:owner/name:config.json")

    assert orphan.exists()


UNSAFE = ["../../evil", "/etc/x", "C:\\x", "D:foo", "\\\\host\\s", "a/..\\..\\b", "nul\0byte", "a//b", "./x", "x/"]


@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_name_in_a_listing_stops_all_of_it_before_any_file(desk, hub, tmp_path, fake_hub, name: str) -> None:
    hub.add({**FILES, "evil": fake_hub.File(b"evil", listed_as=name)})
    before = {path for path in tmp_path.rglob("*") if "models" not in path.parts}
    error = desk.refused("owner/name")

    assert error.code is Code.UNSAFE_FILENAME
    assert not hub.asked_for("/resolve/")
    assert {path for path in tmp_path.rglob("*") if "models" not in path.parts} == before
    assert not [path for path in desk.root.rglob("*") if path.is_file() and path.read_bytes() == b"evil"]


def test_a_kept_listing_is_read_as_strictly_as_one_from_the_network(desk, hub, repository) -> None:
    commit = commit_of(hub)
    desk.obtain(SPEC)
    listing = desk.settings.hub_cache_dir / "models--owner--name" / "trees" / f"{commit}.json"
    listing.write_text(listing.read_text().replace("README.md", "../../README.md"))
    hub.requests.clear()

    assert desk.obtain(f"hf:owner/name@{commit}:config.json").path.read_bytes() == FILES["config.json"]
    assert hub.asked_for("/tree/")


def test_files_in_folders_keep_their_folders(desk, hub) -> None:
    hub.add({"Q2_K/m-00001-of-00002.gguf": LARGE, "Q2_K/m-00002-of-00002.gguf": OTHER, "x/Q8_0/m.gguf": b"8"})
    for spec in ("Q2_K/m-00001-of-00002.gguf", "m-00001-of-00002.gguf", "Q2_K", "*00002.gguf"):
        found = desk.obtain(f"hf:owner/name:{spec}")
        assert found.path.name == "m-00001-of-00002.gguf"
        assert [file.path.name for file in found.files] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
        assert {file.path.parent for file in found.files} == {found.path.parent}
    error = desk.refused("hf:owner/name:*.gguf")

    assert error.code is Code.BAD_ARGUMENT
    assert {candidate["path"] for candidate in error.details["candidates"]} == {
        "Q2_K/m-00001-of-00002.gguf",
        "x/Q8_0/m.gguf",
    }


def test_the_folder_of_the_cache_is_huggingface_hub_s_where_the_user_named_one(tmp_path: Path) -> None:
    def folder(**environment: str) -> Path:
        return Settings.from_environment({"CARTDECK_MODELS_DIR": "/m", **environment}).hub_cache_dir

    assert folder() == Path("/m/hub")
    assert folder(HF_HOME="/h") == Path("/h/hub")
    assert folder(HF_HOME="/h", HF_HUB_CACHE="/c") == Path("/c")
    assert folder(HUGGINGFACE_HUB_CACHE="/old") == Path("/old")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, HubSettings()),
        ({"HF_ENDPOINT": "http://x.example/"}, HubSettings(endpoint="http://x.example")),
        ({"HF_HUB_OFFLINE": "1"}, HubSettings(is_offline=True)),
        ({"TRANSFORMERS_OFFLINE": "yes"}, HubSettings(is_offline=True)),
        ({"HF_HUB_DISABLE_XET": "true", "HF_HUB_OFFLINE": "0"}, HubSettings(uses_xet=False)),
        ({"CARTDECK_MODELS_CONNECTIONS": "8"}, HubSettings(connections=8)),
        ({"CARTDECK_MODELS_QUIET_LIMIT_S": "3"}, HubSettings(quiet_limit_s=3.0)),
    ],
)
def test_the_settings_of_the_hub_come_from_the_environment(environment, expected: HubSettings) -> None:
    assert HubSettings.from_environment(environment) == expected


@pytest.mark.parametrize(
    ("name", "value"), [("HF_ENDPOINT", "x.example"), ("HF_ENDPOINT", "ftp://x"), ("CARTDECK_MODELS_CONNECTIONS", "0")]
)
def test_a_setting_that_cannot_be_meant_is_refused_by_name(name: str, value: str) -> None:
    from cartdeck_protocol.errors import CartdeckError

    with pytest.raises(CartdeckError) as caught:
        HubSettings.from_environment({name: value})

    assert caught.value.code is Code.BAD_ARGUMENT
    assert name in caught.value.message


def _parsed(spec: str) -> Any:
    from cartdeck_models.spec import parse_spec

    return parse_spec(spec)
