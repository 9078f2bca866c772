"""Import time in addition to torch, measured in separate processes that alternate.

Run: python benchmarks/import_time.py > benchmarks/records/import_time.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

import torch

from spurless.fitting.assess import describe_environment

VARIANTS = {
    "torch": "import torch",
    "torch, spurless": "import torch, spurless",
    "torch, spurless (and fit, load, build)": "import torch, spurless; spurless.fit, spurless.load, spurless.build",
}


def seconds(code: str) -> float:
    timed = f"import time; start = time.perf_counter(); {code}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    durations: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(9):
        for name, code in VARIANTS.items():
            durations[name].append(seconds(code))
    results = {name: round(median(values), 3) for name, values in durations.items()}
    print(json.dumps({"median seconds": results, **describe_environment(torch.device("cpu"))}, indent=1))


main()
