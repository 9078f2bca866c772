"""Table 1 of the AVP paper on smaller data: robust and average accuracy, clean and imperfect partitions.

Run: python benchmarks/avp_table.py --root DATA --out rates.jsonl --choose
     python benchmarks/avp_table.py --root DATA --out benchmarks/records/avp_table.jsonl --rates rates.jsonl --jobs 15

CelebA 10k replaces CelebA, with EfficientNet-Lite0 (ImageNet weights) instead of ResNet-18; MNLI20k replaces MultiNLI,
with MiniLM instead of RoBERTa. All layers are trained, with the same optimiser, learning rate, batches and epochs in
all arms. The rate is constant, as in pruning, and is selected on validation, for ERM with a seed that the table does
not use (--choose). The epoch is selected by the best robust validation accuracy on the partition given to the method,
or by the best average if it uses no partition; such arms are the same on both partitions and run once. Robust accuracy
on test is that of the worst group of label and attribute, for all partitions. The last-epoch arms use the sparsest
network.

The imperfect partition of CelebA is that of GC-DRO. Its partition of MultiNLI separates "nobody" and "nothing" from
"no" and "never", but only 5 entailments in training here have one of the former; so negation alone defines the two
domains, as dialect does in its partition of FDCL18. The paper reports neither rate nor sparsity: half of the weights
are pruned for texts, and 90 % (the preset) for images, both from the end of the first fifth of the epochs on.
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

from spurless.core.errors import SpurlessError
from spurless.core.records import Record, append_record, read_records
from spurless.data import Split, Splits, load
from spurless.data.imperfect_groups import Rule, celeba_domains, domains_by_attribute, with_imperfect_groups
from spurless.fitting import fit
from spurless.metrics.intervals import compare_paired, over_seeds
from spurless.models import build
from spurless.train.run import Compute

SELECTION_SEED = 100
SELECTION_CELL = "choosing"
PARTITIONS = ("clean", "imperfect")


@dataclass(frozen=True)
class Setting:
    """One dataset, its model, training options, and imperfect partition."""

    model: str
    train: Mapping[str, Any]
    rates: tuple[float, ...]
    rule: Rule
    presets: str
    """name of the presets with the authors' values for these data"""
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    target: float = 0.9
    """fraction of zeros at the end of pruning"""
    paper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """robust accuracy of the first five arms in table 1 of the paper, on the original data"""


SETTINGS: dict[str, Setting] = {
    "celeba10k": Setting(
        "timm:tf_efficientnet_lite0",
        {"epochs": 15, "batch_size": 128, "optimiser": "adam", "weight_decay": 1e-4},  # batches of 128: the paper
        (1e-4, 3e-4, 1e-3),
        celeba_domains,
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
        domains_by_attribute,
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
    """A method; whether it uses the partition, has a preset for these data, prunes, and uses the last epoch."""

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
COMPARISONS = (
    *(("AVP", title) for title in (*IN_PAPER, "random pruning")),
    ("AVP, last epoch", "random pruning, last epoch"),
)


@dataclass(frozen=True)
class Task:
    """One run of an arm."""

    dataset: str
    partition: str
    arm: str
    seed: int
    lr: float
    cell: str

    @property
    def cost(self) -> int:
        """Sort key: pruning is slow and starts first, so that all processes finish at about the same time."""
        return -int(ARMS[self.arm].prunes)


@dataclass(frozen=True)
class Environment:
    """Data folder, device and limits of all runs."""

    root: str
    device: str
    epochs: int | None = None
    examples_per_group: int | None = None
    """number of examples to use of each group; all by default"""


@lru_cache(maxsize=2)
def load_data(dataset: str, seed: int, environment: Environment) -> Splits:
    """Load the data, split by the seed."""
    data = load(dataset, seed=seed, root=environment.root, **SETTINGS[dataset].data_options)
    if environment.examples_per_group is None:
        return data
    train, val, test = (
        _take_per_group(part, environment.examples_per_group) for part in (data.train, data.val, data.test)
    )
    return replace(data, train=train, val=val, test=test)


def _take_per_group(split: Split, n: int) -> Split:
    groups = range(len(split.groups))
    return split.select(torch.cat([(split.g == group).nonzero().flatten()[:n] for group in groups]))


def run(task: Task, environment: Environment) -> Record:
    """Run one task and return its record."""
    os.environ["SPURLESS_DATA"] = environment.root  # pretrained weights are searched for there
    torch.set_float32_matmul_precision("high")  # TF32, the default of convolutions
    setting, arm = SETTINGS[task.dataset], ARMS[task.arm]
    data = load_data(task.dataset, task.seed, environment)
    if task.partition == "imperfect":
        data = with_imperfect_groups(data, setting.rule, seed=task.seed)
    train = {**setting.train, "lr": task.lr, "epochs": environment.epochs or setting.train["epochs"]}
    record = fit(
        arm.method,
        build(setting.model, data, seed=task.seed, **setting.model_options),
        data,
        seed=task.seed,
        preset=_preset(arm, setting, task.partition),
        train=train,
        select="last" if arm.last else "val-worst-group" if arm.groups else "val-average",
        compute=Compute(environment.device),
        **(_pruning(arm, setting, train["epochs"]) if arm.prunes else {}),
    ).record
    if task.partition == SELECTION_CELL:  # remove the test metrics, so that they cannot influence the choice
        record = replace(record, metrics={}, groups=())
    return replace(record, cell=task.cell)


def _preset(arm: Arm, setting: Setting, partition: str) -> str | None:
    """Return the preset of an arm; GC-DRO for texts has a separate one for the clean partition."""
    if not arm.preset:
        return None
    if arm.prunes:
        return "celeba"
    has_clean_preset = arm.method == "gc-dro" and setting.presets == "multinli" and partition == "clean"
    return f"{setting.presets}-clean" if has_clean_preset else setting.presets


def _pruning(arm: Arm, setting: Setting, epochs: int) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "start_epoch": epochs // 5,  # 10 of 50: the paper
        "target_sparsity": setting.target,
        "keep": "last" if arm.last else "validated",
    }


def list_rate_tasks(names: Sequence[str]) -> Iterator[Task]:
    """Yield the runs for selecting the learning rate."""
    for name in names:
        for lr in SETTINGS[name].rates:
            yield Task(name, SELECTION_CELL, "ERM", SELECTION_SEED, lr, f"{name}, {SELECTION_CELL}: rate {lr:g}")


def select_rate(records: Sequence[Record], dataset: str) -> float:
    """Return the learning rate with the best validation accuracy."""
    runs = [record for record in records if record.cell.startswith(f"{dataset}, {SELECTION_CELL}")]
    if not runs:
        raise SystemExit(
            f"no learning rate was chosen for {dataset}: run --choose --data {dataset} first, or pass --lr"
        )
    return float(max(runs, key=best_validation_score).train["lr"])


def best_validation_score(record: Record) -> float:
    """Return the validation score of the selected epoch."""
    return max((float(row["score"]) for row in record.history if "score" in row), default=0.0)


def list_tasks(args: Any) -> Iterator[Task]:
    """Yield the runs of the table."""
    rates = {name: args.lr or select_rate(read_records(args.rates), name) for name in args.data}
    for seed, name, title in product(range(args.seed, args.seed + args.seeds), args.data, args.arm):
        for partition in args.partition if ARMS[title].groups else ("any",):
            yield Task(name, partition, title, seed, rates[name], f"{name}, {partition}: {title}")


def run_tasks(tasks: Sequence[Task], environment: Environment, jobs: int, out: Path) -> None:
    """Run the tasks in parallel, append their records, and print the error of a task that fails."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the worker processes
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = {pool.submit(run, task, environment): task for task in sorted(tasks, key=lambda task: task.cost)}
        for future in as_completed(futures):
            task = futures[future]
            try:
                record = future.result()
            except (SpurlessError, RuntimeError) as error:
                print(f"{task.cell}, seed {task.seed}: {error}", flush=True)
                continue
            append_record(out, record)
            summary = f"validation {100 * best_validation_score(record):.1f}, {record.seconds['total']:.0f} s"
            print(f"{task.cell}, seed {task.seed}: {summary}", flush=True)


Column = Mapping[int, Record]
"""The records of an arm, by seed."""


def table(records: Sequence[Record]) -> str:
    """Return robust and average accuracy in percent, with 95 % intervals over seeds, and AVP minus each baseline."""
    cells: dict[str, dict[int, Record]] = {}
    for record in records:
        cells.setdefault(record.cell, {})[record.seed] = record
    lines: list[str] = []
    for name, partition in product(SETTINGS, PARTITIONS):
        columns = {
            title: cells[cell]
            for title, arm in ARMS.items()
            if (cell := f"{name}, {partition if arm.groups else 'any'}: {title}") in cells
        }
        if columns:
            lines += ["", *_format_block(name, partition, columns)]
    return "\n".join(lines[1:])


def _format_block(name: str, partition: str, columns: Mapping[str, Column]) -> Iterator[str]:
    paper = dict(zip(IN_PAPER, SETTINGS[name].paper[partition], strict=True))
    yield f"{f'{name}, {partition}':<46}{'robust':>14}{'average':>14}{'zeros':>7}{'seconds':>9}{'seeds':>7}{'paper':>8}"
    for title, column in columns.items():
        robust, average = (_format_mean(_values(column, key)) for key in ("worst_group", "average"))
        zeros = over_seeds([_zeros(record) for record in column.values()]).mean
        seconds = over_seeds([record.seconds["total"] for record in column.values()]).mean
        in_paper = f"{paper[title]:.2f}" if title in paper else "-"
        yield f"{title:<46}{robust:>14}{average:>14}{zeros:>6.0%}{seconds:>10.1f}{len(column):>7}{in_paper:>8}"
    for ours, baseline in COMPARISONS:
        if ours in columns and baseline in columns:
            differences = (
                _format_difference(columns[ours], columns[baseline], key) for key in ("worst_group", "average")
            )
            yield f"{f'{ours} - {baseline}':<46}" + "".join(f"{difference:>14}" for difference in differences)


def _values(column: Column, key: str) -> dict[int, float]:
    return {seed: 100 * (record.metrics[key] or 0.0) for seed, record in sorted(column.items())}


def _zeros(record: Record) -> float:
    return float(next((row["sparsity"] for row in record.history if row.get("stage") == "pruned"), 0.0))


def _format_mean(values: Mapping[int, float]) -> str:
    summary = over_seeds(list(values.values()))
    return f"{summary.mean:.1f} +-{summary.high - summary.mean:.1f}"


def _format_difference(ours: Column, theirs: Column, key: str) -> str:
    our_values, their_values = _values(ours, key), _values(theirs, key)
    shared = [seed for seed in our_values if seed in their_values]
    if not shared:
        return "-"
    summary = compare_paired([our_values[seed] for seed in shared], [their_values[seed] for seed in shared])
    return f"{summary.difference:+.1f} +-{summary.high - summary.difference:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="data folder")
    parser.add_argument(
        "--out", type=Path, required=True, help="file to append records to; existing ones are not run again"
    )
    parser.add_argument("--data", nargs="*", default=tuple(SETTINGS), choices=tuple(SETTINGS))
    parser.add_argument("--partition", nargs="*", default=PARTITIONS, choices=PARTITIONS)
    parser.add_argument("--arm", nargs="*", default=tuple(ARMS), choices=tuple(ARMS))
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--choose", action="store_true", help="only run the selection of the learning rate")
    parser.add_argument("--rates", type=Path, help="records of --choose")
    parser.add_argument("--lr", type=float, help="learning rate, instead of the selected one")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes that share the device")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, help="number of epochs of all arms")
    parser.add_argument("--few", type=int, help="number of examples to use of each group, for a test run")
    parser.add_argument("--table", action="store_true", help="only print the table of the records in --out")
    args = parser.parse_args()
    if not (args.table or args.choose or args.rates or args.lr):
        parser.error("no learning rate: pass --rates FILE with the records of --choose, or --lr")
    done = {(record.cell, record.seed) for record in read_records(args.out)} if args.out.exists() else set()
    tasks = () if args.table else list_rate_tasks(args.data) if args.choose else list_tasks(args)
    remaining = [task for task in tasks if (task.cell, task.seed) not in done]
    if remaining:
        run_tasks(remaining, Environment(args.root, args.device, args.epochs, args.few), args.jobs, args.out)
    if args.choose:
        print("\n".join(f"{name}: rate {select_rate(read_records(args.out), name):g}" for name in args.data))
    else:
        print(table(read_records(args.out)))


if __name__ == "__main__":
    main()
