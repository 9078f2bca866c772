"""Detection rates of audits on data with a known shortcut, and false alarms on data without one.

Run: python benchmarks/detection.py --root DATA --out benchmarks/records/detection.jsonl --jobs 15
     python benchmarks/detection.py --out benchmarks/records/detection.jsonl --table

Every problem has a biased and a clean version: attribute and label are associated in training in the biased version and
independent in the clean one, and everything else is the same. ERM is trained on each, and the model is audited twice on
held-out examples: without and with attributes. A line of the record is one audit. The last epoch is used. Training
lengths were chosen by the accuracy of clean models, and effect thresholds of audits by false alarms, with seeds from
1000 on, which no table uses. Seeds below 20 are not used either, because two thresholds were too low on them.

Networks are small, so that training takes seconds. Audits of errors need errors: the convolutional networks are nearly
perfect on clean digits, so the same digits are also given to an MLP, which is not. Digits are audited on test, 500
examples, except in the *rare* problems, where at most one in ten of the 297 held-out examples breaks the shortcut.

Waterbirds (rebuilt, 96 pixels) and CelebA (10,000 faces, 64 pixels): EfficientNet-Lite0 with ImageNet weights, of which
only the head is trained. This is a convex problem, so the seed determines the sampled examples, not the optimum: for
Waterbirds 90 % of train, and a fifth of test for the audit. The clean version is trained on the rest of test, in which
both backgrounds are equally frequent, and which is about as large as train. CelebA is split again for each seed; the
clean version has as many men as women for each hair color and is small, because there are only 81 blond men: about 680
training faces and about 450 audited ones. Two seeds share many examples.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

from spurless.auditing import AUDITS, audit, biased_neurons, swapped_backgrounds
from spurless.auditing._context import PERMUTATIONS
from spurless.core.errors import InputError, SpurlessError
from spurless.core.findings import Audit, Finding
from spurless.core.hashing import content_hash
from spurless.core.provenance import versions
from spurless.core.records import Record, append_record, read_records
from spurless.core.seeds import Seeds
from spurless.data import DATASETS, Split, Splits, load
from spurless.data.datasets.waterbirds import bird_masks
from spurless.data.splitting import split_stratified
from spurless.fitting import fit
from spurless.fitting.assess import describe_environment, describe_model
from spurless.metrics.groupwise import group_table
from spurless.metrics.intervals import wilson_intervals
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.weights import load_weights, save_weights
from spurless.train.config import TrainConfig
from spurless.train.embed import compute_features, embed
from spurless.train.evaluate import predict
from spurless.train.run import Compute, Run, make_run

VERSIONS = ("biased", "clean")
KNOWLEDGE = ("hidden", "known")
ATTRIBUTE_AUDITS = tuple(name for name, auditor in AUDITS.items() if auditor.needs == "attributes")
Conflicts = Callable[[Tensor, Tensor], Tensor]
"""Maps labels and attributes to a mask of the examples that break the shortcut."""


def attribute_differs(y: Tensor, a: Tensor) -> Tensor:
    """Return which examples break a shortcut from attribute i to label i."""
    return y != a


def is_blond_man(y: Tensor, a: Tensor) -> Tensor:
    """Return which examples are blond men, the group that breaks the shortcut from gender to hair color."""
    return (y == 1) & (a == 1)


def negation_differs(y: Tensor, a: Tensor) -> Tensor:
    """Return which examples break a shortcut from negation (1) to contradiction (label 0)."""
    return (y == 0) != (a == 1)


def keep_all(data: Splits, version: str, seed: int) -> Splits:
    """Return the data unchanged: the options of the dataset determine the version."""
    del version, seed
    return data


def subsample_digits(data: Splits, version: str, seed: int) -> Splits:
    """Select a tenth of train and a quarter of val, stratified by group, so that training takes seconds."""
    del version
    seeds = Seeds(seed).child("fewer")
    train, _, _ = split_stratified(data.train.g, (0.1, 0.9, 0.0), seeds=seeds)
    val, _, _ = split_stratified(data.val.g, (0.25, 0.75, 0.0), seeds=seeds)
    return replace(data, train=data.train.select(train), val=data.val.select(val))


def sample_birds(data: Splits, version: str, seed: int) -> Splits:
    """Audit a fifth of test; train on train or, for the clean version, on the rest of test, which is balanced."""
    seeds = Seeds(seed).child("birds")
    rest, held_out, _ = split_stratified(data.test.g, (0.8, 0.2, 0.0), seeds=seeds)
    subset, _, _ = split_stratified(data.train.g, (0.9, 0.1, 0.0), seeds=seeds)
    train = data.train.select(subset) if version == "biased" else data.test.select(rest)
    audited = data.test.select(held_out)
    return replace(data, train=train, val=audited, test=audited)


def sample_faces(data: Splits, version: str, seed: int) -> Splits:
    """Split all faces again; balance gender for each hair color in the clean version, with one blond in seven."""
    seeds, faces = Seeds(seed).child("faces"), concatenate_splits(data)
    if version == "clean":
        smallest = int(faces.counts.min())
        order = torch.randperm(len(faces), generator=seeds.generator("twin"))
        sizes = [smallest if group >= 2 else 6 * smallest for group in range(len(faces.groups))]
        faces = faces.select(torch.cat([order[faces.g[order] == group][:size] for group, size in enumerate(sizes)]))
    fractions = (0.7, 0.3, 0.0) if version == "biased" else (0.6, 0.4, 0.0)
    train, audited, _ = split_stratified(faces.g, fractions, seeds=seeds)
    return replace(data, train=faces.select(train), val=faces.select(audited), test=faces.select(audited))


def concatenate_splits(data: Splits) -> Split:
    """Return the three splits as one."""
    parts = (data.train, data.val, data.test)
    x, y, a = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "a"))
    return Split(x, y, a, data.groups, data.train.transform)


@dataclass(frozen=True)
class Problem:
    """A dataset, its biased and clean versions, a network, and the known shortcut."""

    dataset: str
    model: str
    train: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    clean: Mapping[str, Any] = field(default_factory=dict)
    """options of the clean version, added to ``options``"""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    part: str = "val"
    """the split that is audited"""
    sample: Callable[[Splits, str, int], Splits] = keep_all
    probe: bool = False
    """whether only the head is trained"""
    shortcut_pattern: str = ""
    """regular expression for the name of the shortcut in audits without attributes"""
    conflicts: Conflicts = attribute_differs
    masks: Callable[[str | None], Mapping[str, Tensor]] | None = None
    """function from the data folder to the foreground masks of each split"""

    def options_of(self, version: str) -> dict[str, Any]:
        """Return the dataset options of a version."""
        return {**self.options, **(self.clean if version == "clean" else {})}


CNN: dict[str, Any] = {"model": "small-cnn", "model_options": {"width": 8, "hidden": 64}}
MLP: dict[str, Any] = {"model": "mlp", "model_options": {"depth": 2, "width": 64, "bias": True}}
LITE0: dict[str, Any] = {"model": "timm:tf_efficientnet_lite0", "model_options": {"pretrained": True}, "probe": True}
SGD = {"epochs": 20, "batch_size": 64, "lr": 0.01}
ADAM_SHORT = {"epochs": 20, "batch_size": 64, "optimiser": "adam", "lr": 1e-3}
ADAM_LONG = {**ADAM_SHORT, "epochs": 60}  # until 99 % of the clean training digits are classified correctly
PROBE = {"steps": 1500, "epochs": 2000, "batch_size": 256, "lr": 3e-3, "weight_decay": 0.1, "schedule": "cosine"}
IMAGE_SIZE = {"size": 16}  # pixels; the digits have 8
INDEPENDENT = {"conflicting": 0.9}  # with ten values, all are equally frequent
COLOR_PATTERN, CORNER_PATTERN, RIGHT_PATTERN = (
    r"^(red|green|blue|hue|saturation)\b",
    r"\b(top|upper) left\b",
    r"\bright\b",
)

PROBLEMS: dict[str, Problem] = {
    "planted": Problem("planted", train=ADAM_SHORT, clean={"agreement": 0.5}, **MLP),
    "planted-weak": Problem(
        "planted", train=ADAM_SHORT, options={"spurious": 1.0, "agreement": 0.9}, clean={"agreement": 0.5}, **MLP
    ),
    **{
        name: problem
        for suffix, net in (("", {**CNN, "train": SGD}), ("-mlp", {**MLP, "train": ADAM_LONG}))
        for name, problem in {
            f"colored-digits{suffix}": Problem(
                "colored-digits",
                options=IMAGE_SIZE,
                clean=INDEPENDENT,
                part="test",
                shortcut_pattern=COLOR_PATTERN,
                **net,
            ),
            f"patched-digits{suffix}": Problem(
                "patched-digits",
                options=IMAGE_SIZE,
                clean={"conflicting": 0.5},
                part="test",
                shortcut_pattern=CORNER_PATTERN,
                **net,
            ),
            f"double-digits{suffix}": Problem(
                "double-digits",
                options=IMAGE_SIZE,
                clean=INDEPENDENT,
                part="test",
                shortcut_pattern=RIGHT_PATTERN,
                **net,
            ),
        }.items()
    },
    "colored-digits-rare": Problem(
        "colored-digits",
        train=ADAM_LONG,
        options={**IMAGE_SIZE, "val_conflicting": 0.1},
        clean=INDEPENDENT,
        shortcut_pattern=COLOR_PATTERN,
        **MLP,
    ),
    "patched-digits-rare": Problem(
        "patched-digits",
        train=ADAM_LONG,
        options={**IMAGE_SIZE, "val_conflicting": 0.1},
        clean={"conflicting": 0.5},
        shortcut_pattern=CORNER_PATTERN,
        **MLP,
    ),
    "negated-claims": Problem(
        "negated-claims",
        "token-mean",
        {"epochs": 60, "batch_size": 64, "optimiser": "adam", "lr": 3e-3},
        options={"n_train": 1000},  # with 6,000 a clean model makes no errors to audit
        clean={"conflicting": 0.5},
        shortcut_pattern=r"negation|\b(nobody|no|never|nothing|doubts|wonder|forget)\b",
        conflicts=negation_differs,
    ),
    "biased-mnist": Problem(
        "biased-mnist",
        train={"epochs": 4, "batch_size": 64, "lr": 0.01},
        clean={"conflicting": 0.5},
        sample=subsample_digits,
        shortcut_pattern=CORNER_PATTERN,
        **CNN,
    ),
    "waterbirds-rebuilt": Problem(
        "waterbirds-rebuilt",
        train=PROBE,
        options={"size": 96},
        sample=sample_birds,
        shortcut_pattern=r"background|corner|frame",
        masks=bird_masks,
        **LITE0,
    ),
    "celeba10k": Problem(
        "celeba10k",
        train=PROBE,
        options={"size": 64},
        sample=sample_faces,
        conflicts=is_blond_man,
        **LITE0,
    ),
}


@dataclass(frozen=True)
class Task:
    """One version of a problem, with one seed."""

    problem: str
    version: str
    seed: int

    @property
    def spec(self) -> Problem:
        """The definition of the problem."""
        return PROBLEMS[self.problem]

    def cell(self, knowledge: str) -> str:
        """Return the ``cell`` of the record."""
        return f"{self.problem}, {self.version}, attributes {knowledge}"


@dataclass(frozen=True)
class Environment:
    """Data folder, device, folder of models, and number of permutations."""

    root: str | None = None
    device: str = "auto"
    models: Path | None = None
    """folder in which trained models are saved and from which they are loaded"""
    permutations: int = PERMUTATIONS

    @property
    def compute(self) -> Compute:
        """Device and precision."""
        return Compute(self.device)


@lru_cache(maxsize=1)
def load_source(problem: str, version: str, seed: int, root: str | None) -> Splits:
    """Load or generate the data of a problem."""
    if root is not None:
        os.environ["SPURLESS_DATA"] = root  # pretrained weights are searched for there
    spec = PROBLEMS[problem]
    options = {**spec.options_of(version), "seed": seed}
    if root is not None and DATASETS[spec.dataset].layout is not None:
        options["root"] = root
    return load(spec.dataset, **options)


def load_all(task: Task, environment: Environment) -> Splits:
    """Return the data before sampling; a probe uses the same data for all versions and seeds."""
    version, seed = (VERSIONS[0], 0) if task.spec.probe else (task.version, task.seed)
    return load_source(task.problem, version, seed, environment.root)


def run(task: Task, environment: Environment) -> list[Record]:
    """Train one model, and audit it without and with attributes."""
    start = time.perf_counter()
    data = task.spec.sample(load_all(task, environment), task.version, task.seed)
    model = load_or_train(task, data, environment)
    seconds = time.perf_counter() - start
    reports = audit_twice(model, data, task, environment)
    evaluation = Evaluation(task, model, getattr(data, task.spec.part), make_run(environment.compute, 0, TrainConfig()))
    return [
        Record(
            method="audit",
            seed=task.seed,
            data={"name": task.spec.dataset, "options": task.spec.options_of(task.version), "part": task.spec.part}
            | {"examples": len(evaluation.split), "train_examples": len(data.train)},
            model=describe_model(model),
            config={"permutations": environment.permutations, "level": report.level},
            train=dict(task.spec.train),
            supervision={"train_attributes": known, "val_labels": True, "val_attributes": known},
            selection="last",
            groups=(),
            metrics=evaluation.compute_metrics(report),
            seconds={"train": round(seconds, 2), "audit": round(seconds_audit, 2)},
            history=tuple(evaluation.describe_finding(finding, report) for finding in report.findings),
            cell=task.cell(knowledge),
            **describe_environment(evaluation.run.device),
        )
        for knowledge, (report, seconds_audit) in reports.items()
        for known in [knowledge == "known"]
    ]


def load_or_train(task: Task, data: Splits, environment: Environment) -> Classifier:
    """Load the model of a task from the folder of models, or train and save it."""
    model = build(task.spec.model, data, seed=task.seed, **task.spec.model_options)
    if environment.models is None:
        return train_model(task, model, data, environment)
    key = content_hash(describe_model(model), dict(task.spec.train), data.fingerprint(), task.seed, versions()["torch"])
    path = environment.models / f"{task.problem}-{task.version}-{task.seed}-{key}.safetensors"
    if path.exists():
        load_weights(path, model)
        return model
    model = train_model(task, model, data, environment)
    save_weights(path, model)
    return model


def train_model(task: Task, model: Classifier, data: Splits, environment: Environment) -> Classifier:
    """Train a model by ERM; if it is a probe, only the head, on features scaled to unit variance."""
    if not task.spec.probe:
        return fit("erm", model, data, seed=task.seed, train=task.spec.train, compute=environment.compute).model
    features = task.spec.sample(load_features(task.problem, environment), task.version, task.seed)
    x: Any = features.train.x
    shift, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    scaled = {name: replace(part, x=(part.x - shift) / scale) for name, part in splits_by_name(features).items()}
    features = replace(features, **scaled)
    linear = build("linear", features, seed=task.seed)
    head: Any = fit("erm", linear, features, seed=task.seed, train=task.spec.train, compute=Compute("cpu")).model.head
    with torch.no_grad():  # the head includes the scaling
        head_layer: Any = model.head
        head_layer.weight.copy_(head.weight / scale)
        head_layer.bias.copy_(head.bias - head.weight @ (shift / scale))
    model.trained = True
    return model


@lru_cache(maxsize=1)
def load_features(problem: str, environment: Environment) -> Splits:
    """Return the features of all images, which are cached on disk."""
    data, spec = load_source(problem, VERSIONS[0], 0, environment.root), PROBLEMS[problem]
    return embed(build(spec.model, data, **spec.model_options), data, compute=environment.compute)


def splits_by_name(data: Splits) -> dict[str, Any]:
    """Return the three splits by name."""
    return {name: getattr(data, name) for name in ("train", "val", "test")}


def audit_twice(
    model: Classifier, data: Splits, task: Task, environment: Environment
) -> dict[str, tuple[Audit, float]]:
    """Audit without and with attributes, and return each audit with its seconds.

    Audits that need no attributes run once. Foreground masks count as attributes, since they are annotations too.
    """
    options: dict[str, Any] = {"part": task.spec.part, "seed": task.seed, "permutations": environment.permutations}
    options |= {"pictured": 0, "compute": environment.compute}
    start = time.perf_counter()
    hidden = replace(data, **{name: part.hide_attributes() for name, part in splits_by_name(data).items()})
    without = audit(model, hidden, **options)
    seconds_audit = time.perf_counter() - start
    masks = load_foregrounds(task, environment)
    only = ATTRIBUTE_AUDITS if masks is None else (*ATTRIBUTE_AUDITS, swapped_backgrounds.NAME)
    attribute_report = audit(model, data, only=only, masks=masks, **options)
    findings = tuple(sorted((*without.findings, *attribute_report.findings), key=sort_key))
    known = Audit(findings, without.suspects, level=without.level)
    return {"hidden": (without, seconds_audit), "known": (known, time.perf_counter() - start)}


def sort_key(finding: Finding) -> tuple[bool, bool, float]:
    """Return the sort key of a report: flagged first, then those that show use, then by severity."""
    return not finding.flagged, not finding.shows_use, -finding.severity


def load_foregrounds(task: Task, environment: Environment) -> Tensor | None:
    """Return the foreground masks of the audited examples, or None if there are none."""
    if task.spec.masks is None:
        return None
    try:
        masks = task.spec.masks(environment.root)
    except InputError:  # the masks are not in the data folder
        return None
    data = load_all(task, environment)
    parts = {
        name: replace(part, x=_resize_masks(masks[name], part.x.shape[-2:]))
        for name, part in splits_by_name(data).items()
    }
    selected: Tensor = getattr(task.spec.sample(replace(data, **parts), task.version, task.seed), task.spec.part).x
    return selected


def _resize_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(masks.shape[1:]) == tuple(size):
        return masks
    return nn.functional.interpolate(masks[:, None].to(torch.uint8), size=size, mode="nearest")[:, 0].bool()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model and its audited examples with attributes, to evaluate an audit against the known shortcut."""

    task: Task
    model: Classifier
    split: Split
    run: Run

    def compute_metrics(self, report: Audit) -> dict[str, float | None]:
        """Return the accuracy of the model, the verdict of the audit, and its precision and recall."""
        predictions = predict(self.model.to(self.run.device), self.split, self.run.device)
        table = group_table(predictions, self.split.y, self.split.a, self.split.groups)
        conflicting = self.task.spec.conflicts(self.split.y, self.split.a)
        suspected = torch.zeros_like(conflicting)
        suspected[[suspect.row for suspect in report.suspects]] = True
        n_correct, n_suspected = int((suspected & conflicting).sum()), int(suspected.sum())
        numbers = {
            "average": table.average,
            "worst_group": table.worst[0],
            "mistakes": float((predictions != self.split.y).sum()),
            "conflicting": float(conflicting.double().mean()),
            "leans": float(report.verdict == "shortcut"),
            "rank": self.rank(report),
            "suspected": n_suspected / len(conflicting),
            "precision": n_correct / n_suspected if n_suspected else None,
            "recall": n_correct / int(conflicting.sum()) if bool(conflicting.any()) else None,
        }
        return {name: None if value is None else round(value, 4) for name, value in numbers.items()}

    def rank(self, report: Audit) -> float | None:
        """Return the rank of the first flagged finding that names the shortcut; None for a clean model."""
        if self.task.version == "clean":
            return None
        return next((float(i) for i, finding in enumerate(report.flagged, 1) if self.names_shortcut(finding)), None)

    def names_shortcut(self, finding: Finding) -> bool:
        """Return whether a finding names the known shortcut.

        The data have one attribute, so an audit of attributes always names it. A neuron counts if it explains the
        attribute better than the label. A region names nothing.
        """
        if finding.shortcut is None or not finding.flagged:
            return False
        if finding.audit in ATTRIBUTE_AUDITS:
            return True
        if finding.audit == biased_neurons.NAME:
            activation = compute_features(self.model, self.split, self.run)[:, int(finding.numbers["neuron"])].abs()
            g = self.split.g
            return explained_variance(activation, self.split.a, g) > explained_variance(activation, self.split.y, g)
        return (
            bool(self.task.spec.shortcut_pattern)
            and re.search(self.task.spec.shortcut_pattern, finding.shortcut) is not None
        )

    def describe_finding(self, finding: Finding, report: Audit) -> dict[str, Any]:
        """Return the entry of a finding in the record; flags that are false are left out to keep the file small."""
        numbers = {"severity": round(finding.severity, 4), "p": None if finding.p is None else round(finding.p, 4)}
        numbers |= {"low": round(finding.numbers["low"], 4)} if "low" in finding.numbers else {}
        flags = {"flagged": finding.flagged, "proven": finding in report.confirmed, "use": finding.shows_use}
        shortcut = finding.shortcut if finding.flagged else None
        return {"audit": finding.audit, **numbers, **{flag: True for flag, is_set in flags.items() if is_set}} | (
            {} if shortcut is None else {"shortcut": shortcut}
        )


def explained_variance(activation: Tensor, target: Tensor, g: Tensor) -> float:
    """Return the fraction of the variance of a neuron that a target explains, with equal weight for each group.

    Without the weights, a neuron that explains the label would also explain an attribute associated with the label.
    """
    weight = 1 / torch.bincount(g)[g].double()
    weight = weight / weight.sum()
    activation = activation.double() - weight @ activation.double()
    mass, total = (
        torch.zeros(int(target.max()) + 1).double().index_add(0, target, part) for part in (weight, weight * activation)
    )
    return float((total**2 / mass.clamp(min=1e-12)).sum() / (weight @ activation**2).clamp(min=1e-12))


def list_tasks(args: Any) -> Iterator[Task]:
    """Yield the tasks, slow ones first, so that all processes finish at about the same time."""
    names = sorted(args.problems, key=lambda name: not PROBLEMS[name].probe)
    for name, seed, version in product(names, range(args.seed, args.seed + args.seeds), args.versions):
        yield Task(name, version, seed)


def run_tasks(tasks: Sequence[Task], environment: Environment, jobs: int) -> Iterator[list[Record]]:
    """Yield the records of each task when it is done; print the error of a task that fails."""
    if jobs == 1:
        for task in tasks:
            yield from catch_failure(task, partial(run, task, environment))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the worker processes
    for name in {task.problem for task in tasks if task.spec.probe}:
        load_features(name, environment)  # compute once, before the processes need it
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = {pool.submit(run, task, environment): task for task in tasks}
        for future in as_completed(futures):
            yield from catch_failure(futures[future], future.result)


def catch_failure(task: Task, result: Callable[[], list[Record]]) -> Iterator[list[Record]]:
    """Yield the records of a task, or print its error."""
    try:
        yield result()
    except (SpurlessError, RuntimeError) as error:
        print(f"{task}: {error}", flush=True)


Cells = Mapping[tuple[str, str, str], Sequence[Record]]
"""Records by problem, version, and whether attributes were hidden or known."""


def tables(records: Iterable[Record]) -> tuple[str, str]:
    """Return two Markdown tables: one row per problem, and one row per audit."""
    cells: dict[tuple[str, str, str], list[Record]] = {}
    for record in {(record.cell, record.seed): record for record in records}.values():
        problem, version, knowledge = record.cell.split(", ")
        cells.setdefault((problem, version, knowledge.removeprefix("attributes ")), []).append(record)
    return problem_table(cells), audit_table(cells)


def problem_table(cells: Cells) -> str:
    """Return two rows per problem: attributes hidden and known."""
    rows = [
        (
            f"`{problem}`",
            knowledge,
            str(len(biased)),
            mean_accuracies(biased),
            shortcut_rate(biased),
            flagged_rate(biased),
            format_ranks(biased),
            format_suspects(biased),
            str(len(clean)),
            mean_accuracies(clean),
            shortcut_rate(clean),
            flagged_rate(clean),
        )
        for problem, knowledge in product(PROBLEMS, KNOWLEDGE)
        for biased, clean in [[cells.get((problem, version, knowledge), ()) for version in VERSIONS]]
        if biased or clean
    ]
    columns = ("seeds", "average, worst group", "shortcut", "use flagged", "named (rank)", "suspects")
    return markdown_table(
        ("problem", "attributes", *columns, "clean seeds", *(f"clean: {column}" for column in columns[1:4])), rows
    )


def audit_table(cells: Cells) -> str:
    """Return one row per audit over all problems, and one per verdict."""
    biased, clean = (select_records(cells, version, "known") for version in VERSIONS)
    names = {row["audit"]: row.get("use", False) for record in (*clean, *biased) for row in record.history}
    rows = [
        (f"`{name}`", "yes" if use else "no", *(cell for side in (clean, biased) for cell in audit_cells(name, side)))
        for name, use in sorted(names.items(), key=lambda item: (not item[1], item[0]))
    ]
    for knowledge in KNOWLEDGE:
        sides = [select_records(cells, version, knowledge) for version in reversed(VERSIONS)]
        rates = (cell for side in sides for cell in (str(len(side)), "all", shortcut_rate(side), shortcut_rate(side)))
        rows.append((f"verdict *shortcut*, attributes {knowledge}", "yes", *rates))
    columns = ("models", "run", "flagged of all", "flagged of run")
    return markdown_table(
        ("audit", "shows use", *(f"{version}: {column}" for version in reversed(VERSIONS) for column in columns)), rows
    )


def select_records(cells: Cells, version: str, knowledge: str) -> list[Record]:
    """Return the records of a version over all problems."""
    return [record for key, records in cells.items() if key[1:] == (version, knowledge) for record in records]


def audit_cells(name: str, records: Sequence[Record]) -> tuple[str, str, str, str]:
    """Return the number of models, the number the audit could run on, and the flagged fraction of each."""
    rows = [row for record in records for row in record.history if row["audit"] == name]
    n_run = sum(row["p"] is not None for row in rows)
    flagged = sum(row.get("flagged", False) for row in rows)
    return str(len(rows)), str(n_run), format_fraction(flagged, len(rows)), format_fraction(flagged, n_run)


def format_fraction(k: int, n: int) -> str:
    """Format a fraction with its 95 % Wilson interval, in percent.

    Example:
        >>> format_fraction(1, 20)
        '5 % (1 to 24)'
    """
    if not n:
        return "-"
    low, high = (100 * float(bound) for bound in wilson_intervals(k, n))
    return f"{100 * k / n:.0f} % ({low:.0f} to {high:.0f})"


def shortcut_rate(records: Sequence[Record]) -> str:
    """Return the fraction of models with the verdict ``shortcut``."""
    return format_fraction(sum(bool(record.metrics["leans"]) for record in records), len(records))


def flagged_rate(records: Sequence[Record]) -> str:
    """Return the fraction of models with a flagged audit that shows use, not corrected for the number of audits."""
    flagged = [any(row.get("flagged") and row.get("use") for row in record.history) for record in records]
    return format_fraction(sum(flagged), len(records))


def mean_accuracies(records: Sequence[Record]) -> str:
    """Return average and worst-group accuracy on the audited examples, in percent, mean over seeds."""
    percents = [
        f"{100 * fmean(values):.0f}" if values else "-" for values in collect_values(records, "average", "worst_group")
    ]
    return ", ".join(percents)


def format_ranks(records: Sequence[Record]) -> str:
    """Return how many models have a flagged finding that names the shortcut, and the median of its rank."""
    (values,) = collect_values(records, "rank")
    return f"{len(values)} of {len(records)}" + (f" ({median(values):g})" if values else "") if records else "-"


def format_suspects(records: Sequence[Record]) -> str:
    """Return the precision of the suspects, the fraction of all examples that conflict, and the recall."""
    precision, conflicting, recall = collect_values(records, "precision", "conflicting", "recall")
    if not precision or not recall:
        return "-"
    return f"{fmean(precision):.2f} of {fmean(conflicting):.2f}, recall {fmean(recall):.2f}"


def collect_values(records: Sequence[Record], *names: str) -> list[list[float]]:
    """Return the values of each metric, without None."""
    return [[value for record in records if (value := record.metrics.get(name)) is not None] for name in names]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.environ.get("SPURLESS_DATA"), help="data folder")
    parser.add_argument(
        "--out", type=Path, required=True, help="file to append records to; existing ones are not run again"
    )
    parser.add_argument("--problems", nargs="*", default=tuple(PROBLEMS), choices=tuple(PROBLEMS), metavar="NAME")
    parser.add_argument("--twins", dest="versions", nargs="*", default=VERSIONS, choices=VERSIONS)
    parser.add_argument("--seed", type=int, default=20, help="first seed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--permutations", type=int, default=PERMUTATIONS)
    parser.add_argument("--models", type=Path, help="folder to save trained models in and load them from")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, with one thread each")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", action="store_true", help="only print the tables of the records in --out")
    args = parser.parse_args()
    done = {(record.cell, record.seed) for record in read_records(args.out)} if args.out.exists() else set()
    remaining = [task for task in list_tasks(args) if any((task.cell(k), task.seed) not in done for k in KNOWLEDGE)]
    environment = Environment(args.root, args.device, args.models, args.permutations)
    for records in run_tasks([] if args.table else remaining, environment, args.jobs):
        for record in records:
            if (record.cell, record.seed) not in done:
                append_record(args.out, record)
            print(format_line(record), flush=True)
    print("\n\n".join(tables(read_records(args.out))))


def format_line(record: Record) -> str:
    """Return a one-line summary of a record."""
    flagged = ", ".join(row["audit"] for row in record.history if row.get("flagged")) or "nothing"
    verdict = "shortcut" if record.metrics["leans"] else "no shortcut"
    return f"{record.cell}, seed {record.seed}: {mean_accuracies([record])} %, verdict: {verdict}, flagged: {flagged}"


if __name__ == "__main__":
    main()
