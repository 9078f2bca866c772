"""Check that a refactoring changes no number: hash the weights of a short seeded run of every method.

Run it in each of two source trees, with the same interpreter, and compare:

    PYTHONPATH=old/src python benchmarks/same_weights.py --out old.json
    PYTHONPATH=new/src python benchmarks/same_weights.py --out new.json --compare old.json

Only the public API that both trees share is used, so that one file serves both. The same with other numbers of CPU
threads checks that they change nothing, unless they are a setting of the run, which changes its key:

    for N in 1 2 4; do OMP_NUM_THREADS=$N python benchmarks/same_weights.py --threads $N --out $N.json; done
    python benchmarks/same_weights.py --merge 1.json 2.json 4.json --record benchmarks/records/thread_counts.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import warnings
from os import environ
from pathlib import Path
from typing import Any

HEAD = {"epochs": 2, "batches": 4}
PRUNE = {"epochs": 3}
MASK = {"prune_steps": 4, "prune_lr": 0.5, "steps": 4, "batch_size": 16}
OPTIONS: dict[str, dict[str, Any]] = {
    "jtt": {"first_epochs": 1},
    "dfr": {"refits": 2, "strengths": (1.0,)},
    "class-balanced-head": HEAD,
    "jtt-head": HEAD,
    "self": {"n": 100, **HEAD},
    "neurontune": HEAD,
    "afr": {"steps": 5},
    "mrm": MASK,
    "avp": PRUNE,
    "random-prune": PRUNE,
    "magnitude-prune": PRUNE,
    "transplant": {"properties": ("the frame",), "epochs": 1},
    "dcwp": {"mining": {"steps": 4, "batch_size": 16}, "lr": 0.1, **MASK},
}
"""Options that keep each run short."""
RENAMED = {"watched-erm": "erm-loss-ratio"}
"""Old names of methods, to compare them with the new ones."""


def weights_hash(model: Any) -> str:
    """Return the SHA-256 of all parameters and buffers, in order."""
    sha = hashlib.sha256()
    for tensor in (*model.parameters(), *model.buffers()):
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def hash_all(threads: int) -> dict[str, str]:
    """Return the hash of the weights of every method, by the method's name."""
    import torch

    import spurless as sp
    from spurless.methods import METHODS

    torch.set_num_threads(threads)
    data = sp.load("patched-digits", conflicting=0.05, seed=0)
    hashes = {}
    for name in METHODS:
        train = {"epochs": 2, "batch_size": 64}
        options = dict(OPTIONS.get(name, {}))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                fitted = sp.fit(name, sp.build("small-cnn", data, seed=0), data, seed=0, train=train, **options)
            except sp.SpurlessError as error:
                print(f"{name}: {error}")
                continue
        hashes[RENAMED.get(name, name)] = weights_hash(fitted.model)
        print(f"{name}: {hashes[RENAMED.get(name, name)][:16]}", flush=True)
    return hashes


def merge(files: list[Path], record: Path) -> None:
    """Write which methods have the same weights in all files."""
    import torch

    from spurless.fitting.assess import describe_environment

    runs = {file.stem: json.loads(file.read_text()) for file in files}
    names = sorted(set().union(*runs.values()))
    different = [name for name in names if len({hashes.get(name) for hashes in runs.values()}) > 1]
    content = {
        "settings": {"threads of the process": list(runs), "data": "patched-digits", "model": "small-cnn", "epochs": 2},
        "results": {"methods": len(names), "bit-identical": len(names) - len(different), "different": different},
        "weights": {name: next(iter(runs.values()))[name] for name in names if name not in different},
    }
    record.write_text(json.dumps(content | describe_environment(torch.device("cpu")), indent=1) + "\n")
    print(f"{len(names) - len(different)} of {len(names)} methods have the same weights with {', '.join(runs)} threads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write the hashes to")
    parser.add_argument("--compare", type=Path, help="JSON file of another tree to compare with")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of this process, outside of runs")
    parser.add_argument("--merge", type=Path, nargs="+", help="only compare the files of several numbers of threads")
    parser.add_argument("--record", type=Path, help="JSON file for the comparison")
    args = parser.parse_args()
    if args.merge:
        merge(args.merge, args.record)
        return
    with tempfile.TemporaryDirectory() as cache:
        environ["SPURLESS_CACHE"] = cache  # so that no starting point of another tree is reused
        hashes = hash_all(args.threads)
    if args.out:
        args.out.write_text(json.dumps(hashes, indent=2) + "\n")
    if args.compare:
        other = json.loads(args.compare.read_text())
        different = sorted(name for name in hashes.keys() | other.keys() if hashes.get(name) != other.get(name))
        print(f"{len(hashes) - len(different)} of {len(hashes)} methods have bit-identical weights")
        if different:
            raise SystemExit(f"different: {', '.join(different)}")


if __name__ == "__main__":
    main()
