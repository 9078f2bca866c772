"""The callback for Lightning: it audits when it is due, logs what it found, and does not disturb the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spurless as sp
from spurless.auditing.callback import SpurlessAudit
from spurless.core.errors import InputError
from spurless.data.split import Splits
from spurless.train.run import Compute

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Lightning warns of short epochs and few workers
]
OPTIONS: dict[str, Any] = {"permutations": 99, "compute": Compute("cpu"), "pictured": 0, "only": ["attribute-use"]}


class Net(LightningModule):
    """A linear model with dropout, so that its mode and the global generator matter."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(2, 2))
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if self.whole else x

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0].float()), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3)


@pytest.fixture(scope="module")
def data() -> Splits:
    return sp.load("planted", n_train=200, n_val=400, n_test=20, seed=0)


def train(data: Splits, folder: Path, callbacks: list[Any], *, epochs: int = 5, whole: bool = True) -> Net:
    seed_everything(0, verbose=False)
    net = Net(whole)
    batches = DataLoader(TensorDataset(data.train.x, data.train.y), batch_size=20, shuffle=True)  # type: ignore[arg-type]
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, callbacks=callbacks, logger=CSVLogger(folder),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(net, batches)
    return net


def test_it_audits_every_second_epoch_and_the_last_and_logs(data: Splits, tmp_path: Path) -> None:
    callback = SpurlessAudit(data, every=2, **OPTIONS)
    train(data, tmp_path, [callback])
    assert list(callback.verdicts) == [2, 4, 5]
    assert callback.last is not None
    assert callback.verdicts[5] == callback.last.verdict == "shortcut"  # the planted one
    (csv,) = tmp_path.rglob("metrics.csv")
    header, *rows = csv.read_text().splitlines()
    logged = [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]
    assert [row["epoch"] for row in logged if row["audit/shortcut"]] == ["1", "3", "4"]
    severity = float(logged[-1]["audit/severity/attribute-use"])
    assert severity == pytest.approx(callback.last.findings[0].severity, abs=1e-6)


def test_training_is_the_same_as_without_it(data: Splits, tmp_path: Path) -> None:
    audited = train(data, tmp_path, [SpurlessAudit(data, every=1, **OPTIONS)], epochs=3)
    plain = train(data, tmp_path, [], epochs=3)
    pairs = zip(audited.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_submodule_that_computes_the_logits_can_be_named(data: Splits, tmp_path: Path) -> None:
    callback = SpurlessAudit(data, every=3, module="net", **OPTIONS)
    train(data, tmp_path, [callback], whole=False)
    assert callback.verdicts == {3: "shortcut", 5: "shortcut"}


@pytest.mark.parametrize(("options", "what"), [({"every": 0}, "at least 1"), ({"every": "5"}, "'every'")])
def test_a_wrong_argument_is_one_error(data: Splits, options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        SpurlessAudit(data, **options)


def test_an_unknown_submodule_is_one_error(data: Splits, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no module 'backbone' .*expected net"):
        train(data, tmp_path, [SpurlessAudit(data, every=1, module="backbone")], epochs=1)
