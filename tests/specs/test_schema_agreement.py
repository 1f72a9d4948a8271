"""The published JSON Schema and the parser agree on documents of every kind, right ones and wrong ones."""

import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from fairlead.errors import InvalidSpec
from fairlead.specs.field_types import ListField, MapField, Section, SectionKey, SectionMap
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.schema import json_schema
from fairlead.specs.keys import API_VERSION, KINDS

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
# What no JSON Schema can say, by the words in which the parser says it.
PARSERS_ALONE = (
    "is no metric but one with its goal",
    "keys are either in a secret",
    "has no profiles, only s3:// has",
    "takes none; leave it out",
    "has `..` in it",
    "is the system's own",
    "is mounted for writing",
    "is mounted at a path",
    "is not mounted; give `cache`",
    "names nothing; give ",
    "leads out of the claim",
    "are both at ",
    "give the directory of a Flower app",
    "it has its own server and clients",
    "begins when it ends",
    "is set for each program by the federation",
    "is the name of the server's run",
    "characters fit",
    "are either in a `file` or listed",
    "is none of the files that are read",
    "or list `packages`",
    "names an environment of conda",
    "it holds credentials",
    "has an unknown scheme",
    "names no claim",
    "that only an administrator may make",
    "`preflight.network` measures between nodes",
    "`preflight.gpu` multiplies matrices on GPUs",
    "it tests nothing; give `gpu: 60s`",
    "than those that a test names",
    "fedprox without it is fedavg",
    "is no parameter of ",
    "the `server` program decides that itself",
    "`auto` simulates rounds, and ",
    "the noise of `privacy` follows from it",
    "is no number of sites; give a whole number",
    "is more than there are sites",
    "is more than train in a round",
    "or leave `privacy` out",
    "choose fedmedian or fedtrimmedavg",
    "is all sites; leave it out for that",
    "is a Dataset itself",
    "is the newest one by itself",
    "is its own team; leave it out",
    "a claim is in the namespace of its team",
    "they are of `sites`",
    "are the same cluster",
    "which is none of `sites`",
    "order them from few to many",
    " sites; give fewer",
    "twice; remove one",
    "sites load signed models only",
    "there is no `model` that could be signed",
    "loads the model itself and checks nothing",
    "each of `sites` serves it by replicas",
    "a site is a `context` of the kubeconfig or a `home` here",
    "is relative; give an absolute path",
    "both are given; give one",
    "its client runs in a pod; give an image",
    "it is for pods of another cluster",
    "in other clusters they are clients of a Flower",
    "is in another cluster; give a host and a port",
    "all sites are processes of this machine",
    "has a port above",
    "a local cluster has none",
    "`engine: kserve`",
    "`engine: knative`",
    "`engine: seldon`",
    "`engine: katib`",
    "`overflow` already says which replicas use spot",
    "with `in_place` the other ranks hold the state",
    "no metric is given",
    "it is for Fairlead's own scaling",
    "it is for the cluster's own autoscaler",
    "it is set by a cluster's own autoscaler",
    "a HorizontalPodAutoscaler asks none",
    "a HorizontalPodAutoscaler keeps one",
    "KEDA scales by `prometheus` here",
    "replicas scale by `",
    "nothing is refused without `latency`",
    "its nodes have no GPU",
    "which say when its number is bad",
    "has requests answered twice",
    "the old revision answers all requests",
    "it is for runs on whole GPUs",
    "has no memory of its own",
    "a step is one thing",
    "and there are at most",
    "it is for a command;",
    "missing; give what a training costs",
    "missing; name the column",
    "it is for `cost`, which is not given",
    "it is for `reference`, which is not given",
    "all columns that both files have are compared",
    "no result of it has an age",
    "says when it is run already",
    "is nothing that a sweep returns",
    "without an `objective`",
    "its driver would be named",
    "its run would be named",
    "always uses the last 15 minutes",
    "no gateway counts tokens",
    "is out of bounds",
    "is finer than a thousandth",
    "is not a whole number of bytes",
    "is less than backoff",
    "is less than delay",
    "it holds for the whole cluster",
    "is set by Fairlead itself",
    "is set by `framework: ",
    "do not fit into a variable",
    "it has no room beside the old revision",
    "control character",
    "a NUL or half a surrogate pair",
    "above 1 only whole GPUs",
    "on one node; at most",
    "; ask for more than 0",
    "is listed twice",
    "is not a taint:",
    "it is for a part of one GPU",
    "so that `sharing` has no say",
    "ends before it begins",
    "there is no step",
    "in a circle",
    "is none of the",
    "is not an output of its needs",
    "is not set",
    "a step cannot need itself",
    "is not a condition",
    "a condition has names",
    "give a command, or say in",
    "give the command of a server",
    "either a command (`run`) or a predictor",
    "it is for a `predictor`",
    "is no more than the fewest",
    "0 would never serve",
    "the number of replicas is always",
    "is set for each replica",
    "compares with `is`",
    "either a list in",
    # To JSON Schema 1.0 is an integer, and 0.5 a number where a cluster's API takes only whole ones or text.
    "1.0 is not a whole number",
    "is a number with a point",
    "nothing to watch",
    "; give five, minute",
    "has a minute of",
    "has an hour of",
    "is not filled in: ",
    "never comes",
    "only `capacity: {spot: auto}` uses it",
    "`spot: auto` needs to know",
    "it is before the work can be done",
    "an elastic gang has no `spot: auto`",
    "is not a regular expression",
    "names no group",
    "names only",
    "is not a range",
    "ends below its beginning",
    "lists a value twice",
    "has nothing between two",
    "needs numbers above 0",
    "its condition",
    "has no end of values",
    "there are more than 10000 combinations",
    "grid needs values that are listed",
    "needs an `objective`",
    "learns from an `objective`",
    "has to know how many steps",
    "does not use it",
    "never comes to `after`",
    "none is given; give at least one",
    "is not a parameter of this sweep",
    "nothing in the trial has",
    "is set for each trial by the sweep",
    "differs from it only in case",
    "characters; give at most 45",
    "and there are several",
    "is for several `objectives`",
    "says what trials are judged by",
    "fewer than run side by side",
    "given; give two to",
    "pbt compares trials that run",
    "pbt changes the values",
    "pbt continues from checkpoints",
    "with pbt a trial begins",
    "it is the queue of an engine",
    "needs the LocalQueue",
    "with `engine` it has at most",
    "places its pods itself",
    "starts the program itself",
    "this machine has none",
    "without a price runs wait",
    "there is none; give at least one",
    "are the same cluster",
    "is not a time zone",
    "more than `nodes` of the pool",
    "replicas scale by",
    "the other ranks go on",
    "for ranks that meet by torch alone",
    "divides a step anew when ranks go",
)
WORDS = st.sampled_from(
    ["", " ", "a", "Bad Name", "10m", "1h30m", "-1s", "200 steps", "0 steps", "16Gi", "1.5G", "16gb", "500m", "0.5",
     "A100:8", "8xA100", "24GB:2", "auto", "exec", "spot", "owned", "a=b:NoSchedule", "b:Sometimes", "true",
     "3", "line\nbreak", "0x10", "1e3", "+1", "x" * 51, "x" * 600, "ann,ben",
     "2..8", "8..2", "0..9", "2..99999", "2.."]
)  # fmt: skip
JUNK = st.deferred(
    lambda: (
        st.none()
        | st.booleans()
        | st.integers(-2, 2000)
        | st.sampled_from([0, 10**7, 10**16, 0.5, -0.5, 1.0, 2.5, 1e-9, 1e20])
        | WORDS
        | st.lists(WORDS, max_size=3)
        | st.dictionaries(
            st.sampled_from(["A", "zone", "gpu", "1X", "RANK", "a b"]), WORDS | st.integers(0, 5), max_size=2
        )
    )
)


def values(key: SectionKey) -> st.SearchStrategy[Any]:
    """Mostly what the key takes, sometimes anything."""
    right: st.SearchStrategy[Any] = st.just(yaml.safe_load(key.example))
    if isinstance(key.kind, Section):
        right = right | mappings(key.kind)
    if isinstance(key.kind, SectionMap):
        named = st.sampled_from(["prepare", "evaluate", "b", "B"])
        right = right | st.dictionaries(named, mappings(key.kind.item), max_size=2)
    return st.integers(0, 9).flatmap(lambda dice: JUNK if dice == 0 else right)


def mappings(section: Section, *, metadata: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Some keys of a section; now and then one is missing or unknown."""
    keys = [key for key in section.keys if metadata or key.metadata is None]
    required = st.fixed_dictionaries(
        {key.name: values(key) for key in keys if key.required},
        optional={key.name: values(key) for key in keys if not key.required},
    )

    def disturbed(found: dict[str, Any], dice: int, unknown: Any) -> dict[str, Any]:
        if dice == 0 and found:
            return dict(list(found.items())[1:])
        return {**found, "unknown": unknown} if dice == 1 else found

    return st.builds(disturbed, required, st.integers(0, 11), JUNK)


def short(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    named = mappings(KINDS[kind]).map(lambda found: {"kind": kind, **found})
    return named | mappings(KINDS[kind]) if kind == "Training" else named


def kubernetes(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    fields = {str(key.metadata): values(key) for key in KINDS[kind].keys if key.metadata and not key.required}
    metadata = st.fixed_dictionaries({"name": st.just("a") | WORDS}, optional=fields)
    whole = st.fixed_dictionaries(
        {
            "apiVersion": st.just(API_VERSION) | st.just("v1"),
            "kind": st.just(kind),
            "metadata": metadata,
            "spec": mappings(KINDS[kind], metadata=False),
        }
    )
    return st.builds(
        lambda found, drop: {key: value for key, value in found.items() if key != drop},
        whole,
        st.sampled_from([None] * 12 + ["apiVersion", "kind", "metadata", "spec", "status"]),
    )


def refusals(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What the parser says of it; JSON is YAML."""
    try:
        parse(json.dumps(document), default_name="example")
    except InvalidSpec as error:
        return error.problems
    return ()


DOCUMENTS = st.sampled_from(list(KINDS)).flatmap(lambda kind: short(kind) | kubernetes(kind))


@pytest.mark.slow
@given(DOCUMENTS)
@example({"apiVersion": API_VERSION, "kind": "Team", "metadata": {"name": "a"}, "spec": {"members": None}})
@example({"kind": "Team", "name": "a", "members": None})
@example({"kind": "Serving", "capacity": {"spot": True, "overflow": "spot"}})
@example({"kind": "Pool", "name": "a", "nodes": 1, "hardware": {"cpu": 1, "memory": "1Gi"}, "peaks": {}})
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_one_refuses_the_other_refuses(document: dict[str, Any]) -> None:
    refused = refusals(document)
    fits = VALIDATOR.is_valid(document)
    event(f"parser {'refuses' if refused else 'takes'}, schema {'takes' if fits else 'refuses'}")
    if not fits:
        assert refused, (
            f"only the schema refuses it: {jsonschema.exceptions.best_match(VALIDATOR.iter_errors(document))}"
        )
    for problem in refused if fits else ():
        assert any(words in problem for words in PARSERS_ALONE), f"only the parser refuses it: {problem}"


@pytest.mark.slow
def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def every_key(section: Section) -> list[tuple[SectionKey, Section]]:
    inner = [each for key in section.keys if isinstance(key.kind, Section) for each in every_key(key.kind)]
    inner += [each for key in section.keys if isinstance(key.kind, SectionMap) for each in every_key(key.kind.item)]
    return [(key, section) for key in section.keys] + inner


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_explains_every_key_and_shows_patterns_that_editors_read(kind: str) -> None:
    text = json.dumps(SCHEMA["$defs"][kind])
    for key, _ in every_key(KINDS[kind]):
        assert json.dumps(key.doc)[1:-1] in text
        assert isinstance(key.kind, (MapField, ListField, Section, SectionMap)) or key.example
    for pattern in re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', text):
        # Editors read JavaScript's regular expressions, which know none of these.
        assert not re.search(r"\(\?P|\\A|\\Z|\(\?#|\\h", pattern), pattern
