"""``fairlead prices``: hourly prices of nodes over time, with their sources."""

import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from fairlead.cli.moments import Moment
from fairlead.cli.pricing import Dollars, Number, describe_terms, owned_node, owned_options
from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cluster.ledger_tables import Price
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.opening import open_local
from fairlead.ledger.catalogue import CatalogueEntry, bundled, read_catalogue, source_of
from fairlead.ledger.prices import discounted
from fairlead.text.money import MICROUSD
from fairlead.text.quantities import describe_dollars, plural


@click.group()
def prices() -> None:
    """Set and list the prices of nodes.

    Without a price nothing is billed. On this machine the one node, and pool, is `localhost`.
    """


@prices.command("set")
@click.argument("pool")
@click.argument("dollars", required=False, type=Dollars())
@click.option("--from", "since", type=Moment(), help="Start of the price, also in the past; now by default.")
@click.option("--none", "ends", is_flag=True, help="End the price of POOL; nothing is billed after that.")
@click.option("--instance", metavar="TYPE", help="Take the price of an instance type from the catalogue.")
@click.option("--region", help="Region of --instance.")
@click.option("--spot", is_flag=True, help="Take the spot price of --instance.")
@click.option("--discount", type=Number(), metavar="PERCENT", help="Contract discount on the list price.")
@owned_options
@json_option
def set_(
    pool: str,
    dollars: int | None,
    since: float | None,
    ends: bool,
    instance: str | None,
    region: str | None,
    spot: bool,
    discount: Decimal | None,
    json_: bool,
    **owned: Any,
) -> None:
    """Set the price per hour of a node of POOL: DOLLARS, or that of an instance type or of an owned node."""
    cluster = open_local()
    ways = [dollars is not None, ends, instance is not None, owned["purchase"] is not None]
    if sum(ways) != 1:
        raise click.UsageError("give one of DOLLARS, --instance, --purchase and --none.")
    if instance is None and (spot or region is not None):
        raise click.UsageError("--spot and --region are for --instance.")
    if owned["purchase"] is None:
        owned_node(**owned)
    if discount is not None and dollars is None and instance is None:
        raise click.UsageError("--discount is on DOLLARS or --instance.")
    if ends:
        rate, source = None, "not paid for"
    elif instance is not None:
        rate, source = _rate_of(cluster, instance, region, spot=spot)
    elif dollars is not None:
        rate, source = dollars, "as given"
    else:
        node = owned_node(**owned)
        assert node is not None, "its purchase is given"
        rate, source = node.rate, f"owned: {describe_terms(node)}"
    if discount is not None and rate is not None:
        try:
            source = f"{source}, {_dollars(rate)} less {discount} %"
            rate = discounted(rate, discount)
        except ValueError as error:
            raise click.UsageError(f"{error}.") from error
    at = time.time() if since is None else since
    price = Price(node=pool, from_ms=round(at * 1000), rate=rate, source=source)
    cluster.set_price(price)
    if json_:
        print(as_json(_json(price)))
    else:
        costs = "is not billed" if rate is None else f"costs {_dollars(rate)} an hour"
        later = min(
            (entry.from_ms for entry in cluster.prices() if entry.node == pool and entry.from_ms > price.from_ms),
            default=None,
        )
        until = "on" if later is None else f"until {describe_time(later / 1000)}, from when another price is set"
        message(
            f"{pool} {costs} from {describe_time(at)} {until} ({source}). `fairlead cost` shows what that comes to."
        )


@prices.command("list")
@click.option("--instances", "instances_", is_flag=True, help="List instance types of the catalogue instead.")
@json_option
def list_(instances_: bool, json_: bool) -> None:
    """List the prices that were set, or the instance types of the catalogue."""
    cluster = open_local()
    if instances_:
        text = _catalogue(cluster)
        instances = read_catalogue(text)
        if json_:
            print(as_json([_instance_json(instance) for instance in instances]))
            return
        head = ("TYPE", "REGION", "GPUS", "ON DEMAND", "SPOT")
        print(table([head, *map(_instance_row, instances)]))
        message(source_of(text))
        return
    known = cluster.prices()
    if json_:
        print(as_json([_json(price) for price in known]))
    elif known:
        rows = [
            (price.node, describe_time(price.from_ms / 1000), _dollars(price.rate), price.source) for price in known
        ]
        print(table([("POOL", "FROM", "AN HOUR", "WHY"), *rows]))
    else:
        message("No price is set; `fairlead prices set localhost 2.50` sets one.")


@prices.command("update")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def update(file: Path, json_: bool) -> None:
    """Replace the catalogue of instance types by FILE, a table with the columns of SkyPilot's catalogue.

    Prices that are already set do not change.
    """
    cluster = open_local()
    text = file.read_text(encoding="utf-8")
    try:
        instances = read_catalogue(text)
    except ValueError as error:
        raise click.UsageError(f"{file}: {error}.") from error
    new = cluster.home.catalogue.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(cluster.home.catalogue)
    if json_:
        print(as_json({"instances": len(instances)}))
    else:
        message(
            f"The catalogue has {plural(len(instances), 'row')} now; `fairlead prices list --instances` lists them."
        )


def _catalogue(cluster: LocalCluster) -> str:
    try:
        return cluster.home.catalogue.read_text(encoding="utf-8")
    except FileNotFoundError:
        return bundled()


def _rate_of(cluster: LocalCluster, type_: str, region: str | None, *, spot: bool) -> tuple[int, str]:
    """Return the cheapest price of an instance type and its source."""
    offers = [
        (rate, instance)
        for instance in read_catalogue(_catalogue(cluster))
        if instance.type == type_ and region in (None, instance.region)
        if (rate := instance.spot_price if spot else instance.price) is not None
    ]
    if not offers:
        kind, where = "spot" if spot else "on-demand", "" if region is None else f" in {region}"
        raise click.UsageError(
            f"the catalogue has no {kind} price of {type_!r}{where}; "
            "`fairlead prices list --instances` lists what it has, and `fairlead prices update FILE` replaces it."
        )
    rate, best = min(offers, key=lambda offer: (offer[0], offer[1].region, offer[1].zone))
    return rate, f"{type_}, {'spot' if spot else 'on demand'}, {best.zone or best.region or 'any region'}"


def _json(price: Price) -> dict[str, Any]:
    return {"pool": price.node, "from": price.from_ms / 1000, "microusd_per_hour": price.rate, "source": price.source}


def _instance_json(instance: CatalogueEntry) -> dict[str, Any]:
    return {
        "type": instance.type,
        "region": instance.region,
        "zone": instance.zone,
        "gpu": instance.gpu,
        "num_gpus": instance.num_gpus,
        "microusd_per_hour": instance.price,
        "spot_microusd_per_hour": instance.spot_price,
    }


def _instance_row(instance: CatalogueEntry) -> tuple[str, ...]:
    gpus = f"{instance.num_gpus} x {instance.gpu}" if instance.gpu else "-"
    return (
        instance.type,
        instance.zone or instance.region,
        gpus,
        _dollars(instance.price),
        _dollars(instance.spot_price),
    )


def _dollars(rate: int | None) -> str:
    return "-" if rate is None else describe_dollars(rate / MICROUSD)
