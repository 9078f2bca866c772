"""Embedding: the features of a model in the place of the inputs, so that what follows takes seconds."""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, SpurlessWarning, UnknownName
from spurless.core.identity import described
from spurless.core.places import cache_folder
from spurless.core.progress import listening, teller
from spurless.core.provenance import digest, versions
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import Loader, in_order
from spurless.models.classifier import Classifier, evaluating
from spurless.models.features import DTYPES, SCHEMA, NotKept, Store, check_finite, collect, rows
from spurless.models.wrapping import wrap
from spurless.train.config import TrainConfig
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Engine, Run, start

DEFAULT = Engine()
PROBE = 8
"""Examples that are embedded again before features are taken from a file."""
TOLERANCE = 0.01
"""Of the norm of the features: float16 and TF32 round by a tenth of it at most, another layer changes far more."""
CHUNK = 4096  # rows that are looked through together
_NO_DISK = "no disk"
"""Among the embeddings of a run: the disk refused some, so that it is neither asked nor complained of again."""


def embed(model: nn.Module, data: Splits, *, engine: Engine = DEFAULT, dtype: str = "float32") -> Splits:
    """Return the same splits with the features of ``model`` as inputs: eval mode, no augmentation.

    A linear model on them is a linear probe: ``sp.fit("erm", sp.build("linear", features), features)``.
    A pass that takes longer than a second is kept in the cache folder, found by the content of weights and inputs,
    and mapped into memory: features of any number of examples need little of it.

    Args:
        model: where the features come from: what its head would read.
        data: the splits.
        engine: where the arithmetic is done.
        dtype: float32, or float16 for half the room; batches are float32 all the same.
    """
    if dtype not in DTYPES:
        raise UnknownName("type of features", dtype, DTYPES)
    classifier = wrap(model)
    home = next((parameter.device for parameter in classifier.parameters()), torch.device("cpu"))
    run = start(engine, 0, TrainConfig())
    parts: dict[str, Any] = {}
    try:
        for name in ("train", "val", "test"):
            parts[name] = _embedded(classifier, getattr(data, name), run, DTYPES[dtype], f"embed {name}")
    finally:
        classifier.to(home)
    return replace(data, name=f"{data.name} through {classifier.name}", **parts)


def embedded(model: Classifier, split: Grouped, run: Run, *, dtype: torch.dtype = torch.float32) -> Grouped:
    """Return a split with features in the place of the inputs, for a method that works on the last layer alone."""
    return _embedded(model, split, run, dtype, "embed")


def features_of(model: Classifier, split: Grouped, run: Run, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the features of every example of a split, ``(N, d)`` on the CPU; not to be written to.

    The same weights and inputs are passed once, whatever the labels: the run remembers, and what took longer than a
    second lies in a file for later runs. So it is meant for weights that stay, not for those of every epoch.

    Raises:
        BadInput: features are not finite, or not one row per example.
    """
    return _features(model, split, run, dtype, "embed")


def _embedded(model: Classifier, split: Grouped, run: Run, dtype: torch.dtype, stage: str) -> Grouped:
    x = _features(model, split, run, dtype, stage)
    return replace(split, x=x, transform=None, augment=None, hidden=None)


def _features(model: Classifier, split: Grouped, run: Run, dtype: torch.dtype, stage: str) -> Tensor:
    if not len(split):
        raise BadInput("there are no examples to take features of", do="Pass a split with at least one example.")
    with run.timed("embed"), evaluating(model):
        model.to(run.device)
        already = _as_they_are(model, split, dtype)
        if already is not None:
            return already
        one_pass = _Pass(model, split, run, dtype, stage)
        inputs = inputs_key(split)
        return one_pass.whole() if inputs is None else one_pass.kept(weights_key(model), inputs)


class _Pass:
    """One pass of a model over a split."""

    def __init__(self, model: Classifier, split: Grouped, run: Run, dtype: torch.dtype, stage: str) -> None:
        self.model, self.split, self.run, self.dtype, self.stage = model, split, run, dtype, stage

    def kept(self, weights: str, inputs: str) -> Tensor:
        """Return the features: from the run, from a file, or by a pass that fills them."""
        known, device = self.run.embeddings, self.run.device.type
        # the size of a batch and the kind of device decide the last bits
        circumstances = [SCHEMA, str(self.dtype), EVALUATION_BATCH, device, versions()["torch"]]
        key = digest("features", weights, inputs, circumstances)
        store = Store(cache_folder() / "features", key, len(self.split), self.dtype)
        name = f"{weights} {key}"
        found = known[name] if name in known else store.rows()
        if found is not None and len(found) and not self.agrees(found):
            store.forget("The stored features are not what the model makes of its inputs now")
            found = None
        if found is None or len(found) < len(self.split):
            found = self.made(store)
        for other in [other for other in known if not other.startswith(weights) and other != _NO_DISK]:
            del known[other]  # a method that embeds with changing weights would fill the memory
        known[name] = found
        return found

    def made(self, store: Store) -> Tensor:
        if _NO_DISK in self.run.embeddings:
            return self.whole()
        try:
            return store.make(self.rows_from)
        except NotKept as error:
            self.run.embeddings[_NO_DISK] = torch.empty(0)
            sentence = f"The features were not kept, and stay in memory: {error}"
            warnings.warn(sentence, SpurlessWarning, stacklevel=2)
            return self.whole()

    def whole(self) -> Tensor:
        """Return the features in memory; not in parts first, which would take twice the room."""
        features, done = torch.empty(0), 0
        with closing(self.rows_from(0)) as parts:
            for part in parts:
                if not done:
                    features = torch.empty(len(self.split), part.shape[1], dtype=self.dtype)
                features[done : done + len(part)] = part
                done += len(part)
        return features

    def rows_from(self, start: int) -> Generator[Tensor]:
        """Yield the features from an example on; a pass that goes on has the same batches as one from the start."""
        n, device = len(self.split), self.run.device
        loader = Loader(self.split, in_order(n), EVALUATION_BATCH, device, workers=self.run.workers)
        batches = loader.batches(start=start // EVALUATION_BATCH)
        with nullcontext() if self.run.progress is None else listening(self.run.progress):
            done, count = teller(self.stage, n), start  # who listens is decided here
        for part in rows(self.model, batches, device, self.dtype, start):
            yield part
            count += len(part)
            done(count)

    def agrees(self, found: Tensor) -> bool:
        """Return whether some examples have these features: the code of layers and transforms is in no hash."""
        some = torch.arange(0, len(found), -(-len(found) // PROBE))
        batches = Loader(self.split.select(some), in_order(len(some)), PROBE, self.run.device).batches()
        try:
            fresh = collect(self.model, batches, self.run.device)
        except BadInput:  # the pass that follows says of which example
            return False
        kept = found.index_select(0, some).float()
        return kept.shape == fresh.shape and float((kept - fresh).norm()) <= TOLERANCE * float(fresh.norm())


def weights_key(model: Classifier) -> str:
    """Return a hash of the backbone: its layers, parameters and buffers. The head has no part in it."""
    # not the state dict: buffers that are not saved with the weights decide the features all the same
    tensors = [*model.backbone.named_parameters(), *model.backbone.named_buffers()]
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(model.backbone))  # not more: features of a few are compared anyway
    return digest(layers, *(part for name, tensor in tensors for part in (name, tensor)))


def inputs_key(split: Grouped) -> str | None:
    """Return a hash of what the model is shown: inputs, what is hidden of them, and the transform.

    Labels and attributes have no part in it. None where the transform is a function: nobody knows what is in it.
    """
    try:
        transform = described(split.transform)
    except (TypeError, RecursionError):
        return None
    hidden = None if split.hidden is None else split.hidden.fingerprint()
    if isinstance(split.x, Tensor):
        return digest(split.x, hidden, transform)
    if isinstance(split.x, dict):
        return digest(*(part for key in sorted(split.x) for part in (key, split.x[key])), hidden, transform)
    return digest("streamed", split.x.fingerprint(), hidden, transform)


def _as_they_are(model: Classifier, split: Grouped, dtype: torch.dtype) -> Tensor | None:
    """Return the inputs where they are rows of features already and the backbone does nothing to them; else None."""
    x = split.x
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
        return None
    untouched = split.transform is None and split.hidden is None
    if not untouched or not all(_does_nothing(part) for part in model.backbone.modules()):
        return None
    features = x.to("cpu", dtype)
    for first in range(0, len(features), CHUNK):
        check_finite(features[first : first + CHUNK], first)
    return features


def _does_nothing(part: nn.Module) -> bool:
    """Return whether a layer leaves rows as they are; a hook may do anything."""
    flat = type(part) is nn.Flatten and part.start_dim == 1
    return (flat or type(part) in (nn.Sequential, nn.Identity)) and not part._forward_hooks | part._forward_pre_hooks
