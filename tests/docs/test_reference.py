"""The reference parts of the guide say what the code says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli.main import EPILOG, EXIT_CODES
from fairlead.specs.constraints import Text
from fairlead.specs.field_types import Section, SectionKey, SectionMap
from fairlead.specs.formats.reading import parse
from fairlead.specs.keys import KINDS
from fairlead.state.reasons import Code
from tests.docs.reference import DOCS, PARTS, keys_of, up_to_date

SOURCE = DOCS.parent / "src" / "fairlead"
WHOLE = {
    "Training": {"name": "a", "run": "python train.py"},
    "Sweep": {"name": "a", "parameters": "{lr: 0.1 | 1}", "objective": "loss", "trials": "4", "trial": "{run: x}"},
    "Pipeline": {"name": "a", "steps": "{train: a}"},
    "Serving": {"name": "a", "predictor": "predict:Classifier"},
    "Team": {"name": "a"},
    "Pool": {"name": "a", "hardware": "{cpu: 1, memory: 1Gi}"},
    "Simulation": {"name": "a"},
    "Workspace": {"name": "a"},
    "Dataset": {"name": "a", "from": "s3://bucket/a"},
    "Fleet": {"name": "a", "clusters": "{home: {}}"},
    "Federation": {"name": "a", "app": "digits-app", "sites": "{north: {}, south: {}}"},
}
_OF_LAYOUTS = (".NAME.instances", ".NAME.replicas", ".NAME.sharing")
# What a key needs beside it.
BESIDE = {
    "queue": {"engine": "kueue"},
    "engine": {"image": "python:3.12"},
    "preflight": {"nodes": "2"},
    "preflight.network": {"nodes": "2"},
    "preflight.gpu": {"resources": "{gpu: 1}"},
    "Sweep.engine": {"parallel": "2"},
    "elastic": {"nodes": "2"},
    "Federation.server": {"client": "python client.py"},
    "Federation.client": {"server": "python server.py"},
    "Federation.deadline": {},
    "Federation.address": {"sites": "{north: {home: /a}}"},
    **{
        f"Federation.sites.NAME.{key}": {"address": "fl.example.com:443"}
        for key in ("context", "namespace", "image", "kubernetes")
    },
    **{f"aggregate.{key}": {"sites": "{a: {}, b: {}, c: {}, d: {}, e: {}}"} for key in ("malicious", "selected")},
    "deadline": {"capacity": "{spot: auto}", "expected_duration": "8h"},
    **{key: {"replicas": "0..8"} for key in ("scale", "scale.concurrency", "scale.window", "scale.idle")},
    **{key: {"replicas": "0..8"} for key in ("scale.latency", "scale.shed", "scale.schedule")},
    **{f"scale.{key}": {"replicas": "0..8"} for key in ("time_to_first_token", "time_per_token")},
    **{f"scale{key}": {"replicas": "1..8"} for key in (".by", ".cpu", ".replicas", ".external_metric")},
    **{f"scale.external_metric.{key}": {"replicas": "1..8"} for key in ("name", "target", "labels", "aggregation")},
    "canary.shadow": {"idempotent": "true"},
    "Serving.signed_by": {"model": "https://example.com/net-1.json"},
    **{
        f"Serving.waves{key}": {"sites": "{north: {context: a}, south: {context: b}}"}
        for key in ("", ".steps", ".hold", ".deadline", ".min", ".pause")
    },
    **{f"scale.schedule.NAME.{key}": {"replicas": "0..8"} for key in ("cron", "duration", "replicas")},
    "capacity.base": {"replicas": "4"},
    "scale.prometheus": {"replicas": "0..8"},
    **{f"scale.prometheus.{key}": {"replicas": "0..8"} for key in ("url", "query", "target", "aggregation")},
    "scale.queue": {"replicas": "0..8", "max_concurrency": "2"},
    **{
        f"partitions{key}": {"hardware": "{cpu: 1, memory: 1Gi, gpu: {model: A100, memory: 40GB}}"}
        for key in ("", ".reconfigure", *(f".layouts{name}" for name in ("", *_OF_LAYOUTS)))
    },
    **{f"peaks{key}": {"nodes": "4"} for key in ("", ".NAME.at", ".NAME.nodes", ".NAME.for", ".NAME.timezone")},
}
# The strategy of Flower that has a parameter.
STRATEGY_OF = {
    "mu": "fedprox", "learning_rate": "fedadam", "momentum": "fedadam", "beta_2": "fedadam", "tau": "fedadam",
    "trim": "fedtrimmedavg", "malicious": "krum", "selected": "multikrum",
}  # fmt: skip
# What one of a cluster's autoscalers needs beside it.
OF_AUTOSCALERS = {
    "by": ["cpu: 70%"],
    "cpu": ["by: hpa"],
    "replicas": ["by: hpa", "cpu: 70%"],
    "external_metric": ["by: hpa"],
}
# What it takes the place of.
INSTEAD = {
    ("Serving", "run"): "predictor",
    ("Sweep", "objectives"): "objective",
    ("Federation", "server"): "app",
    ("Federation", "client"): "app",
}


# What the examples of a step's keys speak of.
OTHER_STEP = "prepare: {run: a, outputs: [rows, shards]}"
OF_STEP = {"gate": "outputs: [accuracy]", "when": "needs: [prepare]", "each_of": "needs: [prepare]"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_name_may_be_as_long_as_its_key_says(kind: str) -> None:
    section = KINDS[kind]
    (name,) = (key for key in section.keys if key.name == "name")
    rule = section.rules["name"]
    assert isinstance(rule, Text)
    assert f"digits and dashes, at most {rule.max_length}" in name.doc


@pytest.mark.parametrize("page", PARTS)
def test_the_generated_parts_are_up_to_date(page: str) -> None:
    """`python -m tests.docs.reference` renews them."""
    assert (DOCS / page).read_text() == up_to_date(page)


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    # The keys of a trial are those of a Training, and so are those of a step that is a run of its own.
    [
        (kind, name, key)
        for kind, whole in KINDS.items()
        for name, key, _ in keys_of(whole)
        if not name.startswith(("trial.", "steps.NAME.training.", "steps.NAME.sweep."))
    ],
)
def test_the_example_of_every_key_is_a_right_spec(kind: str, name: str, key: SectionKey) -> None:
    value = key.example
    path = ["train" if part == "NAME" else part for part in name.split(".")]
    for place in range(len(path) - 1, 0, -1):
        others = _others_required(KINDS[kind], path[:place], path[place])
        value = "{" + ", ".join([f"{path[place]}: {value}", *others]) + "}"
    given = {"kind": kind, **WHOLE[kind], **BESIDE.get(f"{kind}.{name}", BESIDE.get(name, {})), path[0]: value}
    given.pop(INSTEAD.get((kind, name), ""), None)
    assert parse("\n".join(f"{key}: {text}" for key, text in given.items()))


def _others_required(whole: Section, path: list[str], without: str) -> list[str]:
    section: Section | SectionMap = whole
    for name in path:
        if isinstance(section, SectionMap):
            section = section.item
            continue
        inner = next(key for key in section.keys if key.name == name).kind
        assert isinstance(inner, (Section, SectionMap))
        section = inner
    if path == ["scale", "schedule"]:
        return []
    if path == ["scale"] and without in OF_AUTOSCALERS:
        return OF_AUTOSCALERS[without]
    if path == ["data", "train"]:
        return (
            [] if without == "from" else [f"from: {'pvc://claim' if without in ('at', 'write') else 's3://bucket/a'}"]
        )
    if isinstance(section, SectionMap):
        if path in (["data"], ["versions"], ["peaks"], ["sites"], ["project_budgets"], ["parallel", "candidates"]):
            return []
        if path == ["partitions", "layouts"]:
            return ["all-disabled: {}"]
        return ["home: {}"] if path == ["clusters"] else [OTHER_STEP]
    if path == ["sites", "train"] and "image" in {key.name for key in section.keys}:  # those of a Federation
        pod = ("context", "image") if without in ("context", "namespace", "image", "kubernetes") else ()
        return [f"{each}: a" for each in pod if each != without]
    if path == ["sites", "train"] and "context" in {key.name for key in section.keys}:
        return [] if without in ("context", "home") else ["context: a"]
    if path[:1] == ["clusters"] and len(path) == 2:
        others = ("context: a", *(() if without.endswith("_price") else ("gpu_price: 1",)))
        return [each for each in others if not each.startswith(f"{without}:")]
    if path == ["aggregate"] and without in STRATEGY_OF:
        return [f"strategy: {STRATEGY_OF[without]}"]
    if path == ["prune"] and without == "steps":
        return ["rule: hyperband"]
    if path == ["on"] and without == "every":
        return ["data: [a.csv]"]
    if path == ["on", "drift"]:
        beside = {"reference": (), "significance": ("reference: b.csv",), "detector": ("column: a",)}
        others = ("data: a.csv", *beside.get(without, ("column: a", "cost: 1")))
        return [each for each in others if not each.startswith(f"{without}:")]
    if path[-1:] == ["resources"] and without == "colocate":
        return ["gpu: 1"]
    if path == ["capacity"] and without == "base":
        return ["overflow: spot"]
    if path[:2] == ["partitions", "layouts"]:
        return ["replicas: 4"] if without == "sharing" else []
    if path == ["partitions"] and without != "layouts":
        return ["layouts: {all-disabled: {}, all-1g.5gb: {instances: {1g.5gb: 7}}}"]
    if path == ["scale"] and without == "shed":
        return ["latency: 500ms"]
    if path == ["canary", "metric"] and without not in ("above", "below"):
        return ["below: 0.5"] if without == "header" else ["header: X-Score", "below: 0.5"]
    if path[:1] == ["steps"] and len(path) == 2 and without not in ("run", "training", "sweep"):
        return ["run: a", *([OF_STEP[without]] if without in OF_STEP else [])]
    return [f"{key.name}: {key.example}" for key in section.keys if key.required and key.name != without]


def rows(page: str, columns: int) -> Iterator[list[str]]:
    """Cells of the page's table rows with so many columns, but for headers."""
    for line in (DOCS / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == columns and not cells[0].startswith("reason"):
            yield cells


def test_every_reason_code_is_explained_once_and_no_other() -> None:
    explained = [cells[0].strip("`") for cells in rows("troubleshooting.md", 3)]
    assert sorted(explained) == sorted(code.value for code in Code)


def sentences() -> set[str]:
    """Texts of the sources with `*` for what is filled in, one for each string that the code puts together."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
                found.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def codes_used() -> set[str]:
    """The codes that some decision gives as a reason."""
    texts = [path.read_text() for path in SOURCE.rglob("*.py") if path.name != "reasons.py"]
    return {code.value for code in Code if any(f"Code.{code.name}" in text for text in texts)}


@pytest.mark.slow
def test_every_explained_sentence_is_one_that_the_code_says() -> None:
    """A quoted sentence is made of pieces between `...`; each piece must stand in a text of the sources."""
    said, used = sentences(), codes_used()
    for code, sentence, _ in rows("troubleshooting.md", 3):
        if sentence.startswith("*"):
            assert (sentence == "*said by nothing yet*") == (code.strip("`") not in used), code
            continue
        pieces = [piece.strip(" ;,") for piece in sentence.strip('"').split("...")]
        for piece in filter(None, pieces):
            assert any(piece in text for text in said), f"{code}: {piece!r}"


def test_every_exit_code_is_in_the_table_and_in_the_help() -> None:
    listed = {int(cells[0]) for cells in rows("commands.md", 2) if cells[0].isdigit()}
    helped = {int(number) for number in re.findall(r"\b\d+\b", EPILOG)}
    assert listed == helped
    assert {code for _, code in EXIT_CODES} <= listed


def test_the_index_has_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_no_page_is_longer_than_a_person_reads() -> None:
    for page in DOCS.glob("*.md"):
        lines = page.read_text().splitlines()
        # What is looked up rather than read.
        assert len(lines) < 260 or page.name in ("commands.md", "specs.md", "files.md"), page.name
        assert all(line.isascii() for line in lines), page.name
        assert isinstance(page, Path)
