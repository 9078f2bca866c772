"""Weights at the door: the model that a file of weights belongs to, with the weights in it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.cli.sources import Columns, build_model
from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.files import check_file, check_writable

if TYPE_CHECKING:
    from spurless.data.grouped import Splits
    from spurless.models.classifier import Classifier

TWO = ", two encoders"
"""What DisEnt adds to the name of the model that it was given."""


def check_weights(weights: Path) -> None:
    """Refuse what is neither a file of weights nor the folder of a text classifier, before anything takes long."""
    from spurless.models.weights import weights_info

    if not weights.is_dir():
        weights_info(weights)
    elif not (weights / "config.json").is_file():
        raise BadInput(
            "the folder holds no model",
            where=weights,
            expected="a .safetensors file, or a text classifier with its config.json, as save_pretrained writes it",
        )


def seed_of(weights: Path, seed: int | None) -> int:
    """Return the seed of the data: what the user says, else that of the run that made the weights, else 0.

    Data that are cut or drawn by a seed have other test examples with another one.
    """
    from spurless.models.weights import weights_info

    known = None if weights.is_dir() else weights_info(weights).get("seed")
    if not isinstance(known, int):
        return seed or 0
    if seed is not None and seed != known:
        warnings.warn(
            f"{weights} was trained with --seed {known}: where the seed decides how data are cut, examples that it was "
            f"trained on are now among those of val and test.",
            SpurlessWarning,
            stacklevel=2,
        )
    return known if seed is None else seed


def with_tokenizer(
    options: dict[str, Any], columns: Columns, model: str | None, weights: Path | None = None
) -> dict[str, Any]:
    """Return options of the data by which own texts are cut as the model expects it, unless they say how."""
    if columns.text is None:
        return options
    from spurless.models import ALIASES
    from spurless.models.weights import weights_info

    if model is None and weights is not None:
        model = f"hf:{weights}" if weights.is_dir() else str(weights_info(weights).get("name"))
    family, _, member = (model or "").removesuffix(TWO).partition(":")
    own = ALIASES.get(family, family) == "transformers" and member
    return {"tokenizer": member, **options} if own else options


def open_model(weights: Path, model: str | None, options: Mapping[str, Any], splits: Splits, seed: int) -> Classifier:
    """Build the model that a file of weights names, or that was said, and read the weights into it.

    A folder is a text classifier that ``save_pretrained`` wrote, and says all of this itself.

    Raises:
        BadInput: the file does not say which model it belongs to, or does not fit.
    """
    from spurless.models.weights import load_weights, weights_info

    if weights.is_dir():
        if model is not None:
            raise BadInput("a folder says which model it holds", where=weights, do="Leave --model out.")
        return build_model(f"hf:{weights}", splits, seed, {"classifier": True, **options})
    info = weights_info(weights)
    chosen = model or info.get("name")
    if not isinstance(chosen, str) or not isinstance(info.get("options", {}), dict):
        raise BadInput("the file does not say which model it belongs to", where=weights, do="Pass --model NAME.")
    if model is None:
        _refuse_own(weights, chosen.removesuffix(TWO))
    said = {} if model else _options_of(info)
    name, twins = chosen.removesuffix(TWO), chosen.endswith(TWO)
    built = build_model(name, splits, seed, {**said, **options})
    _check_classes(weights, info, splits)  # only now: data of another kind are told first
    if twins:
        from spurless.core.seeds import Seeds
        from spurless.methods.disent import disentangled

        with Seeds().borrowed("head"):  # overwritten at once
            built = disentangled(built)
    _attach_selector(weights, built)
    load_weights(weights, built)
    _check_names(weights, "classes", info.get("labels"), splits.groups.labels)
    _check_names(weights, "columns", info.get("features"), splits.options.get("features"))
    return built


def check_onnx_place(path: Path | None, weights: Path | None, seeds: int = 1) -> None:
    """Refuse ONNX that cannot be written, or would be over the weights that are read, before anything is trained."""
    if path is None:
        return
    from spurless.fixing.export import check_onnx

    if seeds > 1:
        raise BadInput(
            "--onnx is one file, and --seeds makes several models",
            do="Leave --onnx out, and write the one that you choose: spurless eval WEIGHTS --onnx FILE.",
        )
    if weights is not None and path.resolve() == weights.resolve():
        raise BadInput("the weights would be overwritten", where=weights, do="Choose another place for --onnx.")
    check_onnx()
    check_file(path)
    check_writable(path.parent)


def export_saved(path: Path, weights: Path, model: str, options: Mapping[str, Any], splits: Splits, seed: int) -> Path:
    """Write weights that a run saved as ONNX; ``model`` is what the user said, and names own code that may be run."""
    from spurless.fixing.export import write_onnx
    from spurless.models import architecture_named

    own = architecture_named(model).own
    opened = open_model(weights, model if own else None, options if own else {}, splits, seed)
    return write_onnx(path, opened, splits.train.example())


def _check_classes(weights: Path, info: Mapping[str, Any], splits: Splits) -> None:
    labels, n = splits.groups.labels, info.get("n_classes")
    if isinstance(n, int) and n != len(labels):
        raise BadInput(
            f"the weights tell {n} classes apart, and the data have {len(labels)}",
            where=weights,
            got=", ".join(labels[:8]) + (", ..." if len(labels) > 8 else ""),
            do="Pass the data, and the column of the class, that the model was trained for.",
        )


def _check_names(weights: Path, what: str, known: object, given: Sequence[str] | None) -> None:
    """Refuse names at other places than the model learned them; warn of other names, which may mean the same."""
    if not isinstance(known, list) or not given or known == list(given):
        return
    was, now = (", ".join(names[:8]) + (", ..." if len(names) > 8 else "") for names in (known, given))
    if any(name in known and known.index(name) != place for place, name in enumerate(given)):
        raise BadInput(
            f"the model learned {what} in another order, and would take one for another",
            where=weights,
            expected=was,
            got=now,
            do="Pass --features in that order." if what == "columns" else "Call them as they were called in training.",
        )
    warnings.warn(
        f"{weights} was trained on the {what} {was}; the data have {now}, which are taken for the same, in this order.",
        SpurlessWarning,
        stacklevel=2,
    )


def _refuse_own(weights: Path, name: str) -> None:
    """Run no code because a file says so: it may come from anywhere."""
    from spurless.models import architecture_named

    if architecture_named(name).own:
        raise BadInput(
            "the weights belong to a model of your own, and its code is run by your word alone",
            where=weights,
            do=f"If you trust it, pass --model {name}",
        )


def refuse_selector(weights: Path) -> None:
    """Refuse weights whose selector would be stale as soon as the rest of the model is trained on."""
    if weights.is_file() and _selector(weights):
        raise BadInput(
            "the weights have a selector, which would no longer fit once the model is trained on",
            where=weights,
            do="Start from weights of another method.",
        )


def _attach_selector(weights: Path, model: Classifier) -> None:
    """Give a model the selector that its weights have: its kind and width are in the names and shapes of the file."""
    from spurless.core.seeds import Seeds
    from spurless.methods.deep_gamblers import attach_reservation
    from spurless.methods.selectivenet import attach_gate

    shapes = _selector(weights)
    with Seeds().borrowed("selector"):  # overwritten at once
        if "selector.layer.weight" in shapes:
            attach_reservation(model)
        elif "selector.layers.0.weight" in shapes:
            attach_gate(model, shapes["selector.layers.0.weight"][0])
        elif shapes:
            raise BadInput(
                "the weights have a selector of a kind that is not known here",
                where=weights,
                expected="that of deep-gamblers or selectivenet",
                do="In Python: model.add_module('selector', YOURS), then load_weights.",
            )


def _selector(weights: Path) -> dict[str, list[int]]:
    """Return names and shapes of the tensors that belong to a selector."""
    from safetensors import safe_open

    from spurless.models.weights import weights_info

    weights_info(weights)  # refuses what is no safetensors file, in a sentence
    with safe_open(weights, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("selector.")]  # noqa: SIM118  it is no dict
        return {name: file.get_slice(name).get_shape() for name in names}


def _options_of(info: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a file of weights names, without those that the data decide."""
    return {key: value for key, value in info.get("options", {}).items() if key not in ("input_shape", "n_classes")}
