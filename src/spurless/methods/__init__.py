"""The table of methods: to add one, write its file and add its class here."""

from __future__ import annotations

from typing import Any

from spurless.core.config import configure
from spurless.core.errors import UnknownNameError
from spurless.core.user_code import is_user_code
from spurless.methods._user_method import load_user_method
from spurless.methods.afr import AFR
from spurless.methods.avp import AVP
from spurless.methods.balancing import (
    ClassResample,
    ClassReweight,
    ClassSubsample,
    GroupResample,
    GroupReweight,
    GroupSubsample,
)
from spurless.methods.base import Info, Method
from spurless.methods.class_balanced_head import ClassBalancedHead
from spurless.methods.cvar_dro import CVaRDRO
from spurless.methods.dcwp import DCWP
from spurless.methods.deep_gamblers import DeepGamblers
from spurless.methods.dfr import DFR
from spurless.methods.disent import DisEnt
from spurless.methods.end import EnD
from spurless.methods.erm import ERM
from spurless.methods.erm_loss_ratio import ERMLossRatio
from spurless.methods.focal import Focal
from spurless.methods.gc_dro import GCDRO
from spurless.methods.greedy_dro import GreedyDRO
from spurless.methods.group_dro import GroupDRO
from spurless.methods.jtt import JTT
from spurless.methods.jtt_head import JTTHead
from spurless.methods.lff import LfF
from spurless.methods.masktune import MaskTune
from spurless.methods.mrm import MRM
from spurless.methods.neurontune import NeuronTune
from spurless.methods.one_sided import OneSided
from spurless.methods.prune_baselines import MagnitudePrune, RandomPrune
from spurless.methods.randmask import RandMask
from spurless.methods.rebias import ReBias
from spurless.methods.selectivenet import SelectiveNet
from spurless.methods.self_finetuning import Self
from spurless.methods.transplant import TransplantTraining

_FROM_SCRATCH = (ERM, Focal, ClassReweight, ClassResample, ClassSubsample, CVaRDRO, JTT, LfF, DisEnt, ReBias, RandMask)
_REPAIRS = (
    MaskTune,
    MRM,
    DCWP,
    AVP,
    RandomPrune,
    MagnitudePrune,
    ClassBalancedHead,
    AFR,
    Self,
    JTTHead,
    NeuronTune,
    TransplantTraining,
)
_WITH_ATTRIBUTES = (ERMLossRatio, GroupReweight, GroupResample, GroupSubsample, GroupDRO, GreedyDRO, GCDRO, EnD, DFR)
_SELECTIVE = (SelectiveNet, DeepGamblers, OneSided)
_ALL: tuple[type[Method], ...] = (*_FROM_SCRATCH, *_REPAIRS, *_WITH_ATTRIBUTES, *_SELECTIVE)
METHODS: dict[str, type[Method]] = {method.info.name: method for method in _ALL}


def method_named(name: str) -> type[Method]:
    """Return the method class of that name; ``FILE.py:METHOD`` and ``package.module:METHOD`` run user code.

    See :mod:`spurless.methods._user_method`.
    """
    if name in METHODS:
        return METHODS[name]
    if is_user_code(name):
        return load_user_method(name, METHODS)
    raise UnknownNameError("method", name, METHODS)


def make_method(name: str, preset: str | None = None, **options: Any) -> Method:
    """Return a method with the configuration of a preset (default: the first), updated by ``options``."""
    kind = method_named(name)
    if preset is not None and preset not in kind.presets:
        raise UnknownNameError(f"preset of {name}", preset, kind.presets)
    base = kind.presets[preset or next(iter(kind.presets))]
    return kind(configure(type(base), {**vars(base), **options}, f"method {name!r}"))


__all__ = ["METHODS", "Info", "Method", "make_method", "method_named"]
