"""The contract of a method: what it declares, and the one verb it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, cast

from spurless.data.grouped import Splits
from spurless.models.classifier import Classifier
from spurless.train.loop import Job
from spurless.train.run import Run


@dataclass(frozen=True)
class Info:
    """What a method is called, where it comes from, and which labels it may see."""

    name: str
    paper: str
    summary: str
    train_attributes: bool = False
    val_labels: bool = False
    val_attributes: bool = False
    start: Literal["scratch", "trained"] = "scratch"
    """``trained``: the method repairs a trained model; a fresh one is first trained by ERM."""
    score: str = "softmax"
    """How sure its model is of an example; a name in ``train.abstain.SCORES``. Products are with the starting model."""


class Method(Protocol):
    """A way to train or repair a classifier.

    ``presets`` are named after the experiment they come from; the first is the default. ``fit`` gets
    the attributes it declared and nothing more, and returns the model it was given or another. Where a method has
    a ``check(model, data)`` too, it refuses there what it cannot take, before a model is trained for it to repair.
    """

    info: ClassVar[Info]
    presets: ClassVar[Mapping[str, Any]]
    config: Any

    def __init__(self, config: Any) -> None:
        """Take a configuration of the presets' type."""

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train ``model`` on ``data``."""


class OneStage(Protocol):
    """A method that is a single call of the loop on the model it is given, and says so.

    Many such runs may then advance together on one device. Its ``fit`` does the job and returns the model.
    """

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return what :meth:`Method.fit` would do, not yet done."""


def check_before(method: Method, model: Classifier, data: Splits) -> None:
    """Let a method refuse what it cannot take, if it has a word in it."""
    check = getattr(method, "check", None)
    if check is not None:
        check(model, data)


def one_stage(method: Method) -> OneStage | None:
    """Return the method, if it is of one stage; a class that overrides ``fit`` and no ``job`` is not.

    Example:
        >>> from spurless.methods.erm import ERM
        >>> from spurless.methods.jtt import JTT
        >>> one_stage(ERM()) is None, one_stage(JTT()) is None
        (False, True)
    """
    nearest = next(vars(kind) for kind in type(method).__mro__ if "fit" in vars(kind) or "job" in vars(kind))
    return cast(OneStage, method) if "job" in nearest else None


def declared(method: Method) -> Info:
    """Return what a method uses as it is configured: a configuration that needs less says so by its ``uses``.

    Example:
        >>> from spurless.methods.erm import ERM
        >>> declared(ERM()) == ERM.info
        True
    """
    return replace(method.info, **getattr(method.config, "uses", {}))
