"""The contract of a method: ``Info`` declares what it uses, ``fit`` trains or repairs a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeGuard, TypeVar

from spurless.data.split import Splits
from spurless.models.classifier import Classifier
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Run


@dataclass(frozen=True)
class Info:
    """Name, source and description of a method, and the labels it may use."""

    name: str
    paper: str
    summary: str
    """One line for tables: a verb phrase without a full stop."""
    train_attributes: bool = False
    val_labels: bool = False
    val_attributes: bool = False
    start: Literal["scratch", "trained"] = "scratch"
    """``trained``: the method repairs a trained model; an untrained one is first trained by ERM."""
    score: str = "softmax"
    """Default confidence score, a name in ``train.selective.SCORES``. Products are with the starting model."""
    title: str = ""
    """Display name in reports; if empty, the name."""
    fix: Literal["fast", "slow", "never"] = "slow"
    """When ``spurless fix`` tries the method unless the user names it: in every comparison, only if methods that train
    a whole network are compared too (``--try all``), or never."""


class Method(Protocol):
    """A way to train or repair a classifier.

    ``presets`` are named after the experiment they come from; the first is the default. ``fit`` gets only the labels
    and attributes that ``info`` declares, and returns the model it was given or another. A method may also have a
    ``check(model, data)`` that raises if it does not support them; it is called before a starting model is trained.
    """

    info: ClassVar[Info]
    presets: ClassVar[Mapping[str, Any]]
    config: Any

    def __init__(self, config: Any) -> None:
        """Store a configuration of the presets' type."""

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train ``model`` on ``data``."""


Config = TypeVar("Config")


class ConfiguredMethod(Generic[Config]):
    """Base class that stores the configuration; by default the first preset."""

    info: ClassVar[Info]
    presets: ClassVar[Mapping[str, Any]]

    def __init__(self, config: Config | None = None) -> None:
        self.config: Config = next(iter(self.presets.values())) if config is None else config


class OneStageMethod(ConfiguredMethod[Config]):
    """Base class of methods that are a single call of the training loop on the given model.

    They implement ``job`` instead of ``fit``. Several such runs can then be trained concurrently on one device.
    """

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return the arguments of the call of the loop."""
        raise NotImplementedError

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Run the job and return the model."""
        minimise_job(self.job(model, data, run))
        return model


def is_one_stage(method: object) -> TypeGuard[OneStageMethod[Any]]:
    """Return whether the method's ``fit`` is its ``job`` and nothing more.

    Example:
        >>> from spurless.methods.erm import ERM
        >>> from spurless.methods.jtt import JTT
        >>> is_one_stage(ERM()), is_one_stage(JTT())
        (True, False)
    """
    return isinstance(method, OneStageMethod) and type(method).fit is OneStageMethod.fit


def check_method(method: Method, model: Classifier, data: Splits) -> None:
    """Call the method's optional ``check``."""
    check = getattr(method, "check", None)
    if check is not None:
        check(model, data)


def method_info(method: Method) -> Info:
    """Return the method's ``Info``, updated by ``config.uses`` if the configuration needs fewer labels.

    Example:
        >>> from spurless.methods.erm import ERM
        >>> method_info(ERM()) == ERM.info
        True
    """
    return replace(method.info, **getattr(method.config, "uses", {}))
