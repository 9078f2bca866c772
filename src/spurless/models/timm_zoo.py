"""The timm zoo: any timm model with a linear head, as ``timm:NAME``.

timm itself adapts the head and the number of input channels, also of pretrained weights; a net that takes one
size only is built for the size of the input. Pretrained weights are read from a safetensors file where there is
one, and fetched by timm elsewhere; a model that has them takes images in [0, 1] and normalises them itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from spurless.core.errors import BadInput, MissingExtra, UnknownName, first_line
from spurless.core.places import data_folder
from spurless.models.classifier import Classifier
from spurless.models.normalising import Normalising
from spurless.models.shapes import Shape, image_shape
from spurless.models.wrapping import wrap


@dataclass(frozen=True)
class TimmConfig:
    """What to start from."""

    pretrained: bool = False
    """start from pretrained weights with a fresh head: ``weights/NAME*.safetensors`` in the data folder, else timm's
    own, downloaded on first use"""
    weights: str | None = None
    """start from the weights in this safetensors file, with a fresh head"""
    normalise: bool = True
    """where the weights are pretrained: normalise images in [0, 1] as they expect"""


def timm_model(variant: str, input_shape: Shape, n_classes: int, config: TimmConfig) -> Classifier:
    """Build the model called ``variant`` in timm."""
    timm = _timm(variant)
    channels, height, width = image_shape(input_shape, f"timm:{variant}")
    if not timm.is_model(variant):
        names = timm.list_models()
        near = get_close_matches(variant, names, n=8, cutoff=0.0)
        raise UnknownName(f"timm model (of {len(names)}; the nearest are listed)", variant, near)
    options: dict[str, Any] = {"num_classes": n_classes, "in_chans": channels}
    defaults = timm.get_pretrained_cfg(variant)
    if defaults is not None and defaults.fixed_input_size:
        options["img_size"] = (height, width)
    file = _local_weights(variant, config)
    pretrained = config.pretrained or file is not None
    if file is not None:
        options["pretrained_cfg_overlay"] = {"file": str(file)}
    module = _create(variant, file, pretrained=pretrained, **options)
    if file is not None:
        _check_names(module, file, variant)
    if not isinstance(module.get_classifier(), nn.Linear):
        raise BadInput(
            f"timm:{variant} has no single linear head (distilled, or convolutional to the end)",
            expected="nn.Linear",
            got=type(module.get_classifier()).__name__,
            do="Choose another model.",
        )
    if pretrained and config.normalise:
        mean, std = module.pretrained_cfg["mean"], module.pretrained_cfg["std"]
        grey = channels != len(mean)  # timm sums the filters of the colours: the mean of their means is meant
        numbers = ((sum(mean) / len(mean),), (sum(std) / len(std),)) if grey else (mean, std)
        module = nn.Sequential(Normalising(*numbers), module)
    return wrap(module, trained=False)


def _create(variant: str, file: Path | None, **options: Any) -> Any:
    try:
        return _timm(variant).create_model(variant, **options)
    except (SafetensorError, RuntimeError) as error:
        if file is None:
            raise
        raise BadInput(f"these are no weights of timm:{variant}: {first_line(error)}", where=file) from None
    except OSError as error:
        raise BadInput(
            f"the weights of timm:{variant} could not be fetched: {first_line(error)}",
            do=f"Put weights/{variant}.safetensors into the data folder ($SPURLESS_DATA), name a file with weights=, "
            "leave out pretrained, or go online.",
        ) from None


def _check_names(module: nn.Module, file: Path, variant: str) -> None:
    """Refuse the weights of another model: timm would load what fits and log the rest."""
    head = str(getattr(module, "pretrained_cfg", {}).get("classifier", ""))
    with safe_open(file, "pt") as archive:
        given = {key for key in archive.keys() if not key.startswith(f"{head}.")}  # noqa: SIM118 - no mapping
    wanted = {key for key in module.state_dict() if not key.startswith(f"{head}.")}
    if given != wanted:
        odd = min(given ^ wanted)
        raise BadInput(
            f"these are no weights of timm:{variant}: {odd} is {'missing' if odd in wanted else 'not a part of it'}",
            where=file,
        )


def _local_weights(variant: str, config: TimmConfig) -> Path | None:
    """Return the file to read the weights from: the one that is named, or one in the data folder."""
    if config.weights is not None:
        path = Path(config.weights).expanduser()
        if path.suffix != ".safetensors":
            raise BadInput("weights are read from safetensors files only", where=path, do="Convert them first.")
        if not path.is_file():
            raise BadInput("no such file of weights", where=path)
        return path
    if not config.pretrained:
        return None
    found = sorted((data_folder() / "weights").glob(f"{variant}*.safetensors"))
    # a longer name may be another model: resnet18d is not resnet18
    return next((path for path in found if not path.stem.removeprefix(variant)[:1].isalnum()), None)


def _timm(variant: str) -> ModuleType:
    try:
        import timm
    except ImportError:
        raise MissingExtra("timm", "timm", f"The model timm:{variant}") from None
    return timm  # type: ignore[no-any-return]  # untyped where it is installed
