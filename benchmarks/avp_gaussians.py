"""Where AVP's claim holds on its toy: seven ways to choose weights, four rates, ten seeds, along the whole of pruning.

Run: python benchmarks/avp_gaussians.py --out benchmarks/records/avp_gaussians.jsonl --jobs 16
     python benchmarks/avp_gaussians.py --out benchmarks/records/avp_gaussians.jsonl --table

Data, network and length are those of the claims avp/gaussians-*. For every set and seed one network is overfitted, and
every arm and rate starts from it. After each epoch the share of clean test points that are told right, and of wrong
training labels that are obeyed, are written down; they choose nothing. The epoch that is kept, and the rate of the last
table, are chosen on the clean validation split. Arms that prune nothing for good are read at the epochs at which the
others should have the sparsity. Every run leaves a record; run again to go on where it was stopped. About 40 minutes
of one core in all.
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

from spurless.bench.assess import circumstances, describe_data, describe_model
from spurless.bench.claims.avp import NET, OVERFIT
from spurless.bench.fitting import fit
from spurless.core.records import Record, append, read
from spurless.data import Splits, load
from spurless.data.loader import Loader, in_order
from spurless.methods.avp import AVP, AVP_GAUSSIANS, AVPConfig
from spurless.methods.base import Info
from spurless.methods.prune_baselines import PRUNE_GAUSSIANS, MagnitudePrune, RandomPrune
from spurless.methods.pruning_loop import Pruned, PruningConfig, prune_and_train
from spurless.metrics.intervals import over_seeds, paired
from spurless.metrics.variability import variability
from spurless.models import Classifier, build
from spurless.models.masks import weight_masks
from spurless.train.config import TrainConfig
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Engine, Run, start

SETS = ("biased", "unbiased")
RATES = (0.001, 0.003, 0.01, 0.03)
SPARSITIES = (0.25, 0.5, 0.75, 0.9)
MOMENTS = ("validated", *(f"{share:.0%} zeros" for share in SPARSITIES), "last")
SAID = {"average": "clean test accuracy", "obeyed": "wrong labels obeyed", "sparsity": "zeros"}
WIDTH = 17
POINTS = 30
"""of a curve, in its record"""
CPU = Engine("cpu")


class HighestFirst:
    """AVP upside down: if a low variability marks what is spurious, this must do harm."""

    info: ClassVar[Info] = Info(
        "highest-first", "none", "prune the weights whose contribution varies most", val_labels=True, start="trained"
    )
    presets: ClassVar[Mapping[str, AVPConfig]] = {"gaussians": AVP_GAUSSIANS}

    def __init__(self, config: AVPConfig = AVP_GAUSSIANS) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Prune by variability, the highest first, and train, by turns."""
        loader = Loader(data.train, in_order(len(data.train)), EVALUATION_BATCH)

        def score(network: Classifier, _: int) -> Mapping[str, Tensor]:
            found = variability(network, (batch.x for batch in loader.batches()), self.config.reading)
            return {name: torch.where(each > 0, -each, math.inf) for name, each in found.items()}

        return prune_and_train(model, data, run, self.config, score)


Arm = Callable[[float, int], AVP | HighestFirst | RandomPrune | MagnitudePrune]
"""From rate and epochs to a method."""


def _avp(**options: Any) -> Arm:
    return lambda lr, epochs: AVP(replace(AVP_GAUSSIANS, lr=lr, epochs=epochs, **options))


def _plain(kind: type[RandomPrune] | type[MagnitudePrune], **options: Any) -> Arm:
    return lambda lr, epochs: kind(replace(PRUNE_GAUSSIANS, lr=lr, epochs=epochs, **options))


ARMS: dict[str, Arm] = {
    "AVP": _avp(),
    "AVP, min-max": _avp(reading="minmax"),
    "AVP, highest first": lambda lr, epochs: HighestFirst(replace(AVP_GAUSSIANS, lr=lr, epochs=epochs)),
    "AVP, free to regrow": _avp(regrow=True),
    "random": _plain(RandomPrune),
    "magnitude": _plain(MagnitudePrune),
    "no pruning": _plain(RandomPrune, probability=0.0),
}
RIVALS = ("random", "magnitude", "no pruning", "AVP, highest first")


@dataclass(frozen=True)
class Task:
    """One run."""

    kind: str
    seed: int
    arm: str
    rate: float
    epochs: int

    @property
    def cell(self) -> str:
        """What its record is called."""
        return f"{self.kind}, {self.arm}, rate {self.rate:g}"


@dataclass
class Watch:
    """The criterion of a run, the share of val that is right; beside it, test and obedience are written down."""

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
        """Look at all three in one pass (the network has no dropout and no norm), and return val alone."""
        right = (model(self.x).argmax(dim=1) == self.y).double()
        shares = right.split([len(part) for part in self.parts.values()])
        self.rows.append({name: float(share.mean()) for name, share in zip(self.parts, shares, strict=True)})
        return self.rows[-1]["val"]


def overfit(kind: str, seed: int) -> bytes:
    """Train the network that all arms of a set and seed start from; return its weights."""
    data = load("gaussians", biased=kind == "biased", seed=seed)
    model = build("mlp", data, seed=seed, **NET)
    return pack(fit("erm", model, data, seed=seed, train=OVERFIT, engine=CPU).model.state_dict())


def prune(task: Task, weights: bytes) -> Record:
    """Run one arm from the overfitted network, and write down how it went."""
    data = load("gaussians", biased=task.kind == "biased", seed=task.seed)
    model = build("mlp", data, seed=task.seed, **NET)
    model.load_state_dict(unpack(weights))
    model.trained = True
    watch, first = Watch(data), Watch(data)
    first(model)
    method = ARMS[task.arm](task.rate, task.epochs)
    run = start(CPU, task.seed, TrainConfig(**OVERFIT))
    run.score = watch
    total = sum(mask.numel() for mask in weight_masks(model).values())
    fitted = method.fit(model, data.shown(train_attributes=False, val_labels=False, val_attributes=False), run)
    found = run.explanation
    if not isinstance(found, Pruned):
        raise TypeError("a pruning loop leaves with the run how it went")
    rows = [{**row, "epoch": n, "sparsity": found.curve[n - 1]} for n, row in enumerate(watch.rows, 1)]
    metrics: dict[str, float | None] = {f"start {name}": value for name, value in first.rows[0].items()}
    for moment, row in _moments(rows, found.epoch, method.config, total):
        for name in ("epoch", "sparsity", *watch.parts):
            metrics[f"{moment} {name}"] = None if row is None else row[name]
    every = max(1, len(rows) // POINTS)
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
        history=tuple({k: round(v, 4) for k, v in row.items()} for row in rows if row["epoch"] % every == 0),
        cell=task.cell,
        **circumstances(torch.device("cpu")),
    )


def _moments(
    rows: Sequence[dict[str, float]], kept: int, config: PruningConfig, total: int
) -> Iterator[tuple[str, dict[str, float] | None]]:
    """Yield the epochs that are compared, by name; None where a sparsity was never reached."""
    yield "validated", rows[kept - 1]
    for share, moment in zip(SPARSITIES, MOMENTS[1:-1], strict=True):
        if config.regrow or config.probability == 0:
            planned = math.ceil(share * total / (AVP_GAUSSIANS.candidates * AVP_GAUSSIANS.probability))
            yield moment, rows[planned - 1] if planned <= len(rows) else None
        else:
            yield moment, next((row for row in rows if row["sparsity"] >= share), None)
    yield "last", rows[-1]


def study(tasks: Sequence[Task], jobs: int, out: Path) -> None:
    """Overfit what is needed, then run the tasks, so many at a time; only this process writes."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are about to start
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        wanted = sorted({(task.kind, task.seed) for task in tasks})
        started = dict(zip(wanted, pool.map(overfit, *zip(*wanted, strict=True)), strict=True)) if wanted else {}
        waiting = [pool.submit(prune, task, started[task.kind, task.seed]) for task in tasks]
        for count, done in enumerate(as_completed(waiting), 1):
            record = done.result()
            append(out, record)
            if count % 20 == 0 or count == len(tasks):
                print(f"{count} of {len(tasks)}: {record.cell}, seed {record.seed}", flush=True)


Numbers = Mapping[tuple[str, str, float], Mapping[int, Record]]
"""Of a set, an arm and a rate: the record of every seed."""


def table(records: Sequence[Record]) -> str:
    """Say in percent, with 95 % intervals over seeds, what every arm comes to, and AVP less its rivals."""
    found: dict[tuple[str, str, float], dict[int, Record]] = {}
    for record in records:
        kind, rest = record.cell.split(", ", 1)
        arm, said = rest.rsplit(", rate ", 1)
        found.setdefault((kind, arm, float(said)), {})[record.seed] = record
    lines: list[str] = []
    for kind in SETS:
        for rate in sorted({key[2] for key in found if key[0] == kind}):
            chosen = {arm: rate for arm in ARMS if (kind, arm, rate) in found}
            lines += ["", f"{kind} wrong labels, rate {rate:g}", *_block(found, kind, chosen, ("average",))]
        best = _best_rates(found, kind)
        if best:
            lines += ["", f"{kind} wrong labels, each at its best rate on validation"]
            lines += [f"  {arm:<26}{rate:g}" for arm, rate in best.items()]
            lines += _block(found, kind, best, tuple(SAID))
    return "\n".join(lines[1:])


def _best_rates(found: Numbers, kind: str) -> dict[str, float]:
    """Choose the rate of every arm by the validation accuracy of the epochs that were kept."""

    def val(arm: str, rate: float) -> float:
        return over_seeds([r.metrics["validated val"] or 0.0 for r in found[kind, arm, rate].values()]).mean

    rates = {arm: [rate for rate in RATES if (kind, arm, rate) in found] for arm in ARMS}
    return {arm: max(some, key=lambda rate: val(arm, rate)) for arm, some in rates.items() if some}


def _block(found: Numbers, kind: str, rates: Mapping[str, float], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f"{SAID[name]:<28}" + "".join(f"{moment:>{WIDTH}}" for moment in MOMENTS)
        for arm, rate in rates.items():
            cells = (_spread(_values(found[kind, arm, rate], moment, name)) for moment in MOMENTS)
            yield f"  {arm:<26}" + "".join(f"{cell:>{WIDTH}}" for cell in cells)
    yield "AVP less its rivals, points of accuracy"
    for rival in RIVALS:
        if rival not in rates or "AVP" not in rates:
            continue
        ours, theirs = found[kind, "AVP", rates["AVP"]], found[kind, rival, rates[rival]]
        cells = (_difference(*(_values(each, moment, "average") for each in (ours, theirs))) for moment in MOMENTS)
        yield f"  - {rival:<24}" + "".join(f"{cell:>{WIDTH}}" for cell in cells)


def _values(records: Mapping[int, Record], moment: str, name: str) -> dict[int, float]:
    """Return percents by seed; runs that never came to that sparsity are left out."""
    metrics = {seed: record.metrics[f"{moment} {name}"] for seed, record in records.items()}
    return {seed: 100 * value for seed, value in sorted(metrics.items()) if value is not None}


def _spread(values: Mapping[int, float]) -> str:
    if not values:
        return "never"
    found = over_seeds(list(values.values()))
    return f"{found.mean:.1f} +-{found.high - found.mean:.1f} ({found.n})"


def _difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        return "never"
    found = paired([ours[seed] for seed in shared], [theirs[seed] for seed in shared])
    return f"{found.difference:+.1f} +-{found.high - found.difference:.1f} ({found.n})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="records are appended here")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=AVP_GAUSSIANS.epochs, help="fewer, to try things out")
    parser.add_argument("--arms", nargs="*", default=tuple(ARMS), choices=tuple(ARMS))
    parser.add_argument("--rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--table", action="store_true", help="only print the table of the records in --out")
    given = parser.parse_args()
    done = {(record.cell, record.seed) for record in read(given.out)} if given.out.exists() else set()
    seeds = range(given.seed, given.seed + given.seeds)
    tasks = [
        Task(kind, seed, arm, rate, given.epochs)
        for seed, kind, arm, rate in product(seeds, SETS, given.arms, given.rates)
    ]
    left = [task for task in tasks if (task.cell, task.seed) not in done]
    if left and not given.table:
        study(left, given.jobs, given.out)
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
