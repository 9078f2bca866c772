"""How long an audit takes, how much memory, and what a Ctrl-C costs: seconds per question, broken off, gone on.

The images lie in class folders on disk, as a person has them: two classes that differ by a faint square in the middle,
and a red corner that goes with the label in nine of ten. The network is random but for its head, which is solved for in
one step, so that it leans on the corner and makes mistakes to ask about.

Every audit is the command line in a process of its own, so that its peak of memory is its own:

* whole: nothing is in the cache. "before" are the seconds of starting, of decoding, and of reading the weights.
* again: the same once more; images and features are found.
* broken off: nothing is in the cache, and SIGINT comes when half of the features are on disk.
* gone on: the same command after that.

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

from spurless.bench.assess import circumstances
from spurless.data.folder import from_folder
from spurless.data.grouped import Grouped
from spurless.data.loader import Loader, in_order
from spurless.models import build, save_weights
from spurless.models.features import collect

LABELS = ("dark", "light")
TAUGHT = 1000
"""Images of the train split, from which the head is solved for; test has a tenth of it."""
AGREEMENT, FAINT = 0.9, 6
RIDGE = 100.0
SLEEP = 0.05
STOPPED = 130
"""how a command leaves that was broken off"""


def make(root: Path, images: int, size: int) -> None:
    """Write the images, those to be audited as the val split."""
    for number, (split, count) in enumerate((("train", TAUGHT), ("val", images), ("test", TAUGHT // 10))):
        random = np.random.default_rng(number)
        for label in LABELS:
            (root / split / label).mkdir(parents=True)
        for i in range(count):
            y = i % 2
            picture = random.integers(0, 160, (size, size, 3), dtype=np.uint8)
            picture[size // 3 : 2 * size // 3, size // 3 : 2 * size // 3] += np.uint8(FAINT * y)
            if (random.random() < AGREEMENT) == bool(y):
                picture[: size // 4, : size // 4] = (255, 0, 0)
            Image.fromarray(picture).save(root / split / LABELS[y] / f"{i}.png")


def teach(model: str, root: Path, out: Path) -> float:
    """Solve for the head of a random network, save the weights, and return the accuracy on train."""
    data = from_folder(root, cache=False, stream=True)
    net = build(model, data)
    x, y = features(net, data.train), torch.nn.functional.one_hot(data.train.y).float()
    mean, spread = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    x = (x - mean) / spread
    weight = torch.linalg.solve(x.T @ x + RIDGE * torch.eye(x.shape[1]), x.T @ (y - y.mean(dim=0))).T
    head = net.head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.weight.copy_(4 * weight / spread)
        if head.bias is not None:
            head.bias.copy_(-4 * (weight / spread) @ mean)
    net.trained = True
    save_weights(out, net)
    with torch.no_grad():
        return float((head(features(net, data.train)).argmax(dim=1) == data.train.y).float().mean())


def features(net: Any, split: Grouped) -> torch.Tensor:
    return collect(net, Loader(split, in_order(len(split)), 128).batches())


def ask(words: list[str], folder: Path, cache: Path, interrupt: Callable[[], bool] | None = None) -> dict[str, Any]:
    """Run one audit in a process of its own, in a folder; break it off once ``interrupt`` says so."""
    environment = {**os.environ, "SPURLESS_CACHE": str(cache)}
    command = [sys.executable, "-m", "spurless", "audit", *words, "--out", str(folder / "audit.html"), "--quiet"]
    begin = time.perf_counter()
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        while interrupt is not None and runs(process.pid):
            if interrupt():
                process.send_signal(signal.SIGINT)
                break
            time.sleep(SLEEP)
        _, status, usage = os.wait4(process.pid, 0)  # which tells the peak of this one process
    process.returncode = os.waitstatus_to_exitcode(status)
    facts: dict[str, Any] = {
        "seconds": round(time.perf_counter() - begin, 1),
        "status": process.returncode,
        "peak_megabytes": round(usage.ru_maxrss * 1024 / 1e6),
        "said": (folder / "said.txt").read_text().strip(),
    }
    if interrupt is None:
        assert facts["status"] == 0, facts["said"]
        found = json.loads((folder / "audit.json").read_text())
        facts["questions"] = found["facts"]["seconds"]
        facts["before"] = round(facts["seconds"] - sum(v for k, v in facts["questions"].items() if k != "embed"), 1)
        facts["findings"] = {each["audit"]: [each["severity"], each["p"]] for each in found["findings"]}
    return facts


def runs(pid: int) -> bool:
    """Return whether a process runs, and leave its end to whoever waits for it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def half_done(cache: Path, n: int) -> Callable[[], bool]:
    """Return a function that says whether half of the features are on disk."""

    def looked() -> bool:
        return rows_kept(cache) >= n / 2

    return looked


def rows_kept(cache: Path) -> int:
    """Return how many examples have features on disk."""
    done = []
    for header in (cache / "features").glob("*.json"):
        try:
            done.append(int(json.loads(header.read_text())["done"]))
        except (OSError, ValueError):  # it is being replaced
            continue
    return max(done, default=0)


def measure(given: argparse.Namespace, place: Path) -> dict[str, Any]:
    make(place / "images", given.images, given.size)
    accuracy = teach(given.model, place / "images", place / "net.safetensors")
    words = [str(place / "net.safetensors"), "--data", str(place / "images"), "--device", "cpu"]
    words += ["--permutations", str(given.permutations)]
    results: dict[str, Any] = {"accuracy of the head on its own images": accuracy}
    results["whole"] = ask(words, place, place / "cache")
    results["again"] = ask(words, place, place / "cache")
    broken = ask(words, place, place / "cache 2", half_done(place / "cache 2", given.images))
    assert broken["status"] == STOPPED, broken
    results["broken off"] = {**broken, "rows_kept": rows_kept(place / "cache 2")}
    results["gone on"] = ask(words, place, place / "cache 2")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--model", default="torchvision:resnet18")
    parser.add_argument("--permutations", type=int, default=499)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where images and features lie while this runs")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    torch.set_num_threads(given.threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts behind the scenes ignores it
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        results = measure(given, Path(place).resolve())
    settings = {key: value for key, value in vars(given).items() if key not in ("folder", "out")}
    text = json.dumps({"settings": settings, "results": results, **circumstances(torch.device("cpu"))}, indent=1)
    if given.out is not None:
        given.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
