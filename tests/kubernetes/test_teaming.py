"""Team objects as the queue sees them."""

import logging

import pytest

from fairlead.cluster.kubernetes.operating.teaming import read_team
from fairlead.cluster.kubernetes.rendering.manifests import write_object
from fairlead.specs.team import Quota, Team


def test_a_team_reads_back_with_what_it_is_guaranteed() -> None:
    team = Team(name="vision", guaranteed=Quota(gpu_milli=8000), quota=Quota(gpu_milli=16_000), weight=2)
    content = write_object(team)
    content["metadata"]["resourceVersion"] = "7"
    found = read_team(content)
    assert found is not None
    assert (found.key, found.version, found.team) == ("vision", 7, team)


def test_a_team_that_breaks_a_rule_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    content = write_object(Team(name="vision"))
    content["metadata"]["resourceVersion"] = "7"
    content["spec"] = {"weight": -1}
    with caplog.at_level(logging.WARNING):
        assert read_team(content) is None
    assert "Team vision is left out: " in caplog.text
