r"""Mining: find bias-conflicting training examples without attributes.

A network that is made to rely on the shortcut misclassifies, or is unsure of, the examples that the shortcut does not
fit. There are three ways to train it:

* ``gce``: train with the generalised cross-entropy, which weights an example by :math:`p_y^q`, and take what is
  misclassified at the end. Nam et al., "Learning from Failure", NeurIPS 2020, arXiv:2007.02561; DCWP (Park et al., CVPR
  2023, arXiv:2210.05247, equation 13) mines Colored MNIST in this way.
* ``early``: train by ERM, stop before the exceptions are learned, and take what is misclassified. Liu et al., "Just
  Train Twice", ICML 2021, arXiv:2107.09044.
* ``ensemble``: learn only from examples that the network predicts with some confidence, and average over epochs,

  .. math:: s_i = \frac1T \sum_t \left(1 - p_t(y_i \mid x_i)\right) > \tau, \qquad \ell_i \text{ counts if }
      p(y_i \mid x_i) > \eta.

  Zhao, Chen, Ju and Xia, 2021, arXiv:2111.13108, let two peers decide together which examples count: :math:`p` is
  divided by its largest value in the class and the batch, and both must be above :math:`\eta`. DCWP's code has one
  network and no division.

Deviations:
    * Scores are computed in evaluation mode without augmentation; DCWP's code augments if its training does.
    * If a batch has no example to learn from, the loss of one network is 0; in DCWP's code it is NaN.
    * The second peer's layers are initialised again by PyTorch's defaults, whatever initialised the first. A network
      that was trained on other data would lose that training: mine with one network then, as DCWP does.
    * If the given model is trained already, mining starts from a copy whose layers are initialised again, see
      :func:`spurless.models.initial_weights.reset_parameters`, and there is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.cache import cached_tensors
from spurless.core.config import CheckedConfig, Count, FractionBelowOne, NotNegative, Positive, PositiveFraction
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.hashing import architecture_hash, content_hash
from spurless.core.limits import check_bytes
from spurless.core.provenance import versions
from spurless.core.seeds import Seeds
from spurless.data.loader import Order, shuffled_order
from spurless.data.mined import MinedExamples, data_fingerprint
from spurless.data.split import Batch, Split
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.models.initial_weights import reset_parameters
from spurless.models.wrapping import wrap
from spurless.train.config import Optimiser, Schedule, TrainConfig
from spurless.train.evaluate import logits
from spurless.train.loop import minimise
from spurless.train.losses import generalised_cross_entropy
from spurless.train.run import Run
from spurless.train.step import Objective, Stage

How = Literal["gce", "early", "ensemble"]


@dataclass(frozen=True)
class MiningConfig(CheckedConfig):
    """How the biased network is trained, independently of the network that uses the mined examples."""

    how: How = "gce"
    q: PositiveFraction = 0.7  # of the generalised cross-entropy; LfF
    eta: PositiveFraction = 0.05  # confidence above which the ensemble learns from an example
    tau: PositiveFraction = 0.8  # the ensemble's score above which an example is chosen
    peers: Literal[1, 2] = 1  # networks of the ensemble; 2: Zhao et al.
    ascent: NotNegative = 0.0
    """rate of gradient ascent from the second epoch on, where only the peer is unsure; Zhao et al.: 1e-4"""
    optimiser: Optimiser = "sgd"
    lr: Positive = 0.1
    momentum: FractionBelowOne = 0.9
    beta2: FractionBelowOne = 0.999
    weight_decay: NotNegative = 1e-4
    epochs: Count = 20
    steps: Count | None = 2000  # overrides epochs
    batch_size: Count = 256
    decay_steps: Count | None = None  # multiply the learning rate by decay_factor after every decay_steps steps
    decay_factor: NotNegative = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how != "ensemble" and self.peers == 2:
            raise InputError("only the ensemble has peers", got=f"how {self.how!r}", hint="Use how='ensemble'.")
        if self.decay_steps is not None and (self.steps is None or self.how == "ensemble"):
            raise InputError(
                "mining's decay_steps needs how='gce' or 'early' and a number of steps",
                got=(self.how, self.steps, self.decay_steps),
            )

    @property
    def train(self) -> TrainConfig:
        """The settings of the training loop."""
        names = {field.name for field in fields(TrainConfig)} & set(vars(self))
        schedule: Schedule = "constant" if self.decay_steps is None else "step"
        shared = {name: getattr(self, name) for name in names}
        return TrainConfig(schedule=schedule, decay_epochs=1, **shared)  # an epoch has decay_steps steps; see _order


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


def mined_examples(
    model: Classifier, train: Split, run: Run, config: MiningConfig, path: str | None = None
) -> MinedExamples:
    """Return the mined list saved at ``path``, or mine with the run's untrained model, and record a summary.

    If the given ``model`` was trained elsewhere, mining starts from a copy whose layers are initialised again.
    """
    if path is not None:
        mined = MinedExamples.load(path)
        mined.check(train)
    else:
        untrained = _reset_trained(model, run) if run.make_untrained is None else wrap(run.make_untrained())
        mined = _mine_cached(untrained, train, run, config)
    run.add_history({"stage": "mined", "found": mined.summary()}, track=False)
    return mined


def _reset_trained(model: Classifier, run: Run) -> Classifier:
    """Return a trained model with new initial weights, and warn."""
    untrained = reset_parameters(model, run.seeds.generator("mine", "initial"))
    warnings.warn(
        "The given model is trained already, so mining starts from a copy whose layers are initialised again by "
        "PyTorch's defaults. Pretrained weights are lost in this copy: if the backbone is pretrained, pass the model "
        "as it was before training, wrap(model, trained=False).",
        SpurlessWarning,
        stacklevel=4,
    )
    return untrained


def mine_conflicting(
    model: Classifier, train: Split, run: Run, config: MiningConfig = MINING_COLORED_MNIST
) -> MinedExamples:
    """Train a copy of an untrained model to rely on the shortcut, and return the examples it fails on.

    Neither attributes nor the other splits are used. The stage is called "mine".
    """
    if model.trained:
        raise InputError(
            "mining begins with an untrained model", hint="Pass an untrained one, such as run.make_untrained()."
        )
    train, network = train.hide_attributes(), deepcopy(model)
    if config.how == "ensemble":
        score = _ensemble_scores(network, train, run, config)
        chosen = score > config.tau
    else:
        objective = mean_loss if config.how == "early" else _gce(config.q)
        loader = run.loader(train, _order(len(train), run.seeds.child("mine"), config), config.batch_size)
        minimise(network, loader, objective, run, Stage("mine", config.train, static=True, select=False))
        outputs = logits(network, train, run.device, run.workers)
        score, chosen = 1 - _confidence(outputs, train.y.cpu()), outputs.argmax(dim=1) != train.y.cpu()
    warn_if_implausible(chosen, config)
    return MinedExamples(score, chosen, config.how, data_fingerprint(train))


def _mine_cached(model: Classifier, train: Split, run: Run, config: MiningConfig) -> MinedExamples:
    """Mine, or return the cached result of the same mining; data with user-defined transforms are not cached."""
    transforms = [part for part in (train.augment, train.transform) if part is not None]
    if not all(type(part).__module__.startswith("spurless.") for part in transforms):
        return mine_conflicting(model, train, run, config)
    content, weights = data_fingerprint(train), [tensor for _, tensor in sorted(model.state_dict().items())]
    hidden = "" if train.hidden is None else train.hidden.fingerprint()
    network = [repr(transforms), architecture_hash(model), hidden]
    settings = [*network, asdict(config), run.precision, run.seeds.seed, versions()["torch"]]
    computed: list[MinedExamples] = []

    def compute() -> dict[str, Tensor]:
        computed.append(mine_conflicting(model, train, run, config))
        return {"score": computed[0].score, "chosen": computed[0].chosen}

    tensors = cached_tensors(content_hash("mined", content, *weights, settings), compute)
    if not computed:
        warn_if_implausible(tensors["chosen"], config)  # as mining does
    return MinedExamples(tensors["score"], tensors["chosen"], config.how, content)


def ensemble_weights(
    losses: list[Tensor], y: Tensor, n_classes: int, config: MiningConfig, ascent: Tensor
) -> list[Tensor]:
    """Return the weight of each example of a batch for each network of the ensemble, given all networks' losses.

    One network: the mean over confident examples. Two: 1 / batch if both are confident, and ``-ascent`` / batch if the
    network is confident and its peer is not.
    """
    p = [(-loss.detach()).exp() for loss in losses]
    if len(p) == 1:
        confident = (p[0] > config.eta).float()
        return [confident / confident.sum().clamp(min=1)]
    best = [torch.zeros(n_classes, device=y.device).scatter_reduce(0, y, values, "amax") for values in p]
    first, second = (values / top[y] > config.eta for values, top in zip(p, best, strict=True))
    both = (first & second).float()
    return [(both - ascent * (network & ~peer)) / len(y) for network, peer in ((first, second), (second, first))]


def _ensemble_scores(network: Classifier, train: Split, run: Run, config: MiningConfig) -> Tensor:
    """Return the mean of ``1 - p_y`` over epochs and networks."""
    n_classes = len(train.groups.labels)
    if config.peers == 1 and config.eta >= 1 / n_classes:
        raise InputError(
            f"an untrained network gives each of {n_classes} labels a probability of {1 / n_classes:.3g}, so it would "
            "learn from no example",
            expected=f"eta under {1 / n_classes:.3g}",
            got=config.eta,
            hint="Lower eta, or use peers=2.",
        )
    networks = nn.ModuleList([network] if config.peers == 1 else [network, _reinitialised(network, run)])
    memory = {name: torch.zeros((), device=run.device) for name in ("ascent", "epochs")}
    total = memory["total"] = torch.zeros(len(train), device=run.device)

    def objective(module: nn.Module, batch: Batch) -> Tensor:
        losses: list[Tensor] = [cross_entropy(out, batch.y, reduction="none") for out in module(batch.x)]
        weights = ensemble_weights(losses, batch.y, n_classes, config, memory["ascent"])
        return torch.stack([(w * loss).sum() for w, loss in zip(weights, losses, strict=True)]).sum()

    def add_scores(_: nn.Module, __: int) -> dict[str, float]:
        confidence = [_confidence(logits(net, train, run.device, run.workers), train.y.cpu()) for net in networks]
        scores = 1 - torch.stack([values.to(run.device) for values in confidence]).mean(dim=0)
        total.add_(scores)
        memory["epochs"].add_(1)
        memory["ascent"].fill_(config.ascent)
        return {"score": -float(scores.mean())}

    loader = run.loader(train, shuffled_order(len(train), run.seeds.child("mine")), config.batch_size)
    stage = Stage("mine", config.train, memory=memory, static=True, select=False, watch=add_scores)
    minimise(_Ensemble(networks), loader, objective, run, stage)
    return (total / memory["epochs"]).cpu()


class _Ensemble(nn.Module):
    """Several networks as one module, since the loop trains one module."""

    def __init__(self, networks: nn.ModuleList) -> None:
        super().__init__()
        self.networks = networks

    def forward(self, x: Tensor | dict[str, Tensor]) -> list[Tensor]:
        return [network(x) for network in self.networks]


def _reinitialised(network: Classifier, run: Run) -> Classifier:
    """Return a copy with other initial weights; with the same weights and batches, both would stay identical."""
    peer = deepcopy(network)
    with run.seeds.seed_global_rng("mine", "peer", device=run.device):
        for part in peer.modules():
            reset: Callable[[], None] | None = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()
    return peer


def _order(n: int, seeds: Seeds, config: MiningConfig) -> Order:
    """Return shuffled examples; if the learning rate decays by steps, in epochs of exactly ``decay_steps`` batches."""
    order = shuffled_order(n, seeds)
    if config.decay_steps is None or config.steps is None:
        return order
    length = min(config.decay_steps, config.steps) * config.batch_size
    check_bytes(2 * 8 * length, "an epoch of mining")

    def long_epoch(epoch: int) -> Tensor:
        first, last = epoch * length // n, ((epoch + 1) * length - 1) // n  # permutations that this epoch covers
        row = torch.cat([order(number) for number in range(first, last + 1)])
        return row[epoch * length - first * n :][:length]

    return long_epoch


def _gce(q: float) -> Objective:
    return lambda model, batch: generalised_cross_entropy(model(batch.x), batch.y, q).mean()


def _confidence(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.softmax(dim=1).gather(1, y[:, None]).squeeze(1)


def warn_if_implausible(chosen: Tensor, config: MiningConfig) -> None:
    """Warn if no example was chosen, or more than half of them."""
    fraction = float(chosen.double().mean())
    if 0 < fraction <= 0.5:
        return
    less = "lower tau" if config.how == "ensemble" else "fewer steps, a lower learning rate or a stronger weight decay"
    more = "a higher tau, or more steps" if config.how == "ensemble" else "more steps or a higher learning rate"
    problem = "no example conflicts with the shortcut" if fraction == 0 else "most examples conflict with the shortcut"
    warnings.warn(
        f"Mining ({config.how}) chose {int(chosen.sum())} of {len(chosen)} examples: either {problem}, or the biased "
        f"network was not trained well. Try {less if fraction == 0 else more}.",
        SpurlessWarning,
        stacklevel=3,
    )
