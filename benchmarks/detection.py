"""Detection on data with a known truth: what audits find in models that cheat, and what they flag in those that do not.

Run: python benchmarks/detection.py --root DATA --out benchmarks/records/detection.jsonl --jobs 15
     python benchmarks/detection.py --out benchmarks/records/detection.jsonl --table

A problem has two twins: in the biased one the shortcut goes with the label in training, in the clean one it does not,
and all else is the same. ERM is trained on either, and the model is audited twice on held-out examples: with attributes
hidden, and with attributes. A line of the record is one audit. The last epoch is kept. Lengths of training were chosen
by the accuracy of clean models, and floors of audits by false alarms, with seeds from 1000 on, which no table uses. Nor
does any use seeds below 20: on these two floors were seen to be too low.

Nets are small, so that a training takes seconds. A net that makes no mistakes cannot be asked what they share: the
convolutional nets are nearly perfect on clean digits, so the same digits are given to an MLP too, which is not. Digits
are audited on test, 500 examples, but for the *rare* problems: there the held-out examples break the shortcut as seldom
as one in ten, and are 297.

Waterbirds (rebuilt, 96 pixels) and CelebA (10,000 faces, 64 pixels): EfficientNet-Lite0 with ImageNet weights, of which
the head alone is trained. That is a convex problem, so a seed decides which examples are drawn, not where training
ends: of Waterbirds 90 % of train, and a fifth of test to audit. The clean twin learns from the rest of test, where
either background is as frequent, and which is about as large as train. Of CelebA all is shared out anew by each seed;
the clean twin has as many men as women of either hair, and is small, because there are 81 blond men: about 680 faces to
learn from and about 450 to audit. Two seeds share many examples.
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
from spurless.auditing.subject import PERMUTATIONS
from spurless.bench.assess import circumstances, describe_model
from spurless.bench.fitting import fit
from spurless.core.errors import BadInput, SpurlessError
from spurless.core.findings import Audit, Finding
from spurless.core.provenance import digest, versions
from spurless.core.records import Record, append, read
from spurless.core.seeds import Seeds
from spurless.data import DATASETS, Grouped, Splits, load
from spurless.data.splitting import stratified
from spurless.data.waterbirds_rebuilt import masks as bird_masks
from spurless.metrics.groupwise import group_table
from spurless.metrics.intervals import wilson
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.weights import load_weights, save_weights
from spurless.train.config import TrainConfig
from spurless.train.embed import embed, features_of
from spurless.train.evaluate import predict
from spurless.train.run import Engine, Run, start

TWINS = ("biased", "clean")
KNOWLEDGE = ("hidden", "known")
OF_ATTRIBUTES = tuple(name for name, auditor in AUDITS.items() if auditor.needs == "attributes")
Conflicts = Callable[[Tensor, Tensor], Tensor]
"""From labels and attributes to who breaks the shortcut."""


def other_number(y: Tensor, a: Tensor) -> Tensor:
    """Attribute i goes with label i."""
    return y != a


def blond_man(y: Tensor, a: Tensor) -> Tensor:
    """The group that the shortcut from women to blond hair leaves out."""
    return (y == 1) & (a == 1)


def other_phrase(y: Tensor, a: Tensor) -> Tensor:
    """A negation goes with contradiction, which is label 0."""
    return (y == 0) != (a == 1)


def as_they_are(data: Splits, twin: str, seed: int) -> Splits:
    """Options of the dataset made the twin."""
    del twin, seed
    return data


def fewer_digits(data: Splits, twin: str, seed: int) -> Splits:
    """A tenth of train and a quarter of val, every group alike: so that a training takes seconds."""
    del twin
    seeds = Seeds(seed).child("fewer")
    train, _, _ = stratified(data.train.g, (0.1, 0.9, 0.0), seeds=seeds)
    val, _, _ = stratified(data.val.g, (0.25, 0.75, 0.0), seeds=seeds)
    return replace(data, train=data.train.select(train), val=data.val.select(val))


def birds(data: Splits, twin: str, seed: int) -> Splits:
    """Audit a fifth of test; learn from train, or from the rest of test, where backgrounds are even."""
    seeds = Seeds(seed).child("birds")
    rest, held_out, _ = stratified(data.test.g, (0.8, 0.2, 0.0), seeds=seeds)
    most, _, _ = stratified(data.train.g, (0.9, 0.1, 0.0), seeds=seeds)
    train = data.train.select(most) if twin == "biased" else data.test.select(rest)
    asked = data.test.select(held_out)
    return replace(data, train=train, val=asked, test=asked)


def faces(data: Splits, twin: str, seed: int) -> Splits:
    """Share all faces out; of the clean twin as many men as women of either hair, and six times as many not blond."""
    seeds, whole = Seeds(seed).child("faces"), joined(data)
    if twin == "biased":
        train, asked, _ = stratified(whole.g, (0.7, 0.3, 0.0), seeds=seeds)
        return replace(data, train=whole.select(train), val=whole.select(asked), test=whole.select(asked))
    few = int(whole.counts.min())
    mixed = torch.randperm(len(whole), generator=seeds.generator("twin"))
    kept = torch.cat([mixed[whole.g[mixed] == g][: few if g >= 2 else 6 * few] for g in range(len(whole.groups))])
    train, asked, _ = stratified(whole.g[kept], (0.6, 0.4, 0.0), seeds=seeds)
    return replace(data, train=whole.select(kept[train]), val=whole.select(kept[asked]), test=whole.select(kept[asked]))


def joined(data: Splits) -> Grouped:
    """Put the three splits one after another."""
    parts = (data.train, data.val, data.test)
    x, y, a = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "a"))
    return Grouped(x, y, a, data.groups, data.train.transform)


@dataclass(frozen=True)
class Problem:
    """A dataset, how its twins are made, a net, and what the truth is."""

    dataset: str
    model: str
    train: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    clean: Mapping[str, Any] = field(default_factory=dict)
    """options of the clean twin, over those of both"""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    part: str = "val"
    """the split that is audited"""
    draw: Callable[[Splits, str, int], Splits] = as_they_are
    probe: bool = False
    """train the head alone"""
    truth: str = ""
    """what an audit that knows no attribute calls the shortcut; a pattern"""
    conflicts: Conflicts = other_number
    masks: Callable[[str | None], Mapping[str, Tensor]] | None = None
    """what tells the foreground of the images of every split"""

    def options_of(self, twin: str) -> dict[str, Any]:
        """Return the options of the data of a twin."""
        return {**self.options, **(self.clean if twin == "clean" else {})}


CNN: dict[str, Any] = {"model": "small-cnn", "model_options": {"width": 8, "hidden": 64}}
MLP: dict[str, Any] = {"model": "mlp", "model_options": {"depth": 2, "width": 64, "bias": True}}
LITE0: dict[str, Any] = {"model": "timm:tf_efficientnet_lite0", "model_options": {"pretrained": True}, "probe": True}
SGD = {"epochs": 20, "batch_size": 64, "lr": 0.01}
FEW = {"epochs": 20, "batch_size": 64, "optimiser": "adam", "lr": 1e-3}
ADAM = {**FEW, "epochs": 60}  # until 99 % of clean training digits are right
PROBE = {"steps": 1500, "epochs": 2000, "batch_size": 256, "lr": 3e-3, "weight_decay": 0.1, "schedule": "cosine"}
SMALL = {"size": 16}  # pixels; the digits have 8
UNTIED = {"conflicting": 0.9}  # nine of ten other values: each is as frequent as any
COLOUR, CORNER, RIGHT = r"^(red|green|blue|hue|saturation)\b", r"\b(top|upper) left\b", r"\bright\b"

PROBLEMS: dict[str, Problem] = {
    "planted": Problem("planted", train=FEW, clean={"agreement": 0.5}, **MLP),
    "planted-weak": Problem(
        "planted", train=FEW, options={"spurious": 1.0, "agreement": 0.9}, clean={"agreement": 0.5}, **MLP
    ),
    **{
        name: problem
        for suffix, net in (("", {**CNN, "train": SGD}), ("-mlp", {**MLP, "train": ADAM}))
        for name, problem in {
            f"colored-digits{suffix}": Problem(
                "colored-digits", options=SMALL, clean=UNTIED, part="test", truth=COLOUR, **net
            ),
            f"patched-digits{suffix}": Problem(
                "patched-digits", options=SMALL, clean={"conflicting": 0.5}, part="test", truth=CORNER, **net
            ),
            f"double-digits{suffix}": Problem(
                "double-digits", options=SMALL, clean=UNTIED, part="test", truth=RIGHT, **net
            ),
        }.items()
    },
    "colored-digits-rare": Problem(
        "colored-digits", train=ADAM, options={**SMALL, "val_conflicting": 0.1}, clean=UNTIED, truth=COLOUR, **MLP
    ),
    "patched-digits-rare": Problem(
        "patched-digits",
        train=ADAM,
        options={**SMALL, "val_conflicting": 0.1},
        clean={"conflicting": 0.5},
        truth=CORNER,
        **MLP,
    ),
    "negated-claims": Problem(
        "negated-claims",
        "token-mean",
        {"epochs": 60, "batch_size": 64, "optimiser": "adam", "lr": 3e-3},
        options={"n_train": 1000},  # with 6,000 a clean model makes no mistakes that could be looked at
        clean={"conflicting": 0.5},
        truth=r"negation|\b(nobody|no|never|nothing|doubts|wonder|forget)\b",
        conflicts=other_phrase,
    ),
    "biased-mnist": Problem(
        "biased-mnist",
        train={"epochs": 4, "batch_size": 64, "lr": 0.01},
        clean={"conflicting": 0.5},
        draw=fewer_digits,
        truth=CORNER,
        **CNN,
    ),
    "waterbirds-rebuilt": Problem(
        "waterbirds-rebuilt",
        train=PROBE,
        options={"size": 96},
        draw=birds,
        truth=r"background|corner|frame",
        masks=bird_masks,
        **LITE0,
    ),
    "celeba10k": Problem(
        "celeba10k",
        train=PROBE,
        options={"size": 64},
        draw=faces,
        conflicts=blond_man,
        **LITE0,
    ),
}


@dataclass(frozen=True)
class Task:
    """One twin of a problem, with one seed."""

    problem: str
    twin: str
    seed: int

    @property
    def row(self) -> Problem:
        """The problem."""
        return PROBLEMS[self.problem]

    def cell(self, knowledge: str) -> str:
        """What the record calls it."""
        return f"{self.problem}, {self.twin}, attributes {knowledge}"


@dataclass(frozen=True)
class Place:
    """Where a task finds its data and does its arithmetic."""

    root: str | None = None
    device: str = "auto"
    models: Path | None = None
    """where trained models are kept, so that another audit of them needs no training"""
    permutations: int = PERMUTATIONS

    @property
    def engine(self) -> Engine:
        """Device and precision."""
        return Engine(self.device)


@lru_cache(maxsize=1)
def source(problem: str, twin: str, seed: int, root: str | None) -> Splits:
    """Read the data, or make them."""
    if root is not None:
        os.environ["SPURLESS_DATA"] = root  # pretrained weights are looked for there
    row = PROBLEMS[problem]
    options = {**row.options_of(twin), "seed": seed}
    if root is not None and DATASETS[row.dataset].layout is not None:
        options["root"] = root
    return load(row.dataset, **options)


def whole(task: Task, place: Place) -> Splits:
    """Return the splits that a twin is drawn from; those of a probe are the same for all twins and seeds."""
    twin, seed = (TWINS[0], 0) if task.row.probe else (task.twin, task.seed)
    return source(task.problem, twin, seed, place.root)


def run(task: Task, place: Place) -> list[Record]:
    """Train one model and audit it twice."""
    began = time.perf_counter()
    data = task.row.draw(whole(task, place), task.twin, task.seed)
    model = trained(task, data, place)
    seconds = time.perf_counter() - began
    looks = looked(model, data, task, place)
    seen = Seen(task, model, getattr(data, task.row.part), start(place.engine, 0, TrainConfig()))
    return [
        Record(
            method="audit",
            seed=task.seed,
            data={"name": task.row.dataset, "options": task.row.options_of(task.twin), "part": task.row.part}
            | {"examples": len(seen.split), "train_examples": len(data.train)},
            model=describe_model(model),
            config={"permutations": place.permutations, "level": look.level},
            train=dict(task.row.train),
            supervision={"train_attributes": known, "val_labels": True, "val_attributes": known},
            selection="last",
            groups=(),
            metrics=seen.numbers(look),
            seconds={"train": round(seconds, 2), "audit": round(spent, 2)},
            history=tuple(seen.row(finding, look) for finding in look.findings),
            cell=task.cell(knowledge),
            **circumstances(seen.run.device),
        )
        for knowledge, (look, spent) in looks.items()
        for known in [knowledge == "known"]
    ]


def trained(task: Task, data: Splits, place: Place) -> Classifier:
    """Return the model of a task: from the folder of models, or by training."""
    model = build(task.row.model, data, seed=task.seed, **task.row.model_options)
    if place.models is None:
        return learnt(task, model, data, place)
    key = digest(describe_model(model), dict(task.row.train), data.fingerprint(), task.seed, versions()["torch"])
    path = place.models / f"{task.problem}-{task.twin}-{task.seed}-{key}.safetensors"
    if path.exists():
        load_weights(path, model)
        return model
    model = learnt(task, model, data, place)
    save_weights(path, model)
    return model


def learnt(task: Task, model: Classifier, data: Splits, place: Place) -> Classifier:
    """Train a model by ERM, or its head alone on features that were scaled to unit variance."""
    if not task.row.probe:
        return fit("erm", model, data, seed=task.seed, train=task.row.train, engine=place.engine).model
    features = task.row.draw(embedded(task.problem, place), task.twin, task.seed)
    x: Any = features.train.x
    shift, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    scaled = {name: replace(part, x=(part.x - shift) / scale) for name, part in parts_of(features).items()}
    features = replace(features, **scaled)
    blank = build("linear", features, seed=task.seed)
    head: Any = fit("erm", blank, features, seed=task.seed, train=task.row.train, engine=Engine("cpu")).model.head
    with torch.no_grad():  # the scale goes into the head
        own: Any = model.head
        own.weight.copy_(head.weight / scale)
        own.bias.copy_(head.bias - head.weight @ (shift / scale))
    model.trained = True
    return model


@lru_cache(maxsize=1)
def embedded(problem: str, place: Place) -> Splits:
    """Return the features of all images; they lie in the cache folder once they were made."""
    data, row = source(problem, TWINS[0], 0, place.root), PROBLEMS[problem]
    return embed(build(row.model, data, **row.model_options), data, engine=place.engine)


def parts_of(data: Splits) -> dict[str, Any]:
    """Return the splits by name."""
    return {name: getattr(data, name) for name in ("train", "val", "test")}


def looked(model: Classifier, data: Splits, task: Task, place: Place) -> dict[str, tuple[Audit, float]]:
    """Audit without attributes, then with; what needs none is asked once. Beside each, the seconds it took.

    Masks of the foreground count as an attribute: they are somebody's work too.
    """
    settings: dict[str, Any] = {"part": task.row.part, "seed": task.seed, "permutations": place.permutations}
    settings |= {"pictured": 0, "engine": place.engine}
    began = time.perf_counter()
    blind = replace(data, **{name: part.hide_attributes() for name, part in parts_of(data).items()})
    without = audit(model, blind, **settings)
    spent = time.perf_counter() - began
    masks = foregrounds(task, place)
    only = OF_ATTRIBUTES if masks is None else (*OF_ATTRIBUTES, swapped_backgrounds.NAME)
    more = audit(model, data, only=only, masks=masks, **settings)
    findings = tuple(sorted((*without.findings, *more.findings), key=on_the_page))
    known = Audit(findings, without.suspects, level=without.level)
    return {"hidden": (without, spent), "known": (known, time.perf_counter() - began)}


def on_the_page(finding: Finding) -> tuple[bool, bool, float]:
    """Put what is flagged first, of that what shows use, and of that the most severe: as every audit does."""
    return not finding.flagged, not finding.shows_use, -finding.severity


def foregrounds(task: Task, place: Place) -> Tensor | None:
    """Return the masks of the examples that are audited; None where there are none."""
    if task.row.masks is None:
        return None
    try:
        masks = task.row.masks(place.root)
    except BadInput:  # they are not beside the images
        return None
    data = whole(task, place)
    parts = {name: replace(part, x=_as_large(masks[name], part.x.shape[-2:])) for name, part in parts_of(data).items()}
    drawn: Tensor = getattr(task.row.draw(replace(data, **parts), task.twin, task.seed), task.row.part).x
    return drawn


def _as_large(masks: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(masks.shape[1:]) == tuple(size):
        return masks
    return nn.functional.interpolate(masks[:, None].to(torch.uint8), size=size, mode="nearest")[:, 0].bool()


@dataclass(frozen=True, eq=False)
class Seen:
    """A model and the examples it was audited on, with their attributes: what an audit is judged by."""

    task: Task
    model: Classifier
    split: Grouped
    run: Run

    def numbers(self, look: Audit) -> dict[str, float | None]:
        """Return how the model fares, what the audit says in the end, and how it did."""
        said = predict(self.model.to(self.run.device), self.split, self.run.device)
        table = group_table(said, self.split.y, self.split.a, self.split.groups)
        breaks = self.task.row.conflicts(self.split.y, self.split.a)
        suspected = torch.zeros_like(breaks)
        suspected[[suspect.row for suspect in look.suspects]] = True
        hits, found = int((suspected & breaks).sum()), int(suspected.sum())
        numbers = {
            "average": table.average,
            "worst_group": table.worst[0],
            "mistakes": float((said != self.split.y).sum()),
            "conflicting": float(breaks.double().mean()),
            "leans": float(look.verdict == "leans"),
            "rank": self.rank(look),
            "suspected": found / len(breaks),
            "precision": hits / found if found else None,
            "recall": hits / int(breaks.sum()) if bool(breaks.any()) else None,
        }
        return {name: None if value is None else round(value, 4) for name, value in numbers.items()}

    def rank(self, look: Audit) -> float | None:
        """Return the place, among flagged findings, of the first that names the shortcut; a clean model has none."""
        if self.task.twin == "clean":
            return None
        return next((float(i) for i, finding in enumerate(look.flagged, 1) if self.names(finding)), None)

    def names(self, finding: Finding) -> bool:
        """Return whether a finding names what the data were given as a shortcut.

        These data have one attribute, so who names an attribute names it. A neuron is right if it tells the attribute
        better than the label. That the model looks at some region names nothing.
        """
        if finding.shortcut is None or not finding.flagged:
            return False
        if finding.audit in OF_ATTRIBUTES:
            return True
        if finding.audit == biased_neurons.NAME:
            size = features_of(self.model, self.split, self.run)[:, int(finding.numbers["neuron"])].abs()
            g = self.split.g
            return told(size, self.split.a, g) > told(size, self.split.y, g)
        return bool(self.task.row.truth) and re.search(self.task.row.truth, finding.shortcut) is not None

    def row(self, finding: Finding, look: Audit) -> dict[str, Any]:
        """Return what the record says of a finding; what is not so is not said, since lines are many."""
        numbers = {"severity": round(finding.severity, 4), "p": None if finding.p is None else round(finding.p, 4)}
        numbers |= {"low": round(finding.numbers["low"], 4)} if "low" in finding.numbers else {}
        words = {"flagged": finding.flagged, "proven": finding in look.proven, "use": finding.shows_use}
        named = finding.shortcut if finding.flagged else None
        return {"audit": finding.audit, **numbers, **{word: True for word, so in words.items() if so}} | (
            {} if named is None else {"shortcut": named}
        )


def told(size: Tensor, of: Tensor, g: Tensor) -> float:
    """Return the share of the variance of a neuron that some number tells; groups count alike.

    Else a neuron would be said to tell the attribute where it tells the label and both go together.
    """
    weight = 1 / torch.bincount(g)[g].double()
    weight = weight / weight.sum()
    size = size.double() - weight @ size.double()
    mass, total = (torch.zeros(int(of.max()) + 1).double().index_add(0, of, part) for part in (weight, weight * size))
    return float((total**2 / mass.clamp(min=1e-12)).sum() / (weight @ size**2).clamp(min=1e-12))


def plan(given: Any) -> Iterator[Task]:
    """Return the tasks, the slow ones first, so that no process is left with one at the end."""
    names = sorted(given.problems, key=lambda name: not PROBLEMS[name].probe)
    for name, seed, twin in product(names, range(given.seed, given.seed + given.seeds), given.twins):
        yield Task(name, twin, seed)


def study(tasks: Sequence[Task], place: Place, jobs: int) -> Iterator[list[Record]]:
    """Yield the records of the tasks as they are done; one that fails is told, and leaves a hole."""
    if jobs == 1:
        for task in tasks:
            yield from attempted(task, partial(run, task, place))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that are about to start
    for name in {task.problem for task in tasks if task.row.probe}:
        embedded(name, place)  # once, before many ask for it
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(run, task, place): task for task in tasks}
        for done in as_completed(waiting):
            yield from attempted(waiting[done], done.result)


def attempted(task: Task, result: Callable[[], list[Record]]) -> Iterator[list[Record]]:
    """Yield what a task gives, unless it fails."""
    try:
        yield result()
    except (SpurlessError, RuntimeError) as error:
        print(f"{task}: {error}", flush=True)


Found = Mapping[tuple[str, str, str], Sequence[Record]]
"""Records by problem, twin and whether attributes were known."""


def tables(records: Iterable[Record]) -> tuple[str, str]:
    """Return two tables in Markdown: how each problem fares, and how each audit does."""
    found: dict[tuple[str, str, str], list[Record]] = {}
    for record in {(record.cell, record.seed): record for record in records}.values():
        problem, twin, knowledge = record.cell.split(", ")
        found.setdefault((problem, twin, knowledge.removeprefix("attributes ")), []).append(record)
    return by_problem(found), by_audit(found)


def by_problem(found: Found) -> str:
    """One row per problem without attributes, and one with."""
    rows = [
        (
            f"`{problem}`",
            knowledge,
            str(len(biased)),
            accuracies(biased),
            leaning(biased),
            flagging(biased),
            ranks(biased),
            suspicions(biased),
            str(len(clean)),
            accuracies(clean),
            leaning(clean),
            flagging(clean),
        )
        for problem, knowledge in product(PROBLEMS, KNOWLEDGE)
        for biased, clean in [[found.get((problem, twin, knowledge), ()) for twin in TWINS]]
        if biased or clean
    ]
    biased = ("seeds", "average, worst group", "leans", "use flagged", "named (rank)", "suspects")
    return markdown(
        ("problem", "attributes", *biased, "clean seeds", *(f"clean: {word}" for word in biased[1:4])), rows
    )


def by_audit(found: Found) -> str:
    """One row per audit over all problems, and one per verdict."""
    biased, clean = (gathered(found, twin, "known") for twin in TWINS)
    names = {row["audit"]: row.get("use", False) for record in (*clean, *biased) for row in record.history}
    rows = [
        (f"`{name}`", "yes" if use else "no", *(cell for side in (clean, biased) for cell in answers(name, side)))
        for name, use in sorted(names.items(), key=lambda item: (not item[1], item[0]))
    ]
    for knowledge in KNOWLEDGE:
        sides = [gathered(found, twin, knowledge) for twin in reversed(TWINS)]
        cells = (cell for side in sides for cell in (str(len(side)), "all", leaning(side), leaning(side)))
        rows.append((f"verdict *leans*, attributes {knowledge}", "yes", *cells))
    words = ("models", "asked", "flagged of all", "flagged of asked")
    return markdown(("audit", "shows use", *(f"{twin}: {word}" for twin in reversed(TWINS) for word in words)), rows)


def gathered(found: Found, twin: str, knowledge: str) -> list[Record]:
    """Return the records of all problems."""
    return [record for key, records in found.items() if key[1:] == (twin, knowledge) for record in records]


def answers(name: str, records: Sequence[Record]) -> tuple[str, str, str, str]:
    """Return of how many models an audit was part, how many it could be asked of, and the share that it flagged."""
    rows = [row for record in records for row in record.history if row["audit"] == name]
    asked = sum(row["p"] is not None for row in rows)
    flagged = sum(row.get("flagged", False) for row in rows)
    return str(len(rows)), str(asked), share(flagged, len(rows)), share(flagged, asked)


def share(k: int, n: int) -> str:
    """Return a share with Wilson's 95 % interval, in percent.

    Example:
        >>> share(1, 20)
        '5 % (1 to 24)'
    """
    if not n:
        return "-"
    low, high = (100 * float(bound) for bound in wilson(k, n))
    return f"{100 * k / n:.0f} % ({low:.0f} to {high:.0f})"


def leaning(records: Sequence[Record]) -> str:
    """Return the share of models of which the verdict is that they lean on a shortcut."""
    return share(sum(bool(record.metrics["leans"]) for record in records), len(records))


def flagging(records: Sequence[Record]) -> str:
    """Return the share of models of which an audit that shows use flags something, however many were asked."""
    flagged = [any(row.get("flagged") and row.get("use") for row in record.history) for record in records]
    return share(sum(flagged), len(records))


def accuracies(records: Sequence[Record]) -> str:
    """Return average and worst-group accuracy on the audited examples, in percent, mean over seeds."""
    words = [f"{100 * fmean(values):.0f}" if values else "-" for values in values_of(records, "average", "worst_group")]
    return ", ".join(words)


def ranks(records: Sequence[Record]) -> str:
    """Return how often the shortcut is named by a flagged finding, and the median place of the first that does."""
    (known,) = values_of(records, "rank")
    return f"{len(known)} of {len(records)}" + (f" ({median(known):g})" if known else "") if records else "-"


def suspicions(records: Sequence[Record]) -> str:
    """Return the precision of the suspected minority beside the share of all that conflict, and its recall."""
    precision, of_all, recall = values_of(records, "precision", "conflicting", "recall")
    if not precision or not recall:
        return "-"
    return f"{fmean(precision):.2f} of {fmean(of_all):.2f}, recall {fmean(recall):.2f}"


def values_of(records: Sequence[Record], *names: str) -> list[list[float]]:
    """Return the numbers that exist, of each name."""
    return [[value for record in records if (value := record.metrics.get(name)) is not None] for name in names]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.environ.get("SPURLESS_DATA"), help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="records are appended here; what is there is not rerun")
    parser.add_argument("--problems", nargs="*", default=tuple(PROBLEMS), choices=tuple(PROBLEMS), metavar="NAME")
    parser.add_argument("--twins", nargs="*", default=TWINS, choices=TWINS)
    parser.add_argument("--seed", type=int, default=20, help="the first seed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--permutations", type=int, default=PERMUTATIONS)
    parser.add_argument("--models", type=Path, help="keep trained models in this folder, and take them from there")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", action="store_true", help="only print the tables of the records in --out")
    given = parser.parse_args()
    done = {(record.cell, record.seed) for record in read(given.out)} if given.out.exists() else set()
    left = [task for task in plan(given) if any((task.cell(k), task.seed) not in done for k in KNOWLEDGE)]
    place = Place(given.root, given.device, given.models, given.permutations)
    for records in study([] if given.table else left, place, given.jobs):
        for record in records:
            if (record.cell, record.seed) not in done:
                append(given.out, record)
            print(told_of(record), flush=True)
    print("\n\n".join(tables(read(given.out))))


def told_of(record: Record) -> str:
    """Return a line about a record."""
    flagged = ", ".join(row["audit"] for row in record.history if row.get("flagged")) or "nothing"
    verdict = "leans" if record.metrics["leans"] else "does not lean"
    return f"{record.cell}, seed {record.seed}: {accuracies([record])} %, {verdict}, {flagged} flagged"


if __name__ == "__main__":
    main()
