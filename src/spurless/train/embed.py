"""Replace the inputs of splits by a model's features, with a cache in the run and on disk."""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.cache import CacheWriteError, RowStore
from spurless.core.errors import InputError, SpurlessWarning, UnknownNameError
from spurless.core.files import cache_folder
from spurless.core.hashing import content_hash, describe_values
from spurless.core.modules import eval_mode
from spurless.core.progress import progress_reporter, progress_to
from spurless.core.provenance import versions
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split, Splits
from spurless.models.classifier import Classifier
from spurless.models.features import DTYPES, SCHEMA, check_finite, collect_features, iterate_features
from spurless.models.wrapping import wrap
from spurless.train.config import TrainConfig
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Compute, Run, inference_threads, limit_threads, make_run

DEFAULT = Compute()
N_PROBES = 8  # examples that are embedded again to verify cached features
PROBE_TOLERANCE = 0.01  # relative to the norm of the features; float16 and TF32 round by at most a tenth of it
CHUNK_ROWS = 4096  # rows that are checked at once
_NO_DISK = "no disk"
"""Key in ``run.embeddings`` that marks a failed write, so that the disk is not tried and warned about again."""


def embed(model: nn.Module, data: Splits, *, compute: Compute = DEFAULT, dtype: str = "float32") -> Splits:
    """Return the same splits with the features of ``model`` as inputs: eval mode, no augmentation.

    A linear model on them is a linear probe: ``sp.fit("erm", sp.build("linear", features), features)``. A pass longer
    than a second is stored in the cache folder, under a hash of weights and inputs, and mapped into memory.

    Args:
        model: the model; its features are the inputs of its head.
        data: the splits.
        compute: device, precision and CPU threads.
        dtype: float32, or float16 for half the size; batches are float32 in both cases.
    """
    check_arguments(embed, locals())
    if dtype not in DTYPES:
        raise UnknownNameError("type of features", dtype, DTYPES)
    classifier = wrap(model)
    device = next((parameter.device for parameter in classifier.parameters()), torch.device("cpu"))
    run = make_run(compute, 0, TrainConfig())
    parts: dict[str, Any] = {}
    try:
        with limit_threads(run.threads):
            for name in ("train", "val", "test"):
                split = getattr(data, name)
                parts[name] = embed_split(classifier, split, run, dtype=DTYPES[dtype], stage=f"embed {name}")
    finally:
        classifier.to(device)
    return replace(data, name=f"{data.name} through {classifier.name}", **parts)


def embed_split(
    model: Classifier, split: Split, run: Run, *, dtype: torch.dtype = torch.float32, stage: str = "embed"
) -> Split:
    """Return a split with features instead of inputs, for a method that only trains the last layer."""
    x = compute_features(model, split, run, dtype=dtype, stage=stage)
    return replace(split, x=x, transform=None, augment=None, hidden=None)


def compute_features(
    model: Classifier, split: Split, run: Run, *, dtype: torch.dtype = torch.float32, stage: str = "embed"
) -> Tensor:
    """Return the features of every example of a split, ``(N, d)`` on the CPU; do not write to them.

    Features are cached by weights and inputs, not by labels: in the run, and in a file if the pass takes longer than a
    second. So this is for weights that do not change, not for those of every epoch.

    Raises:
        InputError: features are not finite, or not one row per example.
    """
    if not len(split):
        raise InputError("the split has no examples", hint="Pass a split with at least one example.")
    with run.timed("embed"), inference_threads(), eval_mode(model):
        model.to(run.device)
        features = _inputs_as_features(model, split, dtype)
        if features is not None:
            return features
        one_pass = _Pass(model, split, run, dtype, stage)
        inputs = inputs_hash(split)
        return one_pass.compute() if inputs is None else one_pass.compute_cached(backbone_hash(model), inputs)


class _Pass:
    """One pass of a model over a split."""

    def __init__(self, model: Classifier, split: Split, run: Run, dtype: torch.dtype, stage: str) -> None:
        self.model, self.split, self.run, self.dtype, self.stage = model, split, run, dtype, stage

    def compute_cached(self, weights: str, inputs: str) -> Tensor:
        """Return the features: from the run, from a file, or by a pass."""
        cached, device = self.run.embeddings, self.run.device.type
        # batch size, type of device and threads affect the last bits
        settings = [SCHEMA, str(self.dtype), EVALUATION_BATCH, device, self.run.threads, versions()["torch"]]
        key = content_hash("features", weights, inputs, settings)
        store = RowStore(cache_folder() / "features", key, len(self.split), self.dtype)
        name = f"{weights} {key}"
        features = cached[name] if name in cached else store.rows()
        if features is not None and len(features) and not self.agrees(features):
            store.delete("The stored features differ from those that the model computes now")
            features = None
        if features is None or len(features) < len(self.split):
            features = self.compute_and_store(store)
        for other in [other for other in cached if not other.startswith(weights) and other != _NO_DISK]:
            del cached[other]  # a method that embeds with changing weights would fill the memory
        cached[name] = features
        return features

    def compute_and_store(self, store: RowStore) -> Tensor:
        """Return the features, stored on disk if possible."""
        if _NO_DISK in self.run.embeddings:
            return self.compute()
        try:
            return store.compute(self.rows_from)
        except CacheWriteError as error:
            self.run.embeddings[_NO_DISK] = torch.empty(0)
            message = f"The features could not be stored on disk and stay in memory: {error}"
            warnings.warn(message, SpurlessWarning, stacklevel=2)
            return self.compute()

    def compute(self) -> Tensor:
        """Return the features in memory; a list of parts would need twice the memory."""
        features, done = torch.empty(0), 0
        with closing(self.rows_from(0)) as parts:
            for part in parts:
                if not done:
                    features = torch.empty(len(self.split), part.shape[1], dtype=self.dtype)
                features[done : done + len(part)] = part
                done += len(part)
        return features

    def rows_from(self, start: int) -> Generator[Tensor]:
        """Yield the features from an example on, in the same batches as a pass from the start."""
        n, device = len(self.split), self.run.device
        loader = Loader(self.split, sequential_order(n), EVALUATION_BATCH, device, workers=self.run.workers)
        batches = loader.batches(start=start // EVALUATION_BATCH)
        with nullcontext() if self.run.progress is None else progress_to(self.run.progress):
            report, count = progress_reporter(self.stage, n), start
        for part in iterate_features(self.model, batches, device, self.dtype, start):
            yield part
            count += len(part)
            report(count)

    def agrees(self, features: Tensor) -> bool:
        """Return whether a few examples have these features: no hash covers the code of layers and transforms."""
        rows = torch.arange(0, len(features), -(-len(features) // N_PROBES))
        batches = Loader(self.split.select(rows), sequential_order(len(rows)), N_PROBES, self.run.device).batches()
        try:
            computed = collect_features(self.model, batches, self.run.device)
        except InputError:  # the pass that follows raises it again, with the example
            return False
        stored = features.index_select(0, rows).float()
        tolerance = PROBE_TOLERANCE * float(computed.norm())
        return stored.shape == computed.shape and float((stored - computed).norm()) <= tolerance


def backbone_hash(model: Classifier) -> str:
    """Return a hash of the backbone: its layers, parameters and buffers, without the head."""
    # not the state dict, which leaves out non-persistent buffers
    tensors = [*model.backbone.named_parameters(), *model.backbone.named_buffers()]
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(model.backbone))  # enough, since probes are compared
    return content_hash(layers, *(part for name, tensor in tensors for part in (name, tensor)))


def inputs_hash(split: Split) -> str | None:
    """Return a hash of inputs, input mask and transform, without labels and attributes.

    None if the transform is a function, which cannot be hashed.
    """
    try:
        transform = describe_values(split.transform)
    except (TypeError, RecursionError):
        return None
    hidden = None if split.hidden is None else split.hidden.fingerprint()
    if isinstance(split.x, Tensor):
        return content_hash(split.x, hidden, transform)
    if isinstance(split.x, dict):
        return content_hash(*(part for key in sorted(split.x) for part in (key, split.x[key])), hidden, transform)
    return content_hash("streamed", split.x.fingerprint(), hidden, transform)


def _inputs_as_features(model: Classifier, split: Split, dtype: torch.dtype) -> Tensor | None:
    """Return the inputs if they are rows of features that the backbone does not change; otherwise None."""
    x = split.x
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
        return None
    is_plain = split.transform is None and split.hidden is None
    if not is_plain or not all(_is_identity(part) for part in model.backbone.modules()):
        return None
    features = x.to("cpu", dtype)
    for first in range(0, len(features), CHUNK_ROWS):
        check_finite(features[first : first + CHUNK_ROWS], first)
    return features


def _is_identity(part: nn.Module) -> bool:
    """Return whether a layer without hooks does not change rows."""
    is_flatten = type(part) is nn.Flatten and part.start_dim == 1
    has_hooks = bool(part._forward_hooks or part._forward_pre_hooks)
    return (is_flatten or type(part) in (nn.Sequential, nn.Identity)) and not has_hooks
