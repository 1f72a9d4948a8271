"""Reads prices of instance types from tables with the columns of SkyPilot's catalogue."""

import csv
from collections.abc import Iterator
from importlib import resources

from fairlead.frozen import dataclass
from fairlead.ledger.prices import parse_dollars

COLUMNS = ("InstanceType", "Price")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A row of the catalogue. Prices are micro-dollars for an hour; None where the table has none."""

    type: str
    region: str = ""
    zone: str = ""
    gpu: str = ""
    num_gpus: str = ""
    cpus: str = ""
    memory_gib: str = ""
    price: int | None = None
    spot_price: int | None = None


def read_catalogue(text: str) -> tuple[CatalogueEntry, ...]:
    """Read a table; lines that begin with ``#`` give its source.

    Raises:
        ValueError: A column is missing, or a row is wrong; its line is named.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line and line[0] != "#"]
    rows = csv.DictReader(line for _, line in lines)
    missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        columns = ", ".join(rows.fieldnames or ()) or "no columns"
        raise ValueError(f"there is no column {' and no column '.join(missing)}; the first line has {columns}")
    return tuple(_instances(rows, [number for number, _ in lines[1:]]))


def source_of(text: str) -> str:
    """Read the source given in the first lines of a table; empty without one."""
    return " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


def bundled() -> str:
    """Return the small table that ships with Fairlead."""
    return resources.files("fairlead.ledger").joinpath("catalogue.csv").read_text(encoding="utf-8")


def _instances(rows: "csv.DictReader[str]", numbers: list[int]) -> Iterator[CatalogueEntry]:
    for number, row in zip(numbers, rows, strict=False):
        try:
            yield CatalogueEntry(
                type=row["InstanceType"],
                region=row.get("Region") or "",
                zone=row.get("AvailabilityZone") or "",
                gpu=row.get("AcceleratorName") or "",
                num_gpus=row.get("AcceleratorCount") or "",
                cpus=row.get("vCPUs") or "",
                memory_gib=row.get("MemoryGiB") or "",
                price=_price(row, "Price"),
                spot_price=_price(row, "SpotPrice"),
            )
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def _price(row: dict[str, str], column: str) -> int | None:
    text = row.get(column)
    if not text:
        return None
    try:
        # Tables of others have prices with more decimals than anybody is billed.
        return parse_dollars(f"{float(text):.6f}")
    except ValueError:
        raise ValueError(f"{column} is {text!r}; give dollars an hour from 0 on, such as 1.006, or nothing") from None
