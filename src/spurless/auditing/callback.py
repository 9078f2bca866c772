"""A callback for Lightning that audits a model during training."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from spurless.auditing import audit
from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.findings import Audit
from spurless.data.split import Split, Splits


class SpurlessAudit(Callback):
    """Audit the model every few epochs, and log the verdict and the severities.

    The metrics are ``audit/shortcut`` (1 if the verdict is ``shortcut``, else 0), ``audit/confirmed`` and
    ``audit/flagged`` (numbers of findings), and ``audit/severity/NAME`` for every audit that was tested. With several
    processes, the first one audits and the others wait. Training continues as without the callback.

    Args:
        data: splits, or one split of held-out examples with labels, as the model receives them.
        every: number of epochs from one audit to the next; the last epoch is audited too.
        module: name of the submodule that maps inputs to logits, such as ``net``; by default the whole module.
        **options: arguments of :func:`spurless.audit`, such as ``only``, ``seed`` or ``permutations``.

    Raises:
        InputError: ``every`` is less than 1.
    """

    def __init__(self, data: Splits | Split, every: int = 5, module: str = "", **options: Any) -> None:
        check_arguments(SpurlessAudit.__init__, locals())
        if every < 1:
            raise InputError("every must be at least 1", where="SpurlessAudit", got=every)
        self.data, self.every, self.module, self.options = data, every, module, options
        self.last: Audit | None = None
        """The last audit, for ``spurless.reporting.write_audit``; None before the first."""
        self.verdicts: dict[int, str] = {}
        """The verdict of every audited epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Audit the model if this epoch is due."""
        epoch = trainer.current_epoch + 1
        if epoch % self.every and epoch != trainer.max_epochs:
            return
        if trainer.is_global_zero:
            self.last = audit(_submodule(pl_module, self.module), self.data, **self.options)
            self.verdicts[epoch] = self.last.verdict
            pl_module.log_dict(describe_audit(self.last), rank_zero_only=True)
        trainer.strategy.barrier("spurless audit")


def describe_audit(result: Audit) -> dict[str, float]:
    """Return the numbers of an audit that a logger can plot.

    Example:
        >>> describe_audit(Audit(()))
        {'audit/shortcut': 0.0, 'audit/confirmed': 0.0, 'audit/flagged': 0.0}
    """
    counts = {
        "audit/shortcut": float(result.verdict == "shortcut"),
        "audit/confirmed": float(len(result.confirmed)),
        "audit/flagged": float(len(result.flagged)),
    }
    return counts | {f"audit/severity/{f.audit}": f.severity for f in result.findings if f.p is not None}


def _submodule(module: LightningModule, name: str) -> Any:
    try:
        return module.get_submodule(name)
    except AttributeError:
        known = ", ".join(child for child, _ in module.named_children()) or "none"
        raise InputError(f"there is no module {name!r} in the model", where="SpurlessAudit", expected=known) from None
