r"""Learned masks: one logit per weight gives the probability that it is kept; every forward pass samples a subnetwork.

Park et al., "Training Debiased Subnetworks with Contrastive Weight Pruning", CVPR 2023, arXiv:2210.05247, section 4.
A mask :math:`m` is Bernoulli with logit :math:`\Theta`. With logistic noise :math:`\epsilon = \log u - \log(1 - u)`,

.. math:: m = [z \ge 0], \quad z = s + \epsilon, \qquad
    \frac{\partial m}{\partial \Theta} := \sigma'(z / \tau) \frac{1}{\tau} \frac{\partial s}{\partial \Theta},

a hard sample with the gradient of a soft one. There are two versions of the score :math:`s`:

* ``squashed=False``, the paper (and Csordas et al., arXiv:2010.02066): :math:`s = \Theta`, a weight is kept with
  probability :math:`\sigma(\Theta)`, 0.82 at the start.
* ``squashed=True``, the authors' code: :math:`s = \sigma(\Theta)`. The probability :math:`\sigma(\sigma(\Theta))` lies
  between 0.5 and 0.731, 0.694 at the start: whatever is learned, a weight is dropped at most half of the time.

Both give the same final mask, :math:`\Theta \ge 0`, which a model in eval mode uses too.

There are three penalties for the paper's sparsity constraint, see :func:`signed_sum`, :func:`absolute_sum` and
:func:`expected_kept`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spurless.core.errors import InputError, did_you_mean
from spurless.models.pruning.masks import check_weight_is_plain, get_mask, make_class_unique, named_weight_layers, prune

_FROZEN = "_frozen_under_masks"  # attribute of a module: names of parameters that are frozen until masks are final


class LearnedMask(nn.Module):
    """A mask that is sampled whenever the weight is read in train mode, and is ``logits >= 0`` in eval mode.

    It uses only tensor operations on the device of the weight, so that a step can be captured as a CUDA graph.
    """

    entrywise: ClassVar[bool] = True

    def __init__(self, like: Tensor, init: float, tau: float, squashed: bool) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full_like(like, init, dtype=torch.float32))  # Theta
        self.tau, self.squashed = tau, squashed

    def forward(self, weight: Tensor) -> Tensor:
        """Return the masked weight."""
        mask = self.sample() if self.training else (self.logits >= 0)
        return weight * mask.to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Let ``layer.weight = value`` set the stored weight."""
        return weight

    def sample(self) -> Tensor:
        """Return a sample of exactly 0 or 1, with the gradient of the soft one."""
        uniform = torch.rand_like(self.logits)  # in [0, 1): the noise may be -inf, which prunes, but never inf
        noisy = self.score() + uniform.log() - (-uniform).log1p()
        soft = (noisy / self.tau).sigmoid()
        return (soft - soft.detach()) + (noisy >= 0)  # in this order: 0 + m is m, without rounding

    def probability(self) -> Tensor:
        """Return the probability that each weight is kept."""
        return self.score().sigmoid()

    def score(self) -> Tensor:
        """Return the logit of the sample."""
        return self.logits.sigmoid() if self.squashed else self.logits


def add_learned_masks(
    model: nn.Module, init: float = 1.5, tau: float = 1.0, *, squashed: bool, leave: Sequence[str] = ()
) -> None:
    """Add learned masks to convolution and linear weights, in place, and freeze every other parameter.

    Pruned weights stay pruned. The projections of ``nn.MultiheadAttention`` get no mask, because three of the four are
    one parameter without a layer.

    Args:
        model: any module.
        init: initial logit of every weight.
        tau: temperature of the soft sample; it changes the gradient, not the sample.
        squashed: whether to follow the authors' code instead of the paper; see the module docstring.
        leave: names of weights without a mask, as in ``get_weight_masks``, such as ``"head.weight"``.

    Example:
        >>> layer = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> add_learned_masks(layer, squashed=False)
        >>> [name for name, p in layer.named_parameters() if p.requires_grad]
        ['0.parametrizations.weight.0.logits']
        >>> round(expected_kept(layer).item(), 3)  # 2 sigmoid(1.5)
        1.635
    """
    if not (tau > 0 and math.isfinite(tau) and math.isfinite(init)):
        raise InputError("init or tau is out of range", expected="a finite init and tau > 0", got=f"{init} and {tau}")
    layers = _find_maskable(model, leave)
    for name, layer in layers.items():  # all checks before the first change
        _check_unmasked(model, name, layer)
    for layer in layers.values():
        fixed = get_mask(layer)
        learned = LearnedMask(layer.weight if fixed is None else fixed.keep, init, tau, squashed)
        # unsafe: the skipped checks would read the weight, and so use the global generator
        parametrize.register_parametrization(layer, "weight", learned, unsafe=True)
    for module in model.modules():
        _freeze(module)


def get_mask_logits(model: nn.Module) -> dict[str, Tensor]:
    """Return the logits by the name of the weight: the parameters, not copies."""
    return {name: learned.logits for name, _, learned in _iterate_learned(model)}


def signed_sum(model: nn.Module) -> Tensor:
    r"""Return :math:`\sum \Theta`, the penalty of the authors' code, with the same gradient for every logit.

    This and the other penalties do not count weights that were pruned before.
    """
    return _sum_unpruned(model, [learned.logits for _, _, learned in _iterate_learned(model)])


def absolute_sum(model: nn.Module) -> Tensor:
    r"""Return :math:`\sum |\Theta|`, the penalty of the paper's equation 11.

    It pulls logits to 0, where half of the weights are sampled. They do not converge there: under Adam, logits without
    another gradient oscillate around 0 together, by 0.017 at a learning rate of 0.01, and their sign at the last step
    decides for all. With :math:`\lambda_1 = 10^{-8}` they are kept after 1,500 steps and pruned after 2,000.
    """
    return _sum_unpruned(model, [learned.logits.abs() for _, _, learned in _iterate_learned(model)])


def expected_kept(model: nn.Module) -> Tensor:
    r"""Return :math:`\sum \pi`, the expected number of weights that a forward pass keeps.

    The :math:`\ell_1` penalty of the paper's section 3.2, which is on probabilities.
    """
    return _sum_unpruned(model, [learned.probability() for _, _, learned in _iterate_learned(model)])


def finalize_masks(model: nn.Module) -> None:
    """Prune weights with a logit below 0, in place, and unfreeze the other parameters.

    The masks are then fixed, see :mod:`spurless.models.pruning.masks`: training keeps the zeros, and
    ``make_permanent`` writes them into the weights.
    """
    for module in model.modules():
        for name in vars(module).pop(_FROZEN, ()):
            module.get_parameter(name).requires_grad_()
    masks = {}
    for name, layer, learned in list(_iterate_learned(model)):
        fixed = get_mask(layer)
        keep = learned.logits.detach() >= 0
        masks[name] = keep if fixed is None else keep & fixed.keep
        make_class_unique(layer)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    prune(model, masks)


def has_learned_masks(model: nn.Module) -> bool:
    """Return whether any weight has a learned mask."""
    return any(True for _ in _iterate_learned(model))


def _find_maskable(model: nn.Module, leave: Sequence[str]) -> dict[str, Any]:
    layers = dict(named_weight_layers(model))
    for name in (name for name in leave if name not in layers):
        raise InputError(f"no convolution or linear weight is called {name!r}", hint=did_you_mean(name, layers).strip())
    inside = {id(part) for m in model.modules() if isinstance(m, nn.MultiheadAttention) for part in m.modules()}
    maskable = {name: layer for name, layer in layers.items() if name not in leave and id(layer) not in inside}
    if not maskable:
        raise InputError("the model has no weights to mask", expected="a convolution or linear layer")
    return maskable


def _check_unmasked(model: nn.Module, name: str, layer: Any) -> None:
    if _get_learned_mask(layer) is not None:
        raise InputError(f"the weight {name!r} already has a learned mask", hint="Call finalize_masks(model) first.")
    if get_mask(layer) is None:
        check_weight_is_plain(model, name, layer)


def _iterate_learned(model: nn.Module) -> Iterator[tuple[str, Any, LearnedMask]]:
    for name, layer in named_weight_layers(model):
        learned = _get_learned_mask(layer)
        if learned is not None:
            yield name, layer, learned


def _get_learned_mask(layer: Any) -> LearnedMask | None:
    if not parametrize.is_parametrized(layer, "weight"):
        return None
    last = layer.parametrizations.weight[-1]  # after a fixed mask, if there is one
    return last if isinstance(last, LearnedMask) else None


def _freeze(module: nn.Module) -> None:
    if isinstance(module, LearnedMask):
        return
    trainable = [(name, p) for name, p in module.named_parameters(recurse=False) if p.requires_grad]
    if trainable:
        vars(module)[_FROZEN] = tuple(name for name, _ in trainable)  # an attribute, so that copies have it too
        for _, parameter in trainable:
            parameter.requires_grad_(False)


def _sum_unpruned(model: nn.Module, parts: list[Tensor]) -> Tensor:
    """Return the sum of one value per weight over the weights that are not pruned."""
    if not parts:
        raise InputError("the model has no learned masks", hint="Call add_learned_masks(model, ...) first.")
    fixed = [get_mask(layer) for _, layer, _ in _iterate_learned(model)]
    alive = [p if mask is None else torch.where(mask.keep, p, 0) for p, mask in zip(parts, fixed, strict=True)]
    return torch.stack([part.sum() for part in alive]).sum()
