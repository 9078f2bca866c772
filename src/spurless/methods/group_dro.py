r"""Group DRO: minimise the loss of the worst group, online.

Sagawa, Koh, Hashimoto and Liang, "Distributionally Robust Neural Networks for Group Shifts",
ICLR 2020, arXiv:1911.08731, Algorithm 1.

.. math:: \min_\theta \max_{q \in \Delta} \sum_g q_g \, E[\ell(\theta; x, y) \mid g]

Deviations:
    * Algorithm 1 draws one group per step; like the authors' code we use every group of the batch.
    * A group absent from a batch counts as loss 0, so its weight moves only by renormalisation and, with an adjustment,
      by that. A group absent from train has weight 0 throughout.
    * The authors' default adjustment C (added as C / sqrt(n_g)) is 0, as here; other values are an option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.data.grouped import Batch, Splits
from spurless.data.loader import balanced
from spurless.methods.base import Info
from spurless.models.classifier import Classifier
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class GroupDROConfig:
    """How fast the weights chase the worst group."""

    step_size: float = 0.01  # eta_q; --robust_step_size
    adjustment: float = 0.0  # C; --generalization_adjustment


GROUP_DRO_WATERBIRDS = GroupDROConfig(step_size=0.01)
GROUP_DRO_CELEBA = GroupDROConfig(step_size=0.01)
"""As Zhou et al. run it beside GC-DRO, arXiv:2106.07171; so the next one."""
GROUP_DRO_MULTINLI = GroupDROConfig(step_size=0.1)
GROUP_DRO_PLANTED = GroupDROConfig(step_size=0.1)


class GroupDRO:
    """Weigh each group by how badly it is served."""

    info: ClassVar[Info] = Info(
        "group-dro", "Sagawa et al. 2020", "minimise the loss of the worst group", train_attributes=True
    )
    presets: ClassVar[Mapping[str, GroupDROConfig]] = {
        "waterbirds": GROUP_DRO_WATERBIRDS,
        "celeba": GROUP_DRO_CELEBA,
        "multinli": GROUP_DRO_MULTINLI,
        "planted": GROUP_DRO_PLANTED,
    }

    def __init__(self, config: GroupDROConfig = GROUP_DRO_WATERBIRDS) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on group-balanced batches while the weights chase the worst group."""
        minimise_job(self.job(model, data, run))
        return model

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return the one stage there is."""
        train, n = data.train, len(data.groups)
        g = train.g.to(run.device)
        there = train.counts > 0  # a group without examples has no loss to chase, and no weight that could grow
        margin = (there * self.config.adjustment / train.counts.clamp(min=1).sqrt()).to(run.device)
        q = (there / there.sum()).to(run.device)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            losses = cross_entropy(model(batch.x), batch.y, reduction="none")
            per_group = group_means(losses, g[batch.index], n, run)
            whole = run.sum(per_group.detach()) / run.world
            q.copy_(reweigh(q, whole + margin, self.config.step_size))
            return q @ per_group

        loader = run.loader(train, balanced(train.g, run.seeds.child("train")))
        return Job(model, loader, objective, run, Stage("train", memory={"q": q}, static=True))


def group_means(losses: Tensor, g: Tensor, n: int, run: Run | None = None) -> Tensor:
    """Return the mean loss of each of ``n`` groups; 0 for a group that is absent.

    With several processes the counts are those of the whole batch, and each process's share is scaled so that
    the mean over processes, which is what their gradients are given, is the mean over the batch.
    """
    losses = losses.float()  # what is remembered of them is, whatever a model computes in
    total = torch.zeros(n, device=losses.device).index_add(0, g, losses)
    count = torch.zeros(n, device=losses.device).index_add(0, g, torch.ones_like(losses))
    if run is None or run.world == 1:
        return total / count.clamp(min=1)
    return total * run.world / run.sum(count).clamp(min=1)


def reweigh(q: Tensor, losses: Tensor, step_size: float) -> Tensor:
    r"""Take one ascent step on the simplex: :math:`q_g \propto q_g \exp(\eta_q \ell_g)`."""
    return torch.softmax(q.log() + step_size * losses, dim=0)
