"""The protocol of one run: hash, check and prepare it, train, evaluate, and write its record.

The key of a run is a hash of everything that decides its result; the same run has the same key everywhere.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spurless.core.cache import cached_tensors
from spurless.core.config import key_settings
from spurless.core.errors import DivergedError, InputError, SpurlessWarning
from spurless.core.hashing import architecture_hash, content_hash, describe_object
from spurless.core.progress import Progress
from spurless.core.provenance import versions
from spurless.core.records import Record
from spurless.core.seeds import Seeds
from spurless.data.checks import Snapshot, check_splits
from spurless.data.split import Split, Splits
from spurless.data.split_shift import val_differences
from spurless.fitting.assess import assess, make_record, thin_history
from spurless.fitting.checks import check_labels, check_model_fits_data, labels_used, resolve_score, with_criterion
from spurless.fitting.comparison import warn_if_worse
from spurless.fitting.selective import assess_selective_metrics
from spurless.methods import Method
from spurless.methods._user_method import config_dict
from spurless.methods.base import Info, check_method, method_info
from spurless.methods.erm import ERM
from spurless.metrics.groupwise import GroupTable
from spurless.models.classifier import Classifier
from spurless.models.weights import load_tensors
from spurless.models.wrapping import wrap
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import EVALUATION_BATCH, NonFiniteError, check_logits, logits, predict
from spurless.train.run import Compute, Run, limit_threads, make_run
from spurless.train.selection import Criterion, get_criterion
from spurless.train.tracking import Tracker, close_on_error

HISTORY = "history of the training"  # name of the bytes that are stored next to cached weights


@dataclass(frozen=True)
class Fitted:
    """A trained or repaired model, and the record of its run."""

    model: Classifier
    record: Record
    start: Classifier | None = None
    """The trained model that the method repaired; None for a method that trains from scratch."""
    explanation: Any = None
    """The method's explanation of its result, if it has one, such as the biased neurons of NeuronTune."""
    tracker: Tracker | None = field(default=None, repr=False, compare=False)
    """The tracker of the run, open until :meth:`log_result`."""

    def log_result(self, record: Record | None = None) -> Fitted:
        """Log the metrics of the record, or of an extended record, to the tracker and close it."""
        if self.tracker is not None:
            self.tracker.end((record or self.record).metrics)
        return self


@dataclass(frozen=True)
class Protocol:
    """Settings of a run, besides method, model, data and seed."""

    train: TrainConfig = field(default_factory=TrainConfig)
    select: str = "last"  # which epoch to select: a name in ``train.selection.CRITERIA``
    compute: Compute = field(default_factory=Compute)
    folder: Path | None = None  # folder for checkpoints; the same call continues an interrupted run from there
    coverages: tuple[float, ...] = ()  # coverages at which to evaluate a model that abstains
    score: str = "auto"  # the confidence score: a name in ``train.selective.SCORES``; auto is the method's own
    progress: Progress | None = None


class RunHashes(NamedTuple):
    """The hashes of a run."""

    fingerprint: str  # hash of the data
    content: str  # hash of data and model
    key: str  # hash of data, model, method, settings and seed


def hash_run(  # the parts of a run, and what is known of them
    protocol: Protocol, method: Method, model: nn.Module, data: Splits, seed: int, fingerprint: str | None = None
) -> RunHashes:
    """Return the hashes of a run; ``key`` is the one that its record will contain.

    ``model`` is the model before the run, and ``fingerprint`` is ``data.fingerprint()``, if it is known.
    """
    fingerprint = fingerprint or data.fingerprint()
    content = hash_model_and_data(model, data, fingerprint)
    return RunHashes(fingerprint, content, key_for_content(protocol, method, content, seed))


def hash_model_and_data(model: nn.Module, data: Splits, fingerprint: str | None = None) -> str:
    """Return a hash of examples, transforms, layers and weights."""
    model = wrap(model)
    transforms = describe_object([(split.augment, split.transform) for split in (data.train, data.val, data.test)])
    weights = (part for item in sorted(model.state_dict().items()) for part in item)
    return content_hash(fingerprint or data.fingerprint(), transforms, architecture_hash(model), *weights)


def key_for_content(protocol: Protocol, method: Method, content: str, seed: int) -> str:
    """Return the key of a run, given the hash of its data and model."""
    compute = protocol.compute
    settings: list[Any] = [key_settings(protocol.train), protocol.select, compute.precision]
    if compute.threads != 1:
        settings.append({"threads": compute.threads})
    if protocol.coverages:
        settings += [list(protocol.coverages), protocol.score]
    return content_hash(content, [method.info.name, config_dict(method), *settings, Seeds(seed).seed])


class FitRequest(NamedTuple):
    """The arguments of :func:`prepare` and :func:`fit_with_protocol`."""

    protocol: Protocol
    method: Method
    model: Classifier
    data: Splits
    seed: int
    hashes: RunHashes | None = None


def fit_with_protocol(  # the fields of FitRequest
    protocol: Protocol, method: Method, model: nn.Module, data: Splits, seed: int, hashes: RunHashes | None = None
) -> Fitted:
    """Fit a method under a protocol; see :func:`spurless.fitting.fit` and :func:`prepare`."""
    with limit_threads(protocol.compute.threads):
        return execute(prepare(protocol, method, model, data, seed, hashes)).log_result()


@dataclass(frozen=True)
class PreparedRun:
    """A run that was checked and can start; ``model`` is its own copy."""

    protocol: Protocol
    method: Method
    model: Classifier
    data: Splits
    run: Run
    hashes: RunHashes
    info: Info  # the method's declaration, from before the method could change it
    settings: Mapping[str, Any]  # fields of the record that describe the method and its settings, from then too
    snapshot: Snapshot  # state of the data, which the method must not change
    notes: tuple[str, ...] = ()  # how validation differs from train, if the run uses validation labels
    tracker: Tracker | None = None

    @property
    def criterion(self) -> Criterion:
        """The criterion that selects an epoch."""
        return get_criterion(self.protocol.select)

    @cached_property
    def visible(self) -> Splits:
        """The data as the method may see them."""
        uses = {name: getattr(self.info, name) for name in ("train_attributes", "val_labels", "val_attributes")}
        return self.data.visible(**uses)


def prepare(  # the fields of FitRequest
    protocol: Protocol, method: Method, model: nn.Module, data: Splits, seed: int, hashes: RunHashes | None = None
) -> PreparedRun:
    """Check a run and create everything it needs; nothing is trained, and the model is copied.

    ``hashes`` are those of :func:`hash_run`, if the caller has computed them. Raises an
    ``InputError`` if the method, the model, the data and the settings do not fit together.
    """
    info, criterion = method_info(method), get_criterion(protocol.select)
    check_labels(info, criterion, data)
    resolve_score(protocol.score, info, protocol.coverages)
    model = deepcopy(wrap(model))
    check_model_fits_data(model, check_splits(data))
    hashes = hashes or hash_run(protocol, method, model, data, seed)
    checkpoints = Checkpoints(protocol.folder / hashes.key, hashes.key) if protocol.folder is not None else None
    run = make_run(protocol.compute, seed, protocol.train, checkpoints, protocol.progress)
    run = with_criterion(run, criterion, data.val, data=data)
    if run.device.type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.cuda.reset_peak_memory_stats(run.device)
    notes = val_differences(data) if labels_used(info, criterion)["val_labels"] else ()
    settings = describe_protocol(protocol, method)
    prepared = PreparedRun(protocol, method, model, data, run, hashes, info, settings, Snapshot(data), notes)
    tracker = _make_tracker(prepared)
    if tracker is not None:
        prepared = replace(prepared, run=replace(run, log=tracker.log_row), tracker=tracker)
    check_method(method, model, prepared.visible)
    for note in notes:
        warnings.warn(note, SpurlessWarning, stacklevel=4)  # the line that called fit
    return prepared


def execute(prepared: PreparedRun) -> Fitted:
    """Train and evaluate a prepared run; the caller logs its result with :meth:`Fitted.log_result`."""
    begin = time.perf_counter()
    with limit_threads(prepared.run.threads), close_on_error(prepared.tracker):
        with capture_warnings() as messages:
            model, start_model, run = _make_starting_point(prepared)
            fitted: Any = prepared.method.fit(model, prepared.visible, run)  # a user's method may return anything
        if not isinstance(fitted, Classifier):
            what, hint = (
                f"fit of the method {prepared.info.name!r} does not return a model",
                "End it with: return model",
            )
            raise InputError(what, expected="the trained Classifier", got=type(fitted).__name__, hint=hint)
        return finish(prepared, fitted, start_model, messages, time.perf_counter() - begin)


def _make_starting_point(prepared: PreparedRun) -> tuple[Classifier, Classifier | None, Run]:
    """Return the model that the method receives, a copy of it if the method repairs it, and the method's run."""
    model, run = prepared.model, prepared.run
    if prepared.info.start != "trained":
        return model, None, run
    if model.trained:
        warn_if_untrained(model, prepared.data.train, run)
    else:
        untrained = deepcopy(model)
        content = content_hash(prepared.hashes.content, prepared.protocol.select)
        model = train_by_erm(model, prepared.data, run, content)
        run = replace(run, make_untrained=lambda: deepcopy(untrained))
    start_model = deepcopy(model)
    return model, start_model, with_criterion(run, prepared.criterion, prepared.data.val, start_model, prepared.data)


def train_by_erm(model: Classifier, data: Splits, run: Run, content: str) -> Classifier:
    """Train an untrained model by ERM in place, or load the weights of the same training from the cache.

    ``content`` is a hash of data, initial weights and selection.
    """
    settings = [key_settings(run.train), run.precision, run.seeds.seed, run.threads, versions()["torch"]]
    n_before = len(run.history)

    def train() -> dict[str, Tensor]:
        state = _run_erm(model, data, run).state_dict()
        weights = {name: value.detach().cpu().clone() for name, value in state.items()}  # tied ones cannot be stored
        return {**weights, HISTORY: _pack(run.history[n_before:])}

    tensors = cached_tensors(content_hash("start", content, settings), train, write=run.is_main)
    rows = _unpack(tensors.pop(HISTORY))
    if len(run.history) == n_before:  # it was not trained now
        for row in rows:
            run.add_history(row)
    load_tensors(model, tensors)
    model.trained = True
    return model


def _run_erm(model: Classifier, data: Splits, run: Run) -> Classifier:
    visible = data.visible(train_attributes=False, val_labels=False, val_attributes=False)
    with run.sub_run("erm") as sub_run:
        model = ERM().fit(model, visible, sub_run)
    _check_finite(model, data.train, run)
    return model


def _pack(history: Sequence[dict[str, Any]]) -> Tensor:
    """Return rows of a history as bytes of JSON, to store them with the weights."""
    return torch.tensor(list(json.dumps(history).encode()), dtype=torch.uint8)


def _unpack(packed: Tensor) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(bytes(packed.tolist()))
    return rows


def _check_finite(model: Classifier, train: Split, run: Run) -> None:
    """Raise if the last step made the weights non-finite: the loss of a step belongs to the weights before it."""
    sample = train.select(torch.arange(min(len(train), EVALUATION_BATCH)))
    try:
        check_logits(logits(model, sample, run.device, run.workers))
    except NonFiniteError as error:
        raise DivergedError("erm", run.history[-1]["step"], run.train.lr, "the model's output") from error


def warn_if_untrained(model: Classifier, train: Split, run: Run) -> None:
    """Warn if the model is not better than guessing: a method that repairs a model needs a trained one."""
    sample = train.select(torch.arange(0, len(train), max(1, len(train) // 2000)))
    model.to(run.device)
    accuracy = float((predict(model, sample, run.device, run.workers) == sample.y.cpu()).double().mean())
    majority = float(sample.class_counts.max()) / len(sample)
    if accuracy <= majority:
        warnings.warn(
            f"The model's accuracy on train is {accuracy:.0%}, not above that of always predicting the largest class "
            f"({majority:.0%}). A method that repairs a model needs a trained one: fit 'erm' first.",
            SpurlessWarning,
            stacklevel=3,
        )


def finish(  # what a training leaves behind
    prepared: PreparedRun,
    fitted: Classifier,
    start_model: Classifier | None,
    messages: Sequence[str],
    seconds: float,
    together: int = 1,
) -> Fitted:
    """Evaluate the trained model of a run, and write its record.

    ``messages`` are the warnings and ``seconds`` the duration of the training; ``together`` is the number of runs that
    shared the device.
    """
    protocol, data, run, info = prepared.protocol, prepared.data, prepared.run, prepared.info
    begin = time.perf_counter()
    prepared.snapshot.check(info.name)
    with capture_warnings() as more:
        fitted.trained = True
        metrics, table = _assess_trained(fitted, data, run)
        score = resolve_score(protocol.score, info, protocol.coverages)
        numbers, selective = assess_selective_metrics(fitted, start_model, data, run, score, protocol.coverages)
        if start_model is not None:
            warn_if_worse(fitted, start_model, data.val, run)
    for part in filter(None, (fitted, start_model)):
        part.to("cpu")
    record = make_record(
        info.name,
        fitted,
        data,
        run,
        table=table,
        fingerprint=prepared.hashes.fingerprint,
        **prepared.settings,
        metrics={**metrics, **numbers},
        seconds={**run.seconds, "total": seconds + time.perf_counter() - begin},
        peak_memory=torch.cuda.max_memory_allocated(run.device) if run.device.type == "cuda" else None,
        warnings=(*prepared.notes, *messages, *more),
        history=thin_history(run.history),
        selective=selective,
        key=prepared.hashes.key,
    )
    if together > 1:
        record = replace(record, hardware={**record.hardware, "together": together})
    return Fitted(fitted, record, start_model, run.explanation, prepared.tracker)


def describe_protocol(protocol: Protocol, method: Method) -> dict[str, Any]:
    """Return the fields of a record that describe the method and its settings."""
    info, criterion = method_info(method), get_criterion(protocol.select)
    return {
        "config": deepcopy(config_dict(method)),
        "train": asdict(protocol.train),
        "supervision": labels_used(info, criterion),
        "selection": criterion.name,
        "title": info.title,
    }


def _assess_trained(fitted: Classifier, data: Splits, run: Run) -> tuple[dict[str, float | None], GroupTable]:
    """Assess a trained model; its last step may have broken weights whose loss was finite until then."""
    try:
        return assess(fitted, data, run)
    except NonFiniteError as error:
        last = next((row for row in reversed(run.history) if "step" in row), None)
        if last is None:
            raise
        raise DivergedError(last["stage"], last["step"], run.train.lr, "the model's output") from error


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Collect the messages of this package's warnings for the record, and re-emit all warnings."""
    messages: list[str] = []
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SpurlessWarning)
            yield messages
            messages.extend(str(w.message) for w in caught if issubclass(w.category, SpurlessWarning))
    except Exception:
        with suppress(Warning):  # a warning that is turned into an error must not replace this one
            _re_emit(caught)
        raise
    _re_emit(caught)


def _re_emit(caught: list[warnings.WarningMessage]) -> None:
    for w in caught:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)


def _make_tracker(prepared: PreparedRun) -> Tracker | None:
    """Return the tracker that ``protocol.compute`` names, or None."""
    protocol, method, data, run = prepared.protocol, prepared.method, prepared.data, prepared.run
    if protocol.compute.track is None or not run.is_main:
        return None
    seed, key = run.seeds.seed, prepared.hashes.key
    facts = {"method": method.info.name, "data": data.name, "model": prepared.model.name, "seed": seed, "key": key}
    settings = {"select": protocol.select, "config": config_dict(method), "train": asdict(protocol.train)}
    name = f"{method.info.name}-{data.name}-seed{seed}-{key[:8]}"
    return Tracker(protocol.compute.track, name, {**facts, **settings})
