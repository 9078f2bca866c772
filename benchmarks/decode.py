"""Speed of decoding: images per second from a folder of JPEG files, with ImageFolder and with the cache.

The files are generated: smooth random colors, about 250x200 pixels. All variants load uint8 batches of 128 on the CPU:
- torchvision's ImageFolder with Resize, CenterCrop and PILToTensor in a DataLoader with workers,
- the first pass of the cache, which hashes and decodes each file and writes the pixels to disk,
- later passes, shuffled: streamed from the cache file, and with all pixels in memory.

The files were just written, so that all variants read them from the page cache of the system.

Run: python benchmarks/decode.py [--images 10000] [--size 64] [--workers 2] [--folder DIR] [--out RECORD.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from spurless.core.groups import Groups
from spurless.core.modules import Input
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, shuffled_order
from spurless.data.loaders.images import ImageFiles, cache_decoded
from spurless.data.split import Source, Split
from spurless.fitting.assess import describe_environment

BATCH = 128
PASSES = 5
CPU = torch.device("cpu")


def write_images(folder: Path, n: int) -> list[Path]:
    """Write the missing JPEG files, half of them in each of two classes, and return all paths."""
    paths = [folder / "ab"[i % 2] / f"{i:06d}.jpg" for i in range(n)]
    for name in "ab":
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i, path in enumerate(paths):
        if not path.exists():
            random = np.random.default_rng(i)
            width, height = (int(side + random.integers(-30, 31)) for side in (250, 200))
            colors = random.integers(0, 256, (8, 10, 3), dtype=np.uint8)
            Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def with_image_folder(folder: Path, size: int, workers: int) -> Callable[[], int]:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    dataset = ImageFolder(str(folder), v2.Compose([v2.Resize(size), v2.CenterCrop(size), v2.PILToTensor()]))
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)
    return lambda: sum(len(x) for x, _ in loader)


def with_cache(x: Input | Source, n: int) -> Callable[[], int]:
    """Return a pass over uint8 batches, which ImageFolder returns too."""
    split = Split(x, torch.arange(n) % 2, torch.full((n,), -1), Groups(("a", "b")), transform=lambda batch: batch)
    loader = Loader(split, shuffled_order(n, Seeds(0)), BATCH)
    epochs = iter(range(10**6))
    return lambda: sum(len(batch) for batch in loader.batches(next(epochs)))


def measure_rate(one_pass: Callable[[], int], n: int, passes: int) -> dict[str, object]:
    """Return the images per second of each pass, and their median."""
    rates = []
    for _ in range(passes):
        start = time.perf_counter()
        count = one_pass()
        rates.append(n / (time.perf_counter() - start))
        assert count == n
    return {"images_per_second": round(median(rates), 1), "passes": [round(value, 1) for value in rates]}


def measure(folder: Path, cache: Path, n: int, size: int, workers: int) -> dict[str, dict[str, object]]:
    files = ImageFiles(write_images(folder, n), size)
    results = {
        f"ImageFolder, DataLoader with {workers} workers": measure_rate(with_image_folder(folder, size, workers), n, 2)
    }
    results["cache, first pass"] = measure_rate(lambda: len(cache_decoded(files, cache)), n, 1)
    start = time.perf_counter()
    cached = cache_decoded(files, cache)
    seconds_to_open = time.perf_counter() - start
    results["cache, later passes, streamed"] = {
        **measure_rate(with_cache(cached, n), n, PASSES),
        "seconds_to_open": round(seconds_to_open, 4),
    }
    results["cache, later passes, in memory"] = measure_rate(with_cache(cached.tensor(), n), n, PASSES)
    return results


def format_table(results: dict[str, dict[str, object]]) -> str:
    rates = {name: float(str(result["images_per_second"])) for name, result in results.items()}
    base = next(iter(rates.values()))
    rows = [f"{name:<42}{value:>12,.0f}{value / base:>10.1f}x" for name, value in rates.items()]
    return "\n".join([f"{'':<42}{'images/s':>12}{'ratio':>11}", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="folder to write the JPEG files to; a temporary one by default")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder_context: AbstractContextManager[str] = (
        nullcontext(str(args.folder)) if args.folder is not None else tempfile.TemporaryDirectory()
    )
    with folder_context as folder, tempfile.TemporaryDirectory() as cache:
        results = measure(Path(folder), Path(cache), args.images, args.size, args.workers)
    settings = {"images": args.images, "size": args.size, "batch_size": BATCH}
    if args.out is not None:
        record = {"settings": settings, "results": results, **describe_environment(CPU)}
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(format_table(results))


main()
