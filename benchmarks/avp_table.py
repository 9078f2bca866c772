"""Table 1 of the AVP paper on the data at hand: robust and average accuracy, clean and imperfect partitions.

Run: python benchmarks/avp_table.py --root DATA --out rates.jsonl --choose
     python benchmarks/avp_table.py --root DATA --out benchmarks/records/avp_table.jsonl --rates rates.jsonl --jobs 15

CelebA 10k stands for CelebA, with EfficientNet-Lite0 from ImageNet weights for ResNet-18; MNLI20k for MultiNLI, with
MiniLM for RoBERTa. All layers are trained, with the same optimiser, rate, batches and epochs in all arms; the rate is
constant, as in pruning. It is chosen on validation, for ERM with a seed that the table does not use (--choose). The
epoch is kept with the best robust accuracy on validation of the partition that a method is given, or the best average
where it is given none: those arms are the same on both partitions and are run once. Robust accuracy on test is that of
the worst group of label and attribute, whatever the partition. The last-epoch arms keep the sparsest network.

The imperfect partition of CelebA is that of GC-DRO. Its partition of MultiNLI tells nobody and nothing from no and
never, and of entailments with the former there are 5 in training here; so negation alone makes the two domains, as
dialect does in its partition of FDCL18. The paper prints neither rate nor sparsity: of texts half the weights are
pruned, of images the 90 % of the preset, both from the end of the first fifth of the epochs on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from spurless.bench.fitting import fit
from spurless.core.errors import SpurlessError
from spurless.core.records import Record, append, read
from spurless.data import Grouped, Splits, load
from spurless.data.partitions import Rule, as_celeba, by_attribute, imperfect
from spurless.metrics.intervals import over_seeds, paired
from spurless.models import build
from spurless.train.run import Engine

CHOOSING_SEED = 100
CHOOSING = "choosing"
PARTITIONS = ("clean", "imperfect")


@dataclass(frozen=True)
class Setting:
    """One dataset, its model, how long it is trained, and what an imperfect partition of it is."""

    model: str
    train: Mapping[str, Any]
    rates: tuple[float, ...]
    rule: Rule
    presets: str
    """what the authors' values for these data are called"""
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    target: float = 0.9
    """share of zeros at the end of pruning"""
    paper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """robust accuracy in the paper's table 1, on the data it stands for; of the first five arms"""


SETTINGS: dict[str, Setting] = {
    "celeba10k": Setting(
        "timm:tf_efficientnet_lite0",
        {"epochs": 15, "batch_size": 128, "optimiser": "adam", "weight_decay": 1e-4},  # batches of 128: the paper
        (1e-4, 3e-4, 1e-3),
        as_celeba,
        "celeba",
        {"augment": "flip", "size": 64},
        {"pretrained": True},
        paper={
            "clean": (40.14, 86.81, 88.19, 88.19, 88.75),
            "imperfect": (40.14, 44.17, 45.97, 45.97, 82.85),
        },
    ),
    "mnli20k": Setting(
        "transformers:minilm",
        {"epochs": 5, "batch_size": 64, "optimiser": "adamw", "weight_decay": 0.01},  # the paper: batches of 32
        (5e-5, 1e-4, 2e-4),
        by_attribute,
        "multinli",
        {"max_length": 64},
        target=0.5,
        paper={
            "clean": (70.84, 67.02, 75.14, 75.14, 77.82),
            "imperfect": (70.84, 67.26, 70.34, 70.34, 75.32),
        },
    ),
}


@dataclass(frozen=True)
class Arm:
    """A method; whether it is given the partition, has a preset for these data, prunes, and keeps the last epoch."""

    method: str
    groups: bool = True
    preset: bool = True
    prunes: bool = False
    last: bool = False


ARMS: dict[str, Arm] = {
    "ERM": Arm("erm", groups=False, preset=False),
    "resampling": Arm("group-resample", preset=False),
    "Group DRO (EG)": Arm("group-dro"),
    "Group DRO (greedy)": Arm("greedy-dro"),
    "GC-DRO": Arm("gc-dro"),
    "random pruning": Arm("random-prune", groups=False, prunes=True),
    "AVP": Arm("avp", groups=False, prunes=True),
    "random pruning, last epoch": Arm("random-prune", groups=False, prunes=True, last=True),
    "AVP, last epoch": Arm("avp", groups=False, prunes=True, last=True),
}
IN_PAPER = tuple(ARMS)[:5]
PAIRS = (
    *(("AVP", title) for title in (*IN_PAPER, "random pruning")),
    ("AVP, last epoch", "random pruning, last epoch"),
)


@dataclass(frozen=True)
class Task:
    """One run."""

    dataset: str
    partition: str
    arm: str
    seed: int
    lr: float
    cell: str

    @property
    def cost(self) -> int:
        """A rank: pruning is not captured and comes first, so that no process is left with it at the end."""
        return -int(ARMS[self.arm].prunes)


@dataclass(frozen=True)
class Place:
    """Where a run finds its data and does its arithmetic."""

    root: str
    device: str
    epochs: int | None = None
    few: int | None = None
    """take so many examples of every group only"""


@lru_cache(maxsize=2)
def data_of(dataset: str, seed: int, place: Place) -> Splits:
    """Read the data, as they are split by this seed."""
    data = load(dataset, seed=seed, root=place.root, **SETTINGS[dataset].data_options)
    if place.few is None:
        return data
    train, val, test = (_few(part, place.few) for part in (data.train, data.val, data.test))
    return replace(data, train=train, val=val, test=test)


def _few(split: Grouped, n: int) -> Grouped:
    groups = range(len(split.groups))
    return split.select(torch.cat([(split.g == group).nonzero().flatten()[:n] for group in groups]))


def run(task: Task, place: Place) -> Record:
    """Make one run."""
    os.environ["SPURLESS_DATA"] = place.root  # pretrained weights are looked for there
    torch.set_float32_matmul_precision("high")  # as convolutions do by themselves
    setting, arm = SETTINGS[task.dataset], ARMS[task.arm]
    data = data_of(task.dataset, task.seed, place)
    if task.partition == "imperfect":
        data = imperfect(data, setting.rule, seed=task.seed)
    train = {**setting.train, "lr": task.lr, "epochs": place.epochs or setting.train["epochs"]}
    record = fit(
        arm.method,
        build(setting.model, data, seed=task.seed, **setting.model_options),
        data,
        seed=task.seed,
        preset=_preset(arm, setting, task.partition),
        train=train,
        select="last" if arm.last else "val-worst-group" if arm.groups else "val-average",
        engine=Engine(place.device),
        **(_pruning(arm, setting, train["epochs"]) if arm.prunes else {}),
    ).record
    if task.partition == CHOOSING:  # its test numbers are for nobody to see
        record = replace(record, metrics={}, groups=())
    return replace(record, cell=task.cell)


def _preset(arm: Arm, setting: Setting, partition: str) -> str | None:
    """Return the authors' values; those of GC-DRO for texts are others on the clean partition. All prune as CelebA."""
    if not arm.preset:
        return None
    if arm.prunes:
        return "celeba"
    refined = arm.method == "gc-dro" and setting.presets == "multinli" and partition == "clean"
    return f"{setting.presets}-clean" if refined else setting.presets


def _pruning(arm: Arm, setting: Setting, epochs: int) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "start_epoch": epochs // 5,  # 10 of 50: the paper
        "target_sparsity": setting.target,
        "keep": "last" if arm.last else "validated",
    }


def choices(names: Sequence[str]) -> Iterator[Task]:
    """Return the runs by which the rate is chosen."""
    for name in names:
        for lr in SETTINGS[name].rates:
            yield Task(name, CHOOSING, "ERM", CHOOSING_SEED, lr, f"{name}, {CHOOSING}: rate {lr:g}")


def chosen(records: Sequence[Record], dataset: str) -> float:
    """Return the rate whose kept epoch is most often right on validation; no test number is looked at."""
    found = [record for record in records if record.cell.startswith(f"{dataset}, {CHOOSING}")]
    if not found:
        raise SystemExit(f"no rate was chosen for {dataset}: run --choose --data {dataset} first, or pass --lr")
    return float(max(found, key=on_validation).train["lr"])


def on_validation(record: Record) -> float:
    """Return what the criterion said of the epoch that was kept."""
    return max((float(row["score"]) for row in record.history if "score" in row), default=0.0)


def plan(given: Any) -> Iterator[Task]:
    """Return the runs of the table."""
    rates = {name: given.lr or chosen(read(given.rates), name) for name in given.data}
    for seed, name, title in product(range(given.seed, given.seed + given.seeds), given.data, given.arm):
        for partition in given.partition if ARMS[title].groups else ("any",):
            yield Task(name, partition, title, seed, rates[name], f"{name}, {partition}: {title}")


def study(tasks: Sequence[Task], place: Place, jobs: int, out: Path) -> None:
    """Make the runs, so many at a time; only this process writes. A run that fails leaves a hole in the table."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that are about to start
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(run, task, place): task for task in sorted(tasks, key=lambda task: task.cost)}
        for done in as_completed(waiting):
            task = waiting[done]
            try:
                record = done.result()
            except (SpurlessError, RuntimeError) as error:
                print(f"{task.cell}, seed {task.seed}: {error}", flush=True)
                continue
            append(out, record)
            found = f"validation {100 * on_validation(record):.1f}, {record.seconds['total']:.0f} s"
            print(f"{task.cell}, seed {task.seed}: {found}", flush=True)


Column = Mapping[int, Record]
"""The records of an arm, by seed."""


def table(records: Sequence[Record]) -> str:
    """Say robust and average accuracy in percent, with 95 % intervals over seeds, and AVP less its rivals."""
    cells: dict[str, dict[int, Record]] = {}
    for record in records:
        cells.setdefault(record.cell, {})[record.seed] = record
    lines: list[str] = []
    for name, partition in product(SETTINGS, PARTITIONS):
        found = {
            title: cells[cell]
            for title, arm in ARMS.items()
            if (cell := f"{name}, {partition if arm.groups else 'any'}: {title}") in cells
        }
        if found:
            lines += ["", *_block(name, partition, found)]
    return "\n".join(lines[1:])


def _block(name: str, partition: str, found: Mapping[str, Column]) -> Iterator[str]:
    paper = dict(zip(IN_PAPER, SETTINGS[name].paper[partition], strict=True))
    yield f"{f'{name}, {partition}':<46}{'robust':>14}{'average':>14}{'zeros':>7}{'seconds':>9}{'seeds':>7}{'paper':>8}"
    for title, column in found.items():
        robust, average = (_spread(_values(column, key)) for key in ("worst_group", "average"))
        zeros = over_seeds([_zeros(record) for record in column.values()]).mean
        seconds = over_seeds([record.seconds["total"] for record in column.values()]).mean
        said = f"{paper[title]:.2f}" if title in paper else "-"
        yield f"{title:<46}{robust:>14}{average:>14}{zeros:>6.0%}{seconds:>10.1f}{len(column):>7}{said:>8}"
    for ours, rival in PAIRS:
        if ours in found and rival in found:
            both = (_difference(found[ours], found[rival], key) for key in ("worst_group", "average"))
            yield f"{f'{ours} - {rival}':<46}" + "".join(f"{each:>14}" for each in both)


def _values(column: Column, key: str) -> dict[int, float]:
    return {seed: 100 * (record.metrics[key] or 0.0) for seed, record in sorted(column.items())}


def _zeros(record: Record) -> float:
    return float(next((row["sparsity"] for row in record.history if row.get("stage") == "pruned"), 0.0))


def _spread(values: Mapping[int, float]) -> str:
    found = over_seeds(list(values.values()))
    return f"{found.mean:.1f} +-{found.high - found.mean:.1f}"


def _difference(ours: Column, theirs: Column, key: str) -> str:
    mine, other = _values(ours, key), _values(theirs, key)
    shared = [seed for seed in mine if seed in other]
    if not shared:
        return "-"
    found = paired([mine[seed] for seed in shared], [other[seed] for seed in shared])
    return f"{found.difference:+.1f} +-{found.high - found.difference:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="records are appended here; what is there is not rerun")
    parser.add_argument("--data", nargs="*", default=tuple(SETTINGS), choices=tuple(SETTINGS))
    parser.add_argument("--partition", nargs="*", default=PARTITIONS, choices=PARTITIONS)
    parser.add_argument("--arm", nargs="*", default=tuple(ARMS), choices=tuple(ARMS))
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--choose", action="store_true", help="only make the runs by which the rate is chosen")
    parser.add_argument("--rates", type=Path, help="the records of --choose")
    parser.add_argument("--lr", type=float, help="a rate, in the place of the chosen one")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the device")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, help="another length, of all arms")
    parser.add_argument("--few", type=int, help="take so many examples of every group, to try things out")
    parser.add_argument("--table", action="store_true", help="only print the table of the records in --out")
    given = parser.parse_args()
    if not (given.table or given.choose or given.rates or given.lr):
        parser.error("say which rate: --rates FILE of an earlier --choose, or --lr")
    done = {(record.cell, record.seed) for record in read(given.out)} if given.out.exists() else set()
    wanted = () if given.table else choices(given.data) if given.choose else plan(given)
    left = [task for task in wanted if (task.cell, task.seed) not in done]
    if left:
        study(left, Place(given.root, given.device, given.epochs, given.few), given.jobs, given.out)
    if given.choose:
        print("\n".join(f"{name}: rate {chosen(read(given.out), name):g}" for name in given.data))
    else:
        print(table(read(given.out)))


if __name__ == "__main__":
    main()
