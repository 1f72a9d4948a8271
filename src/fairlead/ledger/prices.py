"""Parses prices of nodes and computes the hourly cost of owned machines, in micro-dollars for an hour."""

from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from fairlead.frozen import dataclass

MICROUSD = 1_000_000
HOURS_PER_YEAR = 8_760
DOLLARS_MOST = 1_000_000


def parse_dollars(text: str) -> int:
    """Return dollars as micro-dollars, exactly.

    Raises:
        ValueError: It is no amount from 0 to a million with at most six decimals.
    """
    try:
        amount = Decimal(text.strip().removeprefix("$")) * MICROUSD
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount of dollars; give a number, such as 2.50") from None
    if not amount.is_finite() or not 0 <= amount <= DOLLARS_MOST * MICROUSD:
        raise ValueError(f"{text!r} is out of bounds; give 0 to {DOLLARS_MOST} dollars")
    if amount != amount.to_integral_value():
        raise ValueError(f"{text!r} has more than six decimals; money is counted in millionths of a dollar")
    return int(amount)


def discounted(rate: int, percent: Decimal) -> int:
    """Return a list price less a contract's discount, to the nearest micro-dollar.

    Raises:
        ValueError: The discount is not 0 to 100 percent.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"a discount of {percent} %; give 0 to 100")
    return _nearest(rate * (100 - percent) / 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedNode:
    """An owned machine. Money is micro-dollars, power kilowatts.

    Attributes:
        purchase: Purchase price, written off linearly over its lifetime.
        lifetime_years: From purchase to scrap.
        power_kw: Average draw with cooling (the machine's own times the data centre's PUE).
        per_kwh: Price of electricity.
        space_per_year: Rack, network and insurance.
        people_per_year: Its share of the staff's cost.
    """

    purchase: int
    lifetime_years: Decimal
    power_kw: Decimal = Decimal(0)
    per_kwh: int = 0
    space_per_year: int = 0
    people_per_year: int = 0

    def __post_init__(self) -> None:
        if self.lifetime_years <= 0:
            raise ValueError("a lifetime is more than 0 years")
        money = (self.purchase, self.per_kwh, self.space_per_year, self.people_per_year)
        if min(money) < 0 or self.power_kw < 0:
            raise ValueError("amounts are not negative")

    @property
    def terms(self) -> dict[str, int]:
        """Return micro-dollars for an hour by cost item; each is rounded by itself, so that they sum to the rate."""
        return {
            "purchase": _nearest(self.purchase / (self.lifetime_years * HOURS_PER_YEAR)),
            "power": _nearest(self.power_kw * self.per_kwh),
            "space": _nearest(Decimal(self.space_per_year) / HOURS_PER_YEAR),
            "people": _nearest(Decimal(self.people_per_year) / HOURS_PER_YEAR),
        }

    @property
    def rate(self) -> int:
        """Return micro-dollars for an hour, used or not."""
        return sum(self.terms.values())


def _nearest(amount: Decimal) -> int:
    return int(amount.to_integral_value(rounding=ROUND_HALF_UP))
