"""Segmentation: which pixels of a photograph are background, by DeepLabV3 or any other net of that form.

Barsbey et al. 2025, arXiv:2507.17748, section 5, take the background of natural images from DeepLabV3 (Chen et al.
2017, arXiv:1706.05587), to see how much of a classifier's attributions lies on it; the share itself is
:func:`~spurless.metrics.attribution_share.background_share`. Which weights, which classes and which size of image they
use is not said. Here: torchvision's weights, of which class 0 is background and the other 20 are objects, and images
whose shorter side is brought to 520 pixels, on which those weights were made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import interpolate

from spurless.core.errors import BadInput
from spurless.core.progress import teller
from spurless.models.classifier import evaluating
from spurless.models.normalising import Normalising
from spurless.models.torchvision_zoo import pretrained

SIDE = 520
BACKGROUND = 0
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's weights expect
AT_ONCE = 8


def deeplab(weights: str | Path | None = None) -> nn.Module:
    """Return a DeepLabV3 of torchvision; it takes images in [0, 1], as :func:`backgrounds` gives them.

    Args:
        weights: a file of torchvision's weights for its ResNet-50, ResNet-101 or MobileNetV3, the net is told by them;
            without one, torchvision's own for ResNet-50, from its cache or, on first use, from the network.

    Raises:
        BadInput: the weights cannot be had, or are of another net.
    """
    import torchvision

    if weights is None:
        return nn.Sequential(Normalising(MEAN, STD), pretrained("deeplabv3_resnet50"))
    state = _read(Path(weights))
    helped = any(name.startswith("aux_classifier.") for name in state)
    classes = state["classifier.4.weight"].shape[0] if "classifier.4.weight" in state else 21
    net: Any = torchvision.models.get_model(
        f"deeplabv3_{_backbone(state)}", weights=None, weights_backbone=None, num_classes=classes, aux_loss=helped
    )
    try:
        net.load_state_dict(state)
    except RuntimeError:
        raise BadInput("these are no weights of a DeepLabV3 of torchvision", where=weights) from None
    return nn.Sequential(Normalising(MEAN, STD), net)


@torch.no_grad()
def backgrounds(
    images: Tensor, segmenter: nn.Module, *, side: int = SIDE, device: torch.device | str | None = None
) -> Tensor:
    """Return which pixels of each image are background: bool, ``(N, height, width)``, on the CPU.

    Args:
        images: ``(N, 1 or 3, height, width)``, uint8, or numbers from 0 to 1.
        segmenter: :func:`deeplab`, or any module from images in [0, 1] to scores ``(N, classes, height, width)``,
            alone or under ``out``, of which class 0 is background. It is left as it was.
        side: what the shorter side is brought to before; the scores are brought back.
        device: where the arithmetic is done; by default where the segmenter is.

    Raises:
        BadInput: these are no images, or the scores are no map of two classes or more.

    Example:
        >>> class Bright(nn.Module):  # what is bright is an object
        ...     def forward(self, x):
        ...         return torch.cat([torch.zeros_like(x[:, :1]), x[:, :1] - 0.5], dim=1)
        >>> backgrounds(torch.tensor([[[[0, 255, 255]]]], dtype=torch.uint8), Bright(), side=1).tolist()
        [[[True, False, False]]]
    """
    if images.dim() != 4 or images.shape[1] not in (1, 3) or not images.numel():
        raise BadInput("backgrounds are of images", expected="(N, 1 or 3, height, width)", got=tuple(images.shape))
    if side < 1:
        raise BadInput("images cannot be brought to less than a pixel", got=side)
    home = next((parameter.device for parameter in segmenter.parameters()), torch.device("cpu"))
    where = home if device is None else torch.device(device)
    height, width = images.shape[2:]
    scale = side / min(height, width)
    size = max(1, round(scale * height)), max(1, round(scale * width))
    found, done = list[Tensor](), teller("backgrounds", len(images))
    try:
        with evaluating(segmenter.to(where)):
            for part in torch.split(images, AT_ONCE):
                x = part.to(where).float() / (255 if part.dtype == torch.uint8 else 1)
                x = interpolate(x.expand(-1, 3, -1, -1), size, mode="bilinear", antialias=True)
                scores = _scores(segmenter(x))
                found.append(interpolate(scores, (height, width), mode="bilinear").argmax(dim=1).cpu() == BACKGROUND)
                done(sum(map(len, found)))
    finally:
        segmenter.to(home)
    return torch.cat(found)


def _scores(given: Any) -> Tensor:
    scores = given["out"] if isinstance(given, Mapping) else given
    if not isinstance(scores, Tensor) or scores.dim() != 4 or scores.shape[1] < 2:
        raise BadInput(
            "the segmenter gives no scores of background and objects",
            expected="(N, 2 classes or more, height, width)",
            got=tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__,
        )
    return scores.float()


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise BadInput("no such file", where=path, expected="weights of a DeepLabV3 of torchvision") from None
    except (OSError, RuntimeError, UnpicklingError, SafetensorError, TypeError, ValueError, EOFError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"these weights cannot be read: {said}", where=path) from None


def _backbone(state: Mapping[str, Tensor]) -> str:
    if any(name.startswith("backbone.layer3.22.") for name in state):
        return "resnet101"
    return "resnet50" if any(name.startswith("backbone.layer1.") for name in state) else "mobilenet_v3_large"
