"""Sizes: what a sparse network has left, beside how its worst group fares; an engineer must choose by both."""

from __future__ import annotations

from typing import Any

from spurless.reporting.arms import Arm, Estimate, Study
from spurless.reporting.tables import Cell
from spurless.reporting.words import MISSING, is_sparse, name, percent, span

RISK = "worst_group_aurc"
"""the risk of a model that may abstain, as one number; of runs that were asked"""


def size_table(study: Study) -> dict[str, Any]:
    """Return columns and one row per arm; empty where no arm has zeros among its weights."""
    if not any(is_sparse(record.model) for arm in study.arms for record in arm.records):
        return {}
    columns = ["Worst group", "Average", "Zero weights", "Parameters left", "Multiply-adds left"]
    risky = any(arm.metric(RISK).mean is not None for arm in study.arms)
    return {
        "columns": [*columns, "Worst risk-coverage area"] if risky else columns,
        "risky": risky,
        "rows": [{"name": name(arm.name), "cells": _cells(arm)[: None if risky else -1]} for arm in study.arms],
    }


def _cells(arm: Arm) -> list[Cell]:
    return [
        *(Cell(percent(e.mean), "" if e.low is None else span(e), e.mean) for e in (arm.worst, arm.average)),
        _share(arm.counted("sparsity")),
        _left(arm.counted("kept_parameters"), arm.counted("parameters")),
        _left(arm.counted("kept_flops"), arm.counted("flops")),
        _share(arm.metric(RISK)),
    ]


def _share(estimate: Estimate) -> Cell:
    spread = estimate.spread
    return Cell(percent(estimate.mean), "" if spread is None else f"± {100 * spread:.1f}", estimate.mean)


def _left(kept: Estimate, every: Estimate) -> Cell:
    if kept.mean is None:
        return Cell(MISSING)
    return Cell(f"{kept.mean:,.0f}", "" if every.mean is None else f"of {every.mean:,.0f}", kept.mean)
