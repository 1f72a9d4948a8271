"""Anchors, aliases and merges of YAML: where shared parts may be, and mistakes in their use."""

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import parse
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.training import Training


def problem(text: str) -> str:
    with pytest.raises(InvalidSpec) as caught:
        parse(text, source="f.yaml")
    (sentence,) = caught.value.problems
    return sentence


@pytest.mark.parametrize(
    "shared",
    [
        "x-defaults: &d\n  resources: {cpu: 0.1}\n  env: {SEED: 1}\n<<: *d\n",
        "x-a: {env: &e {SEED: 1}, deep: [&r {cpu: 0.1}]}\nenv: *e\nresources: {<<: *r}\n",
        "x-a: &a {SEED: 1, MODE: x}\nx-b: &b {<<: *a}\nenv: {<<: *b}\nresources: {cpu: 0.1}\n",
    ],
)
def test_keys_that_begin_with_x_hold_parts_for_aliases(shared: str) -> None:
    (spec,) = parse(f"name: n\nrun: x\n{shared}", source="f.yaml")
    assert isinstance(spec, Training)
    assert (spec.env["SEED"], spec.resources.cpu_milli) == ("1", 100)


def test_steps_and_trials_share_parts() -> None:
    (spec,) = parse(
        "kind: Pipeline\nname: p\nx-step: &step {outputs: [r], env: &lr {LR: 0.1}}\n"
        "steps:\n  one: {<<: *step, run: a}\n  two: {<<: *step, run: b, env: {<<: *lr, SEED: 2}}\n",
        source="f.yaml",
    )
    assert isinstance(spec, Pipeline)
    assert dict(spec.steps["two"].env) == {"SEED": "2", "LR": "0.1"}


@pytest.mark.parametrize(
    "text",
    [
        "name: n\nrun: x\nx-defaults: {nodes: 2}\n",
        "name: n\nrun: x\nx-d: &d {nodes: 2}\n",
        "name: n\nrun: x\nx-d: &d 2\nx-e: 3\nnodes: *d\n",
    ],
)
def test_shared_parts_that_nothing_uses_are_a_mistake(text: str) -> None:
    assert "it holds shared parts, but nothing uses them; give them an anchor and use that" in problem(text)


def test_an_unknown_mapping_is_told_where_shared_parts_may_be() -> None:
    assert problem("name: n\nrun: x\nbase_parts: &d {nodes: 2}\n<<: *d\n").startswith(
        "f.yaml:3: base_parts: unknown key; parts that aliases share may be in a key that begins with `x-`."
    )


def test_the_kubernetes_form_has_no_shared_parts_as_an_api_server_refuses_them() -> None:
    text = "apiVersion: fairlead.dev/v1alpha1\nkind: Training\nmetadata: {name: n}\nx-d: &d {run: x}\nspec: *d\n"
    assert problem(text).startswith("f.yaml:4: x-d: unknown key")


def test_an_alias_to_an_anchor_of_another_document_says_so() -> None:
    earlier = "name: a\nrun: x\nenv: &e {SEED: 1}\n---\nname: b\nrun: x\nenv: *e\n"
    assert problem(earlier).endswith(
        "before it in this document; anchors of documents before a `---` do not count: repeat it here"
    )
    assert problem("name: n\nrun: x\nenv: *e\n").endswith("the alias *e has no anchor before it in this document")


@pytest.mark.parametrize(("written", "example"), [("retry: .nan", "retry: 3"), ("logs: lots", "logs: 256Mi")])
def test_a_value_alone_is_advised_by_its_own_key(written: str, example: str) -> None:
    assert problem(f"name: n\nrun: x\n{written}\n").endswith(f"such as `{example}`")


@pytest.mark.parametrize("written", ["nodes: 010", "retry: 007", "checkpoint: {keep: 010}", "resources: {cpu: 04}"])
def test_a_number_that_kubectl_reads_as_octal_is_refused(written: str) -> None:
    assert "octal number; write it without the zero" in problem(f"name: n\nrun: x\n{written}\n")


def test_texts_keep_their_zeros() -> None:
    (spec,) = parse("name: n\nrun: x\nenv: {A: 010, B: 0o7, C: 1:30, D: no, E: 1_000}\n", source="f.yaml")
    assert isinstance(spec, Training)
    assert dict(spec.env) == {"A": "010", "B": "0o7", "C": "1:30", "D": "no", "E": "1_000"}
