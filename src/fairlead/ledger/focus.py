"""Renders costs in the columns of FOCUS, the FinOps Open Cost and Usage Specification 1.0 (focus.finops.org)."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from fairlead.frozen import dataclass
from fairlead.ledger.bills import BillLine
from fairlead.ledger.prices import MICROUSD
from fairlead.ledger.usage import HOUR_MS, WHOLE, Holder, Use

PROVIDER = "Fairlead"
QUANTITY = Decimal("0.000000001")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A line of a bill, its period, and the run that pays; None for what was not held."""

    line: BillLine[Any]
    start: datetime
    end: datetime
    holder: Holder | None


def focus_row(charge: Charge, account: str) -> dict[str, str]:
    """Return the columns of one charge; an empty text is null. ListCost uses the price in force.

    Args:
        account: Owner of the nodes, as BillingAccountId.
    """
    line, holder = charge.line, charge.holder
    cost = Decimal(line.microusd) / MICROUSD
    hours = (Decimal(line.unit_ms) / (WHOLE * HOUR_MS)).quantize(QUANTITY)
    unit_price = (cost / hours).quantize(QUANTITY) if hours else Decimal(0)
    month = charge.start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    next_month = (month + timedelta(days=32)).replace(day=1)
    team = "" if holder is None else holder.team
    return {
        "AvailabilityZone": "",
        "BilledCost": f"{cost:.6f}",
        "BillingAccountId": account,
        "BillingAccountName": account,
        "BillingCurrency": "USD",
        "BillingPeriodEnd": _iso(next_month),
        "BillingPeriodStart": _iso(month),
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": _describe(line.use, holder, line.node),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _iso(charge.end),
        "ChargePeriodStart": _iso(charge.start),
        "CommitmentDiscountCategory": "",
        "CommitmentDiscountId": "",
        "CommitmentDiscountName": "",
        "CommitmentDiscountStatus": "",
        "CommitmentDiscountType": "",
        "ConsumedQuantity": f"{hours}",
        "ConsumedUnit": "Hours",
        "ContractedCost": f"{cost:.6f}",
        "ContractedUnitPrice": f"{unit_price}",
        "EffectiveCost": f"{cost:.6f}",
        "InvoiceIssuerName": PROVIDER,
        "ListCost": f"{cost:.6f}",
        "ListUnitPrice": f"{unit_price}",
        "PricingCategory": "Standard",
        "PricingQuantity": f"{hours}",
        "PricingUnit": "Hours",
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "RegionId": "",
        "RegionName": "",
        "ResourceId": line.node,
        "ResourceName": line.node,
        "ResourceType": "Node",
        "ServiceCategory": "Compute",
        "ServiceName": "Fairlead nodes",
        "SkuId": line.node,
        "SkuPriceId": f"{line.node}/{unit_price}",
        "SubAccountId": team,
        "SubAccountName": team,
        "Tags": json.dumps(_tags(line.use, holder), sort_keys=True),
    }


def _tags(use: Use, holder: Holder | None) -> Mapping[str, str]:
    tags = {"fairlead.dev/use": use.value}
    if holder is not None:
        values = {"run": holder.run, "uid": holder.uid, "model": holder.model, "project": holder.project}
        tags |= {f"fairlead.dev/{name}": value for name, value in values.items() if value}
    return tags


def _describe(use: Use, holder: Holder | None, node: str) -> str:
    return f"{node}, {use.value}" if holder is None else f"{holder.team}/{holder.run} on {node}, {use.value}"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
