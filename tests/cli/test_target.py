"""Which cluster is meant by options, the environment and both together."""

import json
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from fairlead.cli.suggestions import suggest
from fairlead.cli.target import KUBERNETES, Target, cluster_options, kubernetes_options, target_of
from fairlead.errors import Conflict


@click.command()
@cluster_options
def anywhere(target: Target) -> None:
    click.echo(json.dumps([target.cluster, target.context, target.namespace]))


@click.command()
@kubernetes_options
def there(target: Target) -> None:
    click.echo(json.dumps([target.cluster, target.context, target.namespace]))


def meant(*arguments: str, command: click.Command = anywhere, **variables: str) -> list[str | None]:
    env: dict[str, str | None] = {f"FAIRLEAD_{name.upper()}": value for name, value in variables.items()}
    ended = CliRunner().invoke(command, arguments, env=env, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    found: list[str | None] = json.loads(ended.output)
    return found


def refused(*arguments: str, **variables: str) -> str:
    env: dict[str, str | None] = {f"FAIRLEAD_{name.upper()}": value for name, value in variables.items()}
    ended = CliRunner().invoke(anywhere, arguments, env=env)
    assert ended.exit_code == 2
    return " ".join(ended.output.split())


def test_nothing_said_means_this_machine() -> None:
    assert meant() == ["local", None, None]
    assert meant("--cluster", "local") == ["local", None, None]
    assert meant(context="", namespace="", cluster="") == ["local", None, None]


def test_a_context_or_a_namespace_alone_means_kubernetes() -> None:
    assert meant("--context", "prod") == ["kubernetes", "prod", None]
    assert meant("-n", "vision") == ["kubernetes", None, "vision"]
    assert meant("--cluster", "kubernetes") == ["kubernetes", None, None]
    assert meant(context="prod", namespace="vision") == ["kubernetes", "prod", "vision"]


def test_the_command_line_outweighs_the_environment() -> None:
    assert meant("--cluster", "local", context="prod") == ["local", None, None]
    assert meant("--context", "prod", cluster="local") == ["kubernetes", "prod", None]
    assert meant("--context", "prod", context="test") == ["kubernetes", "prod", None]
    assert meant("--cluster", "local", cluster="kubernetes") == ["local", None, None]


def test_commands_that_are_told_to_people_repeat_what_the_command_line_said() -> None:
    values = {"cluster": None, "context": "prod", "namespace": "vision"}
    assert target_of(values, frozenset({"namespace"})).options == ("--namespace=vision",)
    assert target_of(values, frozenset({"context", "namespace"})).options == ("--context=prod", "--namespace=vision")
    assert target_of({"cluster": "kubernetes"}, frozenset({"cluster"})).options == ("--cluster=kubernetes",)
    assert target_of({"cluster": "local"}, frozenset({"cluster"})).options == ()


def test_suggested_commands_for_a_run_select_the_cluster_that_the_command_line_did() -> None:
    said = "It starts when a ends; `fairlead suspend a` would free it. `kubectl get pods`, `fairlead run`."
    assert suggest(said, "") == said
    assert suggest(said, "--context=prod") == said.replace("suspend a`", "suspend a --context=prod`")
    named = "`fairlead status --all --namespace=vision` lists all."
    assert suggest(named, "--namespace=vision") == named


def test_an_error_suggests_commands_for_its_cluster() -> None:
    @click.command()
    @cluster_options
    def failing(target: Target) -> None:
        raise Conflict("Suspend it first: `fairlead suspend a`, then `fairlead resume a` with the same changes.")

    ended = CliRunner().invoke(failing, ("--context", "prod"))
    assert str(ended.exception) == (
        "Suspend it first: `fairlead suspend a --context=prod`, then `fairlead resume a --context=prod` with the same "
        "changes."
    )
    assert "`fairlead suspend a`" in str(CliRunner().invoke(failing, ()).exception)


def test_what_contradicts_itself_is_refused_by_the_names_of_both() -> None:
    said = refused("--cluster", "local", "--context", "prod")
    assert "--cluster is local, and --context is 'prod', which only Kubernetes has" in said
    assert "--cluster is local, and --namespace is 'vision'" in refused("--cluster", "local", "-n", "vision")
    assert "FAIRLEAD_CLUSTER is local, and FAIRLEAD_CONTEXT is 'prod'" in refused(cluster="local", context="prod")
    assert "--namespace 'a/b': a namespace has small letters" in refused("-n", "a/b")
    assert "Invalid value for '--cluster': 'gke' is not one of 'local', 'kubernetes'" in refused("--cluster", "gke")
    assert "Invalid value for the variable FAIRLEAD_CLUSTER: 'gke' is not one of" in refused(cluster="gke")


def test_what_exists_on_kubernetes_only_goes_there_whatever_the_environment_prefers() -> None:
    assert meant(command=there) == ["kubernetes", None, None]
    assert meant("--context", "prod", command=there, cluster="local") == ["kubernetes", "prod", None]


def test_the_namespace_is_that_of_the_context_unless_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {
        "contexts": [{"name": "prod", "context": {"cluster": "c", "namespace": "research"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "current-context": "prod",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert Target(cluster=KUBERNETES).access().namespace == "research"
    assert Target(cluster=KUBERNETES, namespace="vision").client().access.namespace == "vision"
