"""What a run leaves: its weights, those it began with, what it mined, and its record; how they are called and found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spurless.core.records import Record, read

if TYPE_CHECKING:
    from spurless.bench.fitting import Fitted


def save(place: Path, fitted: Fitted, *, given: bool) -> None:
    """Save what a run leaves; the weights last: whoever finds them finds the rest."""
    from spurless.data.mined import Mined
    from spurless.models.weights import save_weights

    if fitted.start is not None and not given:
        save_weights(_begun(place), fitted.start, seed=fitted.record.seed, data=fitted.record.data)
    if isinstance(found := getattr(fitted.explanation, "mined", None), Mined):
        found.save(_mined(place))
    save_weights(place, fitted.model, seed=fitted.record.seed, data=fitted.record.data)


def _begun(place: Path) -> Path:
    """Return where the weights lie that a repair began with."""
    return place.with_name(f"{place.stem}-start.safetensors")


def _mined(place: Path) -> Path:
    """Return where the list lies that a method mined on its way."""
    return place.with_name(f"{place.stem}-mined.npz")


def beside(place: Path, onnx: Path | None) -> str:
    """Say what lies beside the weights of a run."""
    before = f", those before the repair in {_begun(place)}" if _begun(place).exists() else ""
    found = f", what was mined in {_mined(place)}" if _mined(place).exists() else ""
    return f"{before}{found}" + (f", ONNX in {onnx}" if onnx is not None else "")


def recorded(path: Path, key: str) -> Record | None:
    """Return the record of a run that was made before: the same run again would give the same."""
    return (
        next((record for record in read(path, to_continue=True) if record.key == key), None) if path.exists() else None
    )
