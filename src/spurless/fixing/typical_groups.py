"""Group validation by the class of which a flagged property is typical, for methods that need groups.

The property of every example is transplanted into the mean training image, so that only the property differs, and a
logistic regression on these images, averaged to at most 8 x 8 cells, is fitted to the labels of train. There the
shortcut holds, so its prediction for a validation example is the class of which the property is typical: the attribute.
A group is a label with such a class. Neither attributes nor the test split are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split, Splits
from spurless.data.transplants import Transplant, read_rows
from spurless.metrics.intervals import wilson_intervals

MAX_TRAIN_EXAMPLES = 4000  # training examples that the regression is fitted to, sampled at random if there are more
N_CELLS = 8  # cells per side that an image is averaged to
N_COMPONENTS = 50  # principal components of the cells
FOLDS = 5  # of the cross-validation that decides whether the property predicts the label
BATCH = 512


def group_by_properties(data: Splits, transplants: Sequence[Transplant], seeds: Seeds) -> Splits:
    """Return the data with these groups in validation; attributes of train and test are hidden.

    Raises:
        InputError: the examples are not images, or the properties do not predict the labels of train.
    """
    if isinstance(data.train.x, dict) or len(data.train.x[0].shape) != 3:
        raise InputError("groups are inferred from properties of images only")
    rows = torch.randperm(len(data.train), generator=seeds.generator("typical groups"))[:MAX_TRAIN_EXAMPLES]
    receiver = torch.stack(
        [read_rows(data.train.x, part).float().mean(dim=0) for part in torch.split(rows, BATCH)]
    ).mean(dim=0)
    values = compute_property_values(data.train, rows, transplants, receiver)
    y = data.train.y.cpu()[rows]
    attribute = _predict_typical(values, y, compute_property_values(data.val, None, transplants, receiver))
    labels = data.groups.labels
    groups = Groups(labels, tuple(f"typical of {label}" for label in labels))

    def regroup(split: Split, a: Tensor | None = None) -> Split:
        a = torch.full((len(split),), -1) if a is None else a
        return replace(split, a=a.to(split.y.device), groups=groups, domain=None, domains=())

    return replace(data, train=regroup(data.train), val=regroup(data.val, attribute), test=regroup(data.test))


def compute_property_values(
    split: Split, rows: Tensor | None, transplants: Sequence[Transplant], receiver: Tensor
) -> Tensor:
    """Return the properties of the examples ``rows`` as images that differ in nothing else, ``(n, values)``."""
    rows = torch.arange(len(split)) if rows is None else rows
    cells = (min(N_CELLS, receiver.shape[-2]), min(N_CELLS, receiver.shape[-1]))
    parts = []
    for part in torch.split(rows, BATCH):
        x: Any = split.x
        donors = read_rows(x, part).float()
        images = [transplant.apply(receiver.expand_as(donors), donors) for transplant in transplants]
        parts.append(torch.cat([adaptive_avg_pool2d(image, cells).flatten(1) for image in images], dim=1))
    return torch.cat(parts)


def _predict_typical(values: Tensor, y: Tensor, others: Tensor) -> Tensor:
    """Return the class that a logistic regression on ``values`` and ``y`` predicts for ``others``."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's own, not annotated

    count = torch.bincount(y)
    n_fitted = len(y) - len(y) // FOLDS - 1
    if int(count[count > 0].min()) < FOLDS or len(torch.unique(y)) < 2:
        raise InputError("groups cannot be inferred", expected=f"at least {FOLDS} training examples of two classes")
    components = PCA(min(N_COMPONENTS, values.shape[1], n_fitted), random_state=0)
    model = make_pipeline(StandardScaler(), components, LogisticRegression(max_iter=500))
    with threadpool_limits(1):  # BLAS has threads of its own, which round differently
        accuracy = float(cross_val_score(model, values.numpy(), y.numpy(), cv=FOLDS).mean())
    low = float(wilson_intervals(round(accuracy * len(y)), len(y))[0])
    if low <= float(count.max()) / len(y):
        raise InputError(
            "the flagged properties do not predict the labels of train, so groups cannot be inferred from them",
            got=f"{100 * accuracy:.0f} % of the training examples",
        )
    with threadpool_limits(1):
        return torch.from_numpy(model.fit(values.numpy(), y.numpy()).predict(others.numpy()))
