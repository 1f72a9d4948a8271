"""Every input to every reader of specs is a spec or the one declared error; nothing else is ever raised."""

import copy
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.cluster.kubernetes.manifests.spec_objects import read_object
from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.keys import API_VERSION, KINDS, OBJECTS
from tests.kubernetes.objects import RIGHT, places, whole

HOSTILE_TEXTS = (
    "(?P<step>a{4294967295})", "(?P<loss>(a{1,9999}){9999})", "[" * 300, "(" * 300, "(?P<a>" * 120 + ")" * 120,
    "9" * 400, "9" * 5_000, "-1e400", "1e999999", "0x" + "f" * 16, "\x00", "\ud800", "1..99999999999999999999999",
    "0..1e400", "1..2..3", "log 0..1", "nan", "inf", "%s%s%n", "a\nb", " ", "{{ x }}", "'", "1e-400s", "9" * 30 + "d",
    "9" * 30 + "Gi", "* * * * *", "60 24 32 13 8", "x when y = z", "a" * 2_000, "\u0663", "\u0661..\u0663",
    "1_000", "=", ":", "|", "0..18446744073709551615", "9007199254740993..9007199254740995",
    "true", "null", "../../x", "A100:99999999999999999999", "10**9", "(" * 99 + "1" + ")" * 99, "not " * 300 + "x",
)  # fmt: skip
NUMBERS = (0, -1, 2**31, 2**63, 10**30, 10**400, 1e308, -1e308, 0.1, float("nan"), float("inf"), -0.0)
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(HOSTILE_TEXTS) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = {kind: sorted(key.name for key in section.keys) for kind, section in OBJECTS.items()}


def read_or_refused(read: Callable[[], Any]) -> Any:
    """Return what a reader returns; None if it refuses its input in words."""
    problems: tuple[str, ...] = ("",)
    try:
        return read()
    except InvalidSpec as error:
        problems = error.problems
    assert problems
    assert all("\n" not in each for each in problems)
    return None


def judged(content: dict[str, Any]) -> None:
    """Read an object; what is read can be written, and read again."""
    spec = read_or_refused(lambda: read_object(content))
    if spec is not None:
        assert parse(to_yaml(spec)) == (spec,)
        assert from_json(to_json(spec)) == spec


@pytest.mark.parametrize("kind", OBJECTS)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(data=st.data())
def test_an_object_of_any_content_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    spec = data.draw(st.dictionaries(st.sampled_from(KEYS[kind]), VALUES, max_size=6))
    labels = data.draw(st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
    metadata = {"name": "x", "namespace": "t", **({} if labels is None else {"labels": labels})}
    judged({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})


@pytest.mark.slow
@pytest.mark.parametrize("kind", RIGHT)
def test_a_whole_object_with_one_hostile_value_at_each_place_is_read_or_refused(kind: str) -> None:
    for number in range(len(list(places(RIGHT[kind])))):
        values: tuple[Any, ...] = (*HOSTILE_TEXTS, *NUMBERS, [], {}, [[]], {"a": {"a": 1}})
        for value in values:
            spec = copy.deepcopy(RIGHT[kind])
            holder, key = list(places(spec))[number]
            holder[key] = copy.deepcopy(value)
            judged(whole(kind, spec, "x"))


@pytest.mark.parametrize("text", [text for text in HOSTILE_TEXTS if len(text) < 1000], ids=lambda text: repr(text)[:20])
def test_a_file_with_a_hostile_value_at_each_key_is_read_or_refused(text: str) -> None:
    for kind, section in KINDS.items():
        for key in section.keys:
            content = {"kind": kind, "name": "x", "run": "x", key.name: text}
            document = json.dumps(content, ensure_ascii=False)
            read_or_refused(partial(parse, document, source="f.yaml"))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
@example({"kind": "Training", "metrics": {"pattern": "(?P<step>a{4294967295})"}})
def test_a_stored_spec_of_any_content_is_read_or_refused(content: Any) -> None:
    for kind in (*KINDS, "Replica"):
        stored = {**content, "kind": kind} if isinstance(content, dict) else content
        read_or_refused(partial(from_json, json.dumps(stored)))


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_spec_file_or_none(text: str) -> None:
    read_or_refused(lambda: parse(text, source="f.yaml"))


@pytest.mark.parametrize("values", ["0..18446744073709551615", "-9007199254740992..0", "log 1..99999999999999999999"])
def test_a_range_of_whole_numbers_that_are_not_exact_is_refused(values: str) -> None:
    content = {"kind": "Sweep", "name": "x", "parameters": {"seed": values}, "trial": {"run": "train {{seed}}"}}
    with pytest.raises(InvalidSpec, match="whole numbers are not exact"):
        parse(json.dumps(content), source="f.yaml")
