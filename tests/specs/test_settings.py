"""Keys that are given anew, as `--set` takes them."""

from dataclasses import replace

import pytest
from hypothesis import given

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.settings import read_setting, setting_of, with_settings
from fairlead.specs.overlay import Overlay
from fairlead.specs.resources import Resources
from fairlead.specs.training import Checkpoint, Retry, Training
from tests.specs.test_round_trip import TRAININGS

SPEC = Training(
    name="fox",
    run="python train.py",
    env={"SEED": "1"},
    resources=Resources(cpu_milli=2000, memory_bytes=2**30),
    retry=Retry(program=3, backoff_s=2.0),
    checkpoint=Checkpoint(every_steps=10),
    max_duration_s=60.0,
)


def changed(*texts: str, spec: Training = SPEC) -> Training:
    return with_settings(spec, [read_setting(text) for text in texts])


def refusal(*texts: str) -> str:
    with pytest.raises(InvalidSpec) as caught:
        changed(*texts)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resources.memory=700Mi", replace(SPEC, resources=Resources(cpu_milli=2000, memory_bytes=700 * 2**20))),
        ("resources={memory: 1Gi}", replace(SPEC, resources=Resources(memory_bytes=2**30))),
        ("nodes=2..4", replace(SPEC, nodes=2, most_nodes=4)),
        ("retry.program=5", replace(SPEC, retry=Retry(program=5, backoff_s=2.0))),
        ("retry=5", replace(SPEC, retry=Retry(program=5))),
        ("checkpoint.every=10m", replace(SPEC, checkpoint=Checkpoint(every_s=600.0))),
        ("max_duration=null", replace(SPEC, max_duration_s=None)),
        ("resources=null", replace(SPEC, resources=Resources())),
        ("env.A.B=", replace(SPEC, env={"SEED": "1", "A.B": ""})),
        ("env={A: 1}", replace(SPEC, env={"A": "1"})),
        ("env=null", replace(SPEC, env={})),
    ],
)  # fmt: skip
def test_a_key_given_anew_changes_that_key_alone(text: str, expected: Training) -> None:
    assert changed(text) == expected


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("run=echo 'a: b'  # all of it", "echo 'a: b'  # all of it"),
        ("run=python a.py --lr=0.1", "python a.py --lr=0.1"),
        ("run='python a.py'", "python a.py"),
        ("run=1", "1"),
        ("run=true", "true"),
    ],
)
def test_a_text_is_taken_as_the_shell_hands_it_over(text: str, run: str) -> None:
    assert changed(text).run == run


def test_labels_keep_the_dots_of_their_names_and_texts_need_no_quotes() -> None:
    made = changed("kubernetes.spec.nodeSelector.kubernetes.io/arch=true")
    assert made.kubernetes != Overlay()
    assert made.kubernetes.pod == {"spec": {"nodeSelector": {"kubernetes.io/arch": "true"}}}


@given(TRAININGS)
def test_one_key_leaves_all_others_exactly_as_they_were(spec: Training) -> None:
    assert changed("priority=7", spec=spec) == replace(spec, priority=7)


def test_later_settings_build_on_earlier_ones() -> None:
    assert changed("retry=2", "retry.backoff=5s").retry == Retry(program=2, backoff_s=5.0)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (("resources.memori=1",), "resources.memori: unknown key; did you mean `memory`?"),
        (("resources.memori=null",), "resources.memori: unknown key; did you mean `memory`?"),
        (("memory=1Gi",), "memory: unknown key; did you mean `resources.memory`?"),
        (("spec.resources.memory=1Gi",), "spec.resources.memory: unknown key; did you mean `resources.memory`?"),
        (("kind=Team",), "kind: unknown key; keys are those of the short form"),
        (("resources.memory=70x",), 'resources.memory: "70x" is not a size in bytes'),
        (("retry.backoff=10m",), "retry.max_backoff: 300 s is less than backoff"),
        (("run=",), "run: nothing is given"),
        (("nodes.x=1",), "nodes: a mapping is not a whole number"),
        (("resources={memory: 1Gi",), "resources: not valid YAML"),
        (("nodes=2", "nodes=3"), "nodes: it is given twice; keep one of them"),
        (("retry.program=2", "retry=5"), "retry.program: it is lost as retry follows; keep one of them"),
        (("memory",), '"memory": give KEY=VALUE'),
        (("=3",), '"=3": give KEY=VALUE'),
        (("resources..memory=3",), "give KEY=VALUE"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_the_words_of_files(texts: tuple[str, ...], says: str) -> None:
    assert says in refusal(*texts)
    assert refusal(*texts).startswith("--set")


def test_every_problem_is_told_at_once() -> None:
    told = refusal("nodes=0", "resources.memori=1", "grace=x")
    assert len(told.splitlines()) == 3


def test_plain_values_are_merged_into_what_is_there() -> None:
    given = [
        *setting_of("resources", {"memory": "2Gi"}),
        *setting_of("env", {"SEED": None, "LR": "0.1"}),
        *setting_of("max_duration", None),
    ]
    made = with_settings(SPEC, given, source="resume")
    assert made.resources == Resources(cpu_milli=2000, memory_bytes=2 * 2**30)
    assert made.env == {"LR": "0.1"}
    assert made.max_duration_s is None
