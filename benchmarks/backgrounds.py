"""Fractions of the attributions of two models on objects and on the background of photographs, by DeepLabV3.

Run: python benchmarks/backgrounds.py LOW.safetensors HIGH.safetensors --data DATA --out page.html

Barsbey et al. 2025, arXiv:2507.17748, section 5 and figure 10, take the background of natural images from DeepLabV3
(Chen et al. 2017, arXiv:1706.05587). They do not state which weights, classes and image size they use. Here:
torchvision's weights, whose class 0 is background and whose other 20 classes are objects, and images whose shorter side
is resized to 520 pixels, as in the training of those weights. ``--segmenter FILE`` reads the weights of DeepLabV3 from
a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import interpolate

from spurless.cli.inputs import open_data
from spurless.cli.params import Columns
from spurless.cli.weights import open_model
from spurless.core.config import parse_pairs
from spurless.core.errors import InputError, first_line
from spurless.core.modules import eval_mode
from spurless.data.split import Split
from spurless.explain import build_attribution_section
from spurless.explain.figures.compare_models import RegionFinder
from spurless.explain.overlays import load_images
from spurless.models.classifier import on_device
from spurless.models.zoo.normalize import Normalize
from spurless.models.zoo.torchvision import create_pretrained
from spurless.reporting import write_sections

SIDE = 520
BACKGROUND_CLASS = 0
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's weights expect
BATCH_SIZE = 8


def load_deeplab(weights: str | Path | None = None) -> nn.Module:
    """Return a DeepLabV3 of torchvision that takes images in [0, 1].

    Args:
        weights: a file of torchvision's weights for ResNet-50, ResNet-101 or MobileNetV3, which decides the backbone;
            by default torchvision's weights for ResNet-50, which are downloaded once.

    Raises:
        InputError: the weights cannot be read, or belong to another network.
    """
    import torchvision

    if weights is None:
        return nn.Sequential(Normalize(MEAN, STD), create_pretrained("deeplabv3_resnet50"))
    state = _read_state(Path(weights))
    has_auxiliary = any(name.startswith("aux_classifier.") for name in state)
    classes = state["classifier.4.weight"].shape[0] if "classifier.4.weight" in state else 21
    net: Any = torchvision.models.get_model(
        f"deeplabv3_{_infer_backbone(state)}",
        weights=None,
        weights_backbone=None,
        num_classes=classes,
        aux_loss=has_auxiliary,
    )
    try:
        net.load_state_dict(state)
    except RuntimeError:
        raise InputError("the file does not have the weights of a DeepLabV3 of torchvision", where=weights) from None
    return nn.Sequential(Normalize(MEAN, STD), net)


@torch.no_grad()
def find_backgrounds(
    images: Tensor, segmenter: nn.Module, *, side: int = SIDE, device: torch.device | str | None = None
) -> Tensor:
    """Return a mask of the background of each image: bool, ``(N, height, width)``, on the CPU.

    Args:
        images: ``(N, 1 or 3, height, width)``, uint8, or numbers in [0, 1].
        segmenter: :func:`load_deeplab`, or any module from images in [0, 1] to scores ``(N, classes, height, width)``,
            as a tensor or under ``out``, whose class 0 is background. It is not changed.
        side: length of the shorter side of the resized images; the scores are resized back.
        device: where to compute; by default the device of the segmenter.

    Raises:
        InputError: the images or the scores have the wrong shape.
    """
    if images.dim() != 4 or images.shape[1] not in (1, 3) or not images.numel():
        raise InputError(
            "the input is not a batch of images", expected="(N, 1 or 3, height, width)", got=tuple(images.shape)
        )
    height, width = images.shape[2:]
    scale = side / min(height, width)
    size = max(1, round(scale * height)), max(1, round(scale * width))
    masks = list[Tensor]()
    with on_device(segmenter, device) as target, eval_mode(segmenter):
        for part in torch.split(images, BATCH_SIZE):
            x = part.to(target).float() / (255 if part.dtype == torch.uint8 else 1)
            x = interpolate(x.expand(-1, 3, -1, -1), size, mode="bilinear", antialias=True)
            scores = interpolate(_extract_scores(segmenter(x)), (height, width), mode="bilinear")
            masks.append(scores.argmax(dim=1).cpu() == BACKGROUND_CLASS)
    return torch.cat(masks)


def region_finder(segmenter: nn.Module, side: int = SIDE, device: torch.device | str | None = None) -> RegionFinder:
    """Return a function that splits images into object and background, for ``build_attribution_section``."""

    def find_regions(split: Split, maps: Tensor) -> Mapping[str, Tensor]:
        _, images = load_images(split, torch.arange(len(split)))
        masks = find_backgrounds(images, segmenter, side=side, device=device).float()[:, None]
        background = interpolate(masks, maps.shape[1:])[:, 0] > 0.5
        return {"object": ~background, "background": background}

    return find_regions


def _extract_scores(output: Any) -> Tensor:
    scores = output["out"] if isinstance(output, Mapping) else output
    if not isinstance(scores, Tensor) or scores.dim() != 4 or scores.shape[1] < 2:
        raise InputError(
            "the segmenter does not return scores of background and objects",
            expected="(N, 2 classes or more, height, width)",
            got=tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__,
        )
    return scores.float()


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise InputError("no such file", where=path, expected="weights of a DeepLabV3 of torchvision") from None
    except (OSError, RuntimeError, UnpicklingError, SafetensorError, TypeError, ValueError, EOFError) as error:
        raise InputError(f"the weights cannot be read: {first_line(error)}", where=path) from None


def _infer_backbone(state: Mapping[str, Tensor]) -> str:
    if any(name.startswith("backbone.layer3.22.") for name in state):
        return "resnet101"
    return "resnet50" if any(name.startswith("backbone.layer1.") for name in state) else "mobilenet_v3_large"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("low", type=Path, metavar="LOW")
    parser.add_argument("high", type=Path, metavar="HIGH")
    parser.add_argument("--data", required=True)
    parser.add_argument("--data-option", "-D", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--segmenter", type=Path, metavar="FILE")
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True, metavar="PAGE")
    args = parser.parse_args(argv)
    segmenter = load_deeplab(args.segmenter)
    data = open_data(args.data, parse_pairs(args.data_option, "--data-option"), Columns(), args.seed, quiet=True)
    models = {path.stem: open_model(path, None, {}, data, args.seed) for path in (args.low, args.high)}
    section = build_attribution_section(
        models,
        data,
        count=args.count,
        seed=args.seed,
        device=args.device,
        find_regions=region_finder(segmenter, args.side, args.device),
    )
    print(write_sections(args.out, "Attributions on objects and background", [section]).resolve())


if __name__ == "__main__":
    main()
