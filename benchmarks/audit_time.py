"""Time and memory of an audit, and the cost of an interruption.

The images are in class folders on disk: two classes that differ by a faint square in the center, with a red corner that
agrees with the label in nine of ten images. The network is random except for its head, which is a ridge regression, so
that it relies on the corner and makes errors to audit.

Each audit runs on the command line in a separate process, to measure its peak memory. Keys of the record:

* whole: with an empty cache; "before" are the seconds for starting, decoding and reading the weights.
* again: the same command again, with images and features in the cache.
* broken off: with an empty cache, and SIGINT when half of the features are on disk.
* gone on: the same command after the interruption.

Run: python benchmarks/audit_time.py [--images 10000] [--size 64] [--model torchvision:resnet18] [--out RECORD.json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from spurless.data.loader import Loader, sequential_order
from spurless.data.loaders.folder import from_folder
from spurless.data.split import Split
from spurless.fitting.assess import describe_environment
from spurless.models import build, save_weights
from spurless.models.features import collect_features

LABELS = ("dark", "light")
TRAIN_IMAGES = 1000
"""Number of training images, on which the head is fitted; test has a tenth of it."""
SHORTCUT_STRENGTH, LABEL_BRIGHTNESS = 0.9, 6
RIDGE = 100.0
POLL_SECONDS = 0.05
INTERRUPTED_STATUS = 130
"""exit status of an interrupted command"""


def write_images(root: Path, images: int, size: int) -> None:
    """Write the images of train, val (the audited split) and test."""
    for number, (split, count) in enumerate((("train", TRAIN_IMAGES), ("val", images), ("test", TRAIN_IMAGES // 10))):
        random = np.random.default_rng(number)
        for label in LABELS:
            (root / split / label).mkdir(parents=True)
        for i in range(count):
            y = i % 2
            image = random.integers(0, 160, (size, size, 3), dtype=np.uint8)
            image[size // 3 : 2 * size // 3, size // 3 : 2 * size // 3] += np.uint8(LABEL_BRIGHTNESS * y)
            if (random.random() < SHORTCUT_STRENGTH) == bool(y):
                image[: size // 4, : size // 4] = (255, 0, 0)
            Image.fromarray(image).save(root / split / LABELS[y] / f"{i}.png")


def fit_head(model: str, root: Path, out: Path) -> float:
    """Fit the head of a random network, save the weights, and return the training accuracy."""
    data = from_folder(root, cache=False, stream=True)
    net = build(model, data)
    x, y = features(net, data.train), torch.nn.functional.one_hot(data.train.y).float()
    mean, std = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    x = (x - mean) / std
    weight = torch.linalg.solve(x.T @ x + RIDGE * torch.eye(x.shape[1]), x.T @ (y - y.mean(dim=0))).T
    head = net.head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.weight.copy_(4 * weight / std)
        if head.bias is not None:
            head.bias.copy_(-4 * (weight / std) @ mean)
    net.trained = True
    save_weights(out, net)
    with torch.no_grad():
        return float((head(features(net, data.train)).argmax(dim=1) == data.train.y).float().mean())


def features(net: Any, split: Split) -> torch.Tensor:
    return collect_features(net, Loader(split, sequential_order(len(split)), 128).batches())


def run_audit(
    arguments: list[str], folder: Path, cache: Path, interrupt: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Run one audit in a separate process; interrupt it as soon as ``interrupt()`` is true."""
    environment = {**os.environ, "SPURLESS_CACHE": str(cache)}
    command = [sys.executable, "-m", "spurless", "audit", *arguments, "--out", str(folder / "audit.html"), "--quiet"]
    start = time.perf_counter()
    with (folder / "stderr.txt").open("w") as messages:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=messages)
        while interrupt is not None and is_running(process.pid):
            if interrupt():
                process.send_signal(signal.SIGINT)
                break
            time.sleep(POLL_SECONDS)
        _, status, usage = os.wait4(process.pid, 0)  # includes the peak memory of this process
    process.returncode = os.waitstatus_to_exitcode(status)
    facts: dict[str, Any] = {
        "seconds": round(time.perf_counter() - start, 1),
        "status": process.returncode,
        "peak_megabytes": round(usage.ru_maxrss * 1024 / 1e6),
        "said": (folder / "stderr.txt").read_text().strip(),
    }
    if interrupt is None:
        assert facts["status"] == 0, facts["said"]
        report = json.loads((folder / "audit.json").read_text())
        facts["questions"] = report["facts"]["seconds"]
        facts["before"] = round(facts["seconds"] - sum(v for k, v in facts["questions"].items() if k != "embed"), 1)
        facts["findings"] = {finding["audit"]: [finding["severity"], finding["p"]] for finding in report["findings"]}
    return facts


def is_running(pid: int) -> bool:
    """Return whether a process is running, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def half_done(cache: Path, n: int) -> Callable[[], bool]:
    """Return a function that checks whether half of the features are on disk."""

    def is_half_done() -> bool:
        return count_cached_rows(cache) >= n / 2

    return is_half_done


def count_cached_rows(cache: Path) -> int:
    """Return the number of examples whose features are on disk."""
    counts = []
    for path in (cache / "features").glob("*.json"):
        try:
            counts.append(int(json.loads(path.read_text())["done"]))
        except (OSError, ValueError):  # the file is being replaced
            continue
    return max(counts, default=0)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    write_images(folder / "images", args.images, args.size)
    accuracy = fit_head(args.model, folder / "images", folder / "net.safetensors")
    arguments = [str(folder / "net.safetensors"), "--data", str(folder / "images"), "--device", "cpu"]
    arguments += ["--permutations", str(args.permutations)]
    results: dict[str, Any] = {"accuracy of the head on its own images": accuracy}
    results["whole"] = run_audit(arguments, folder, folder / "cache")
    results["again"] = run_audit(arguments, folder, folder / "cache")
    interrupted = run_audit(arguments, folder, folder / "cache 2", half_done(folder / "cache 2", args.images))
    assert interrupted["status"] == INTERRUPTED_STATUS, interrupted
    results["broken off"] = {**interrupted, "rows_kept": count_cached_rows(folder / "cache 2")}
    results["gone on"] = run_audit(arguments, folder, folder / "cache 2")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--model", default="torchvision:resnet18")
    parser.add_argument("--permutations", type=int, default=499)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="folder for temporary images and features")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    torch.set_num_threads(args.threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores SIGINT for background jobs
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        results = measure(args, Path(folder).resolve())
    settings = {key: value for key, value in vars(args).items() if key not in ("folder", "out")}
    text = json.dumps({"settings": settings, "results": results, **describe_environment(torch.device("cpu"))}, indent=1)
    if args.out is not None:
        args.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
