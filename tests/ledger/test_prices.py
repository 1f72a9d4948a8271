"""Dollars as people write them, discounts, machines of one's own, and tables of instance types."""

from decimal import Decimal

import pytest

from fairlead.ledger.catalogue import bundled, read_catalogue, source_of
from fairlead.ledger.prices import OwnedNode, discounted, parse_dollars
from fairlead.text.money import describe_microusd


@pytest.mark.parametrize(
    ("text", "amount"), [("2.50", 2_500_000), ("$2", 2_000_000), ("0", 0), (" 0.000001 ", 1), ("1e3", 1_000_000_000)]
)
def test_dollars_are_read_exactly(text: str, amount: int) -> None:
    assert parse_dollars(text) == amount


@pytest.mark.parametrize("text", ["", "two", "-1", "0.0000001", "nan", "inf", "1000000.01", "1,5"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an amount|out of bounds|six decimals"):
        parse_dollars(text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000001"),
        (2_500, "$0.0025"),
        (500_000, "$0.50"),
        (1_005_000, "$1.01"),
        (10**10, "$10,000.00"),
    ],
)
def test_money_is_shown_in_cents_from_a_dollar_on(amount: int, text: str) -> None:
    assert describe_microusd(amount) == text


def test_a_discount_is_of_the_list_price() -> None:
    assert discounted(55_040_000, Decimal("12.5")) == 48_160_000
    with pytest.raises(ValueError, match="give 0 to 100"):
        discounted(1, Decimal(101))


def test_the_terms_of_a_node_of_ones_own_sum_to_its_price() -> None:
    node = OwnedNode(
        purchase=parse_dollars("262800"), lifetime_years=Decimal(5), power_kw=Decimal("10"),
        per_kwh=parse_dollars("0.15"), space_per_year=parse_dollars("8760"), people_per_year=parse_dollars("17520"),
    )  # fmt: skip
    assert node.terms == {"purchase": 6_000_000, "power": 1_500_000, "space": 1_000_000, "people": 2_000_000}
    assert node.rate == 10_500_000
    with pytest.raises(ValueError, match="more than 0 years"):
        OwnedNode(purchase=1, lifetime_years=Decimal(0))
    with pytest.raises(ValueError, match="not negative"):
        OwnedNode(purchase=1, lifetime_years=Decimal(1), power_kw=Decimal(-1))


def test_the_table_that_comes_along_says_its_date_and_source() -> None:
    text = bundled()
    assert "github.com/datareceipts/data-receipts, 2026-11-09" in source_of(text)
    assert "was not read" in source_of(text)
    assert all(each.price for each in read_catalogue(text))


def test_a_table_of_skypilots_columns_is_read() -> None:
    (found,) = read_catalogue(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone,GpuInfo\n"
        "g5.xlarge,A10G,1.0,4.0,16.0,1.006,0.43299999,us-east-1,us-east-1a,\n"
    )
    assert (found.price, found.spot_price, found.zone, found.num_gpus) == (1_006_000, 433_000, "us-east-1a", "1.0")


def test_a_wrong_row_is_named_by_its_line() -> None:
    with pytest.raises(ValueError, match="no column Price; the first line has InstanceType"):
        read_catalogue("InstanceType\nx\n")
    with pytest.raises(ValueError, match="line 3: Price is '-1'; give dollars an hour"):
        read_catalogue("# from somewhere\nInstanceType,Price\nx,-1\n")
    with pytest.raises(ValueError, match="line 2: SpotPrice is 'cheap'"):
        read_catalogue("InstanceType,Price,SpotPrice\nx,1,cheap\n")
