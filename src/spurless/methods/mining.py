r"""Mining: find the training examples that break the shortcut, with labels alone.

A net that is made to lean on the shortcut is wrong, or never sure, where the shortcut fails. Three ways to make it so:

* ``gce``: train with the generalised cross-entropy, under which an example counts by :math:`p_y^q`, and take what is
  misclassified at the end. Nam et al., "Learning from Failure", NeurIPS 2020, arXiv:2007.02561; DCWP (Park et al., CVPR
  2023, arXiv:2210.05247, equation 13) mines Colored MNIST so.
* ``early``: train by ERM, stop before the exceptions are learnt, and take what is misclassified. Liu et al., "Just
  Train Twice", ICML 2021, arXiv:2107.09044.
* ``ensemble``: learn only from examples of which the net is already somewhat sure, and take the mean over epochs,

  .. math:: s_i = \frac1T \sum_t \left(1 - p_t(y_i \mid x_i)\right) > \tau, \qquad \ell_i \text{ counts where }
      p(y_i \mid x_i) > \eta.

  Zhao, Chen, Ju and Xia, 2021, arXiv:2111.13108, let two peers decide together what counts: :math:`p` is divided by its
  largest value in the class and the batch, and both must be above :math:`\eta`. DCWP's code has one net, no division.

Deviations:
    * Scores are taken in evaluation mode without augmentation; DCWP's code augments, where its training does.
    * Where a batch has nothing to learn from, the loss of one net is 0; in DCWP's code it is not a number.
    * The second peer's layers are drawn anew as PyTorch draws them, whatever drew the first. A net that was trained on
      other data would lose that: mine with one net there, as DCWP does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.grouped import Batch, Grouped
from spurless.data.loader import Order, shuffled
from spurless.data.mined import Mined, Quality, fingerprint, oversampled
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.config import Optimiser, TrainConfig
from spurless.train.evaluate import logits
from spurless.train.loop import minimise
from spurless.train.losses import generalised_cross_entropy
from spurless.train.run import Run
from spurless.train.step import Objective, Stage

How = Literal["gce", "early", "ensemble"]


@dataclass(frozen=True)
class MiningConfig:
    """How the biased net is trained, which is not how the net is trained that the list is for."""

    how: How = "gce"
    q: float = 0.7  # of the generalised cross-entropy; LfF
    eta: float = 0.05  # how sure of an example the ensemble must be to learn from it
    tau: float = 0.8  # the ensemble's score from which an example is chosen
    peers: int = 1  # nets of the ensemble; 2: Zhao et al.
    ascent: float = 0.0  # Zhao et al.: 1e-4, gradient ascent from the second epoch on where only the peer is unsure
    optimiser: Optimiser = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 1e-4
    epochs: int = 20
    steps: int | None = 2000  # stop after so many, whatever epochs says
    batch_size: int = 256
    decay_steps: int | None = None  # multiply the rate by decay_factor every so many steps
    decay_factor: float = 0.1

    def __post_init__(self) -> None:
        for name in ("q", "eta", "tau"):
            if not 0 < getattr(self, name) <= 1:
                raise BadInput(f"mining's {name} must be above 0 and at most 1", got=getattr(self, name))
        if self.peers not in (1, 2) or self.ascent < 0:
            raise BadInput("mining has 1 or 2 peers and an ascent of at least 0", got=(self.peers, self.ascent))
        if self.how != "ensemble" and self.peers == 2:
            raise BadInput("only the ensemble has peers", got=f"how {self.how!r}", do="Use how='ensemble'.")
        if self.decay_steps is not None and (self.steps is None or self.how == "ensemble" or self.decay_steps < 1):
            raise BadInput(
                "mining's decay_steps must be at least 1, and is for gce and early with a number of steps",
                got=(self.how, self.steps, self.decay_steps),
            )
        _ = self.train  # its rules are checked now, not after an hour

    @property
    def train(self) -> TrainConfig:
        """The settings of the loop."""
        return TrainConfig(
            epochs=self.epochs,
            steps=self.steps,
            batch_size=self.batch_size,
            optimiser=self.optimiser,
            lr=self.lr,
            momentum=self.momentum,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            schedule="constant" if self.decay_steps is None else "step",
            decay_epochs=1,  # an epoch is then as long as the decay; see _order
            decay_factor=self.decay_factor,
        )


MINING_COLORED_MNIST = MiningConfig("gce", decay_steps=600)
MINING_CORRUPTED_CIFAR10 = MiningConfig(
    "ensemble", optimiser="adam", lr=1e-3, beta2=0.99, weight_decay=0.0, steps=10_000
)
MINING_PEERS_CIFAR10 = MiningConfig(
    "ensemble", peers=2, ascent=1e-4, optimiser="adam", lr=1e-3, weight_decay=0.0, epochs=50, steps=None
)
"""Zhao et al.; ResNet-20."""
MINING_DIGITS = MiningConfig("gce", lr=0.01, steps=100, batch_size=64)
"""For colored-digits and small-cnn: of eleven settings, the best list by the train attributes of seeds 10 and 11."""


def mine(model: Classifier, train: Grouped, run: Run, config: MiningConfig = MINING_COLORED_MNIST) -> Mined:
    """Train a copy of an untrained model to lean on the shortcut, and list what it fails on.

    Neither attributes nor the other splits are looked at. The stage is called "mine".

    Raises:
        BadInput: the model is trained already, or ``eta`` is more than an untrained net is sure of anything.
    """
    if model.trained:
        raise BadInput("mining begins with an untrained model", do="Pass a fresh one, such as run.fresh().")
    train, net = train.hide_attributes(), deepcopy(model)
    if config.how == "ensemble":
        score = _ensemble(net, train, run, config)
        chosen = score > config.tau
    else:
        objective = mean_loss if config.how == "early" else _gce(config.q)
        loader = run.loader(train, _order(len(train), run.seeds.child("mine"), config), config.batch_size)
        minimise(net, loader, objective, run, Stage("mine", config.train, static=True, select=False))
        seen = logits(net, train, run.device, run.workers)
        score, chosen = 1 - _sure(seen, train.y.cpu()), seen.argmax(dim=1) != train.y.cpu()
    warn_if_odd(chosen, config)
    return Mined(score, chosen, config.how, fingerprint(train))


def confident(losses: list[Tensor], y: Tensor, n_classes: int, config: MiningConfig, ascent: Tensor) -> list[Tensor]:
    """Return what each example counts for each net of the ensemble, given every net's losses of a batch.

    One net: the mean over the examples it is sure of. Two: 1 / batch where both are sure, and ``-ascent`` / batch where
    the net is sure and its peer is not.
    """
    p = [(-each.detach()).exp() for each in losses]
    if len(p) == 1:
        sure = (p[0] > config.eta).float()
        return [sure / sure.sum().clamp(min=1)]
    best = [torch.zeros(n_classes, device=y.device).scatter_reduce(0, y, each, "amax") for each in p]
    one, other = (each / top[y] > config.eta for each, top in zip(p, best, strict=True))
    both = (one & other).float()
    return [(both - ascent * (mine & ~peer)) / len(y) for mine, peer in ((one, other), (other, one))]


def _ensemble(net: Classifier, train: Grouped, run: Run, config: MiningConfig) -> Tensor:
    """Return the mean of ``1 - p_y`` over epochs, and over the nets where there are two."""
    n_classes = len(train.groups.labels)
    if config.peers == 1 and config.eta >= 1 / n_classes:
        raise BadInput(
            f"an untrained net is {1 / n_classes:.3g} sure of each of {n_classes} labels, so it would learn nothing",
            expected=f"eta under {1 / n_classes:.3g}",
            got=config.eta,
            do="Lower eta, or use peers=2.",
        )
    nets = nn.ModuleList([net] if config.peers == 1 else [net, _redrawn(net, run)])
    memory = {name: torch.zeros((), device=run.device) for name in ("ascent", "epochs")}
    total = memory["total"] = torch.zeros(len(train), device=run.device)

    def objective(module: nn.Module, batch: Batch) -> Tensor:
        each: list[Tensor] = [cross_entropy(out, batch.y, reduction="none") for out in module(batch.x)]
        counts = confident(each, batch.y, n_classes, config, memory["ascent"])
        return torch.stack([(c * losses).sum() for c, losses in zip(counts, each, strict=True)]).sum()

    def look(_: nn.Module) -> float:
        """Add an epoch to the scores; called in the place of a criterion, since that is when an epoch ends."""
        sure = [_sure(logits(one, train, run.device, run.workers), train.y.cpu()) for one in nets]
        unsure = 1 - torch.stack([each.to(run.device) for each in sure]).mean(dim=0)
        total.add_(unsure)
        memory["epochs"].add_(1)
        memory["ascent"].fill_(config.ascent)
        return -float(unsure.mean())

    loader = run.loader(train, shuffled(len(train), run.seeds.child("mine")), config.batch_size)
    stage = Stage("mine", config.train, memory=memory, static=True)
    minimise(_Together(nets), loader, objective, replace(run, score=look, judge=None), stage)
    return (total / memory["epochs"]).cpu()


class _Together(nn.Module):
    """Several nets as one module, since the loop trains one."""

    def __init__(self, nets: nn.ModuleList) -> None:
        super().__init__()
        self.nets = nets

    def forward(self, x: Tensor | dict[str, Tensor]) -> list[Tensor]:
        return [net(x) for net in self.nets]


def _redrawn(net: Classifier, run: Run) -> Classifier:
    """Return a peer with other initial weights: two that begin alike on the same batches stay alike."""
    peer = deepcopy(net)
    with run.seeds.borrowed("mine", "peer", device=run.device):
        for part in peer.modules():
            reset: Callable[[], None] | None = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()
    return peer


def _order(n: int, seeds: Seeds, config: MiningConfig) -> Order:
    """Return shuffled examples; where the rate decays by steps, in epochs of exactly that many."""
    order, length = shuffled(n, seeds), (config.decay_steps or 0) * config.batch_size
    if not length:
        return order

    def long(epoch: int) -> Tensor:
        first, last = epoch * length // n, ((epoch + 1) * length - 1) // n  # shufflings, one after another
        row = torch.cat([order(number) for number in range(first, last + 1)])
        return row[epoch * length - first * n :][:length]

    return long


def _gce(q: float) -> Objective:
    return lambda model, batch: generalised_cross_entropy(model(batch.x), batch.y, q).mean()


def _sure(seen: Tensor, y: Tensor) -> Tensor:
    return seen.softmax(dim=1).gather(1, y[:, None]).squeeze(1)


def warn_if_odd(chosen: Tensor, config: MiningConfig) -> None:
    """Warn where nothing was chosen, or most of everything."""
    share = float(chosen.double().mean())
    if 0 < share <= 0.5:
        return
    less = "lower tau" if config.how == "ensemble" else "fewer steps, a lower learning rate or a stronger weight decay"
    more = "a higher tau, or more steps" if config.how == "ensemble" else "more steps or a higher learning rate"
    said = "nothing breaks the shortcut" if share == 0 else "most examples break the shortcut, so it is none"
    warnings.warn(
        f"Mining ({config.how}) chose {int(chosen.sum())} of {len(chosen)} examples: {said}, or the biased net was not "
        f"trained as it should be. Try {less if share == 0 else more}.",
        SpurlessWarning,
        stacklevel=3,
    )


__all__ = [
    "MINING_COLORED_MNIST",
    "MINING_CORRUPTED_CIFAR10",
    "MINING_DIGITS",
    "MINING_PEERS_CIFAR10",
    "How",
    "Mined",
    "MiningConfig",
    "Quality",
    "confident",
    "mine",
    "oversampled",
    "warn_if_odd",
]
