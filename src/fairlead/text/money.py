"""Formats money."""

MICROUSD = 1_000_000


def describe_microusd(amount: int) -> str:
    """Format micro-dollars as dollars: to the cent from a dollar on, with as many decimals as needed below."""
    if amount >= MICROUSD or amount == 0:
        return f"${(amount + 5_000) // 10_000 / 100:,.2f}"
    text = f"{amount / MICROUSD:.6f}".rstrip("0")
    return f"${text + '0' * max(0, 4 - len(text))}"
