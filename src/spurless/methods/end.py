r"""EnD: push features of one attribute apart, pull features of one label together.

Tartaglione, Barbano and Grangetto, "EnD: Entangling and Disentangling deep representations for bias correction", CVPR
2021, arXiv:2103.02023.

With features :math:`z_i` of length 1, and pairs :math:`i < j` of a batch,

.. math:: \min \; \frac1m \sum_i \ell(f(x_i), y_i) + \alpha R_\perp + \beta R_\parallel, \qquad
    R_\perp = \frac{1}{|P|} \sum_b \Big| \sum_{a_i = a_j = b} z_i \cdot z_j \Big|, \qquad
    R_\parallel = 1 - \frac{1}{|Q|} \sum_{y_i = y_j, a_i \ne a_j} \frac{1 + z_i \cdot z_j}{2},

where P are the pairs with the same attribute and Q those with the same label and different attributes. What the
features have in common by the attribute alone is pulled apart; what they have in common across attributes is kept.
A term that has no pair in a batch is 0.

Deviations:
    * Q has every such pair; the authors' code counts about half of them, those where the later example of the batch
      has the smaller attribute number. The mean is the same in expectation.
    * The authors make the features of length 1 inside the network, so that the head reads them so, and their network
      ends in a tanh. Here the terms see features of length 1, and the network is left as it is given; the option
      ``unit`` of ``pooled-cnn`` makes it read them so.
    * The authors choose alpha and beta for every dataset by a search on an unbiased validation split: from 0 to 1,
      and to 50 where one example in 1,000 conflicts. DCWP (arXiv:2210.05247, appendix E.2) has 1 and 1 throughout.
    * With several processes pairs are those of each process's part of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from spurless.core.errors import BadInput
from spurless.data.grouped import Batch, Splits
from spurless.data.loader import shuffled
from spurless.methods.base import Info
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class EnDConfig:
    """How much the two terms count."""

    alpha: float = 1.0  # of R_perp: apart, by attribute
    beta: float = 1.0  # of R_parallel: together, across attributes

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"EnD's {name} must not be negative", got=getattr(self, name))


END_COLORED_MNIST = EnDConfig()
END_CORRUPTED_CIFAR10 = EnDConfig()
END_BFFHQ = EnDConfig()
"""All three as DCWP runs them."""


class EnD:
    """Regularise the features by the attribute of every training example."""

    info: ClassVar[Info] = Info(
        "end",
        "Tartaglione et al. 2021",
        "push features of one attribute apart, pull those of one label together",
        train_attributes=True,
    )
    presets: ClassVar[Mapping[str, EnDConfig]] = {
        "colored-mnist": END_COLORED_MNIST,
        "corrupted-cifar10": END_CORRUPTED_CIFAR10,
        "bffhq": END_BFFHQ,
    }

    def __init__(self, config: EnDConfig = END_COLORED_MNIST) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches with the two terms."""
        train, config = data.train, self.config
        if train.groups.mixed:  # a domain of one label would be pushed apart by the one term that is to disentangle
            raise BadInput(
                "EnD tells attributes from labels, and is given domains that do not",
                got=", ".join(train.groups.attributes),
                do="Use group-dro, which takes any groups.",
            )
        n_attributes = len(train.groups.attributes)
        a = (train.g % n_attributes).to(run.device)  # crossed columns as one

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            network = cast(Classifier, model)
            features = network.features(batch.x)
            loss = cross_entropy(network.head(features), batch.y)
            gram, own = cosines(features), a[batch.index]
            return loss + config.alpha * apart(gram, own, n_attributes) + config.beta * together(gram, batch.y, own)

        loader = run.loader(train, shuffled(len(train), run.seeds.child("train")))
        minimise(model, loader, objective, run, Stage("train", static=True))
        return model


def cosines(features: Tensor) -> Tensor:
    """Return the cosine of every two examples, shape ``(N, N)``."""
    unit = normalize(features.float(), dim=1)
    return unit @ unit.T


def apart(gram: Tensor, a: Tensor, n_attributes: int) -> Tensor:
    r"""Return :math:`R_\perp`: how alike the examples of one attribute are; 0 where no two share one."""
    member = (a[:, None] == torch.arange(n_attributes, device=a.device)).to(gram)  # (N, attributes)
    pairs = torch.ones_like(gram).tril(-1)
    alike = (member * ((gram * pairs) @ member)).sum(dim=0)
    count = (member * (pairs @ member)).sum()
    return alike.abs().sum() / count.clamp(min=1)


def together(gram: Tensor, y: Tensor, a: Tensor) -> Tensor:
    r"""Return :math:`R_\parallel`: how unlike examples of one label and two attributes are; 0 where there are none."""
    pairs = ((y[:, None] == y) & (a[:, None] != a)).to(gram).tril(-1)
    count = pairs.sum()
    likeness = (pairs * (1 + gram) / 2).sum() / count.clamp(min=1)
    return (1 - likeness) * (count > 0)
