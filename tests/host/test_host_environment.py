"""The environment of a child: what is on the list, and secrets for those alone who use the network."""

import os

from cartdeck.environment import child_environment, new_session_mark

SOURCE = {
    "PATH": "/usr/bin",
    "HOME": "/home/someone",
    "LC_ALL": "C.UTF-8",
    "CUDA_VISIBLE_DEVICES": "0",
    "HF_TOKEN": "hf_secret",
    "HUGGING_FACE_HUB_TOKEN": "hf_secret",
    "PIP_INDEX_URL": "https://user:password@index.example",
    "https_proxy": "http://proxy.example",
    "SSL_CERT_FILE": "/etc/certificates.pem",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "GITHUB_TOKEN": "secret",
    "CARTDECK_HOST_PID": "1",
}


def make(*, may_use_network: bool = False, **more: object) -> dict[str, str]:
    source = {**SOURCE, **{k: v for k, v in more.items() if isinstance(v, str)}}
    return child_environment(
        mark="m", may_use_network=may_use_network, durations={"CARTDECK_KEEPALIVE_S": 5}, source=source
    )


def test_a_child_gets_what_is_on_the_list_and_nothing_else() -> None:
    environment = make()
    assert environment["PATH"] == "/usr/bin"
    assert environment["LC_ALL"] == "C.UTF-8"
    assert environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert not any("secret" in value or "password" in value or "proxy" in value for value in environment.values())
    assert "SSL_CERT_FILE" not in environment


def test_tokens_proxies_certificates_and_the_index_go_to_those_who_use_the_network() -> None:
    environment = make(may_use_network=True)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PIP_INDEX_URL", "https_proxy", "SSL_CERT_FILE"):
        assert environment[name] == SOURCE[name]
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    assert "GITHUB_TOKEN" not in environment


def test_a_session_is_marked_and_told_its_durations() -> None:
    environment = make()
    assert environment["CARTDECK_SESSION"] == "m"
    assert float(environment["CARTDECK_KEEPALIVE_S"]) == 5.0
    assert new_session_mark() != new_session_mark()


def test_the_host_is_named_only_where_it_is_the_parent() -> None:
    assert "CARTDECK_HOST_PID" not in make()
    named = child_environment(mark="m", may_use_network=False, durations={}, host_pid=42, source=SOURCE)
    assert named["CARTDECK_HOST_PID"] == "42"


def test_the_module_path_keeps_absolute_folders_alone() -> None:
    path = os.pathsep.join(["", "/opt/modules", "relative", ".", "/more"])
    assert make(PYTHONPATH=path)["PYTHONPATH"] == os.pathsep.join(["/opt/modules", "/more"])
    assert "PYTHONPATH" not in make(PYTHONPATH=os.pathsep)


def test_the_settings_may_add_names_and_prefixes() -> None:
    environment = child_environment(
        mark="m", may_use_network=False, durations={}, extra=("GITHUB_TOKEN", "AWS_*"), source=SOURCE
    )
    assert environment["GITHUB_TOKEN"] == "secret"
    assert environment["AWS_SECRET_ACCESS_KEY"] == "secret"
