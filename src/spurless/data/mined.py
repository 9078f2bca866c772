"""Mined: which training examples are taken to break the shortcut; a list that can be kept, checked and drawn from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import torch
from torch import Tensor

from spurless.core.errors import BadInput, MissingAttributes
from spurless.core.files import replace_file
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import Order, weighted

_KEYS = ("score", "chosen", "how", "fingerprint")


@dataclass(frozen=True)
class Quality:
    """How many of the chosen conflict, how many that conflict are chosen, and what chance would give for the first."""

    precision: float | None
    recall: float | None
    base: float


@dataclass(frozen=True, eq=False)
class Mined:
    """Which examples of a split break its shortcut, as far as a biased net can tell."""

    score: Tensor
    """of every example; higher: more likely to break the shortcut"""
    chosen: Tensor
    how: str
    fingerprint: str
    """of inputs and labels, so that a list is not used with other data"""

    def check(self, split: Grouped) -> None:
        """Refuse a split that the list was not made from; attributes may be shown or hidden.

        Raises:
            BadInput: other inputs, other labels, or another order.
        """
        if self.fingerprint != fingerprint(split):
            raise BadInput(
                "the mined list was made from other data",
                expected=f"{len(self.score)} examples with fingerprint {self.fingerprint}",
                got=f"{len(split)} examples with fingerprint {fingerprint(split)}",
                do="Mine again with this train split.",
            )

    def quality(self, split: Grouped, conflicting: Tensor | None = None) -> Quality:
        """Compare with the truth: examples whose attribute has another number than the label, or those given.

        Raises:
            BadInput: the list was made from other data, or labels and attributes are no pairs.
            MissingAttributes: attributes are hidden or unknown, and no truth is given.
        """
        self.check(split)
        if conflicting is None:
            if not split.has_attributes:
                raise MissingAttributes("The quality of mining", "train")
            conflicting = conflicting_of(split, "Say which conflict: conflicting=MASK.")
        truth = conflicting.cpu()
        if truth.shape != self.chosen.shape or truth.dtype != torch.bool:
            raise BadInput("the truth must be one bool per example", expected=tuple(self.chosen.shape), got=truth.shape)
        both, chosen, there = (int(mask.sum()) for mask in (truth & self.chosen, self.chosen, truth))
        return Quality(both / chosen if chosen else None, both / there if there else None, there / max(1, len(truth)))

    def as_groups(self, data: Splits) -> Splits:
        """Return the same data, where any method that asks for groups of train is given each label, listed or not.

        Evaluation stays with label and attribute, val and test keep what they have, and every record says so.

        Raises:
            BadInput: the list was made from other data.

        Example:
            >>> from spurless.data import load
            >>> data = load("planted", n_train=100)
            >>> mined = Mined(torch.rand(100), data.train.y != data.train.a, "gce", fingerprint(data.train))
            >>> mined.as_groups(data).train.domains
            ('minus, not listed', 'minus, listed', 'plus, not listed', 'plus, listed')
        """
        train, chosen = data.train, self.chosen.to(data.train.y.device)
        self.check(train)
        names = tuple(f"{label}, {part}" for label in train.groups.labels for part in ("not listed", "listed"))
        said = f"Groups of train are by label and by a mined list: {self.summary()}"
        train = replace(train, domain=2 * train.y + chosen, domains=names)
        return replace(data, train=train, notes=(*data.notes, said))

    def summary(self) -> str:
        """Say in one sentence what was found.

        Example:
            >>> Mined(torch.tensor([0.1, 0.9, 0.2]), torch.tensor([False, True, False]), "gce", "").summary()
            'gce chose 1 of 3 examples (33.3 %): score 0.900 against 0.150 on average.'
        """
        n = int(self.chosen.sum())
        means = [f"{float(part.mean()):.3f}" if len(part) else "none" for part in self._parts()]
        share = 100 * n / max(1, len(self.chosen))
        chose = f"{self.how} chose {n} of {len(self.chosen)} examples ({share:.1f} %)"
        return f"{chose}: score {means[0]} against {means[1]} on average."

    def save(self, path: str | Path) -> None:
        """Write the list as npz, whole or not at all."""
        import numpy as np

        def write(scratch: Path) -> None:
            with scratch.open("wb") as file:  # given a name, NumPy would add .npz to it
                np.savez_compressed(
                    file,
                    score=self.score.numpy(),
                    chosen=self.chosen.numpy(),
                    how=np.array(self.how),
                    fingerprint=np.array(self.fingerprint),
                )

        replace_file(Path(path), write)

    @classmethod
    def load(cls, path: str | Path) -> Mined:
        """Read what :meth:`save` wrote.

        Raises:
            BadInput: there is no such file, or it is torn or something else.
        """
        import numpy as np

        path, again = Path(path), "Mine again, or choose another file."
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:  # NumPy leaves a torn file open
                score, chosen, how, of = (found[key] for key in _KEYS)
        except FileNotFoundError:
            raise BadInput("no such file", where=path, expected="a list that Mined.save wrote") from None
        except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, BadZipFile) as error:
            raise BadInput(f"this is no mined list, or it is torn: {error}", where=path, do=again) from None
        kinds = score.dtype.kind, chosen.dtype.kind, how.dtype.kind, of.dtype.kind
        if kinds != ("f", "b", "U", "U") or score.ndim != 1 or score.shape != chosen.shape:
            raise BadInput("this is no mined list", where=path, got=f"{score.shape} and {chosen.shape}", do=again)
        return cls(torch.from_numpy(score).float(), torch.from_numpy(chosen), str(how), str(of))

    def _parts(self) -> tuple[Tensor, Tensor]:
        return self.score[self.chosen], self.score[~self.chosen]


def oversampled(mined: Mined, weight: float, seeds: Seeds, n: int | None = None) -> Order:
    """Draw ``n`` examples with replacement, the chosen ones ``weight`` times as likely as each of the others."""
    return weighted(torch.where(mined.chosen, float(weight), 1.0), seeds, n)


def fingerprint(split: Grouped) -> str:
    """Return a content hash of inputs and labels, the same whether attributes are shown or hidden."""
    bare = replace(split, a=torch.full_like(split.y, -1), groups=Groups(split.groups.labels), domain=None, domains=())
    return replace(bare, hidden=None).fingerprint()


def conflicting_of(split: Grouped, do: str) -> Tensor:
    """Return which examples conflict: those whose attribute has another number than their label.

    Raises:
        BadInput: labels and attributes are no pairs; ``do`` says what else there is.
    """
    groups = split.groups
    if split.a.dim() != 1 or groups.mixed or len(groups.labels) != len(groups.attributes):
        raise BadInput(
            "labels and attributes are no pairs, so that no example conflicts",
            expected="an attribute of every label's number",
            got=f"{len(groups.labels)} labels and {len(groups.attributes)} attributes",
            do=do,
        )
    return split.a != split.y
