"""Check that a refactoring changes no number: hash the weights of a short seeded run of every method.

Run it in each of two source trees, with the same interpreter, and compare:

    PYTHONPATH=old/src python benchmarks/same_weights.py --out old.json
    PYTHONPATH=new/src python benchmarks/same_weights.py --out new.json --compare old.json

Only the public API that both trees share is used, so that one file serves both.
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


def hash_all() -> dict[str, str]:
    """Return the hash of the weights of every method, by the method's name."""
    import torch

    import spurless as sp
    from spurless.methods import METHODS

    torch.set_num_threads(1)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write the hashes to")
    parser.add_argument("--compare", type=Path, help="JSON file of another tree to compare with")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        environ["SPURLESS_CACHE"] = cache  # so that no starting point of another tree is reused
        hashes = hash_all()
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
