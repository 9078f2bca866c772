r"""EnD: decorrelate features of the same attribute, and correlate features of the same label.

Tartaglione, Barbano and Grangetto, "EnD: Entangling and Disentangling deep representations for bias correction", CVPR
2021, arXiv:2103.02023.

With features :math:`z_i` of length 1, and pairs :math:`i < j` of a batch,

.. math:: \min \; \frac1m \sum_i \ell(f(x_i), y_i) + \alpha R_\perp + \beta R_\parallel, \qquad
    R_\perp = \frac{1}{|P|} \sum_b \Big| \sum_{a_i = a_j = b} z_i \cdot z_j \Big|, \qquad
    R_\parallel = 1 - \frac{1}{|Q|} \sum_{y_i = y_j, a_i \ne a_j} \frac{1 + z_i \cdot z_j}{2},

where P are the pairs with the same attribute and Q those with the same label and different attributes. The first term
removes what features share because of the attribute; the second keeps what they share across attributes. A term without
pairs in a batch is 0.

Deviations:
    * Q contains every such pair; the authors' code uses about half of them, those in which the later example of the
      batch has the smaller attribute number. The mean is the same in expectation.
    * The authors normalise the features inside the network, so that the head reads normalised features, and their
      network ends in a tanh. Here only the two terms normalise, and the network is unchanged; ``rebias-cnn`` with
      ``last="tanh"``, ``unit=True`` and ``centred=True`` is their network, and the recipe ``colored-mnist-end`` their
      schedule.
    * The authors choose alpha and beta for every dataset by a search on an unbiased validation split: from 0 to 1,
      and up to 50 if one example in 1,000 conflicts. DCWP (arXiv:2210.05247, appendix E.2) has 1 and 1 throughout.
    * With several processes pairs are those of each process's part of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from spurless.core.config import CheckedConfig, NotNegative
from spurless.core.errors import InputError
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class EnDConfig(CheckedConfig):
    """The weights of the two terms."""

    alpha: NotNegative = 1.0  # of R_perp
    beta: NotNegative = 1.0  # of R_parallel


class EnD(ConfiguredMethod[EnDConfig]):
    """Regularise the features by the attribute of every training example."""

    info = Info(
        "end",
        "Tartaglione et al. 2021",
        "decorrelate features of the same attribute, correlate those of the same label",
        train_attributes=True,
        title="EnD",
    )
    presets: ClassVar[Mapping[str, EnDConfig]] = {
        "colored-mnist": EnDConfig(),
        "corrupted-cifar10": EnDConfig(),
        "bffhq": EnDConfig(),  # all three as DCWP runs them
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches with the two terms."""
        train, config = data.train, self.config
        if train.groups.mixed:  # a domain with one label has no pair across attributes
            raise InputError(
                "EnD needs attributes that occur with several labels, but the groups are domains",
                got=", ".join(train.groups.attributes),
                hint="Use group-dro, which supports any groups.",
            )
        n_attributes = len(train.groups.attributes)
        a = (train.g % n_attributes).to(run.device)  # several attribute columns are crossed into one

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            network = cast(Classifier, model)
            features = network.features(batch.x)
            loss = cross_entropy(network.head(features), batch.y)
            gram, attribute = cosines(features), a[batch.index]
            disentangling = same_attribute_similarity(gram, attribute, n_attributes)
            entangling = cross_attribute_dissimilarity(gram, batch.y, attribute)
            return loss + config.alpha * disentangling + config.beta * entangling

        loader = run.loader(train, shuffled_order(len(train), run.seeds.child("train")))
        minimise(model, loader, objective, run, Stage("train", static=True))
        return model


def cosines(features: Tensor) -> Tensor:
    """Return the cosine similarity of all pairs of examples, shape ``(N, N)``."""
    unit = normalize(features.float(), dim=1)
    return unit @ unit.T


def same_attribute_similarity(gram: Tensor, a: Tensor, n_attributes: int) -> Tensor:
    r"""Return :math:`R_\perp`, the similarity of examples with the same attribute; 0 if there is no such pair."""
    member = (a[:, None] == torch.arange(n_attributes, device=a.device)).to(gram)  # (N, attributes)
    pairs = torch.ones_like(gram).tril(-1)
    similarity = (member * ((gram * pairs) @ member)).sum(dim=0)
    count = (member * (pairs @ member)).sum()
    return similarity.abs().sum() / count.clamp(min=1)


def cross_attribute_dissimilarity(gram: Tensor, y: Tensor, a: Tensor) -> Tensor:
    r"""Return :math:`R_\parallel`, the dissimilarity of pairs of one label and two attributes; 0 without pairs."""
    pairs = ((y[:, None] == y) & (a[:, None] != a)).to(gram).tril(-1)
    count = pairs.sum()
    similarity = (pairs * (1 + gram) / 2).sum() / count.clamp(min=1)
    return (1 - similarity) * (count > 0)
