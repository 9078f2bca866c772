"""Kill commands at random moments until they end, and check that nothing is lost, torn or different.

    python benchmarks/kills.py --kills 500 --out benchmarks/records/kills.json

A command is started again in the same folder after every signal, until it ends; then its records and weights are
compared with those of a run that was not interrupted, and the next command starts in an empty folder. After every
signal, each record that was complete before must still be there, and every other output must be absent or complete.
The commands run in children that are forked from a process that has imported everything, so that signals meet the work
and not the imports.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
STATUSES = {"SIGKILL": (-signal.SIGKILL,), "SIGTERM": (128 + signal.SIGTERM, -signal.SIGTERM)}
"""Exit statuses; a negative one means that the signal came before or after the command."""
DATA = ("--data", "patched-digits", "--device", "cpu", "--quiet")
TRAIN = ("--model", "mlp", "--steps", "30", "--batch-size", "64")
PLAN = """
methods = ["erm", "group-dro", "focal"]
datasets = ["patched-digits"]
model = "mlp"
seeds = 1
train = { steps = 20, batch_size = 64 }
"""
AUDITS = [word for name in ("group-gap", "worst-class", "biased-neurons", "suspects") for word in ("--only", name)]
COMMANDS: dict[str, tuple[str, ...]] = {
    "fit": ("fit", "afr", *DATA, *TRAIN, "-M", "steps=50", "--out", "runs"),
    "bench": ("bench", "plan.toml", "--device", "cpu", "--quiet", "--out", "runs"),
    "sweep": ("sweep", "--over", "lr=0.01,0.05", "--seeds", "1", *DATA, *TRAIN, "--keep", "weights", "--out", "runs"),
    "audit": ("audit", "given.safetensors", *DATA, "--permutations", "99", *AUDITS),
    "fix": ("fix", "given.safetensors", *DATA, "--method", "afr", "--records", "runs/records.jsonl"),
}
IMPORTS = (
    *(
        f"spurless.{name}"
        for name in ("cli", "fitting", "auditing", "fixing", "bench.sweep", "bench.plan", "reporting")
    ),
    *("lightning.fabric", "sklearn.linear_model", "sklearn.cluster", "scipy.stats", "scipy.optimize"),
    *("rich.table", "rich.console", "safetensors.torch", "jinja2", "captum.attr", "threadpoolctl"),
)
TIMES = ("seconds", "time", "command", "commit")  # of a record or an audit, which differ between equal runs
SAVE_EVERY = 0.05  # seconds between two checkpoints, instead of 30


def start(words: Sequence[str], folder: Path) -> int:
    """Start the command line in a forked child and return its process id."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        return child
    status = 70
    try:
        os.chdir(folder)
        os.environ["SPURLESS_CACHE"] = str(folder / "cache")
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"std{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.argv = ["spurless", *words]
        os.write(writing, b".")
        os.close(writing)
        importlib.import_module("spurless.cli").main()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(status)


def wait(child: int) -> int:
    """Return the exit status of a child, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def read_lines(folder: Path) -> list[str]:
    """Return the complete lines of the records file."""
    path = folder / "runs" / "records.jsonl"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def without_times(value: Any) -> Any:
    """Return JSON without what differs between equal runs."""
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in TIMES}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def result_of(folder: Path) -> dict[str, Any]:
    """Return what a finished command left: records, weights and reports, without times."""
    records = sorted(json.dumps(without_times(json.loads(line)), sort_keys=True) for line in read_lines(folder))
    weights = {str(path.relative_to(folder)): hash_weights(path) for path in folder.rglob("*.safetensors")}
    weights = {name: digest for name, digest in weights.items() if not name.startswith("cache/")}
    reports = {path.name: without_times(json.loads(path.read_text())) for path in folder.glob("*.json")}
    return {"records": records, "weights": weights, "reports": reports}


def hash_weights(path: Path) -> str:
    """Return the SHA-256 of the tensors of a file, or "torn"."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError:
        return "torn"
    digest = sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def find_damage(folder: Path, before: Sequence[str], reference: dict[str, Any]) -> list[str]:
    """Return what an interrupted command lost or left incomplete."""
    damage = []
    lines = read_lines(folder)
    if lines[: len(before)] != list(before):
        damage.append("a record was lost")
    for line in lines:
        try:
            json.loads(line)
        except ValueError:
            damage.append("a record is torn")
    for path in folder.rglob("*.safetensors"):
        name = str(path.relative_to(folder))
        if name in reference["weights"] and hash_weights(path) != reference["weights"][name]:
            damage.append(f"{name} is torn or different")
    for path in folder.glob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            damage.append(f"{path.name} is torn")
    errors = (folder / "stderr").read_text() if (folder / "stderr").exists() else ""
    return damage + ["a traceback was printed"] * ("Traceback" in errors)


def left_over(folder: Path) -> list[str]:
    """Return checkpoints and incomplete files, of which a finished command leaves none."""
    patterns = ("runs/checkpoints/**/*.pt", "runs/**/*.tmp", "weights/*.tmp", "*.tmp")
    return [str(path.relative_to(folder)) for pattern in patterns for path in folder.glob(pattern)]


def prepare(folder: Path, weights: Path | None) -> Path:
    """Make an empty folder for a command, with its inputs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "plan.toml").write_text(PLAN)
    if weights is not None:
        shutil.copy(weights, folder / "given.safetensors")
    return folder


def run_chain(
    name: str, folder: Path, seconds: float, reference: dict[str, Any], moments: random.Random, signals: Sequence[str]
) -> Counter[str]:
    """Start a command and kill it by these signals, one after another; then let it end, and compare the result."""
    counts: Counter[str] = Counter()
    sent = 0
    while True:
        before = read_lines(folder)
        child = start(COMMANDS[name], folder)
        if sent < len(signals):
            which = signals[sent]
            time.sleep(moments.uniform(0, seconds))
            os.kill(child, SIGNALS[which])
        status = wait(child)
        interrupted = status != 0
        if interrupted:
            if sent >= len(signals):
                counts[f"failed: {(folder / 'stderr').read_text().strip()[-200:]}"] += 1
                return counts
            sent += 1
            counts[which] += 1
            counts[f"{which}, status {status}"] += 1
            counts[f"damage: status {status} after {which}"] += status not in STATUSES[which]
        for damage in find_damage(folder, before, reference):
            counts[f"damage: {damage}"] += 1
        if not interrupted:
            break
    counts["ended"] += 1
    result = result_of(folder)
    for part, content in reference.items():
        counts[f"damage: {part} differ from an uninterrupted run"] += result[part] != content
    counts["files left over"] += len(left_over(folder))
    return counts


def run_campaign(
    kills: int, commands: Sequence[str], signals: Sequence[str], seed: int, most_seconds: float
) -> dict[str, Any]:
    """Send this many signals in total, and return the counts by command."""
    for module in IMPORTS:
        importlib.import_module(module)
    import torch

    from spurless.train.checkpoint import Checkpoints

    torch.set_num_threads(1)
    set_save_interval(Checkpoints)
    moments, begin = random.Random(seed), time.monotonic()
    totals: dict[str, Counter[str]] = {name: Counter() for name in commands}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        weights = make_weights(root)
        durations, references = {}, {}
        for name in commands:
            folder, at = prepare(root / name, weights), time.monotonic()
            if status := wait(start(COMMANDS[name], folder)):
                raise RuntimeError(f"{name} ended with status {status}: {(folder / 'stderr').read_text()}")
            durations[name], references[name] = time.monotonic() - at, result_of(folder)
        n_sent = 0
        while n_sent < kills and time.monotonic() - begin < most_seconds:
            name = min(commands, key=lambda name: sum(totals[name][which] for which in SIGNALS))
            chosen = moments.choices(signals, k=min(kills - n_sent, moments.randint(1, 8)))
            folder = prepare(root / name, weights)
            counts = run_chain(name, folder, durations[name], references[name], moments, chosen)
            totals[name] += counts
            n_sent += sum(counts[which] for which in SIGNALS)
            print(f"{n_sent} signals, {name}: {dict(+counts)}", flush=True)
    return {name: dict(sorted((+counts).items())) for name, counts in totals.items()}


def set_save_interval(checkpoints: Any) -> None:
    """Save checkpoints often enough for runs of a second."""
    is_due = checkpoints.is_due

    def is_due_soon(self: Any, stage: str) -> bool:
        self.seconds = SAVE_EVERY
        return bool(is_due(self, stage))

    checkpoints.is_due = is_due_soon


def make_weights(root: Path) -> Path:
    """Train the model that is audited and repaired."""
    folder = prepare(root / "given", None)
    if status := wait(start(("fit", "erm", *DATA, "--model", "mlp", "--steps", "170"), folder)):
        raise RuntimeError(f"training ended with status {status}: {(folder / 'stderr').read_text()}")
    (weights,) = (folder / "runs").glob("*.safetensors")
    return Path(shutil.copy(weights, root / "given.safetensors"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="number of signals in total")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--signals", nargs="+", default=list(SIGNALS), choices=list(SIGNALS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="start no command after this time")
    parser.add_argument("--out", type=Path, help="JSON file for the counts")
    args = parser.parse_args()
    results = run_campaign(args.kills, args.commands, args.signals, args.seed, 60 * args.minutes)
    sent = {which: sum(counts.get(which, 0) for counts in results.values()) for which in SIGNALS}
    problems = {
        name: bad
        for name, counts in results.items()
        if (bad := {key: n for key, n in counts.items() if key.startswith(("damage", "failed"))})
    }
    print(f"{sum(sent.values())} signals, problems: {problems or 'none'}")
    if args.out:
        import torch

        from spurless.fitting.assess import describe_environment

        settings = {"signals": args.kills, "seed": args.seed, "data": "patched-digits", "save_every": SAVE_EVERY}
        content = {"settings": settings, "sent": sent, "problems": problems, "results": results}
        args.out.write_text(json.dumps(content | describe_environment(torch.device("cpu")), indent=1) + "\n")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
