"""The fake hub answers as the real one does: huggingface_hub's own client is at home on each of its routes."""

import random
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

LARGE = random.Random(1).randbytes(300_000)


@pytest.fixture
def api(hub) -> HfApi:
    return HfApi(endpoint=hub.url, token=False)


@pytest.fixture
def filled(hub) -> Any:
    files = {"config.json": b'{"a": 1}', "model.safetensors": LARGE, "sub/vocab.txt": b"x" * 10}
    hub.add(files)
    return hub


def commit_of(hub) -> str:
    return hub.repositories["owner/name"].branches["main"]


def test_a_revision_is_resolved_to_its_commit(filled, api) -> None:
    assert api.model_info("owner/name", timeout=30).sha == commit_of(filled)
    assert api.model_info("owner/name", revision="main", timeout=30).sha == commit_of(filled)


def test_the_tree_is_listed_over_several_pages(filled, api) -> None:
    filled.repositories["owner/name"].page_size = 1
    items = {item.path: item for item in api.list_repo_tree("owner/name", recursive=True)}

    assert set(items) == {"config.json", "model.safetensors", "sub/vocab.txt", "sub"}
    assert items["model.safetensors"].lfs.sha256 == filled.file("model.safetensors").sha256
    assert items["config.json"].blob_id == filled.file("config.json").git_sha1
    assert len(filled.asked_for("/tree/")) == 4


def test_branches_and_tags_are_listed(filled, api) -> None:
    filled.repositories["owner/name"].tags["v1"] = commit_of(filled)
    refs = api.list_repo_refs("owner/name")

    assert [(ref.name, ref.target_commit) for ref in refs.branches] == [("main", commit_of(filled))]
    assert [ref.name for ref in refs.tags] == ["v1"]


def test_information_on_paths_is_given(filled, api) -> None:
    found = api.get_paths_info("owner/name", ["config.json", "none"])

    assert [item.path for item in found] == ["config.json"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_the_metadata_of_a_file_is_what_the_client_needs(filled, name: str) -> None:
    found = get_hf_file_metadata(hf_hub_url("owner/name", name, endpoint=filled.url), token=False, endpoint=filled.url)
    file = filled.file(name)

    assert (found.commit_hash, found.etag, found.size) == (commit_of(filled), file.etag, len(file.data))
    assert (found.location.startswith(filled.storage_url)) == file.is_large


def test_one_file_is_fetched_and_the_token_stays_with_the_hub(filled, tmp_path: Path) -> None:
    path = hf_hub_download(
        "owner/name", "model.safetensors", endpoint=filled.url, cache_dir=tmp_path, token="hf_goodtoken"
    )

    assert Path(path).read_bytes() == LARGE
    assert filled.requests[0].headers["authorization"] == "Bearer hf_goodtoken"
    assert all("authorization" not in request.headers for request in filled.requests if request.origin == "storage")


def test_a_whole_repository_is_fetched(filled, tmp_path: Path) -> None:
    folder = Path(snapshot_download("owner/name", endpoint=filled.url, cache_dir=tmp_path, token=False))

    assert (folder / "model.safetensors").read_bytes() == LARGE
    assert (folder / "sub/vocab.txt").read_bytes() == b"x" * 10


def test_a_cut_connection_goes_on_with_a_range(filled, tmp_path: Path, monkeypatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 64 * 1024)
    filled.file("model.safetensors").cuts_at = [131_072]
    path = hf_hub_download("owner/name", "model.safetensors", endpoint=filled.url, cache_dir=tmp_path, token=False)

    assert Path(path).read_bytes() == LARGE
    assert [request.range for request in filled.requests if request.origin == "storage"] == [None, "bytes=131072-"]


@pytest.mark.parametrize(
    ("how", "token", "error"),
    [
        ({}, False, RepositoryNotFoundError),
        ({}, "hf_goodtoken", RepositoryNotFoundError),
        ({"is_gated": True}, False, GatedRepoError),
        ({"is_gated": True}, "hf_goodtoken", GatedRepoError),
        ({"needs_token": True}, False, RepositoryNotFoundError),
        ({"needs_token": True}, "hf_badtoken", HfHubHTTPError),
    ],
)
def test_refusals_are_the_client_s_own_errors(filled, how: dict[str, Any], token: Any, error: type) -> None:
    name = "owner/name" if how else "owner/none"
    for key, value in how.items():
        setattr(filled.repositories["owner/name"], key, value)

    with pytest.raises(error):
        HfApi(endpoint=filled.url, token=token).get_hf_file_metadata(
            url=hf_hub_url(name, "config.json", endpoint=filled.url)
        )


def test_an_unknown_revision_or_file_is_told(filled, api) -> None:
    with pytest.raises(RevisionNotFoundError):
        api.model_info("owner/name", revision="none", timeout=30)
    with pytest.raises(RemoteEntryNotFoundError):
        get_hf_file_metadata(hf_hub_url("owner/name", "none", endpoint=filled.url), token=False, endpoint=filled.url)


def test_a_file_in_xet_says_where_its_access_is(filled) -> None:
    filled.file("model.safetensors").has_xet = True
    url = hf_hub_url("owner/name", "model.safetensors", endpoint=filled.url)
    found = get_hf_file_metadata(url, token=False, endpoint=filled.url)

    assert found.xet_file_data is not None
    assert found.xet_file_data.refresh_route.endswith(f"/xet-read-token/{commit_of(filled)}")
