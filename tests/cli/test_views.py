"""What is shown of runs that are followed without a terminal."""

from dataclasses import replace
from typing import cast

import pytest

from fairlead.cli import views
from fairlead.cluster.client import ClusterClient
from fairlead.state.snapshot import Intent, Phase, Progress, Workload
from tests.builders import status, training


def test_plain_progress_is_shown_when_it_changes_and_not_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(views, "PLAIN_PROGRESS_S", 0.0)
    plain = views.Plain(cast(ClusterClient, None), several=False)
    state = status(Phase.RUNNING)
    run = Workload(uid="a", spec=training(), intent=Intent.RUN, status=state, version=1, created_at=0.0)
    for step in (1, 1, 2, 2, 2):
        plain.progress([replace(run, progress=Progress(step=step, total_steps=2))])
    assert capsys.readouterr().err == "* step 1/2\n* step 2/2\n"
