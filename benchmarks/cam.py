"""Speed of heat maps: images per second of spurless, of pytorch-grad-cam and of the forward pass, in one process.

xGradCAM at the last block of torchvision's ResNet-18, one batch at a time: spurless leaves the maps on the device;
pytorch-grad-cam, if it is installed, scales and resizes them on the CPU. "whole split" is ``iterate_heat_maps`` on a
split of uint8 images, which includes loading the batches and finding the layer.

The variants alternate, and the median is reported, with its ratio to the forward pass.

Run: python benchmarks/cam.py --device cuda --size 224 [--out benchmarks/records/cam_cuda.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.explain import find_target_layer, iterate_heat_maps, xgradcam
from spurless.fitting.assess import describe_environment
from spurless.models import build
from spurless.models.classifier import Classifier

Variant = Callable[[], None]
"""Processes all images once, and waits until the device is done."""


def forward(model: Classifier, batches: list[Tensor]) -> Variant:
    @torch.no_grad()
    def run() -> None:
        for x in batches:
            model(x)
        synchronize(batches[0].device)

    return run


def spurless_maps(model: Classifier, batches: list[Tensor]) -> Variant:
    layer = find_target_layer(model, batches[0])

    def run() -> None:
        for x in batches:
            xgradcam(model, x, layer=layer)
        synchronize(x.device)

    return run


def spurless_split(model: Classifier, batches: list[Tensor]) -> Variant:
    x = (torch.cat(batches) * 255).to(torch.uint8)
    n = len(x)
    split = Split(x, torch.zeros(n, dtype=torch.long), torch.full((n,), -1), Groups(("a", "b")))

    def run() -> None:
        for _ in iterate_heat_maps(model, split, batch_size=len(batches[0])):
            pass
        synchronize(x.device)

    return run


def pytorch_grad_cam(model: Classifier, batches: list[Tensor]) -> Variant:
    from pytorch_grad_cam import XGradCAM

    layer = find_target_layer(model, batches[0]).module(model)

    def run() -> None:
        with XGradCAM(model, [layer]) as cam:
            for x in batches:
                cam(x, None)
        model.zero_grad(set_to_none=True)
        synchronize(batches[0].device)

    return run


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def compare(variants: dict[str, Variant], n: int, turns: int) -> dict[str, dict[str, object]]:
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for variant in variants.values():
        variant()  # warm up
    for _ in range(turns):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            rates[name].append(n / (time.perf_counter() - start))
    baseline = median(rates["forward pass"])
    return {
        name: {
            "images_per_second": round(median(values), 1),
            "of_forward": round(median(values) / baseline, 3),
            "turns": [round(value, 1) for value in values],
        }
        for name, values in rates.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, default=64, help="width and height of the images in pixels")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    generator = torch.Generator().manual_seed(0)
    shape = (args.batch, 3, args.size, args.size)
    batches = [torch.rand(shape, generator=generator).to(device) for _ in range(args.batches)]
    model = build("torchvision:resnet18", input_shape=shape[1:], n_classes=10).to(device).eval()
    variants = {
        "forward pass": forward(model, batches),
        "spurless": spurless_maps(model, batches),
        "spurless, whole split": spurless_split(model, batches),
    }
    if find_spec("pytorch_grad_cam") is not None:
        variants["pytorch-grad-cam"] = pytorch_grad_cam(model, batches)
    title = f"torchvision:resnet18 {args.size}x{args.size}, batch {args.batch}, {args.batches} batches"
    result = {
        "results": {title: compare(variants, args.batches * args.batch, args.turns)},
        **describe_environment(device),
    }
    text = json.dumps(result, indent=1)
    if args.out is not None:
        args.out.write_text(text + "\n")
    print(text)


main()
