"""Reports of simulations, as the page shows them."""

import re

from tests.web.world import World


def test_reports_are_listed_newest_first_with_a_row_for_each_policy(world: World) -> None:
    world.simulation("last-week.csv", at=1000.0)
    name = world.simulation("today.csv", policies=("fifo", "shortest"), settings=("--declare 2",))
    text = world.look("/simulations").text
    assert text.index("today.csv") < text.index("last-week.csv")
    assert f"/simulations/{name}" in world.look("/simulations").links
    assert "--declare 2" in text
    rows = re.findall(r"<tr id=.report-[^>]*>(.*?)</tr>", world.html("/simulations"), re.DOTALL)
    cells = [re.sub(r"<[^>]*>", " ", row).split() for row in rows]
    assert [("today.csv" in row, "fifo" in row, "shortest" in row) for row in cells] == [
        (True, True, False),
        (True, False, True),
        (False, False, False),
    ]
    # Runs, nodes, GPUs, mean wait, and the longest wait but for one in a hundred.
    assert " shortest 3 2 8 19m 40s 59m " in " ".join(cells[1])


def test_a_report_compares_its_policies_and_says_so_without_the_pictures(world: World) -> None:
    name = world.simulation("compared", policies=("fifo", "default"))
    html, seen = world.html(f"/simulations/{name}"), world.look(f"/simulations/{name}")
    text = re.sub(r"\s+", " ", seen.text)
    for told in (
        "3 runs on at most 2 nodes with 8 GPUs",
        "GPU time by use",
        "useful 7",
        "Completion, p99",
        "on-demand",
    ):
        assert told in text, told
    # 12 of 16 GPU hours are held: 4 for one hour, 4 for two, and 4 for a minute.
    assert text.count("75.4%") >= 2
    assert html.count('<path class="curve s1" d="M52 ') == 3
    assert "Runs that wait for their first start, over 120 min: fifo at most 1; default at most 1" in text
    assert "Share of runs that waited no longer than, over 59 min: fifo at most 100%; default at most 100%" in text
    assert "/simulations" in seen.links


def test_the_chart_has_its_highest_level_at_the_top_and_none_at_the_bottom(world: World) -> None:
    html = world.html(f"/simulations/{world.simulation('one', policies=('fifo',))}")
    path = re.findall(r'<path class="curve s0" d="([^"]+)"', html)[2]  # below that of the legend, and of the table
    assert path.startswith("M52 100.0")
    heights = [float(each) for each in re.findall(r"V([0-9.]+)", path)]
    assert min(heights) == 8.0
    assert path.endswith("H312.0")


def test_a_report_that_cannot_be_read_is_said_to_be_so_among_the_others(world: World) -> None:
    world.simulation("fine")
    broken = world.simulation("broken")
    (world.cluster.home.simulations / f"{broken}.json").write_text("{")
    text = world.look("/simulations").text
    assert "fine" in text
    assert f"{broken}.json cannot be read" in text
    assert "cannot be read" in world.look(f"/simulations/{broken}", 503).text


def test_a_report_that_is_gone_is_not_found(world: World) -> None:
    for address in ("/simulations/1700000000000-abcdef", "/simulations/..", "/simulations/", "/simulations/a/b"):
        world.look(address, 404)
    assert "There is no report" in world.look("/simulations/1700000000000-abcdef", 404).text
