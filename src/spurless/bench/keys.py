"""Keys: the name of a run, made of all that decides its numbers; the same run has the same key wherever it is done."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import nn

from spurless.core.identity import architecture, identity
from spurless.core.provenance import digest
from spurless.core.seeds import Seeds
from spurless.data.grouped import Splits
from spurless.methods import Method
from spurless.methods.own import settings_of
from spurless.models.wrapping import wrap

if TYPE_CHECKING:
    from spurless.bench.fitting import Protocol


def content_of(model: nn.Module, data: Splits, fingerprint: str | None = None) -> str:
    """Return a hash of data and model: examples and what is done to them, layers and weights.

    Args:
        model: as it is before the run.
        data: the splits.
        fingerprint: that of the data, where it is known.
    """
    model = wrap(model)
    changes = identity([(split.augment, split.transform) for split in (data.train, data.val, data.test)])
    weights = (part for item in sorted(model.state_dict().items()) for part in item)
    return digest(fingerprint or data.fingerprint(), changes, architecture(model), *weights)


def key_under(protocol: Protocol, method: Method, content: str, seed: int) -> str:
    """Return the key of a run on this content."""
    settings: list[Any] = [asdict(protocol.train), protocol.select, protocol.engine.precision]
    if protocol.coverages:
        settings += [list(protocol.coverages), protocol.score]
    return digest(content, [method.info.name, settings_of(method), *settings, Seeds(seed).seed])


def key_of(protocol: Protocol, method: Method, model: nn.Module, data: Splits, seed: int) -> str:
    """Return the key that the record of this run will have, without running it."""
    return key_under(protocol, method, content_of(model, data), seed)
