"""Build a model for a file of weights on the command line, and load the weights into it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.core.errors import InputError, SpurlessWarning

if TYPE_CHECKING:
    from spurless.data.split import Splits
    from spurless.models.classifier import Classifier

RESERVED = {
    "dataset": ("name",),
    "method": ("name", "preset", "options"),
    "model": ("name", "data", "seed", "input_shape", "n_classes", "load_pretrained"),
}
"""Arguments of the library that options must not replace."""
TWO_ENCODERS = ", two encoders"  # suffix that DisEnt adds to the name of the model


def check_option_names(kind: str, name: str, options: Mapping[str, Any], hint: str) -> None:
    """Raise if an option would replace an argument of the library that another flag sets."""
    for key in options:
        if key in RESERVED[kind]:
            raise InputError(f"{name if kind == 'model' else f'{kind} {name!r}'} has no option {key!r}", hint=hint)


def build_model(
    name: str, splits: Splits, seed: int, options: Mapping[str, Any], *, load_pretrained: bool = True
) -> Classifier:
    """Build a model for these data with the user's options; weights are loaded next if not ``load_pretrained``."""
    from spurless.models import build

    check_option_names("model", name, options, "It is set by --model, --data and --seed.")
    return build(name, splits, seed=seed, load_pretrained=load_pretrained, **options)


def resolve_seed(weights: Path, seed: int | None) -> int:
    """Return the given seed, else the seed stored in the weights, else 0; warn if they differ.

    With another seed, sampled or split data have other test examples.

    Raises:
        InputError: the path is neither a file of weights nor the folder of a text classifier.
    """
    from spurless.models.weights import read_weights_info

    if weights.is_dir():
        if not (weights / "config.json").is_file():
            expected = "a .safetensors file, or a text classifier with its config.json, as save_pretrained writes it"
            raise InputError("the folder contains no model", where=weights, expected=expected)
        return seed or 0
    stored = read_weights_info(weights).get("seed")
    if not isinstance(stored, int):
        return seed or 0
    if seed is not None and seed != stored:
        text = "if the data are split by seed, val and test now contain examples that it was trained on."
        warnings.warn(f"{weights} was trained with --seed {stored}: {text}", SpurlessWarning, stacklevel=2)
    return stored if seed is None else seed


def open_model(weights: Path, model: str | None, options: Mapping[str, Any], splits: Splits, seed: int) -> Classifier:
    """Build the model named by --model or by the weights, and load the weights.

    A folder is a text classifier that ``save_pretrained`` wrote; it needs neither.

    Raises:
        InputError: the model is unknown, or weights and data do not fit.
    """
    from spurless.models.weights import load_weights, read_weights_info

    if weights.is_dir():
        if model is not None:
            raise InputError("a folder needs no --model", where=weights, hint="Leave --model out.")
        return build_model(f"hf:{weights}", splits, seed, {"classifier": True, **options})
    info = read_weights_info(weights)
    chosen = model or info.get("name")
    if not isinstance(chosen, str) or not isinstance(info.get("options", {}), dict):
        raise InputError("the file does not name its model", where=weights, hint="Pass --model NAME.")
    name = chosen.removesuffix(TWO_ENCODERS)
    if model is None:
        _check_no_custom_code(weights, name)
        if (encoder := find_encoder(chosen)) is not None:
            check_encoder_on_disk(encoder, "AutoConfig", "configuration")
    stored = _stored_options(info, name, is_named=model is not None)
    if stored is None:
        stored = _options_of_published(weights, chosen, options, splits)
    built = build_model(name, splits, seed, {**stored, **options}, load_pretrained=False)
    _check_classes(weights, info, splits)  # after the model is built, which reports a wrong kind of data first
    if chosen.endswith(TWO_ENCODERS):
        from spurless.core.seeds import Seeds
        from spurless.methods.disent import make_two_encoders

        with Seeds().seed_global_rng("head"):  # overwritten at once
            built = make_two_encoders(built)
    _attach_selector(weights, built)
    load_weights(weights, built)
    _check_names(weights, "classes", info.get("labels"), splits.groups.labels)
    _check_names(weights, "columns", info.get("features"), splits.options.get("features"))
    return built


def _stored_options(info: Mapping[str, Any], name: str, is_named: bool) -> dict[str, Any] | None:
    """Return the options of the model in a file of weights; None if they are of another model, trained elsewhere.

    If the user names the model, these are only the options about the normalization.
    """
    from spurless.models import get_architecture

    if get_architecture(name).name != str(info.get("name")).removesuffix(TWO_ENCODERS):
        return None
    options = {key: value for key, value in info.get("options", {}).items() if key not in ("input_shape", "n_classes")}
    if not is_named:
        return options
    if "mean" not in options and options.get("normalise") and (options.get("pretrained") or options.get("weights")):
        return None  # that of the published weights, from which it was trained
    return {key: options[key] for key in ("mean", "std") if key in options}


def _options_of_published(weights: Path, name: str, options: Mapping[str, Any], splits: Splits) -> dict[str, Any]:
    """Return the options that weights from elsewhere need: the normalization, and torchvision's head of SqueezeNet."""
    needed = _find_normalization(weights, name, options, splits)
    if name.startswith("torchvision:squeezenet") and any("classifier.1." in key for key in _shapes(weights)):
        needed["conv_head"] = True
    return needed


def _find_normalization(weights: Path, name: str, options: Mapping[str, Any], splits: Splits) -> dict[str, Any]:
    """Return the normalization that weights from elsewhere expect, with a warning; empty if given or not known."""
    from spurless.models.zoo.normalize import Normalize, find_preprocessing

    is_given = any(key in options for key in ("mean", "std", "normalise", "pretrained", "weights"))
    known, example = None if is_given else find_preprocessing(name, weights), splits.example(1)
    if known is None or isinstance(example, dict) or example.dim() != 4:
        return {}
    known = known.for_channels(example.shape[1])
    text = f"Images are normalized with {Normalize(known.mean, known.std)}, as {known.source} defines"
    hint = "If the weights were trained otherwise, pass --mean and --std (0 and 1 for none)."
    warnings.warn(f"{text}. {hint}", SpurlessWarning, stacklevel=3)
    return {"mean": list(known.mean), "std": list(known.std)}


def _check_classes(weights: Path, info: Mapping[str, Any], splits: Splits) -> None:
    labels, n = splits.groups.labels, info.get("n_classes")
    if isinstance(n, int) and n != len(labels):
        text = f"the model has {n} outputs but the data have {len(labels)} classes"
        hint = "Pass the data, and the class column, that the model was trained for."
        raise InputError(text, where=weights, got=_first(labels), hint=hint)


def _check_names(weights: Path, what: str, trained: object, given: Sequence[str] | None) -> None:
    """Raise if names are in another order than in training; warn if they differ, as they may mean the same."""
    if not isinstance(trained, list) or not given or trained == list(given):
        return
    if any(name in trained and trained.index(name) != index for index, name in enumerate(given)):
        text = f"the model was trained with the {what} in another order"
        hint = "Pass --features in that order." if what == "columns" else "Use the names of training."
        raise InputError(text, where=weights, expected=_first(trained), got=_first(given), hint=hint)
    text = (
        f"{weights} was trained on the {what} {_first(trained)}; the data have {_first(given)}, which are used instead"
    )
    warnings.warn(f"{text}, in this order.", SpurlessWarning, stacklevel=2)


def _first(names: Sequence[str], n: int = 8) -> str:
    return ", ".join(names[:n]) + (", ..." if len(names) > n else "")


def _check_no_custom_code(weights: Path, name: str) -> None:
    """Raise if the weights name custom code: a file from anywhere must not decide which code is run."""
    from spurless.models import get_architecture

    if get_architecture(name).runs_user_code:
        hint = f"If you trust it, pass --model {name}"
        raise InputError("these weights need custom model code, which is only run on request", where=weights, hint=hint)


def check_no_selector(weights: Path) -> None:
    """Raise if weights have a selector, which would be stale once the rest of the model is trained further."""
    if weights.is_file() and _selector_shapes(weights):
        text = "the weights have a selector, which would be stale after further training"
        raise InputError(text, where=weights, hint="Start from weights of another method.")


def _attach_selector(weights: Path, model: Classifier) -> None:
    """Add the selector of the weights to a model; its kind and width follow from the tensors in the file."""
    from spurless.core.seeds import Seeds
    from spurless.methods.deep_gamblers import attach_reservation
    from spurless.methods.selectivenet import attach_gate

    shapes = _selector_shapes(weights)
    with Seeds().seed_global_rng("selector"):  # overwritten at once
        if "selector.layer.weight" in shapes:
            attach_reservation(model)
        elif "selector.layers.0.weight" in shapes:
            attach_gate(model, shapes["selector.layers.0.weight"][0])
        elif shapes:
            expected = "that of deep-gamblers or selectivenet"
            hint = "In Python: model.add_module('selector', YOURS), then load_weights."
            raise InputError(
                "the weights have an unknown kind of selector", where=weights, expected=expected, hint=hint
            )


def _selector_shapes(weights: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors of a selector, by name."""
    return {name: shape for name, shape in _shapes(weights).items() if name.startswith("selector.")}


def _shapes(weights: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a file of weights, by name."""
    from safetensors import safe_open

    from spurless.models.weights import read_weights_info

    read_weights_info(weights)  # raises if this is not a safetensors file
    with safe_open(weights, framework="pt") as file:
        names: list[str] = file.keys()
        return {name: file.get_slice(name).get_shape() for name in names}


def find_encoder(model: str) -> str | None:
    """Return the encoder of transformers in the name of a model, or None."""
    from spurless.models import ALIASES

    family, _, member = model.removesuffix(TWO_ENCODERS).partition(":")
    return member if ALIASES.get(family, family) == "transformers" and member else None


def check_encoder_on_disk(name: str, kind: str, what: str) -> None:
    """Raise if an encoder that a file names would be downloaded: a file must not decide which requests are made."""
    from spurless.core.hf_files import import_transformers, open_pretrained

    load = getattr(import_transformers(f"The model transformers:{name}"), kind).from_pretrained
    open_pretrained(load, name, what, download=False)
