"""AVP on the toy data of its paper: seven ways to select weights, four learning rates, ten seeds.

Run: python benchmarks/avp_gaussians.py --out benchmarks/records/avp_gaussians.jsonl --jobs 16
     python benchmarks/avp_gaussians.py --out benchmarks/records/avp_gaussians.jsonl --table

Data, network and training length are those of the claims avp/gaussians-*. For each dataset and seed one network is
overfitted, from which all arms and rates start. The accuracy on clean test points and the fraction of wrong training
labels that the network predicts ("obeyed") are recorded after each epoch, and not used for selection. The epoch, and
the rate of the last table, are selected on the clean validation split. Arms that do not prune permanently are evaluated
at the epochs at which the others should reach a sparsity. Each run is appended as a record, and existing records are
not run again. All runs take about 40 minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load as unpack
from safetensors.torch import save as pack
from torch import Tensor, nn

from spurless.bench.claims.avp import NET, OVERFIT
from spurless.core.records import Record, append_record, read_records
from spurless.data import Splits, load
from spurless.data.loader import Loader, sequential_order
from spurless.fitting import fit
from spurless.fitting.assess import describe_data, describe_environment, describe_model
from spurless.methods._prune_loop import Pruned, PruningConfig, prune_and_train
from spurless.methods.avp import AVP, AVP_GAUSSIANS, AVPConfig
from spurless.methods.base import Info
from spurless.methods.prune_baselines import PRUNE_GAUSSIANS, MagnitudePrune, RandomPrune
from spurless.metrics.intervals import compare_paired, over_seeds
from spurless.metrics.variability import variability
from spurless.models import Classifier, build
from spurless.models.pruning.masks import get_weight_masks
from spurless.train.config import TrainConfig
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Compute, Run, make_run

SETS = ("biased", "unbiased")
RATES = (0.001, 0.003, 0.01, 0.03)
SPARSITIES = (0.25, 0.5, 0.75, 0.9)
CHECKPOINTS = ("validated", *(f"{sparsity:.0%} zeros" for sparsity in SPARSITIES), "last")
METRIC_TITLES = {"average": "clean test accuracy", "obeyed": "wrong labels obeyed", "sparsity": "zeros"}
WIDTH = 17
MAX_CURVE_POINTS = 30
"""of a curve in a record"""
CPU = Compute("cpu")


class HighestFirst:
    """AVP with the reverse order: it should do harm if low variability indicates spurious weights."""

    info: ClassVar[Info] = Info(
        "highest-first", "none", "prune the weights whose contribution varies most", val_labels=True, start="trained"
    )
    presets: ClassVar[Mapping[str, AVPConfig]] = {"gaussians": AVP_GAUSSIANS}

    def __init__(self, config: AVPConfig = AVP_GAUSSIANS) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Alternate between pruning, the highest variability first, and training."""
        loader = Loader(data.train, sequential_order(len(data.train)), EVALUATION_BATCH)

        def score(network: Classifier, _: int) -> Mapping[str, Tensor]:
            scores = variability(network, (batch.x for batch in loader.batches()), self.config.reading)
            return {name: torch.where(values > 0, -values, math.inf) for name, values in scores.items()}

        return prune_and_train(model, data, run, self.config, score)


Arm = Callable[[float, int], AVP | HighestFirst | RandomPrune | MagnitudePrune]
"""Maps a learning rate and a number of epochs to a method."""


def _avp(**options: Any) -> Arm:
    return lambda lr, epochs: AVP(replace(AVP_GAUSSIANS, lr=lr, epochs=epochs, **options))


def _baseline(kind: type[RandomPrune] | type[MagnitudePrune], **options: Any) -> Arm:
    return lambda lr, epochs: kind(replace(PRUNE_GAUSSIANS, lr=lr, epochs=epochs, **options))


ARMS: dict[str, Arm] = {
    "AVP": _avp(),
    "AVP, min-max": _avp(reading="minmax"),
    "AVP, highest first": lambda lr, epochs: HighestFirst(replace(AVP_GAUSSIANS, lr=lr, epochs=epochs)),
    "AVP, free to regrow": _avp(regrow=True),
    "random": _baseline(RandomPrune),
    "magnitude": _baseline(MagnitudePrune),
    "no pruning": _baseline(RandomPrune, probability=0.0),
}
BASELINES = ("random", "magnitude", "no pruning", "AVP, highest first")


@dataclass(frozen=True)
class Task:
    """One run of an arm."""

    kind: str
    seed: int
    arm: str
    rate: float
    epochs: int

    @property
    def cell(self) -> str:
        """The ``cell`` of the record."""
        return f"{self.kind}, {self.arm}, rate {self.rate:g}"


@dataclass
class MetricHistory:
    """The selection criterion of a run (validation accuracy), which also records the other metrics."""

    data: Splits
    rows: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        train = self.data.train
        wrong = train.select(train.a == 1)
        self.parts = {"val": self.data.val, "average": self.data.test, "obeyed": wrong}
        self.x = torch.cat([part.prepare(part.x) for part in self.parts.values()])  # type: ignore[arg-type, misc]  # tensors
        self.y = torch.cat([part.y for part in self.parts.values()])

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        """Compute all three metrics in one forward pass (no dropout, no norm layers), and return that of val."""
        correct = (model(self.x).argmax(dim=1) == self.y).double()
        fractions = correct.split([len(part) for part in self.parts.values()])
        self.rows.append({name: float(values.mean()) for name, values in zip(self.parts, fractions, strict=True)})
        return self.rows[-1]["val"]


def train_overfitted(kind: str, seed: int) -> bytes:
    """Return the weights of the overfitted network from which all arms of a dataset and seed start."""
    data = load("gaussians", biased=kind == "biased", seed=seed)
    model = build("mlp", data, seed=seed, **NET)
    return pack(fit("erm", model, data, seed=seed, train=OVERFIT, compute=CPU).model.state_dict())


def prune(task: Task, weights: bytes) -> Record:
    """Run one arm from the overfitted network, and return its record."""
    data = load("gaussians", biased=task.kind == "biased", seed=task.seed)
    model = build("mlp", data, seed=task.seed, **NET)
    model.load_state_dict(unpack(weights))
    model.trained = True
    history, initial = MetricHistory(data), MetricHistory(data)
    initial(model)
    method = ARMS[task.arm](task.rate, task.epochs)
    run = replace(make_run(CPU, task.seed, TrainConfig(**OVERFIT)), score=history)
    total = sum(mask.numel() for mask in get_weight_masks(model).values())
    fitted = method.fit(model, data.visible(train_attributes=False, val_labels=False, val_attributes=False), run)
    pruned = run.explanation
    if not isinstance(pruned, Pruned):
        raise TypeError("run.explanation is not a Pruned")
    rows = [{**row, "epoch": n, "sparsity": pruned.curve[n - 1]} for n, row in enumerate(history.rows, 1)]
    metrics: dict[str, float | None] = {f"start {name}": value for name, value in initial.rows[0].items()}
    for checkpoint, row in _select_checkpoints(rows, pruned.epoch, method.config, total):
        for name in ("epoch", "sparsity", *history.parts):
            metrics[f"{checkpoint} {name}"] = None if row is None else row[name]
    interval = max(1, len(rows) // MAX_CURVE_POINTS)
    return Record(
        method=method.info.name,
        seed=task.seed,
        data=describe_data(data, data.fingerprint()),
        model=describe_model(fitted),
        config=asdict(method.config),
        train=asdict(run.train),
        supervision={"train_attributes": False, "val_labels": True, "val_attributes": False},
        selection="val-average",
        groups=(),
        metrics=metrics,
        seconds=run.seconds,
        history=tuple({k: round(v, 4) for k, v in row.items()} for row in rows if row["epoch"] % interval == 0),
        cell=task.cell,
        **describe_environment(torch.device("cpu")),
    )


def _select_checkpoints(
    rows: Sequence[dict[str, float]], selected: int, config: PruningConfig, total: int
) -> Iterator[tuple[str, dict[str, float] | None]]:
    """Yield the compared epochs by name; None if a sparsity was never reached."""
    yield "validated", rows[selected - 1]
    for sparsity, checkpoint in zip(SPARSITIES, CHECKPOINTS[1:-1], strict=True):
        if config.regrow or config.probability == 0:
            planned_epoch = math.ceil(sparsity * total / (AVP_GAUSSIANS.candidates * AVP_GAUSSIANS.probability))
            yield checkpoint, rows[planned_epoch - 1] if planned_epoch <= len(rows) else None
        else:
            yield checkpoint, next((row for row in rows if row["sparsity"] >= sparsity), None)
    yield "last", rows[-1]


def run_tasks(tasks: Sequence[Task], jobs: int, out: Path) -> None:
    """Train the overfitted networks, run the tasks in parallel, and append the records in this process."""
    os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the worker processes
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        starts = sorted({(task.kind, task.seed) for task in tasks})
        weights = (
            dict(zip(starts, pool.map(train_overfitted, *zip(*starts, strict=True)), strict=True)) if starts else {}
        )
        futures = [pool.submit(prune, task, weights[task.kind, task.seed]) for task in tasks]
        for count, future in enumerate(as_completed(futures), 1):
            record = future.result()
            append_record(out, record)
            if count % 20 == 0 or count == len(tasks):
                print(f"{count} of {len(tasks)}: {record.cell}, seed {record.seed}", flush=True)


Results = Mapping[tuple[str, str, float], Mapping[int, Record]]
"""Records by seed, by dataset, arm and rate."""


def table(records: Sequence[Record]) -> str:
    """Return a table in percent, with 95 % intervals over seeds, of every arm and of AVP minus each baseline."""
    results: dict[tuple[str, str, float], dict[int, Record]] = {}
    for record in records:
        kind, rest = record.cell.split(", ", 1)
        arm, rate_text = rest.rsplit(", rate ", 1)
        results.setdefault((kind, arm, float(rate_text)), {})[record.seed] = record
    lines: list[str] = []
    for kind in SETS:
        for rate in sorted({key[2] for key in results if key[0] == kind}):
            chosen = {arm: rate for arm in ARMS if (kind, arm, rate) in results}
            lines += ["", f"{kind} wrong labels, rate {rate:g}", *_format_block(results, kind, chosen, ("average",))]
        best = _best_rates(results, kind)
        if best:
            lines += ["", f"{kind} wrong labels, each at its best rate on validation"]
            lines += [f"  {arm:<26}{rate:g}" for arm, rate in best.items()]
            lines += _format_block(results, kind, best, tuple(METRIC_TITLES))
    return "\n".join(lines[1:])


def _best_rates(results: Results, kind: str) -> dict[str, float]:
    """Return the rate of each arm with the best validation accuracy at the selected epochs."""

    def val(arm: str, rate: float) -> float:
        return over_seeds([r.metrics["validated val"] or 0.0 for r in results[kind, arm, rate].values()]).mean

    rates = {arm: [rate for rate in RATES if (kind, arm, rate) in results] for arm in ARMS}
    return {arm: max(candidates, key=lambda rate: val(arm, rate)) for arm, candidates in rates.items() if candidates}


def _format_block(results: Results, kind: str, rates: Mapping[str, float], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f"{METRIC_TITLES[name]:<28}" + "".join(f"{checkpoint:>{WIDTH}}" for checkpoint in CHECKPOINTS)
        for arm, rate in rates.items():
            cells = (_format_mean(_values(results[kind, arm, rate], checkpoint, name)) for checkpoint in CHECKPOINTS)
            yield f"  {arm:<26}" + "".join(f"{cell:>{WIDTH}}" for cell in cells)
    yield "AVP minus the baselines, percentage points of accuracy"
    for baseline in BASELINES:
        if baseline not in rates or "AVP" not in rates:
            continue
        ours, theirs = results[kind, "AVP", rates["AVP"]], results[kind, baseline, rates[baseline]]
        cells = (
            _format_difference(*(_values(records, checkpoint, "average") for records in (ours, theirs)))
            for checkpoint in CHECKPOINTS
        )
        yield f"  - {baseline:<24}" + "".join(f"{cell:>{WIDTH}}" for cell in cells)


def _values(records: Mapping[int, Record], checkpoint: str, name: str) -> dict[int, float]:
    """Return percentages by seed, without runs that never reached the sparsity."""
    metrics = {seed: record.metrics[f"{checkpoint} {name}"] for seed, record in records.items()}
    return {seed: 100 * value for seed, value in sorted(metrics.items()) if value is not None}


def _format_mean(values: Mapping[int, float]) -> str:
    if not values:
        return "never"
    summary = over_seeds(list(values.values()))
    return f"{summary.mean:.1f} +-{summary.high - summary.mean:.1f} ({summary.n})"


def _format_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        return "never"
    summary = compare_paired([ours[seed] for seed in shared], [theirs[seed] for seed in shared])
    return f"{summary.difference:+.1f} +-{summary.high - summary.difference:.1f} ({summary.n})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file to append records to")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=AVP_GAUSSIANS.epochs, help="number of epochs of pruning")
    parser.add_argument("--arms", nargs="*", default=tuple(ARMS), choices=tuple(ARMS))
    parser.add_argument("--rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, with one thread each")
    parser.add_argument("--table", action="store_true", help="only print the table of the records in --out")
    args = parser.parse_args()
    done = {(record.cell, record.seed) for record in read_records(args.out)} if args.out.exists() else set()
    seeds = range(args.seed, args.seed + args.seeds)
    tasks = [
        Task(kind, seed, arm, rate, args.epochs)
        for seed, kind, arm, rate in product(seeds, SETS, args.arms, args.rates)
    ]
    remaining = [task for task in tasks if (task.cell, task.seed) not in done]
    if remaining and not args.table:
        run_tasks(remaining, args.jobs, args.out)
    print(table(read_records(args.out)))


if __name__ == "__main__":
    main()
