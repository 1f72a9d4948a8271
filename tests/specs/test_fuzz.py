"""Generated and mutated spec files: every one is read or refused in words, and nothing else ever happens."""

import os
import random
import re

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.rendering import to_yaml

SEEDS = [
    "name: a\nrun: python train.py\nnodes: 2\nresources: {gpu: A100:8, cpu: 500m, memory: 1Gi}\n",
    "kind: Training\nname: b\nrun: |\n  echo hi\n  python t.py\ncheckpoint: {to: s3://b/c, every: 10m, keep: 2}\n"
    "retry: 3\n",
    "apiVersion: fairlead.dev/v1alpha1\nkind: Training\nmetadata: {name: c, namespace: team}\nspec:\n  run: x\n"
    "  env: {A: 1, B: yes}\n  max_duration: 2h\n---\nname: d\nrun: y\ngrace: 15s\npriority: 7\n",
    "kind: Team\nname: vision\nweight: 2\n",
]
PARTS = [
    "nodes: two", "gpus: 1", "maxDuration: 2h", "nodes: 1e400", "run: [1, 2]", "env: &a {A: *a}", "? [a, b] : c", "\t",
    "'",
    "!!python/object:os.system x", "cpu: -1", "memory: 1Qi", "name: -Bad-", "every: 0 steps", "gpu: .nan",
    "nodes: 0x10",
    "\x00", "{" * 50, "[" * 500, "<<: *b", "- - - -", "retry: {program: -1}", "\ud7ff", "run:", "spot: maybe",
    "%YAML 9.9",
]  # fmt: skip


def mutated(rng: random.Random) -> str:
    """A seed with one to five changes."""
    text = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 5)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        change = rng.randrange(6)
        if change == 0:
            lines.insert(at, rng.choice(PARTS))
        elif change == 1:
            del lines[at]
        elif change == 2:
            lines.insert(at, lines[rng.randrange(len(lines))] if lines else "")
        elif change == 3:
            lines[at] = rng.choice(["", " ", "  ", "   "]) + lines[at]
        else:
            where = rng.randrange(len(lines[at]) + 1)
            lines[at] = (
                lines[at][:where] + chr(rng.choice([58, 10, 35, 45, 123, 233, 34, 48, 120])) + lines[at][where + 1 :]
            )
        text = "\n".join(lines)
    return text


def attempt(rng: random.Random) -> bool:
    """Whether a mutated file was read; what is refused must be refused in words."""
    text = mutated(rng)
    try:
        specs = parse(text, source="f.yaml")
    except InvalidSpec as error:
        told = error.problems
    else:
        for spec in specs:
            assert parse(to_yaml(spec)) == (spec,), text
        return True
    assert told, text
    for problem in told:
        assert re.match(r"f\.yaml:\d+: \S", problem), (problem, text)
        assert "\n" not in problem
        assert "Traceback" not in problem
    return False


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_every_mutated_file_is_read_or_refused_in_words(count: int) -> None:
    rng = random.Random(int(os.environ.get("FAIRLEAD_FUZZ_SEED", "7")) + count)
    outcomes = [attempt(rng) for _ in range(count)]
    assert 0 < sum(outcomes) < count
