"""The one reader of JSON from elsewhere: every text gives a value that can be stored, or the one error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.untrusted_json import parse_json, parse_object

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
HOSTILE = (
    "[" * 100_000, '{"a":' * 100_000, "", "nul", '"', "{}{}", "1" * 5_000, b"\xff\xfe", b"\xef\xbb\xbf{}", "\x00",
    '{"a": 1', "[1,]", "'a'", "Infinity1",
)  # fmt: skip


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_every_text_is_read_or_refused_by_one_error(text: str | bytes) -> None:
    try:
        value = parse_json(text, max_bytes=100)
    except ValueError:
        return
    assert len(text) <= 100
    json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:12]))
def test_a_hostile_text_is_refused_by_one_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_object(text, max_bytes=1 << 20)


@given(JSON)
def test_a_value_is_read_as_it_was_written(value: object) -> None:
    text = json.dumps(value)
    assert json.dumps(parse_json(text, max_bytes=len(text))) == text


def test_a_text_of_the_limit_is_read_and_a_longer_one_is_refused_with_both_sizes() -> None:
    assert parse_json("[1]", max_bytes=3) == [1]
    with pytest.raises(ValueError, match="it has 4 bytes; at most 3 are read"):
        parse_json("[12]", max_bytes=3)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "[-1E+400]"])
def test_numbers_that_are_none_are_refused_where_only_finite_ones_may_be(text: str) -> None:
    parse_json(text, max_bytes=100)
    with pytest.raises(ValueError, match="number"):
        parse_json(text, max_bytes=100, finite=True)


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"\udfffa": "\uD83D"}', '["\udcff"]', r'"\ud83d\ude00 \ud83d"'])
def test_half_a_surrogate_pair_becomes_a_question_mark_as_no_file_can_hold_it(text: str) -> None:
    value = parse_json(text, max_bytes=100)
    stored = json.dumps(value, ensure_ascii=False).encode().decode()
    assert "?" in stored
    assert ("\U0001f600" in stored) == (r"\ude00" in text)


@pytest.mark.parametrize(
    ("text", "what"), [("[]", "a list"), ('"a"', "a text"), ("1", "a number"), ("true", "true or false")]
)
def test_another_value_than_an_object_is_named(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"it holds {what} where an object is expected"):
        parse_object(text, max_bytes=100)
