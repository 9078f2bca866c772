from __future__ import annotations

from dataclasses import dataclass

import torch

from spurless.core.seeds import Seeds
from spurless.data.datasets._common import sample_split_numbers, sample_splits, total_counts
from spurless.data.datasets.synthetic import PLANTED_CARD, PLANTED_GROUPS
from spurless.data.split import Split


@dataclass(frozen=True)
class Config:
    n_train: int = 4
    n_val: int = 3
    n_test: int = 2
    seed: int = 0


def test_every_example_is_in_the_split_that_its_fraction_gives() -> None:
    split = sample_split_numbers(torch.arange(100) % 2, (0.5, 0.2, 0.3), Seeds(0))
    assert torch.bincount(split).tolist() == [50, 20, 30]


def test_each_split_is_sampled_with_its_own_size_fraction_and_generator() -> None:
    seen: list[tuple[int, float, int]] = []

    def sample(_: Config, n: int, fraction: float, generator: torch.Generator) -> Split:
        seen.append((n, fraction, generator.initial_seed()))
        return Split(torch.zeros(n, 2), torch.zeros(n).long(), torch.zeros(n).long(), PLANTED_GROUPS)

    splits = sample_splits(PLANTED_CARD, Config(), sample, (0.9, 0.5, 0.1))
    assert [len(splits.train), len(splits.val), len(splits.test)] == [4, 3, 2]
    assert [(n, fraction) for n, fraction, _ in seen[1:]] == [(4, 0.9), (3, 0.5), (2, 0.1)]  # the first is measured
    assert len({number for _, _, number in seen}) == 4
    assert (splits.name, splits.options["n_val"]) == ("planted", 3)


def test_total_counts_are_the_sums_over_groups() -> None:
    assert total_counts({"train": (3, 4), "val": (1, 0)}) == {"train": 7, "val": 1}
