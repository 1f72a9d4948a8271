"""How a cluster is found: kubeconfig files as kubectl reads them, and the cluster that a pod runs in."""

import base64
import json
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.api.config import ClusterAccess, contexts, find_access
from fairlead.cluster.kubernetes.api.credentials import ExecPlugin
from fairlead.errors import ClusterError


def write(path: Path, *, name: str = "one", user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    """A kubeconfig with one context."""
    content = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443/", **cluster}}],
        "users": [{"name": name, "user": user or {}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def find(*files: Path, context: str | None = None) -> ClusterAccess:
    return find_access(context=context, environ={"KUBECONFIG": ":".join(map(str, files)), "HOME": "/nowhere"})


def test_the_current_context_is_taken(tmp_path: Path) -> None:
    access = find(write(tmp_path / "config", user={"token": "secret"}))
    assert (access.context, access.server, access.namespace) == ("one", "https://one:6443", "ns-one")
    assert access.credentials.authorization() == "Bearer secret"


def test_of_several_files_the_first_to_name_something_wins(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", name="one"), write(tmp_path / "b", name="two")
    other: dict[str, Any] = {"tls-server-name": "other"}
    third = write(tmp_path / "c", name="one", **other)
    missing = tmp_path / "missing"
    assert find(missing, first, second, third).tls_server_name is None
    assert find(missing, first, second, third, context="two").server == "https://two:6443"
    environ = {"KUBECONFIG": f"{first}:{second}"}
    assert contexts(environ) == (("one", "two"), "one")


def test_a_context_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no context 'three'.*there are: one"):
        find(write(tmp_path / "config"), context="three")


def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki" / "ca.pem").write_bytes(b"authority")
    (tmp_path / "token").write_text("from-file\n")
    authority: dict[str, Any] = {"certificate-authority": "pki/ca.pem"}
    config = write(tmp_path / "config", user={"tokenFile": "token"}, **authority)
    access = find(config)
    assert access.ca == b"authority"
    assert access.credentials.authorization() == "Bearer from-file"


def test_certificates_are_read_in_line_and_belong_together(tmp_path: Path) -> None:
    data = {name: base64.b64encode(name.encode()).decode() for name in ("client-certificate", "client-key")}
    user: dict[str, Any] = {f"{name}-data": value for name, value in data.items()}
    assert find(write(tmp_path / "a", user=user)).certificate == (b"client-certificate", b"client-key")
    del user["client-key-data"]
    with pytest.raises(ClusterError, match="belong together"):
        find(write(tmp_path / "b", user=user))


def test_proxies_impersonation_and_insecurity_are_kept(tmp_path: Path) -> None:
    user: dict[str, Any] = {"as": "ann", "as-groups": ["a", "b"], "as-user-extra": {"why": ["test"]}}
    more: dict[str, Any] = {"proxy-url": "http://proxy:3128", "insecure-skip-tls-verify": True}
    access = find(write(tmp_path / "config", user=user, **more))
    assert access.proxy == "http://proxy:3128"
    assert not access.verify
    assert access.impersonate == (
        ("Impersonate-User", "ann"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-why", "test"),
    )


def test_a_renewed_token_file_is_read_again_once_it_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    credentials = find(write(tmp_path / "config", user={"tokenFile": str(token)})).credentials
    assert credentials.authorization() == "Bearer old"
    token.write_text("new")
    assert credentials.authorization() == "Bearer old"
    assert credentials.reject()
    assert credentials.authorization() == "Bearer new"
    assert not credentials.reject()


def plugin(tmp_path: Path, body: str, **more: Any) -> ExecPlugin:
    """A plugin beside the kubeconfig that counts how often it is asked."""
    script = tmp_path / "login"
    counts = f"open({str(tmp_path / 'asked')!r}, 'a').write('.')"
    script.write_text(f"#!{sys.executable}\nimport json, os, sys\n{counts}\n{body}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login", **more}
    credentials = find(write(tmp_path / "config", user={"exec": exec_})).credentials
    assert isinstance(credentials, ExecPlugin)
    return credentials


def answer(**status: str) -> str:
    return f"print(json.dumps({{'kind': 'ExecCredential', 'status': {json.dumps(status)}}}))"


def test_a_plugin_is_asked_once_and_again_when_its_token_runs_out(tmp_path: Path) -> None:
    lasting = plugin(tmp_path, answer(token="t", expirationTimestamp="2999-01-01T00:00:00Z"))
    assert [lasting.authorization() for _ in range(3)] == ["Bearer t"] * 3
    assert (tmp_path / "asked").read_text() == "."
    lasting.reject()
    lasting.authorization()
    assert (tmp_path / "asked").read_text() == ".."
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5))
    short = plugin(tmp_path, answer(token="t", expirationTimestamp=soon))
    short.authorization()
    short.authorization()
    assert (tmp_path / "asked").read_text() == "...."


def test_a_plugin_gets_its_arguments_its_environment_and_the_cluster(tmp_path: Path) -> None:
    body = (
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "token = sys.argv[1] + os.environ['WHO'] + info['spec']['cluster']['server']\n"
        "print(json.dumps({'status': {'token': token}}))"
    )
    env = [{"name": "WHO", "value": "me"}]
    credentials = plugin(tmp_path, body, args=["get"], env=env, provideClusterInfo=True)
    assert credentials.authorization() == "Bearer getmehttps://one:6443/"


def test_a_plugin_that_fails_or_is_missing_is_told_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"exit code 3.*session has expired"):
        plugin(tmp_path, "sys.exit(print('session has expired', file=sys.stderr) or 3)").authorization()
    absent = plugin(tmp_path, "", command="no-such-login", installHint="Install it with brew.")
    with pytest.raises(ClusterError, match=r"not on the PATH\. Install it with brew"):
        absent.authorization()
    with pytest.raises(ClusterError, match="gave no credentials"):
        plugin(tmp_path, "print('welcome')").authorization()


def test_an_auth_provider_is_refused_with_what_took_its_place(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="exec plugin"):
        find(write(tmp_path / "config", user={"auth-provider": {"name": "gcp"}}))


def test_a_pod_finds_the_cluster_that_it_runs_in(tmp_path: Path) -> None:
    for name, content in (("ca.crt", "authority"), ("namespace", "team"), ("token", "own")):
        (tmp_path / name).write_text(content)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    access = find_access(environ=environ, service_account=tmp_path)
    assert (access.server, access.namespace, access.ca) == ("https://[fd00::1]:443", "team", b"authority")
    assert access.credentials.authorization() == "Bearer own"


def test_without_any_cluster_it_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="KUBECONFIG"):
        find_access(environ={"HOME": str(tmp_path)})


def test_a_file_that_is_no_kubeconfig_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "config"
    broken.write_text("contexts: [{name: a, context: ")
    with pytest.raises(ClusterError, match="not a kubeconfig that can be read"):
        find(broken)
