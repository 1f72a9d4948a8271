"""Federations are read with every mistake sentence at once."""

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.aggregation import Privacy
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
sample: 50%
aggregate: {strategy: fedadam, learning_rate: 0.03}
"""
PRIVATE = TEXT.replace(
    "aggregate: {strategy: fedadam, learning_rate: 0.03}", "privacy: {epsilon: 8, delta: 1e-5, clip: 1}"
)


def test_a_federation_is_read_and_stored_without_loss() -> None:
    (spec,) = parse(TEXT)
    assert isinstance(spec, Federation)
    assert (spec.rounds, spec.least_sites, spec.deadline_s, spec.retry.program) == (50, 1, 600.0, 3)
    assert spec.sites["north"].window == "22:00-06:00"
    assert (spec.sample, spec.sampled_sites) == (0.5, 1)
    assert spec.aggregate is not None
    assert (spec.aggregate.strategy_class, spec.aggregate.arguments) == ("FedAdam", {"eta": 0.03})
    assert from_json(to_json(spec)) == spec
    (private,) = parse(PRIVATE)
    assert isinstance(private, Federation)
    assert private.privacy == Privacy(epsilon=8.0, delta=1e-5, clip=1.0)
    assert from_json(to_json(private)) == private


@pytest.mark.parametrize(
    ("sample", "sites", "sampled"), [("2", 3, 2), ("1", 3, 1), ("50%", 3, 2), ("0.1", 3, 1), ("0.5", 9, 4)]
)
def test_a_sample_is_a_number_of_sites_or_a_share_of_them(sample: str, sites: int, sampled: int) -> None:
    names = ", ".join(f"s{number}: {{}}" for number in range(sites))
    (spec,) = parse(f"kind: Federation\nname: digits\napp: app\nsites: {{{names}}}\nsample: {sample}\n")
    assert isinstance(spec, Federation)
    assert (spec.sampled_sites, spec.least_sites) == (sampled, sampled)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("sites: {}", "there is none; give at least one"),
        ("sites: {server: {}}", "is the name of the server's run"),
        ("sites: {North: {}}", "use lower-case letters"),
        (f"sites: {{{'a' * 45}: {{}}}}", "at most 50 characters fit"),
        ("sites: {a: {window: '22-6'}}", "give two times of day in UTC"),
        ("sites: {a: {window: '22:00-22:00'}}", "begins when it ends"),
        ("sites: {a: {context: cloud}}", "give an image with the app's packages and `fairlead[federated]`"),
        ("sites: {a: {context: cloud, image: i}}", "give a host and a port of this machine that its pods reach"),
        ("sites: {a: {context: cloud, image: i, home: /a}}", "both are given; give one"),
        ("sites: {a: {home: a}}", "is relative; give an absolute path"),
        ("sites: {a: {home: /a, image: i}}", "it is for pods of another cluster"),
        ("sites: {a: {namespace: n}}", "it is for pods of another cluster"),
        ("sites: {a: {}}\naddress: localhost:9000", "all sites are processes of this machine; leave it out"),
        ("sites: {a: {home: /a}}\naddress: localhost", "give a host and a port, such as"),
        ("sites: {a: {home: /a}}\naddress: localhost:70000", "has a port above 65535"),
        ("sites: {a: {}}\nmin_sites: 2", "is more than there are sites, 1"),
        ("sites: {a: {}}\nserver: python s.py", "leave `server` and `client` out, or `app`"),
        ("sites: {a: {}}\nenv: {FEDERATION_SITE: a}", "is set for each program by the federation"),
        ("sites: {a: {}}\nrounds: 0", "rounds"),
        ("sites: {a: {}}\nsample: 2", "is more than there are sites, 1"),
        ("sites: {a: {}, b: {}}\nsample: 1.5", "is no number of sites"),
        ("sites: {a: {}, b: {}}\nsample: 100%", "leave it out"),
        ("sites: {a: {}, b: {}}\nsample: 1\nmin_sites: 2", "is more than train in a round, 1"),
        ("sites: {a: {}}\naggregate: fedsgd", "is not one of fedavg, fedprox"),
        ("sites: {a: {}}\nsample: auto", "`auto` simulates rounds"),
        ("sites: {a: {expect: {link: 1Mi}}}", "missing; give train"),
        (
            "sites: {a: {expect: {train: 1s}}}\nsample: auto\nprivacy: {epsilon: 8, delta: 1e-5, clip: 1}",
            "the noise of `privacy` follows from it",
        ),
        ("sites: {a: {}}\nprivacy: {epsilon: 8, delta: 1e-5}", "missing; give clip"),
        ("sites: {a: {}}\nprivacy: {epsilon: 8, delta: 1, clip: 1}", "is out of bounds"),
        (
            "sites: {a: {}}\naggregate: fedmedian\nprivacy: {epsilon: 8, delta: 1e-5, clip: 1}",
            "the noise of fedmedian cannot be accounted",
        ),
        ("sites: {a: {}}\nsecure: secagg+", "secure"),
        ("sites: {a: {}}\naggregate: fedprox", "fedprox without it is fedavg"),
        ("sites: {a: {}}\naggregate: {strategy: fedavg, mu: 1}", "is no parameter of fedavg"),
        ("sites: {a: {}}\naggregate: {strategy: fedadam, mu: 1}", "takes `learning_rate` and `tau` and `momentum`"),
        ("sites: {a: {}, b: {}}\naggregate: krum", "krum needs 3 updates in a round, and a round may have 2"),
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
        ("server: s\nclient: c\nsites: {a: {home: /a}}", "in other clusters they are clients of a Flower `app`"),
        ("server: s\nclient: c\nmin_sites: 1", "the `server` program decides that itself"),
        ("server: s\nclient: c\ndeadline: 1m", "the `server` program decides that itself"),
        ("server: s\nclient: c\nsample: auto", "the `server` program decides that itself"),
        ("server: s\nclient: c\nsample: 1", "the `server` program decides that itself"),
        ("server: s\nclient: c\naggregate: fedavg", "the `server` program decides that itself"),
    ],
)
def test_what_programs_of_others_decide_themselves_is_refused(line: str, sentence: str) -> None:
    sites = "" if "home" in line else "sites: {a: {}}\n"
    with pytest.raises(InvalidSpec) as refused:
        parse(f"kind: Federation\nname: digits\n{sites}{line}\n")
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
