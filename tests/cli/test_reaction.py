"""A command that waits for an intent to take effect says so when nothing reacts, and what to check."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cli.troubles import SILENT_S, Reaction
from fairlead.state.snapshot import Intent, Phase, Workload
from tests import builders


class _Cluster:
    """Stands in for a cluster whose loop may or may not be known to be missing."""

    def __init__(self, why: str | None, options: str) -> None:
        self._why, self._options = why, options

    def unattended(self) -> str | None:
        return self._why

    def named(self, *_: Any) -> str:
        return self._options


def a_run() -> Workload:
    return Workload(
        uid="u", spec=builders.training("train"), intent=Intent.STOP, status=builders.status(Phase.RUNNING), version=1,
        created_at=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("why", "options", "check"),
    [
        (None, "", "`fairlead doctor` checks what should have."),
        (None, "--context prod -n vision", "`fairlead doctor --context prod -n vision` checks what should have."),
        ("No operator runs on this cluster.", "", "No operator runs on this cluster."),
    ],
)
def test_after_ten_seconds_without_a_reaction_it_says_once_what_to_check(
    why: str | None, options: str, check: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at, run, cluster = [100.0], a_run(), _Cluster(why, options)
    reaction = Reaction(cluster, run, clock=lambda: at[0])  # type: ignore[arg-type] # it asks for no more
    reaction.look(run)
    at[0] += SILENT_S - 0.1
    reaction.look(run)
    assert capsys.readouterr().err == ""
    at[0] += 0.1
    for _ in range(3):
        reaction.look(run)
    assert capsys.readouterr().err == (
        f"fairlead: nothing has reacted for 10 s to what train is to do. {check} "
        "The request is recorded, and Ctrl-C does not take it back.\n"
    )


def test_a_run_that_takes_long_to_stop_has_reacted(capsys: pytest.CaptureFixture[str]) -> None:
    at, run = [0.0], a_run()
    reaction = Reaction(_Cluster(None, ""), run, clock=lambda: at[0])  # type: ignore[arg-type] # as above
    stopping = replace(run, status=replace(run.status, phase=Phase.STOPPING))
    reaction.look(stopping)
    at[0] = 1000.0
    reaction.look(stopping)
    reaction.look(run)
    assert capsys.readouterr().err == ""
