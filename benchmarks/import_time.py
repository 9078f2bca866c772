"""What importing costs beyond torch: each import in processes of its own, taking turns.

Run: python benchmarks/import_time.py > benchmarks/records/import_time.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

import torch

from spurless.bench.assess import circumstances

VARIANTS = {
    "torch": "import torch",
    "torch, spurless": "import torch, spurless",
    "torch, spurless (and fit, load, build)": "import torch, spurless; spurless.fit, spurless.load, spurless.build",
}


def seconds(code: str) -> float:
    timed = f"import time; begin = time.perf_counter(); {code}; print(time.perf_counter() - begin)"
    return float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(9):
        for name, code in VARIANTS.items():
            found[name].append(seconds(code))
    results = {name: round(median(values), 3) for name, values in found.items()}
    print(json.dumps({"median seconds": results, **circumstances(torch.device("cpu"))}, indent=1))


main()
