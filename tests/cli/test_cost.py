"""`fairlead cost` and `fairlead prices`: what is billed, by whom, and in which form."""

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyarrow import parquet

from tests.cli.conftest import Call
from tests.waiting import until


@pytest.fixture
def ran(call: Call) -> Call:
    """A run that is over, on a machine with a price since long ago."""
    assert call("prices", "set", "localhost", "2.50", "--from", "2026-01-01").code == 0
    assert call("run", "--name", "a", "--label", "model=gpt", "--", "true").code == 0
    return call


def test_rows_sum_to_the_bill_in_every_grouping_and_form(ran: Call, tmp_path: Path) -> None:
    for by in ("run", "model", "team", "project", "user", "pool", "day"):
        told = json.loads(ran("cost", "--by", by, "--json", "--since", "1h").out)
        assert sum(row["microusd"] for row in told["rows"]) == told["billed_microusd"] > 0
        assert all(sum(row["uses"].values()) == row["microusd"] for row in told["rows"])
        assert 0 < sum(row["node_hours"] for row in told["rows"]) < 0.5, "nothing is billed before the first run"
        bill = told["billed_microusd"]
    rows = list(csv.DictReader(io.StringIO(ran("cost", "--csv", "--since", "1h").out)))
    assert sum(int(row["microusd"]) for row in rows) >= bill
    file = tmp_path / "costs.parquet"
    assert ran("cost", "--parquet", str(file), "--since", "1h").code == 0
    table = parquet.read_table(file)
    assert set(rows[0]) == set(table.column_names)
    assert sum(table["microusd"].to_pylist()) >= bill
    assert {"a", None} == set(table["run"].to_pylist())
    refused = ran("cost", "--parquet", str(tmp_path / "nowhere" / "costs.parquet"))
    assert "cannot be written" in refused.err
    focus = list(csv.DictReader(io.StringIO(ran("cost", "--focus", "--since", "1h").out)))
    assert sum(round(float(row["BilledCost"]) * 10**6) for row in focus) >= bill
    assert {"default/a on localhost, starting", "localhost, idle"} <= {row["ChargeDescription"] for row in focus}


def test_status_says_what_the_listing_says(ran: Call) -> None:
    (row,) = [row for row in json.loads(ran("cost", "--json").out)["rows"] if row["run"] == "a"]
    assert abs(json.loads(ran("status", "a", "--json").out)["cost_microusd"] - row["microusd"]) <= 1
    assert "in all" in ran("status", "a").out


def test_status_says_goodput_by_the_uses_of_the_bill(ran: Call) -> None:
    (row,) = [row for row in json.loads(ran("cost", "--json").out)["rows"] if row["run"] == "a"]
    told = json.loads(ran("status", "a", "--json").out)["goodput"]
    assert set(told["seconds"]) >= {use for use, amount in row["uses"].items() if amount > 1}
    # Of so short a run a micro-dollar is a part that counts.
    ratio = row["uses"].get("productive", 0) / row["microusd"]
    assert told["ratio"] == pytest.approx(ratio, abs=0.01 + 2 / row["microusd"])
    assert 0 <= told["waiting_s"] < 60
    assert " goodput " in ran("status", "a").out


def test_idle_time_is_a_row_of_its_own(ran: Call) -> None:
    table = ran("cost", "--since", "1h").out.splitlines()
    assert table[0].split() == ["RUN", "COST", "SHARE", "NODE-HOURS", "FOR"]
    assert table[-1].startswith("(no run)")


def test_a_price_from_the_past_bills_nothing_from_before_the_first_run(call: Call) -> None:
    assert call("prices", "set", "localhost", "3592", "--from", "30d").code == 0
    assert "Nothing is billed from" in call("cost").err
    assert call("run", "--", "true").code == 0
    assert json.loads(call("cost", "--json").out)["billed_microusd"] < 3592 * 10**6 / 10


def test_a_price_that_a_later_one_ends_says_when(call: Call) -> None:
    call("prices", "set", "localhost", "2", "--from", "2026-03-01")
    said = call("prices", "set", "localhost", "1", "--from", "2026-01-01").err
    assert "from 2026-01-01 00:00:00 until 2026-03-01 00:00:00, from when another price is set (as given)" in said


def test_without_a_price_that_is_said(call: Call) -> None:
    assert "prices set localhost" in call("cost").err
    assert "No price is set" in call("prices", "list").err
    assert json.loads(call("cost", "--json").out)["rows"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("cost", "--csv", "--focus"),
        ("cost", "--since", "2030-01-01"),
        ("cost", "compare"),
        ("cost", "compare", "--on-demand", "2", "--most-spot", "1"),
        ("cost", "compare", "--on-demand", "2", "--years", "1"),
        ("cost", "compare", "--on-demand", "2", "--pool", "a100"),
        ("cost", "compare", "--on-demand", "2", "--since", "2100-01-01"),
        ("cost", "--since", "1h", "compare", "--on-demand", "2"),
        ("prices", "set", "localhost"),
        ("prices", "set", "localhost", "2", "--instance", "g5.xlarge"),
        ("prices", "set", "localhost", "-2"),
        ("prices", "set", "localhost", "2", "--spot"),
        ("prices", "set", "localhost", "2", "--years", "3"),
        ("prices", "set", "localhost", "--purchase", "1000"),
        ("prices", "set", "localhost", "--purchase", "1000", "--years", "0"),
        ("prices", "set", "localhost", "--purchase", "1000", "--years", "3", "--power", "1"),
        ("prices", "set", "localhost", "--none", "--discount", "5"),
        ("prices", "set", "localhost", "2", "--discount", "500"),
        ("prices", "set", "localhost", "--instance", "g5.xlarge", "--spot"),
    ],
)
def test_what_cannot_be_is_refused(call: Call, arguments: tuple[str, ...]) -> None:
    assert call(*arguments).code == 2


def test_prices_come_from_a_table_a_discount_or_a_purchase(call: Call, desk: Path) -> None:
    (desk / "mine.csv").write_text("InstanceType,Price,SpotPrice,Region\nbig,10,3,here\nbig,9,4,there\n")
    sources = (
        ("--instance", "big", "--spot"),
        ("--instance", "big", "--region", "there"),
        ("--purchase", "87600", "--years", "10", "--power", "2", "--electricity", "0.5"),
        ("--none",),
    )
    call("prices", "set", "localhost", "--instance", "g5.xlarge", "--discount", "10", "--from", "2026-01-01")
    call("prices", "update", "mine.csv")
    for day, source in enumerate(sources, 2):
        call("prices", "set", "localhost", *source, "--from", f"2026-01-0{day}")
    told = json.loads(call("prices", "list", "--json").out)
    rates = [each["microusd_per_hour"] for each in told]
    assert rates == [905_400, 3_000_000, 9_000_000, 2_000_000, None]
    assert told[3]["source"] == "owned: purchase $1.00, power $1.00"
    assert call("prices", "set", "elsewhere", "1").code == 5
    assert [each["type"] for each in json.loads(call("prices", "list", "--instances", "--json").out)] == ["big", "big"]
    (desk / "bad.csv").write_text("InstanceType,Price\nbig,ten\n")
    assert "line 2" in call("prices", "update", "bad.csv").err


def test_a_run_that_has_cost_what_it_may_is_stopped(call: Call, desk: Path) -> None:
    assert call("prices", "set", "localhost", "1000000").code == 0
    (desk / "dear.yaml").write_text("name: dear\nrun: sleep 600\nmax_cost: 1\ngrace: 0s\n")
    assert "it would start at once" in (planned := call("plan", "dear.yaml").out)
    assert "cannot be kept" not in planned
    ended = call("run", "dear.yaml")
    assert ended.code == 1
    assert "`fairlead resume dear --set max_cost=2` continues it" in ended.err
    assert "once it is fixed" not in ended.err
    told = json.loads(call("status", "dear", "--json").out)
    assert (told["phase"], told["reason"]["code"]) == ("Failed", "OverBudget")
    assert told["cost_microusd"] > 0


def test_a_run_waits_for_which_its_team_has_no_money(call: Call, desk: Path) -> None:
    call("prices", "set", "localhost", "1000000")
    (desk / "home" / "teams.yaml").write_text("kind: Team\nname: vision\nbudget: {monthly: 10}\n")
    (desk / "dear.yaml").write_text("name: dear\nteam: vision\nrun: 'true'\nmax_duration: 1h\n")
    planned = call("plan", "dear.yaml")
    assert "it would wait: team vision has spent $0.00 of $10.00 this month" in planned.out
    assert "it would start at once" not in planned.out
    call("run", "-d", "dear.yaml")
    until(lambda: json.loads(call("status", "dear", "--json").out)["reason"]["code"] == "OverBudget")
    assert "will start" not in call("status", "dear").out
    assert "its budget is spent, or its cost is unknown" in call("queue").out
    (desk / "free.yaml").write_text("name: free\nteam: text\nrun: 'true'\nmax_cost: 1000000\n")
    call("prices", "set", "localhost", "--none")
    assert "what runs cost is not known here" in call("plan", "free.yaml").out


def test_budgets_are_told_with_costs_and_with_a_run_that_is_charged_to_them(call: Call, desk: Path) -> None:
    call("prices", "set", "localhost", "1")
    (desk / "home" / "teams.yaml").write_text(
        "kind: Team\nname: vision\nbudget: {monthly: 10}\n"
        "project_budgets: {search: {monthly: 4, when_spent: stop}, ads: {monthly: 5}}\n"
    )
    (desk / "found.yaml").write_text("name: found\nteam: vision\nlabels: {project: search}\nrun: sleep 60\n")
    call("run", "-d", "found.yaml")
    said = call("cost").err
    assert "team vision has spent $0.00 of $10.00 this month (0%)." in said
    assert "project search of team vision has spent $0.00 of $4.00 this month (0%)." in said
    told = json.loads(call("cost", "--json").out)["budgets"]
    assert [(each["project"], each["monthly_microusd"], each["when_spent"]) for each in told] == [
        (None, 10_000_000, "wait"), ("search", 4_000_000, "stop"), ("ads", 5_000_000, "wait"),
    ]  # fmt: skip
    shown = call("status", "found").out
    assert "budget       project search of team vision has spent $0.00 of $4.00" in shown
    assert "project ads" not in shown
    call("stop", "found")


def test_plan_says_what_a_run_costs_an_hour_and_in_all(call: Call, desk: Path) -> None:
    (desk / "long.yaml").write_text("name: long\nrun: 'true'\nresources: {cpu: 1}\nmax_duration: 2h\ngrace: 0s\n")
    assert json.loads(call("plan", "long.yaml", "--json").out)["costs"] == []
    call("prices", "set", "localhost", "10")
    (cost,) = json.loads(call("plan", "long.yaml", "--json").out)["costs"]
    assert cost["microusd"] == pytest.approx(2 * cost["microusd_per_hour"], rel=0.01)
    assert "an hour on localhost, at most $" in call("plan", "long.yaml").out
    (desk / "open.yaml").write_text("name: open\nrun: 'true'\n")
    assert "its total cost is unknown" in call("plan", "open.yaml").out
    (desk / "bounded.yaml").write_text("name: open\nrun: 'true'\nmax_cost: 3\n")
    assert "at most $3.00 in all" in call("plan", "bounded.yaml").out


def test_comparing_says_what_this_machine_would_cost_elsewhere(ran: Call) -> None:
    told = json.loads(ran("cost", "compare", "--on-demand", "2", "--reserved", "1", "--since", "1h", "--json").out)
    assert (told["load"], len(told["busy_s"]), told["break_even"]) == ("this machine", 1, {"reserved": 0.5})
    assert told["mix"] == {"reserved": 0, "on-demand": 1}
    assert told["microusd"] == told["microusd_alone"]["on-demand"] < told["microusd_alone"]["reserved"]
    assert "never pays off" in ran("cost", "compare", "--on-demand", "2", "--reserved", "3").out


def test_data_that_leave_the_cloud_make_owning_pay_off_earlier(ran: Call) -> None:
    prices = ("--on-demand", "2", "--reserved", "1", "--purchase", "8760", "--years", "1")
    leaving = ("--egress", "0.05", "--egress-gb", "40")
    told = json.loads(ran("cost", "compare", *prices, *leaving, "--json").out)
    assert told["egress_microusd_per_busy_hour"] == 2_000_000
    assert told["break_even"] == {"owned": 0.25, "reserved": 0.5}
    text = ran("cost", "compare", *prices, *leaving).out
    assert "a node of the cloud costs $2.00 more" in text
    assert "purchase 25.0% of the on-demand price with egress" in text
    assert "both or neither" in ran("cost", "compare", *prices, "--egress", "1").err


def test_comparing_is_drawn_with_each_way_to_pay_and_the_nodes_of_the_load(ran: Call, tmp_path: Path) -> None:
    load, picture = tmp_path / "load.csv", tmp_path / "costs.svg"
    load.write_text("submit_s,duration_s,gpu\n0,86400,8\n0,36000,8\n43200,36000,8\n50000,3600,16\n")
    said = ran("cost", "compare", str(load), "--on-demand", "20", "--reserved", "12", "--plot", str(picture))
    assert "Wrote" in said.err
    text = picture.read_text()
    ElementTree.fromstring(text)
    for told in ("reserved: $12.00 an hour, busy or not", "on-demand: $20.00 an hour that it is busy",
                 "reserved pays off above 60.0%", "4 nodes, cheapest at $"):  # fmt: skip
        assert told in text
    # Where the one line crosses the other, and one mark for each of the four nodes.
    assert text.count("<circle") == 1 + 4
    assert text.count("<polyline") == 2
