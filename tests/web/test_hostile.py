"""Text from outside stays text: whatever a name, a message or output holds, the page has the same elements."""

import urllib.parse
from collections.abc import Callable

import pytest

from fairlead.specs.team import Team
from fairlead.specs.training import Training
from fairlead.state.fleets import FleetStage
from fairlead.state.reasons import Code, Reason
from fairlead.state.series import Point
from fairlead.state.snapshot import Phase, PodPhase, Progress
from fairlead.text.visible_text import one_line
from tests.builders import training
from tests.web.world import NOW, Seen, World, of_fleet, read_html, world_in

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "handler": '"><img src=x onerror=alert(1)>',
    "single quote": "' onmouseover='alert(1)",
    "end of the text": "</td></table></main><iframe src=//evil>",
    "template": "{{ 7*7 }}{% for x in y %}",
    "comment": "<!-- --><style>*{display:none}</style>",
    "entity": "&lt;b&gt;&#60;script&#62;",
    "escape codes": "\x1b[31mred\x1b[0m\x07\x00\x9b",
    "direction": "safe\u202etxt.exe\u2066\u200b",
    "address": "javascript:alert(document.cookie)//%3Cscript%3E",
}
HARMLESS = "harmless"


def _reason(text: str) -> Reason:
    return Reason(code=Code.REPORTED, message=text, remedy=text, detail=(text, text))


def _by_message(world: World, text: str) -> str:
    run = world.run("one", Phase.RUNNING, reason=_reason(text), last_failure=_reason(text))
    return f"/runs/{run.uid}"


def _in_the_listing(world: World, text: str) -> str:
    world.run("one", Phase.RUNNING, reason=_reason(text))
    return "/"


def _in_the_queue(world: World, text: str) -> str:
    world.run("one", spec=training("one", team=text))
    return "/queue"


def _by_output(world: World, text: str) -> str:
    run = world.run("one", Phase.RUNNING)
    world.pod(run, output=text)
    return f"/runs/{run.uid}"


def _by_pod(world: World, text: str) -> str:
    run = world.run("one", Phase.FAILED)
    world.pod(run, message=text, phase=PodPhase.FAILED)
    return f"/runs/{run.uid}"


def _by_metric(world: World, text: str) -> str:
    run = world.run("one", Phase.RUNNING)
    world.pod(run, points=tuple((text, Point(at=NOW, step=step, value=1.0)) for step in range(3)))
    return f"/runs/{run.uid}"


def _by_progress(world: World, text: str) -> str:
    run = world.run("one", Phase.RUNNING)
    world.pod(run, progress=Progress(step=1, throughput=2.0, throughput_unit=text))
    return f"/runs/{run.uid}"


def _by_command(world: World, text: str) -> str:
    return f"/runs/{world.run('one', spec=training('one', run='echo ' + text)).uid}"


def _by_label(world: World, text: str) -> str:
    return f"/runs/{world.run('one', spec=training('one', labels={text: text})).uid}"


def _by_name(world: World, text: str) -> str:
    world.run("one", Phase.SUCCEEDED, spec=training(text, team=text))
    return "/"


def _by_name_in_full(world: World, text: str) -> str:
    return f"/runs/{world.run('one', spec=training(text, team=text)).uid}"


def _on_the_cluster(world: World, text: str) -> str:
    world.pod(world.run("one", Phase.RUNNING, spec=training(text)))
    return "/cluster"


def _of_a_team(world: World, text: str) -> str:
    world.run("one", Phase.RUNNING, spec=training("one", team=text))
    return "/teams"


def _of_a_fleet(world: World, text: str) -> str:
    run = of_fleet("one", stage=FleetStage.LEAVING, cluster=text, target=text, reason=text, refused={text: text})
    world.fleet(run, trouble=text)
    return "/fleets"


def _by_report(world: World, text: str) -> str:
    return f"/simulations/{world.simulation(text, settings=(text,), team=text)}"


def _in_the_reports(world: World, text: str) -> str:
    world.simulation(text, settings=(text,))
    return "/simulations"


def _by_query(parameter: str, page: str = "/") -> Callable[[World, str], str]:
    def make(world: World, text: str) -> str:
        return f"{page}?{urllib.parse.urlencode({parameter: text})}"

    return make


def _by_search(world: World, text: str) -> str:
    run = world.run("one", Phase.RUNNING)
    return f"/runs/{run.uid}?{urllib.parse.urlencode({'find': text})}"


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Specs hold what no parser lets through, so that the page has nothing but itself to rely on."""
    for kind in (Training, Team):
        monkeypatch.setattr(kind, "__post_init__", lambda spec: None)


FIELDS: dict[str, Callable[[World, str], str]] = {
    "a reason": _by_message,
    "a reason in the listing": _in_the_listing,
    "a line of output": _by_output,
    "the message of a pod": _by_pod,
    "the name of a metric": _by_metric,
    "a unit of progress": _by_progress,
    "a command": _by_command,
    "a label": _by_label,
    "a search for a name": _by_query("q"),
    "a search in output": _by_search,
    "a team in the address": _by_query("team"),
    "an unknown state in the address": _by_query("state"),
    "a window of costs": _by_query("since", "/cost"),
    "a name that only a foreign database has": _by_name,
    "such a name in full": _by_name_in_full,
    "such a name on the cluster": _on_the_cluster,
    "such a team": _of_a_team,
    "such a team in the queue": _in_the_queue,
    "whatever a fleet says": _of_a_fleet,
    "a report of a simulation": _by_report,
    "the listing of reports": _in_the_reports,
}


def _look(world: World, field: str, text: str) -> tuple[int, Seen]:
    address = FIELDS[field](world, text)
    status, html = world.readers.threads.submit(world.readers.page, address).result(timeout=30)
    return status, read_html(html)


@pytest.mark.parametrize("hostile", list(HOSTILE))
@pytest.mark.parametrize("field", list(FIELDS))
def test_hostile_text_adds_no_element_and_no_attribute(
    world: World, tmp_path_factory: pytest.TempPathFactory, field: str, hostile: str
) -> None:
    text = HOSTILE[hostile]
    status, seen = _look(world, field, text)
    with world_in(tmp_path_factory.mktemp("other")) as other:
        harmless_status, harmless = _look(other, field, HARMLESS)
    assert status == harmless_status
    assert seen.structure == harmless.structure
    shown = seen.text.replace("\n", " ")
    # Where it is quoted, and in YAML, it is spelled out already.
    assert any(spelled in shown for spelled in (one_line(text).strip(), repr(text)[1:-1], r"\e[31mred"))
    assert not any(name.startswith("on") for _, names in seen.structure for name in names)
    tags = [tag for tag, _ in seen.structure]
    assert (tags.count("script"), tags.count("style")) == (1, 1)
    assert not {"iframe", "img"} & set(tags)
    assert not any(link.startswith(("javascript:", "//", "http")) for link in seen.links)
    assert not any(ord(character) < 32 and character not in "\n\t" for character in seen.text)
    assert not set("\u202e\u2066\u200b") & set(seen.text)
