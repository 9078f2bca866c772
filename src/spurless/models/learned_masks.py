r"""Learned masks: a logit per weight says how likely the weight is kept; every forward draws its own subnetwork.

Park et al., "Training Debiased Subnetworks with Contrastive Weight Pruning", CVPR 2023, arXiv:2210.05247, section 4.
A mask :math:`m` is Bernoulli with logit :math:`\Theta`. With logistic noise :math:`\epsilon = \log u - \log(1 - u)`,

.. math:: m = [z \ge 0], \quad z = s + \epsilon, \qquad
    \frac{\partial m}{\partial \Theta} := \sigma'(z / \tau) \frac{1}{\tau} \frac{\partial s}{\partial \Theta},

a hard sample with the gradient of a soft one. There are two readings of the score :math:`s`:

* ``squashed=False``, the paper (and Csordas et al., arXiv:2010.02066): :math:`s = \Theta`, a weight is kept with
  probability :math:`\sigma(\Theta)`, 0.82 at the start.
* ``squashed=True``, the authors' code: :math:`s = \sigma(\Theta)`. The probability :math:`\sigma(\sigma(\Theta))` lies
  between 0.5 and 0.731, 0.694 at the start: whatever is learned, a weight is missing at most half of the time.

Both settle to the same mask, :math:`\Theta \ge 0`, and so does a model in eval mode, which draws nothing.

Three penalties are found for the paper's sparsity constraint, see :func:`signed_sum`, :func:`absolute_sum` and
:func:`expected_kept`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spurless.core.errors import BadInput, did_you_mean
from spurless.models.masks import check_plain, mask_of, own_class, prune, weight_layers

_FROZEN = "_frozen_under_masks"  # on a module: which of its own parameters wait for the masks to settle


class LearnedMask(nn.Module):
    """A mask that is drawn anew whenever the weight is read in train mode, and is ``logits >= 0`` in eval mode.

    Tensor operations on the weight's device alone, so that a training step may be captured as a graph.
    """

    entrywise: ClassVar[bool] = True

    def __init__(self, like: Tensor, init: float, tau: float, squashed: bool) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full_like(like, init, dtype=torch.float32))  # Theta
        self.tau = tau
        self.squashed = squashed

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight that acts."""
        mask = self.drawn() if self.training else (self.logits >= 0)
        return weight * mask.to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Let ``layer.weight = value`` set what lies beneath."""
        return weight

    def drawn(self) -> Tensor:
        """Return a sample: exactly 0 or 1, with the gradient of the soft one."""
        uniform = torch.rand_like(self.logits)  # from [0, 1): the noise may be -inf, which prunes, and is never inf
        noisy = self.score() + uniform.log() - (-uniform).log1p()
        soft = (noisy / self.tau).sigmoid()
        return (soft - soft.detach()) + (noisy >= 0)  # in this order: 0 + m is m, without rounding

    def probability(self) -> Tensor:
        """Return how likely each weight is kept."""
        return self.score().sigmoid()

    def score(self) -> Tensor:
        """Return the logit that the sample is drawn by."""
        return self.logits.sigmoid() if self.squashed else self.logits


def learn_masks(
    model: nn.Module, init: float = 1.5, tau: float = 1.0, *, squashed: bool, leave: Sequence[str] = ()
) -> None:
    """Put learned masks on convolution and linear weights, in place, and freeze every other parameter.

    What is pruned already stays pruned. Attention's own projections (``nn.MultiheadAttention``) get no mask: three of
    the four are one parameter and no layer, and a mask on the fourth alone would be half a thing.

    Args:
        model: any module.
        init: the logit that every weight starts with.
        tau: the temperature of the soft sample; it changes the gradient and not the sample.
        squashed: whether the authors' code is followed rather than the paper; see the top of this module.
        leave: names of weights that get no mask, as ``weight_masks`` has them, such as ``"head.weight"``.

    Example:
        >>> layer = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> learn_masks(layer, squashed=False)
        >>> [name for name, p in layer.named_parameters() if p.requires_grad]
        ['0.parametrizations.weight.0.logits']
        >>> round(expected_kept(layer).item(), 3)  # 2 sigmoid(1.5)
        1.635

    Raises:
        BadInput: there is nothing to mask, a name is unknown, a number is out of range, or a weight is already
            parametrized or shared.
    """
    if not (tau > 0 and math.isfinite(tau) and math.isfinite(init)):
        raise BadInput("masks cannot be learned so", expected="a finite init and tau > 0", got=f"{init} and {tau}")
    layers = _maskable(model, leave)
    for name, layer in layers.items():  # all checks before the first change
        _check_free(model, name, layer)
    for layer in layers.values():
        beneath = mask_of(layer)
        weight = layer.weight if beneath is None else beneath.keep
        learned = LearnedMask(weight, init, tau, squashed)
        # unsafe: the checks it skips would read the weight, and so draw from the global generator
        parametrize.register_parametrization(layer, "weight", learned, unsafe=True)
    for module in model.modules():
        _freeze(module)


def mask_logits(model: nn.Module) -> dict[str, Tensor]:
    """Return the logits by the name of the weight: the parameters themselves, no copies."""
    return {name: learned.logits for name, _, learned in _learned(model)}


def signed_sum(model: nn.Module) -> Tensor:
    r"""Return :math:`\sum \Theta`, the authors' penalty: an equal pull on every logit, down and without end.

    Weights that were pruned before are not counted, here and in the other penalties.
    """
    return _summed(model, [learned.logits for _, _, learned in _learned(model)])


def absolute_sum(model: nn.Module) -> Tensor:
    r"""Return :math:`\sum |\Theta|`, the penalty of the paper's equation 11.

    It pulls logits to 0, where half of the weights are drawn. They do not come to rest there: under Adam a logit that
    no batch asks for swings around 0 with the others like it, by 0.017 at a rate of 0.01, and the side on which the
    last step finds them decides for all. With :math:`\lambda_1 = 10^{-8}` that is kept after 1,500 steps and pruned
    after 2,000.
    """
    return _summed(model, [learned.logits.abs() for _, _, learned in _learned(model)])


def expected_kept(model: nn.Module) -> Tensor:
    r"""Return :math:`\sum \pi`, how many weights a forward is expected to keep.

    The :math:`\ell_1` penalty of the paper's section 3.2, which is on probabilities.
    """
    return _summed(model, [learned.probability() for _, _, learned in _learned(model)])


def settle(model: nn.Module) -> None:
    """Decide: weights with a logit below 0 are pruned, in place, and all parameters are trained again that were before.

    From here on the masks are fixed ones, see :mod:`spurless.models.masks`: training keeps the zeros, and
    ``make_permanent`` writes them into the weights.
    """
    for module in model.modules():
        for name in vars(module).pop(_FROZEN, ()):
            module.get_parameter(name).requires_grad_()
    masks = {}
    for name, layer, learned in list(_learned(model)):
        beneath = mask_of(layer)
        keep = learned.logits.detach() >= 0
        masks[name] = keep if beneath is None else keep & beneath.keep
        own_class(layer)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    prune(model, masks)


def is_learning(model: nn.Module) -> bool:
    """Return whether any weight is under a learned mask."""
    return any(True for _ in _learned(model))


def _maskable(model: nn.Module, leave: Sequence[str]) -> dict[str, Any]:
    layers = dict(weight_layers(model))
    for name in leave:
        if name not in layers:
            raise BadInput(f"no convolution or linear weight is called {name!r}", do=did_you_mean(name, layers).strip())
    inside = {id(part) for m in model.modules() if isinstance(m, nn.MultiheadAttention) for part in m.modules()}
    found = {name: layer for name, layer in layers.items() if name not in leave and id(layer) not in inside}
    if not found:
        raise BadInput("the model has no weights to mask", expected="a convolution or linear layer")
    return found


def _check_free(model: nn.Module, name: str, layer: Any) -> None:
    if _learned_mask_of(layer) is not None:
        raise BadInput(f"the weight {name!r} is under a learned mask already", do="Call settle(model) first.")
    if mask_of(layer) is None:
        check_plain(model, name, layer)


def _learned(model: nn.Module) -> Iterator[tuple[str, Any, LearnedMask]]:
    for name, layer in weight_layers(model):
        learned = _learned_mask_of(layer)
        if learned is not None:
            yield name, layer, learned


def _learned_mask_of(layer: Any) -> LearnedMask | None:
    if not parametrize.is_parametrized(layer, "weight"):
        return None
    last = layer.parametrizations.weight[-1]  # above a fixed mask, where there is one
    return last if isinstance(last, LearnedMask) else None


def _freeze(module: nn.Module) -> None:
    if isinstance(module, LearnedMask):
        return
    own = [(name, p) for name, p in module.named_parameters(recurse=False) if p.requires_grad]
    if own:
        vars(module)[_FROZEN] = tuple(name for name, _ in own)  # beside the parameters, so that copies know it, too
        for _, parameter in own:
            parameter.requires_grad_(False)


def _summed(model: nn.Module, parts: list[Tensor]) -> Tensor:
    """Sum one number per weight over the weights that are not pruned."""
    if not parts:
        raise BadInput("the model learns no masks", do="Call learn_masks(model, ...) first.")
    fixed = [mask_of(layer) for _, layer, _ in _learned(model)]
    alive = [p if mask is None else torch.where(mask.keep, p, 0) for p, mask in zip(parts, fixed, strict=True)]
    return torch.stack([part.sum() for part in alive]).sum()
