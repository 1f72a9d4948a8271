"""Values of variables are not shown to those who see differences and events, nor those of credentials to anybody."""

import json
from dataclasses import replace

import pytest

from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.spec_updates import changed
from fairlead.specs.formats.differences import differences
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.rendering import render, render_short, to_yaml
from fairlead.specs.formats.secret_values import HIDDEN, conceal, looks_secret, shown_value
from tests.builders import training

SECRET = "s3cr3t"
NAMES = ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWORD", "WANDB_API_KEY", "key", "GH_PAT",
         "SENTRY_DSN", "MY_CREDENTIALS", "BASIC_AUTH", "SLACK_WEBHOOK", "wandb_apikey"]  # fmt: skip
OTHERS = ["LR", "KEYS_DIR", "MONKEY", "OMP_NUM_THREADS", "AUTHOR", "PATH", "NCCL_DEBUG"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_credentials_are_recognized(name: str) -> None:
    assert looks_secret(name, "x")
    assert shown_value(f"trial.env.{name}", SECRET) == HIDDEN


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_are_shown(name: str) -> None:
    assert not looks_secret(name, "x")
    assert shown_value(f"env.{name}", "1") == "1"


def test_a_password_in_a_url_is_one_whatever_the_name() -> None:
    assert looks_secret("DATABASE", f"postgres://u:{SECRET}@host/db")
    assert not looks_secret("DATABASE", "postgres://host:5432/db")


def test_differences_and_events_hide_every_value_of_a_variable() -> None:
    old = training(run="true", env={"LR": SECRET, "GONE": SECRET})
    new = replace(old, env={"LR": f"{SECRET}-2", "NEW": SECRET})
    found = {each.key: (each.old, each.new) for each in differences(old, new)}
    assert found == {
        "env.LR": ("a value", "another value"), "env.GONE": ("a value", "none"), "env.NEW": ("none", "a value"),
    }  # fmt: skip
    assert SECRET not in changed(differences(old, new)).reason.message
    assert differences(old, old) == ()


SPECS = {
    "a Training": {"name": "a", "run": "true", "env": {"HF_TOKEN": SECRET, "LR": "1"}},
    "a Sweep": {
        "kind": "Sweep", "name": "a", "parameters": {"x": "1 | 2"},
        "trial": {"run": "true", "env": {"HF_TOKEN": SECRET}},
    },
    "a Serving": {"kind": "Serving", "name": "a", "run": "true", "env": {"HF_TOKEN": SECRET}},
    "a Pipeline": {
        "kind": "Pipeline", "name": "a", "env": {"HF_TOKEN": SECRET},
        "steps": {"one": {"run": "true", "env": {"MY_KEY": SECRET}}},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_a_shown_spec_of_any_kind_hides_credentials_and_a_stored_one_does_not(kind: str) -> None:
    (spec,) = parse(json.dumps(SPECS[kind]))
    for rendered in (render(spec), render_short(spec)):
        assert SECRET in json.dumps(rendered)
        assert SECRET not in json.dumps(conceal(rendered))
    assert SECRET not in to_yaml(spec, form="short", shows_secrets=False)
    assert SECRET in to_yaml(spec)


def test_variables_of_containers_are_hidden_too() -> None:
    pod = {"containers": [{"name": "a", "env": [{"name": "MY_TOKEN", "value": SECRET}, {"name": "B", "value": "1"}]}]}
    assert conceal(pod) == {
        "containers": [{"name": "a", "env": [{"name": "MY_TOKEN", "value": HIDDEN}, {"name": "B", "value": "1"}]}]
    }


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("run: x\nenv: {A: 1, API_KEY: (hidden)}\n", "env.API_KEY"),
        ("kind: Sweep\nparameters: {x: 1 | 2}\ntrial: {run: 'x {{x}}', env: {T: (hidden)}}\n", "trial.env.T"),
        ("kind: Pipeline\nenv: {T: (hidden)}\nsteps: {a: {run: x}}\n", "env.T"),
        (
            "run: x\nkubernetes: {spec: {containers: [{name: c, image: i, env: [{name: T, value: (hidden)}]}]}}\n",
            "kubernetes.spec.containers.env.value",
        ),
    ],
)
def test_a_copy_of_what_was_shown_is_refused_with_its_hidden_values(text: str, path: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse(text, source="copy.yaml")
    assert f"{path}: `(hidden)` stands for a value that was not shown; give the value itself" in str(refused.value)
    assert parse("name: a\nrun: echo (hidden)\nenv: {A: (hidden) too}\n")
