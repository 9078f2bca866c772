"""Tests of what a report shows of an audit: verdict, what is flagged with its evidence, and the rest by name."""

from __future__ import annotations

from dataclasses import replace

from spurless.core.figures import Figure, Picture
from spurless.core.findings import Audit, Finding
from spurless.reporting.audit_text import audit_context, audit_title, display_name, finding_cards, format_key

USE = Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "40 % of 12", "Repair the head.", rows=(7, 8))
QUIET = replace(USE, audit="tokens", title="No word matters", flagged=False, p=0.4)
CHART = Figure("Chart", "", {"data": [{"y": [1, 2]}], "layout": {}}, "words")


def test_an_audit_is_its_verdict_what_is_flagged_and_the_rest_by_name(pixel: bytes) -> None:
    audit = Audit((replace(QUIET, items=(CHART,)), replace(USE, items=(CHART, Picture("Cow", "", pixel, "cow")))))
    shown = audit_context(audit, 2)
    assert shown["summary"].kind == "shortcut"
    assert [(card["id"], card["title"]) for card in shown["cards"]] == [("audit-2-finding-0", "Mistakes share grass")]
    assert [(card["title"], card["state_label"]) for card in shown["others"]] == [
        ("No word matters", "Not significant")
    ]
    assert len(shown["charts"]) == 1  # what is not shown is not drawn


def test_rows_are_linked_where_the_page_has_them() -> None:
    (card,) = finding_cards(Audit((USE,)), {8})
    assert (card["id"], card["rows"]) == ("finding-0", [(7, False), (8, True)])


def test_an_audit_is_called_by_its_model_and_data() -> None:
    assert audit_title({"model": "/home/me/net.py:net", "data": {"name": "cows"}}) == "Audit of net.py:net on cows"
    assert (audit_title({}), display_name(3), format_key("worst_gap")) == ("Audit", "", "Worst gap")
