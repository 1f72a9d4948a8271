"""Options for the cost of an owned node."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import click

from fairlead.ledger.prices import OwnedNode, parse_dollars
from fairlead.text.money import MICROUSD
from fairlead.text.quantities import describe_dollars

Command = TypeVar("Command", bound=Callable[..., Any])


class Dollars(click.ParamType[int]):
    """An amount of dollars, as micro-dollars."""

    name = "dollars"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_dollars(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class Number(click.ParamType[Decimal]):
    """A non-negative decimal number with its exact digits."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite() or number < 0:
            self.fail(f"{value!r} is not a number from 0 on.", param, ctx)
        return number


def owned_options(command: Command) -> Command:
    """Add the options of an owned machine; the function passes them to ``owned_node``."""
    options = (
        click.option("--purchase", type=Dollars(), help="Price of an owned node."),
        click.option("--years", type=Number(), help="Lifetime of an owned node."),
        click.option("--power", type=Number(), metavar="KW", help="Its mean power, with cooling."),
        click.option("--electricity", type=Dollars(), help="Dollars for a kWh."),
        click.option("--space", type=Dollars(), help="Dollars a year for rack and network."),
        click.option("--people", type=Dollars(), help="Dollars a year for its administration."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def owned_node(
    purchase: int | None,
    years: Decimal | None,
    power: Decimal | None,
    electricity: int | None,
    space: int | None,
    people: int | None,
) -> OwnedNode | None:
    """Return the machine that the options describe; None without a purchase.

    Raises:
        click.UsageError: The options are inconsistent.
    """
    if purchase is None:
        if any(value is not None for value in (years, power, electricity, space, people)):
            raise click.UsageError("--years, --power, --electricity, --space and --people are for --purchase.")
        return None
    if years is None:
        raise click.UsageError("--purchase is written off over --years: give both.")
    if (power is None) != (electricity is None):
        raise click.UsageError("--power costs what --electricity says: give both or neither.")
    try:
        return OwnedNode(
            purchase=purchase,
            lifetime_years=years,
            power_kw=power or Decimal(0),
            per_kwh=electricity or 0,
            space_per_year=space or 0,
            people_per_year=people or 0,
        )
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error


def describe_terms(node: OwnedNode) -> str:
    """Describe the components of the hourly cost."""
    return ", ".join(f"{name} {describe_dollars(rate / MICROUSD)}" for name, rate in node.terms.items() if rate)
