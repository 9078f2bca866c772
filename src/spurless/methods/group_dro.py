r"""Group DRO: minimise the loss of the worst group, online.

Sagawa, Koh, Hashimoto and Liang, "Distributionally Robust Neural Networks for Group Shifts",
ICLR 2020, arXiv:1911.08731, Algorithm 1.

.. math:: \min_\theta \max_{q \in \Delta} \sum_g q_g \, E[\ell(\theta; x, y) \mid g]

Deviations:
    * Algorithm 1 samples one group per step; like the authors' code we use every group of the batch.
    * A group that is absent from a batch has loss 0, so its weight changes only by normalisation and by the
      adjustment, if there is one. A group that is absent from train has weight 0.
    * The authors' default adjustment C (added as C / sqrt(n_g)) is 0, as here; other values are an option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig, NotNegative
from spurless.data.loader import balanced_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import Info, OneStageMethod
from spurless.models.classifier import Classifier
from spurless.train.loop import Job
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class GroupDROConfig(CheckedConfig):
    """Step size and adjustment of the group weights."""

    step_size: NotNegative = 0.01  # eta_q; --robust_step_size
    adjustment: NotNegative = 0.0  # C; --generalization_adjustment


class GroupDRO(OneStageMethod[GroupDROConfig]):
    """Weight each group by its loss."""

    info = Info(
        "group-dro",
        "Sagawa et al. 2020",
        "minimise the loss of the worst group",
        train_attributes=True,
        title="Group DRO",
    )
    presets: ClassVar[Mapping[str, GroupDROConfig]] = {
        "waterbirds": GroupDROConfig(step_size=0.01),
        # As Zhou et al. run it in comparison with GC-DRO, arXiv:2106.07171; the next one too.
        "celeba": GroupDROConfig(step_size=0.01),
        "multinli": GroupDROConfig(step_size=0.1),
        "planted": GroupDROConfig(step_size=0.1),
    }

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return a stage on group-balanced batches, whose objective also updates the group weights."""
        train, n = data.train, len(data.groups)
        g = train.g.to(run.device)
        present = train.counts > 0  # a group without examples has no loss, and its weight stays 0
        margin = (present * self.config.adjustment / train.counts.clamp(min=1).sqrt()).to(run.device)
        q = (present / present.sum()).to(run.device)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            losses = cross_entropy(model(batch.x), batch.y, reduction="none")
            per_group = group_means(losses, g[batch.index], n, run)
            batch_losses = run.sum(per_group.detach()) / run.world
            q.copy_(update_weights(q, batch_losses + margin, self.config.step_size))
            return q @ per_group

        loader = run.loader(train, balanced_order(train.g, run.seeds.child("train")))
        return Job(model, loader, objective, run, Stage("train", memory={"q": q}, static=True))


def group_means(losses: Tensor, g: Tensor, n: int, run: Run | None = None) -> Tensor:
    """Return the mean loss of each of ``n`` groups; 0 for a group that is absent.

    With several processes the counts are those of the whole batch, and each process's part is scaled so that the mean
    over processes, by which gradients are averaged, is the mean over the batch.
    """
    losses = losses.float()  # whatever precision the model computes in
    total = torch.zeros(n, device=losses.device).index_add(0, g, losses)
    count = torch.zeros(n, device=losses.device).index_add(0, g, torch.ones_like(losses))
    if run is None or run.world == 1:
        return total / count.clamp(min=1)
    return total * run.world / run.sum(count).clamp(min=1)


def update_weights(q: Tensor, losses: Tensor, step_size: float) -> Tensor:
    r"""Return the weights after one ascent step on the simplex: :math:`q_g \propto q_g \exp(\eta_q \ell_g)`."""
    return torch.softmax(q.log() + step_size * losses, dim=0)
