"""Endpoints at many sites are read with a sentence for each likely mistake."""

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.serving import Serving
from fairlead.specs.serving_sites import Waves

TEXT = """\
kind: Serving
name: detector
run: python server.py
sites: {north: {context: k3s-north}, south: {context: k3s-south}, west: {home: /var/lib/west}}
waves: {steps: [north, 50%], hold: 1h, deadline: 6h, min: 80%}
"""
SITES = "sites: {north: {context: k3s-north}, south: {context: k3s-south}, west: {home: /var/lib/west}}"
WAVES = "waves: {steps: [north, 50%], hold: 1h, deadline: 6h, min: 80%}"


def test_an_endpoint_at_sites_is_read_and_stored_without_loss() -> None:
    (spec,) = parse(TEXT)
    assert isinstance(spec, Serving)
    assert spec.sites["west"].place == (None, None, "/var/lib/west")
    assert spec.waves == Waves(steps=("north", "50%"), hold_s=3600.0, deadline_s=21600.0, min_share=0.8)
    assert from_json(to_json(spec)) == spec


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (SITES, "sites: {north: {}, south: {context: b}}", "neither is given; give one"),
        (SITES, "sites: {north: {context: a, home: /b}}", "both are given; give one"),
        (SITES, "sites: {north: {home: state}}", '"state" is relative; give an absolute path'),
        (SITES, "sites: {north: {home: /a, namespace: b}}", "a local cluster has none; leave it out"),
        (SITES, "sites: {north: {context: a}, south: {context: a}}", "are the same cluster; remove one of them"),
        (SITES, "sites: {North: {context: a}}", "use lower-case letters"),
        (SITES, "sites: {north: {cluster: a}}", "did you mean `context`?"),
        (SITES, "", "they are of `sites`"),
        (WAVES, "waves: {steps: [nroth]}", '`steps` names "nroth", which is none of `sites`; correct it'),
        (WAVES, "waves: {steps: [north, north+south]}", '`steps` names "north" twice; remove one'),
        (WAVES, "waves: {steps: [4]}", "`steps` has 4, and there are 3 sites; give fewer"),
        (WAVES, "waves: {steps: [2, 1]}", "order them from few to many"),
        (WAVES, "waves: {steps: [half]}", '`steps` names "half"'),
        (WAVES, "waves: {min: 2}", "waves.min"),
        (WAVES, "waves: {deadline: soon}", "waves.deadline"),
        (WAVES, "model: https://models.example.com/detector-1.json", "sites load signed models only"),
        (WAVES, "signed_by: ssh-ed25519 AAAA", "signed_by"),
        (WAVES, "engine: kserve", "leave it out"),
    ],
)
def test_a_mistake_in_sites_or_waves_is_refused_with_how_to_mend_it(before: str, after: str, sentence: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse(TEXT.replace(before, after))
    assert sentence in str(refused.value)
