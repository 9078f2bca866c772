"""What decoding costs: images per second from a folder of JPEG files, the usual way and from the cache, in one process.

The files are made here: smooth random colours, around 250x200 pixels. All ways give uint8 batches of 128 on the CPU:
- torchvision's ImageFolder with Resize, CenterCrop and PILToTensor in a DataLoader with workers, as most people do,
- the first pass of the cache, which hashes and decodes every file and writes the pixels to disk,
- later passes, shuffled: streamed from the file of pixels, and with all pixels held in memory.

The system has read the files before (they were just written), so that all ways start from warm files.

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

from spurless.bench.assess import circumstances
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.cache import decoded
from spurless.data.grouped import Grouped, Input, Source
from spurless.data.images import ImageFiles
from spurless.data.loader import Loader, shuffled

BATCH = 128
PASSES = 5
CPU = torch.device("cpu")


def make(folder: Path, n: int) -> list[Path]:
    """Write the files that are not there yet, half of them in each of two classes."""
    paths = [folder / "ab"[i % 2] / f"{i:06d}.jpg" for i in range(n)]
    for name in "ab":
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i, path in enumerate(paths):
        if not path.exists():
            random = np.random.default_rng(i)
            width, height = (int(side + random.integers(-30, 31)) for side in (250, 200))
            colours = random.integers(0, 256, (8, 10, 3), dtype=np.uint8)
            Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def usual(folder: Path, size: int, workers: int) -> Callable[[], int]:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    dataset = ImageFolder(str(folder), v2.Compose([v2.Resize(size), v2.CenterCrop(size), v2.PILToTensor()]))
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)
    return lambda: sum(len(x) for x, _ in loader)


def ours(x: Input | Source, n: int) -> Callable[[], int]:
    """Batches as they are stored: the usual way makes no floats of them either."""
    split = Grouped(x, torch.arange(n) % 2, torch.full((n,), -1), Groups(("a", "b")), transform=lambda batch: batch)
    loader = Loader(split, shuffled(n, Seeds(0)), BATCH)
    epochs = iter(range(10**6))
    return lambda: sum(len(batch) for batch in loader.batches(next(epochs)))


def rate(one_pass: Callable[[], int], n: int, passes: int) -> dict[str, object]:
    """Return images per second: the median over the passes, and each."""
    found = []
    for _ in range(passes):
        begin = time.perf_counter()
        seen = one_pass()
        found.append(n / (time.perf_counter() - begin))
        assert seen == n
    return {"images_per_second": round(median(found), 1), "passes": [round(value, 1) for value in found]}


def measure(folder: Path, cache: Path, n: int, size: int, workers: int) -> dict[str, dict[str, object]]:
    files = ImageFiles(make(folder, n), size)
    results = {f"ImageFolder, DataLoader with {workers} workers": rate(usual(folder, size, workers), n, 2)}
    results["cache, first pass"] = rate(lambda: len(decoded(files, cache)), n, 1)
    begin = time.perf_counter()
    mapped = decoded(files, cache)
    opening = time.perf_counter() - begin
    results["cache, later passes, streamed"] = {
        **rate(ours(mapped, n), n, PASSES),
        "seconds_to_open": round(opening, 4),
    }
    results["cache, later passes, in memory"] = rate(ours(mapped.tensor(), n), n, PASSES)
    return results


def show(results: dict[str, dict[str, object]]) -> str:
    rates = {name: float(str(result["images_per_second"])) for name, result in results.items()}
    base = next(iter(rates.values()))
    rows = [f"{name:<42}{value:>12,.0f}{value / base:>10.1f}x" for name, value in rates.items()]
    return "\n".join([f"{'':<42}{'images/s':>12}{'ratio':>11}", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the JPEG files are made, and stay")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    place: AbstractContextManager[str] = (
        nullcontext(str(given.folder)) if given.folder is not None else tempfile.TemporaryDirectory()
    )
    with place as folder, tempfile.TemporaryDirectory() as cache:
        results = measure(Path(folder), Path(cache), given.images, given.size, given.workers)
    settings = {"images": given.images, "size": given.size, "batch_size": BATCH}
    if given.out is not None:
        record = {"settings": settings, "results": results, **circumstances(CPU)}
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(show(results))


main()
