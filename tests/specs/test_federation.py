"""Federations are read with every mistake sentence at once."""

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.federation import Federation, Site
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.serialization import from_json, to_json

TEXT = """\
kind: Federation
name: digits
app: digits-app
sites:
  north: {data: /data/north, resources: {cpu: 2}, window: "22:00-06:00"}
  south: {}
rounds: 50
min_sites: 1
deadline: 10m
"""


def test_a_federation_is_read_and_stored_without_loss() -> None:
    (spec,) = parse(TEXT)
    assert isinstance(spec, Federation)
    assert (spec.rounds, spec.least_sites, spec.deadline_s, spec.retry.program) == (50, 1, 600.0, 3)
    assert spec.sites["north"].window == "22:00-06:00"
    assert from_json(to_json(spec)) == spec


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("sites: {}", "there is none; give at least one"),
        ("sites: {server: {}}", "is the name of the server's run"),
        ("sites: {North: {}}", "use lower-case letters"),
        (f"sites: {{{'a' * 45}: {{}}}}", "at most 50 characters fit"),
        ("sites: {a: {window: '22-6'}}", "give two times of day in UTC"),
        ("sites: {a: {window: '22:00-22:00'}}", "begins when it ends"),
        ("sites: {a: {context: cloud}}", "context"),
        ("sites: {a: {}}\nmin_sites: 2", "is more than there are sites, 1"),
        ("sites: {a: {}}\nserver: python s.py", "leave `server` and `client` out, or `app`"),
        ("sites: {a: {}}\nenv: {FEDERATION_SITE: a}", "is set for each program by the federation"),
        ("sites: {a: {}}\nrounds: 0", "rounds"),
    ],
)
def test_a_mistake_is_refused_with_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse(f"kind: Federation\nname: digits\napp: app\n{line}\n")
    assert any(sentence in problem for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("server: python s.py", "give the directory of a Flower app, or both"),
        ("server: s\nclient: c\nmin_sites: 1", "the `server` program decides that itself"),
        ("server: s\nclient: c\ndeadline: 1m", "the `server` program decides that itself"),
    ],
)
def test_what_programs_of_others_decide_themselves_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse(f"kind: Federation\nname: digits\nsites: {{a: {{}}}}\n{line}\n")
    assert any(sentence in problem for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("window", "hour", "is_open", "changes"),
    [
        (None, 3, True, None),
        ("22:00-06:00", 3, True, 6),
        ("22:00-06:00", 12, False, 22),
        ("22:00-06:00", 23, True, 30),
        ("09:30-17:00", 9, False, 9.5),
        ("09:30-17:00", 10, True, 17),
        ("09:30-17:00", 17, False, 33.5),
    ],
)
def test_a_window_opens_and_closes(window: str | None, hour: int, is_open: bool, changes: float | None) -> None:
    site = Site(window=window)
    assert site.is_open(hour * 3600.0) is is_open
    assert site.changes_at(hour * 3600.0) == (None if changes is None else changes * 3600.0)
