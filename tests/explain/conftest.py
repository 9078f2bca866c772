"""A net whose maps are never cold, so that no test compares nothing with nothing."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from spurless.models.classifier import Classifier


@pytest.fixture
def warm() -> Classifier:
    """Three classes of grey 28x28 images; light anywhere adds to every logit. In training mode."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(1, 4, 5),
        norm1=nn.BatchNorm2d(4),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(4, 8, 5, stride=2),
        relu2=nn.ReLU(),
        drop=nn.Dropout(),
        pool=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    model = Classifier(nn.Sequential(parts), nn.Linear(200, 3), name="warm")
    with torch.no_grad():
        for name in ("backbone.conv1", "backbone.conv2", "head"):
            model.get_submodule(name).get_parameter("weight").abs_()
    return model.train()
