"""Every mistake of a file is reported at once, each at its line."""

from typing import Any

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.engines import Engine
from fairlead.specs.formats.reading import parse
from fairlead.specs.parallel import Parallel
from fairlead.specs.training import Checkpoint, Elastic, Framework, Training


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidSpec) as caught:
        parse(text, source="f.yaml")
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("name: Bad\nkind: Training\n", {1: "run: missing", 1.5: 'name: "Bad" is not a name'}),
        ("kind: Pool\nname: Bad Name\n", {1: "hardware: missing", 2: "name: "}),
        ("kind: Team\nname: -x-\nwieght: 2\n", {2: "name: ", 3: "wieght: unknown key"}),
        ("name: Bad\nrun: x\nnodes: two\nworkdir: ''\n", {1: "name: ", 3: "nodes: ", 4: "workdir: it is blank"}),
        (
            "apiVersion: fairlead.dev/v1alpha1\nkind: Training\nmetadata: {name: Bad}\nspec:\n  nodes: 2\n",
            {1: "spec.run: missing", 3: "metadata.name: "},
        ),
        (
            "{name: n,\nrun: x, nodes: two,\ncheckpoint: {\n to: ' ',\n keep: 0}}\n",
            {2: "nodes: ", 4: "checkpoint.to: ", 5: "keep: "},
        ),
    ],
)
def test_a_value_that_breaks_its_rule_is_told_beside_any_other_mistake(text: str, lines: dict[float, str]) -> None:
    found = problems(text)
    assert len(found) == len(lines), found
    for line, words in lines.items():
        assert any(problem.startswith(f"f.yaml:{int(line)}: ") and words in problem for problem in found), found


def test_no_mistake_is_told_twice() -> None:
    found = problems("name: Bad\nnodes: 0\nrun: [x]\nimage: a b\n")
    assert len(found) == len(set(found)) == 4


def test_a_rule_between_keys_is_not_judged_by_the_default_of_a_wrong_one() -> None:
    found = problems("run: x\nretry: {backoff: soon, max_backoff: 500ms}\n")
    assert [problem for problem in found if "max_backoff" in problem] == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("two", '"two" is not a whole number, or two joined by `..`; give 1 to 10000, such as `nodes: 2`'),
        ("2-8", '"2-8" is not a whole number, or two joined by `..`; give 1 to 10000, such as `nodes: 2`'),
        ('"4"', '"4" is not a whole number, or two joined by `..`; give 1 to 10000, such as `nodes: 2`'),
        ("2.5", "2.5 is not a whole number; give 1 to 10000, such as `nodes: 2`"),
        ("8..2", '"8..2" ends before it begins; did you mean `2..8`?'),
        ("0..2", '"0..2" is out of bounds; give 1 to 10000, such as `nodes: 2`'),
        ("2..20000", '"2..20000" is out of bounds; give 1 to 10000, such as `nodes: 2`'),
    ],
)
def test_a_number_of_nodes_that_is_none_is_told_with_what_to_give(given: str, sentence: str) -> None:
    assert problems(f"name: a\nrun: x\nnodes: {given}\n") == (f"f.yaml:3: nodes: {sentence}",)


@pytest.mark.parametrize(
    ("beside", "sentence"),
    [
        ({}, "with `in_place` the other ranks go on, and there are none"),
        ({"nodes": 2, "framework": Framework.JAX}, "not by `framework: jax`"),
        ({"nodes": 2, "engine": Engine.KUEUE, "queue": "a"}, "`in_place` is for pods that Fairlead starts"),
        ({"nodes": 2, "parallel": Parallel(data=2)}, "`parallel` fixes that; leave one out"),
        ({"nodes": 2, "checkpoint": Checkpoint(memory_every_s=9)}, "leave `checkpoint.memory_every` out"),
    ],
)
def test_what_cannot_go_on_in_place_is_refused(beside: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BrokenRules, match=sentence):
        Training(name="a", run="x", elastic=Elastic.IN_PLACE, **beside)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "{every: 10s, memory_every: 10s}",
            "it is not shorter than `every`, so the checkpoints on disk are as recent; give less, or remove it",
        ),
        ("{every: 20 steps, memory_every: 20 steps}", "it is not shorter than `every`"),
        ("{memory_every: auto}", "is neither a duration nor a number of steps"),
        ("{memory_every: often}", "is neither a duration nor a number of steps"),
        ("{memory_every: 0 steps}", "is out of bounds"),
        ("{memory: 10s}", "did you mean `memory_every`"),
    ],
)
def test_how_often_memory_is_saved_is_told_where_it_cannot_be(given: str, sentence: str) -> None:
    assert sentence in "\n".join(problems(f"name: a\nrun: x\ncheckpoint: {given}\n"))


def test_bounds_that_are_equal_are_a_plain_number() -> None:
    (spec,) = parse("name: a\nrun: x\nnodes: 4..4\n")
    assert isinstance(spec, Training)
    assert (spec.nodes, spec.most_nodes) == (4, None)


def test_a_most_that_is_no_more_than_the_fewest_is_no_training() -> None:
    with pytest.raises(BrokenRules, match="4 is no more than nodes, which is 4"):
        Training(name="a", run="x", nodes=4, most_nodes=4)
