"""The terms of ARCHITECTURE.md are few and in order, and each is said once."""

import re

from tests.docs.reference import DOCS

MOST_TERMS = 60


def test_terms_are_few_in_order_and_each_once() -> None:
    text = (DOCS.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Terms\n")[2].partition("\n## ")[0]
    terms = re.findall(r"^\| ([a-z ]+) \| .{10,}\|$", section, re.MULTILINE)
    assert 40 <= len(terms) <= MOST_TERMS
    assert terms == sorted(set(terms))
