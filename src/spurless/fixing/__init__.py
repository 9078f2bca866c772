"""Fixing: a trained model and its data in, a repaired model out, or the old one where no repair is worth its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from spurless.auditing import audit as ask
from spurless.auditing import swapped_backgrounds
from spurless.bench.fitting import Protocol, evaluate_given
from spurless.bench.rules import check_labels
from spurless.core.errors import BadInput, UnknownName
from spurless.core.findings import Audit
from spurless.core.options import configure
from spurless.core.progress import Progress
from spurless.core.repairs import Attempt, Choice, Repair
from spurless.data.grouped import Splits
from spurless.fixing.attempting import Workshop
from spurless.fixing.choosing import Situation, applicable, choice_of, choose, info_of, situation
from spurless.fixing.holding import Held, hold_out, regroup
from spurless.fixing.naming import name_groups
from spurless.fixing.ranking import judge_by, ranked
from spurless.fixing.telling import FLATTERED, tell
from spurless.methods import method_named
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.reporting import fix_html
from spurless.train.config import TrainConfig
from spurless.train.run import Engine, start
from spurless.train.select import criterion_named

Tries = Literal["repairs", "all"]
"""``repairs``: every method that repairs a trained model in short; ``all``: those that train all of it on, too."""
LAST = criterion_named("last")


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Fixed(Repair):
    """A repair, and the model that is kept; a notebook shows it as a short page."""

    model: Classifier
    """the new one, or the old where that was kept"""

    def __repr__(self) -> str:
        return f"Fixed({self.said[0]!r})"

    def _repr_html_(self) -> str:
        return fix_html(self)


def fix(  # noqa: PLR0913 - a public door
    model: nn.Module,
    data: Splits,
    *,
    method: str | None = None,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    tries: Tries | Sequence[str] = (),
    tolerance: float = 0.01,
    audit: Audit | None = None,
    train: TrainConfig | Mapping[str, Any] | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    folder: Path | str | None = None,
    progress: Progress | None = None,
) -> Fixed:
    """Repair a trained model that leans on a shortcut, and keep the old one where that does not pay.

    The model is audited on validation, and methods may learn from one half of it. The other half judges: a new model is
    taken where it raises the worst group (the worst class, the balanced accuracy or the worst *inferred* group, where
    attributes are unknown) and costs no more average accuracy than ``tolerance``. Test is only reported. Where
    nothing is flagged, nothing is done, and a model that is no better than guessing is refused: train it first. Where
    nobody gave attributes and the audit names a word, groups are those of the word; see :mod:`spurless.fixing.naming`.

    Args:
        model: a trained classifier, or any module whose head can be found; it is left as it was.
        data: three splits; attributes are shown to methods that declare them, where they are known.
        method: a name in ``METHODS``, or ``FILE.py:METHOD`` of your own; by default one that fits what was found and
            which labels there are.
        preset: of the method; without one it gets settings for a model that was trained elsewhere.
        options: of the method, over those.
        tries: run several and keep the best: ``"repairs"``, ``"all"``, or names of methods.
        tolerance: how much average accuracy on the judging half a repair may cost, as a share: 0.01 is one point.
        audit: of this model, where there is one already.
        train: settings of the loop, for methods that train the whole network; give those of your own training.
        seed: of all randomness.
        engine: device and precision.
        folder: where to leave checkpoints; a killed repair continues from there, to the same weights.
        progress: called with stage, step, total and a word.

    Raises:
        BadInput: there are no splits to train on, the model is untrained or no better than guessing and no method was
            named, or what was named cannot be.
        MissingAttributes: the method that was named needs attributes that the data do not have.
    """
    wish = _Wish(method, preset, options or {}, tries)
    settings = train if isinstance(train, TrainConfig) else configure(TrainConfig, train or {}, "the training loop")
    old = _trained(model, data, tolerance)
    held = hold_out(data, seed)
    place = Path(folder) if folder is not None else None
    protocol = Protocol(settings, engine=engine or Engine(), folder=place, progress=progress)
    run = start(protocol.engine, seed, settings)
    here = situation(old, held, settings.batch_size, run)
    named = wish.named(here)
    for choice in named:
        check_labels(info_of(choice), LAST, held.data)
        held.check_apart(choice.method, info_of(choice))
    found = audit or ask(old, held.whole, seed=seed, engine=protocol.engine, progress=progress)
    if found.guesses is not None and not named:
        raise _unlearnt(found.guesses)
    stand_in = None if named else name_groups(data, found)
    if stand_in is not None:
        held = regroup(held, stand_in, seed)
        here = situation(old, held, settings.batch_size, run)
    shop = Workshop(old.to("cpu"), held, judge_by(old, held.judge, run), protocol, run, tolerance)
    before = evaluate_given("before", old.to("cpu"), shop.told, seed=seed, engine=protocol.engine)
    choices = named or wish.chosen(found, here)
    tried, new = shop.best_of(choices, blind=wish.several, strict=bool(named) and not wish.several)
    taken = next((attempt for attempt in tried if attempt.fate == "taken"), None)
    after = None if new is None or taken is None else _audited(new, taken, found, held, shop)
    kept = (shop.score, shop.score if taken is None or taken.score is None else taken.score)
    return Fixed(
        fixed=new is not None,
        said=tell(found, tried, kept, held, tolerance, blind=wish.several),
        before=before,
        after=before if taken is None or taken.record is None else taken.record,
        judged=kept,
        audit_before=found,
        audit_after=after,
        tried=ranked(tried, blind=wish.several),
        tolerance=tolerance,
        named=None if held.named is None else held.named.word,
        model=old if new is None else new,
    )


@dataclass(frozen=True)
class _Wish:
    """What the user asked for."""

    method: str | None
    preset: str | None
    options: Mapping[str, Any]
    tries: str | Sequence[str]

    def __post_init__(self) -> None:
        if self.method is not None and self.tries:
            raise BadInput("method names one, and tries several", do="Leave one of them out.")
        if self.method is None and (self.preset is not None or self.options):
            raise BadInput("preset and options are those of a method", do="Name it: method='afr'.")
        if isinstance(self.tries, str) and self.tries and self.tries not in ("repairs", "all"):
            raise UnknownName("set of methods", self.tries, ("repairs", "all"))
        for name in self._names:
            method_named(name)

    @property
    def several(self) -> bool:
        """Whether several are run and compared."""
        return bool(self.tries)

    @property
    def _names(self) -> Sequence[str]:
        if self.method is not None:
            return [self.method]
        return () if isinstance(self.tries, str) else self.tries

    def named(self, here: Situation) -> list[Choice]:
        """Return the methods that were named; they are run whatever was found."""
        why = "You asked for it: {}."
        return [
            choice_of(name, here, why.format(method_named(name).info.summary), self.preset, self.options)
            for name in self._names
        ]

    def chosen(self, found: Audit, here: Situation) -> list[Choice]:
        """Return what fits what was found; nothing where nothing was."""
        fitting = choose(found, here)
        return applicable(here, training=self.tries == "all") if fitting and self.tries else fitting


def _trained(model: nn.Module, data: Splits, tolerance: float) -> Classifier:
    """Refuse what cannot be repaired, and return the model in two parts."""
    if not isinstance(data, Splits):
        raise BadInput(
            "a repair learns from train and judges by validation, and one split was given",
            expected="Splits",
            got=type(data).__name__,
            do="Pass what sp.load, sp.from_folder or sp.from_csv returns.",
        )
    if not 0 <= tolerance <= 1:
        raise BadInput(
            "the tolerance is a share of average accuracy", expected="0 to 1; 0.01 is a point", got=tolerance
        )
    found = wrap(model, example=data.train.example())
    if not found.trained:
        raise BadInput("the model is untrained, so there is nothing to repair", do="Fit 'erm' first, or load weights.")
    return found


def _unlearnt(why: str) -> BadInput:
    """Return the error for a model that has learnt nothing: a better one would be a first training, not a repair."""
    return BadInput(
        "the model is no better than guessing, so there is nothing to repair",
        got=why.rstrip("."),
        do="Fit 'erm' first, or see whether the weights, the order of the classes and the preparation of the inputs "
        "are those of its training; name a method to run it all the same.",
    )


def _audited(new: Classifier, taken: Attempt, before: Audit, held: Held, shop: Workshop) -> Audit:
    """Ask the new model the same questions with the same examples."""
    names = [finding.audit for finding in before.findings if finding.audit != swapped_backgrounds.NAME]
    found = ask(
        new,
        held.whole,
        only=names,
        seed=shop.run.seeds.seed,
        engine=shop.protocol.engine,
        progress=shop.protocol.progress,
    )
    new.to("cpu")
    return replace(found, limits=(*found.limits, FLATTERED)) if info_of(taken.choice).val_labels else found


__all__ = ["Fixed", "Tries", "fix"]
