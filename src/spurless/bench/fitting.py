"""Fitting: one method, one model, one dataset, one seed, under the protocol; out come a model and its record."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spurless.bench.abstaining import assess_abstaining
from spurless.bench.assess import assess, circumstances, describe_data, describe_model, thinned
from spurless.bench.hearing import heard
from spurless.bench.keys import content_of, key_under
from spurless.bench.rules import check_fit, check_kinds, check_labels, score_of, set_criterion, used
from spurless.bench.starting import trained_by_erm, warn_if_untrained
from spurless.bench.tracked import tracked
from spurless.core.errors import BadInput, Diverged, SpurlessWarning
from spurless.core.options import configure
from spurless.core.progress import Progress
from spurless.core.provenance import digest
from spurless.core.records import Record
from spurless.data.checks import check_splits
from spurless.data.grouped import Splits
from spurless.data.likeness import differences
from spurless.methods import Method, make_method
from spurless.methods.base import Info, check_before, declared
from spurless.methods.own import settings_of
from spurless.metrics.groupwise import GroupTable
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import NoNumbers
from spurless.train.run import Engine, Run, start
from spurless.train.select import Criterion, criterion_named
from spurless.train.tracking import Tracker, closing


@dataclass(frozen=True)
class Fitted:
    """A trained or repaired model, and everything the run used and found."""

    model: Classifier
    record: Record
    start: Classifier | None = None
    """The trained model that the method repaired; None for a method that trains from scratch."""
    explanation: Any = None
    """What the method found out on its way, where it says; the biased neurons of NeuronTune, for one."""
    tracker: Tracker | None = field(default=None, repr=False, compare=False)
    """Where the run is told, until :meth:`told`."""

    def told(self, record: Record | None = None) -> Fitted:
        """Tell the numbers of the record, or of one that has more of them, where the run is tracked."""
        if self.tracker is not None:
            self.tracker.end((record or self.record).metrics)
        return self


@dataclass(frozen=True)
class Protocol:
    """How a run is made, apart from what is fitted on what."""

    train: TrainConfig = field(default_factory=TrainConfig)
    select: str = "last"
    """Which epoch to keep: a name in ``train.select.CRITERIA``."""
    engine: Engine = field(default_factory=Engine)
    folder: Path | None = None
    """Where a killed run leaves what it had; the same call continues it."""
    coverages: tuple[float, ...] = ()
    """At which coverages to count the errors of a model that may abstain."""
    score: str = "auto"
    """How sure a model is of an example: a name in ``train.abstain.SCORES``; auto is the method's own."""
    progress: Progress | None = None


def fit(  # noqa: PLR0913  the one door: each is a word that a user says
    method: str | Method,
    model: nn.Module,
    data: Splits,
    *,
    seed: int = 0,
    preset: str | None = None,
    train: TrainConfig | Mapping[str, Any] | None = None,
    select: str = "last",
    engine: Engine | None = None,
    folder: Path | str | None = None,
    coverages: Sequence[float] = (),
    score: str = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> Fitted:
    """Fit a method and evaluate the result on the test split, which the method never sees.

    Args:
        method: a name in ``METHODS``, such as ``"erm"``, or a method of your own: ``FILE.py:METHOD``, or an object.
        model: a :class:`Classifier`, or any module whose head can be found; it is copied, never changed.
        data: three splits; attributes that the method did not declare are hidden from it.
        seed: all randomness of the run.
        preset: a named configuration of the method; the first by default.
        train: settings of the loop, as a :class:`TrainConfig` or as a dict of its fields.
        select: which epoch to keep, such as ``"val-average"``; a criterion that looks at attributes says so
            in the record.
        engine: device, precision, number of devices.
        folder: where to leave checkpoints; a killed run continues from there, to the same weights.
        coverages: count the errors also of a model that abstains, at these shares of the examples; thresholds are
            chosen on validation scores.
        score: how sure a model is; ``"auto"`` is the method's own, see ``spurless.train.abstain``.
        progress: called with stage, step, total and a word.
        options: fields of the method's configuration, over the preset's.

    Raises:
        MissingAttributes: the method or the criterion needs attributes that the data do not have.
    """
    check_kinds(model=model, data=data, train=train, engine=engine)
    settings = train if isinstance(train, TrainConfig) else configure(TrainConfig, train or {}, "the training loop")
    place = Path(folder) if folder is not None else None
    protocol = Protocol(settings, select, engine or Engine(), place, tuple(coverages), score, progress)
    if isinstance(method, str):
        return fit_under(protocol, make_method(method, preset, **options), model, data, seed)
    if preset is not None or options:
        raise BadInput("a method that is passed as an object is already configured", got=preset or ", ".join(options))
    return fit_under(protocol, method, model, data, seed)


def fit_under(protocol: Protocol, method: Method, model: nn.Module, data: Splits, seed: int) -> Fitted:
    """Fit a method under a protocol; see :func:`fit`."""
    return carry_out(prepare(protocol, method, model, data, seed)).told()


@dataclass(frozen=True)
class Ready:
    """A run that is checked and may begin; ``model`` is its own copy."""

    protocol: Protocol
    method: Method
    model: Classifier
    data: Splits
    seed: int
    run: Run
    key: str
    fingerprint: str
    content: str
    notes: tuple[str, ...] = ()
    """in which ways validation is unlike train, where the run uses its labels"""
    tracker: Tracker | None = None

    @property
    def info(self) -> Info:
        """What the method uses."""
        return declared(self.method)

    @property
    def criterion(self) -> Criterion:
        """What decides which epoch is kept."""
        return criterion_named(self.protocol.select)

    @property
    def shown(self) -> Splits:
        """What the method may see of the data."""
        uses = {name: getattr(self.info, name) for name in ("train_attributes", "val_labels", "val_attributes")}
        return self.data.shown(**uses)


def prepare(
    protocol: Protocol, method: Method, model: nn.Module, data: Splits, seed: int, fingerprint: str | None = None
) -> Ready:
    """Refuse what cannot be, and make a run of the rest; ``fingerprint`` is that of the data, where it is known."""
    info, criterion = declared(method), criterion_named(protocol.select)
    check_labels(info, criterion, data)
    score_of(protocol.score, info, protocol.coverages)
    model = deepcopy(wrap(model))
    check_fit(model, check_splits(data))
    fingerprint = fingerprint or data.fingerprint()
    content = content_of(model, data, fingerprint)
    key = key_under(protocol, method, content, seed)
    checkpoints = Checkpoints(protocol.folder / key, key) if protocol.folder is not None else None
    run = start(protocol.engine, seed, protocol.train, checkpoints)
    run.progress = protocol.progress
    set_criterion(run, criterion, data.val)
    if run.device.type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.cuda.reset_peak_memory_stats(run.device)
    notes = differences(data) if used(info, criterion)["val_labels"] else ()
    tracker = tracked(protocol, method, model, data, run, key)
    ready = Ready(protocol, method, model, data, run.seeds.seed, run, key, fingerprint, content, notes, tracker)
    check_before(method, model, ready.shown)
    for note in notes:
        warnings.warn(note, SpurlessWarning, stacklevel=4)  # where fit was called
    return ready


def carry_out(ready: Ready) -> Fitted:
    """Train, evaluate and record one run; whoever asked for it says where it is tracked how it ended."""
    begin = time.perf_counter()
    with closing(ready.tracker):
        with heard() as said:
            model, begun = _starting_point(ready)
            fitted = ready.method.fit(model, ready.shown, ready.run)
        return finish(ready, fitted, begun, said, time.perf_counter() - begin)


def _starting_point(ready: Ready) -> tuple[Classifier, Classifier | None]:
    """Return the model that the method is given; of one that repairs, also a copy of it."""
    model, run = ready.model, ready.run
    if ready.info.start != "trained":
        return model, None
    if model.trained:
        warn_if_untrained(model, ready.data.train, run)
    else:
        untrained = deepcopy(model)
        run.fresh = lambda: deepcopy(untrained)
        model = trained_by_erm(model, ready.data, run, digest(ready.content, ready.protocol.select))
    begun = deepcopy(model)
    set_criterion(run, ready.criterion, ready.data.val, begun)
    return model, begun


def finish(
    ready: Ready, fitted: Classifier, begun: Classifier | None, said: Sequence[str], seconds: float, together: int = 1
) -> Fitted:
    """Evaluate what a run has trained, and write its record; ``said`` and ``seconds`` are those of the training."""
    protocol, data, run, info = ready.protocol, ready.data, ready.run, ready.info
    begin = time.perf_counter()
    with heard() as more:
        fitted.trained = True
        metrics, table = _assessed(fitted, data, run)
        score = score_of(protocol.score, info, protocol.coverages)
        numbers, selective = assess_abstaining(fitted, begun, data, run, score, protocol.coverages)
    for part in filter(None, (fitted, begun)):
        part.to("cpu")

    around = circumstances(run.device)
    if together > 1:
        around["hardware"] = {**around["hardware"], "together": together}
    record = Record(
        method=info.name,
        seed=ready.seed,
        data=describe_data(data, ready.fingerprint),
        model=describe_model(fitted, data.test),
        config=settings_of(ready.method),
        train=asdict(protocol.train),
        supervision=used(info, ready.criterion),
        selection=ready.criterion.name,
        groups=tuple(table.rows(data.train.counts)),
        metrics={**metrics, **numbers},
        seconds={**run.seconds, "total": seconds + time.perf_counter() - begin},
        peak_memory=torch.cuda.max_memory_allocated(run.device) if run.device.type == "cuda" else None,
        warnings=(*data.notes, *ready.notes, *said, *more),
        history=thinned(run.history),
        selective=selective,
        key=ready.key,
        **around,
    )
    return Fitted(fitted, record, begun, run.explanation, ready.tracker)


def _assessed(fitted: Classifier, data: Splits, run: Run) -> tuple[dict[str, float | None], GroupTable]:
    """Assess what was trained; the very last step may break weights whose loss was finite until then."""
    try:
        return assess(fitted, data, run)
    except NoNumbers as error:
        last = next((row for row in reversed(run.history) if "step" in row), None)
        if last is None:
            raise
        raise Diverged(last["stage"], last["step"], run.train.lr, "what the model says") from error


def evaluate_given(name: str, model: nn.Module, data: Splits, *, seed: int = 0, engine: Engine | None = None) -> Record:
    """Evaluate a model that was trained elsewhere; the record carries ``name`` as its method."""
    classifier = wrap(model)
    check_fit(classifier, check_splits(data))
    run = start(engine or Engine(), seed, TrainConfig())
    with heard() as said, run.timed("evaluate"):
        metrics, table = assess(classifier, data, run)
    return Record(
        method=name,
        seed=run.seeds.seed,
        data=describe_data(data, data.fingerprint()),
        model=describe_model(classifier, data.test),
        config={},
        train={},
        supervision={},
        selection="given",
        groups=tuple(table.rows(data.train.counts)),
        metrics=metrics,
        seconds=run.seconds,
        warnings=(*data.notes, *said),
        **circumstances(run.device),
    )
