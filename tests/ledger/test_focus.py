"""Rows of FOCUS 1.0: its columns, and the rules that its specification states for them."""

import json
import re
from datetime import UTC, datetime
from decimal import Decimal

from fairlead.ledger.bills import BillLine
from fairlead.ledger.focus import Charge, focus_row
from fairlead.ledger.usage import HOUR_MS, WHOLE, Holder, Use

# Columns that the specification does not allow to be null, for a charge of usage that is no correction.
NEVER_NULL = {
    "BilledCost", "BillingAccountId", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory",
    "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost",
    "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory",
    "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName", "SkuId",
    "SkuPriceId",
}  # fmt: skip
ALL = NEVER_NULL | {
    "AvailabilityZone", "BillingAccountName", "ChargeClass", "ChargeDescription", "CommitmentDiscountCategory",
    "CommitmentDiscountId", "CommitmentDiscountName", "CommitmentDiscountStatus", "CommitmentDiscountType", "RegionId",
    "RegionName", "ResourceId", "ResourceName", "ResourceType", "SubAccountId", "SubAccountName", "Tags",
}  # fmt: skip


def row(*, month: int = 11, use: Use = Use.PRODUCTIVE, holder: Holder | None = None) -> dict[str, str]:
    line = BillLine(node="localhost", key="", use=use, microusd=1_250_001, unit_ms=WHOLE * HOUR_MS // 2)
    start = datetime(2026, month, 30, tzinfo=UTC)
    return focus_row(Charge(line=line, start=start, end=start.replace(hour=12), holder=holder), "localhost")


def test_a_row_has_every_column_and_no_null_where_none_is_allowed() -> None:
    found = row()
    assert set(found) == ALL
    assert all(found[column] for column in NEVER_NULL)
    assert all(re.fullmatch(r"[A-Z][A-Za-z]*", column) for column in found)


def test_times_are_utc_and_a_billing_period_is_a_month_that_has_the_charge() -> None:
    found = row(month=12)
    assert (found["BillingPeriodStart"], found["BillingPeriodEnd"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
    assert found["BillingPeriodStart"] <= found["ChargePeriodStart"] < found["ChargePeriodEnd"]
    assert found["ChargePeriodEnd"] <= found["BillingPeriodEnd"]


def test_amounts_agree_with_quantities_and_words_are_those_of_the_specification() -> None:
    found = row()
    assert Decimal(found["BilledCost"]) == Decimal("1.250001")
    assert abs(
        Decimal(found["ContractedUnitPrice"]) * Decimal(found["PricingQuantity"]) - Decimal("1.250001")
    ) < Decimal("1e-6")
    assert found["ChargeCategory"] in {"Usage", "Purchase", "Tax", "Credit", "Adjustment"}
    assert found["ChargeFrequency"] in {"One-Time", "Recurring", "Usage-Based"}
    assert found["PricingCategory"] in {"Standard", "Dynamic", "Committed", "Other"}
    assert found["ServiceCategory"] == "Compute"
    assert re.fullmatch("[A-Z]{3}", found["BillingCurrency"])


def test_tags_are_an_object_that_names_the_run_and_what_it_did() -> None:
    holder = Holder(uid="u1", run="train", team="vision", model="gpt", project="")
    found = row(use=Use.SAVING, holder=holder)
    assert json.loads(found["Tags"]) == {
        "fairlead.dev/use": "saving",
        "fairlead.dev/run": "train",
        "fairlead.dev/uid": "u1",
        "fairlead.dev/model": "gpt",
    }
    assert (found["SubAccountId"], found["ChargeDescription"]) == ("vision", "vision/train on localhost, saving")
    assert row(use=Use.IDLE)["ChargeDescription"] == "localhost, idle"
