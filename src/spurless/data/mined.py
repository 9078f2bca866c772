"""Training examples that were mined as conflicting with the shortcut: save, load, check and sample them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import torch
from torch import Tensor

from spurless.core.errors import InputError, MissingAttributesError
from spurless.core.files import check_not_pipe, replace_file
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loader import Order, weighted_order
from spurless.data.split import Split, Splits

_KEYS = ("score", "chosen", "how", "fingerprint")


@dataclass(frozen=True)
class MiningQuality:
    """Precision and recall of the chosen examples, and the base rate of conflicting ones."""

    precision: float | None
    recall: float | None
    base: float


@dataclass(frozen=True, eq=False)
class MinedExamples:
    """Examples of a split that probably conflict with its shortcut, according to a biased model."""

    score: Tensor  # score of every example; higher means more likely to conflict
    chosen: Tensor  # whether each example was chosen
    how: str  # name of the mining method
    fingerprint: str  # hash of inputs and labels, to detect use with other data

    def check(self, split: Split) -> None:
        """Raise if inputs, labels or their order differ from those that were mined; attributes may be hidden."""
        if self.fingerprint != data_fingerprint(split):
            what = "the examples were mined from other data"
            expected = f"{len(self.score)} examples with fingerprint {self.fingerprint}"
            got = f"{len(split)} examples with fingerprint {data_fingerprint(split)}"
            raise InputError(what, expected=expected, got=got, hint="Mine again with this train split.")

    def quality(self, split: Split, conflicting: Tensor | None = None) -> MiningQuality:
        """Compare with the truth: examples whose attribute differs from the label, or ``conflicting``.

        Raises:
            InputError: the examples were mined from other data, or labels and attributes do not correspond.
            MissingAttributesError: attributes are hidden or unknown, and ``conflicting`` is not given.
        """
        self.check(split)
        if conflicting is None:
            if not split.has_attributes:
                raise MissingAttributesError("The quality of mining", "train")
            conflicting = find_conflicting(split, "Pass conflicting=MASK.")
        truth = conflicting.cpu()
        if truth.shape != self.chosen.shape or truth.dtype != torch.bool:
            what = "the truth must be one bool per example"
            raise InputError(what, expected=tuple(self.chosen.shape), got=truth.shape)
        both, chosen, total = (int(mask.sum()) for mask in (truth & self.chosen, self.chosen, truth))
        return MiningQuality(
            both / chosen if chosen else None, both / total if total else None, total / max(1, len(truth))
        )

    def as_groups(self, data: Splits) -> Splits:
        """Return data whose training groups are label and "listed or not".

        Evaluation still uses label and attribute, val and test are unchanged, and a note is added.

        Example:
            >>> from spurless.data import load
            >>> data = load("planted", n_train=100)
            >>> chosen = data.train.y != data.train.a
            >>> mined = MinedExamples(torch.rand(100), chosen, "gce", data_fingerprint(data.train))
            >>> mined.as_groups(data).train.domains
            ('minus, not listed', 'minus, listed', 'plus, not listed', 'plus, listed')
        """
        train, chosen = data.train, self.chosen.to(data.train.y.device)
        self.check(train)
        names = tuple(f"{label}, {part}" for label in train.groups.labels for part in ("not listed", "listed"))
        note = f"Groups of train are by label and by mined examples: {self.summary()}"
        train = replace(train, domain=2 * train.y + chosen, domains=names)
        return replace(data, train=train, notes=(*data.notes, note))

    def summary(self) -> str:
        """Return a sentence on the chosen examples.

        Example:
            >>> MinedExamples(torch.tensor([0.1, 0.9, 0.2]), torch.tensor([False, True, False]), "gce", "").summary()
            'gce chose 1 of 3 examples (33.3 %): score 0.900 against 0.150 on average.'
        """
        n = int(self.chosen.sum())
        parts = self.score[self.chosen], self.score[~self.chosen]
        means = [f"{float(part.mean()):.3f}" if len(part) else "none" for part in parts]
        percent = 100 * n / max(1, len(self.chosen))
        counts = f"{self.how} chose {n} of {len(self.chosen)} examples ({percent:.1f} %)"
        return f"{counts}: score {means[0]} against {means[1]} on average."

    def save(self, path: str | Path) -> None:
        """Write the examples to an npz file, atomically."""
        import numpy as np

        score, chosen = self.score.numpy(), self.chosen.numpy()
        how, fingerprint = np.array(self.how), np.array(self.fingerprint)

        def write(scratch: Path) -> None:
            with scratch.open("wb") as file:  # given a path, NumPy would append .npz
                np.savez_compressed(file, score=score, chosen=chosen, how=how, fingerprint=fingerprint)

        replace_file(Path(path), write)

    @classmethod
    def load(cls, path: str | Path) -> MinedExamples:
        """Read a file that :meth:`save` wrote; raise if it is missing, truncated or of another kind."""
        import numpy as np

        path, hint = Path(path), "Mine again, or choose another file."
        check_not_pipe(path)
        try:
            # opened here, because NumPy leaves a broken file open
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                score, chosen, how, source = (arrays[key] for key in _KEYS)
        except FileNotFoundError:
            raise InputError("no such file", where=path, expected="a file that MinedExamples.save wrote") from None
        except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, BadZipFile, MemoryError) as error:
            raise InputError(f"the file does not contain mined examples: {error}", where=path, hint=hint) from None
        kinds = score.dtype.kind, chosen.dtype.kind, how.dtype.kind, source.dtype.kind
        if kinds != ("f", "b", "U", "U") or score.ndim != 1 or score.shape != chosen.shape:
            what = "the file does not contain mined examples"
            raise InputError(what, where=path, got=f"{score.shape} and {chosen.shape}", hint=hint)
        return cls(torch.from_numpy(score).float(), torch.from_numpy(chosen), str(how), str(source))


def oversampled_order(mined: MinedExamples, weight: float, seeds: Seeds, n: int | None = None) -> Order:
    """Draw ``n`` examples with replacement; a chosen example is ``weight`` times as likely as another."""
    return weighted_order(torch.where(mined.chosen, float(weight), 1.0), seeds, n)


def data_fingerprint(split: Split) -> str:
    """Return a content hash of inputs and labels, independent of attributes."""
    bare = replace(split, a=torch.full_like(split.y, -1), groups=Groups(split.groups.labels), domain=None, domains=())
    return replace(bare, hidden=None).fingerprint()


def find_conflicting(split: Split, hint: str) -> Tensor:
    """Return which examples have an attribute with another number than their label; raise if they do not correspond."""
    groups = split.groups
    if split.a.dim() != 1 or groups.mixed or len(groups.labels) != len(groups.attributes):
        what = "labels and attributes do not correspond, so that conflicting examples are undefined"
        got = f"{len(groups.labels)} labels and {len(groups.attributes)} attributes"
        raise InputError(what, expected="as many attributes as labels", got=got, hint=hint)
    return split.a != split.y
