"""Every fenced example of the guide and of the README is run or validated."""

import re
from pathlib import Path

import pytest

from tests.docs.examples import ROOT, carry_out, examples_of, first_missing

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# They train for real, for a minute and more.
LONG = {"checkpoints.md", "torchrun.md"}
# They wait for many seconds.
SLOW = {"README.md", "early-stopping.md", "memory-checkpoints.md", "models.md", "pipelines.md", "retraining.md"}
SLOW |= {"environments.md", "serving.md", "sharing.md", "simulating.md", "steps.md", "troubleshooting.md", "tuning.md"}


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    """Return the mark of a page whose examples take long."""
    return [pytest.mark.long] if page.name in LONG else [pytest.mark.slow] if page.name in SLOW else []


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks_of(page), id=page.name) for page in PAGES])
def test_every_example_of_the_page_holds(page: Path, desk: Path) -> None:
    for example in examples_of(page):
        carry_out(example, desk)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_every_fence_of_the_page_is_found(page: Path) -> None:
    fences = sum(line.startswith("```") for line in page.read_text().splitlines())
    assert fences == 2 * len(examples_of(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_output_is_compared_line_by_line_in_order() -> None:
    output = "a  1\nb  2\nc  3\n"
    assert first_missing(["a 1", "c ..."], output) is None
    assert first_missing(["...", "b 2"], output) is None
    assert first_missing(["c 3", "a 1"], output) == "a 1"
    assert first_missing(["a 2"], output) == "a 2"
    assert first_missing(["a"], output) == "a"
