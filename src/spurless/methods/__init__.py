"""The table of methods: to add one, write its file and add its class here. Nothing else changes."""

from __future__ import annotations

from typing import Any

from spurless.core.errors import UnknownName
from spurless.core.options import configure
from spurless.core.own_code import is_own
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
from spurless.methods.cvar_dro import CVaRDRO
from spurless.methods.dcwp import DCWP
from spurless.methods.deep_gamblers import DeepGamblers
from spurless.methods.dfr import DFR
from spurless.methods.disent import DisEnt
from spurless.methods.end import EnD
from spurless.methods.erm import ERM
from spurless.methods.focal import Focal
from spurless.methods.gc_dro import GCDRO
from spurless.methods.greedy_dro import GreedyDRO
from spurless.methods.group_dro import GroupDRO
from spurless.methods.head_tuning import ClassBalancedHead
from spurless.methods.jtt import JTT
from spurless.methods.jtt_head import JTTHead
from spurless.methods.lff import LfF
from spurless.methods.masktune import MaskTune
from spurless.methods.mrm import MRM
from spurless.methods.neurontune import NeuronTune
from spurless.methods.one_sided import OneSided
from spurless.methods.own import own_method
from spurless.methods.prune_baselines import MagnitudePrune, RandomPrune
from spurless.methods.randmask import RandMask
from spurless.methods.rebias import ReBias
from spurless.methods.selectivenet import SelectiveNet
from spurless.methods.self_tuning import Self
from spurless.methods.watched_erm import WatchedERM

METHODS: dict[str, type[Method]] = {
    method.info.name: method
    for method in (
        ERM,
        Focal,
        ClassReweight,
        ClassResample,
        ClassSubsample,
        CVaRDRO,
        JTT,
        LfF,
        DisEnt,
        ReBias,
        RandMask,
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
        WatchedERM,
        GroupReweight,
        GroupResample,
        GroupSubsample,
        GroupDRO,
        GreedyDRO,
        GCDRO,
        EnD,
        DFR,
        SelectiveNet,
        DeepGamblers,
        OneSided,
    )
}


def method_named(name: str) -> type[Method]:
    """Return the method class of that name; ``FILE.py:METHOD`` and ``package.module:METHOD`` run code of your own.

    See :mod:`spurless.methods.own`.
    """
    if name in METHODS:
        return METHODS[name]
    if is_own(name):
        return own_method(name, METHODS)
    raise UnknownName("method", name, METHODS)


def make_method(name: str, preset: str | None = None, **options: Any) -> Method:
    """Return a method with a preset's configuration (the first by default), some of it replaced by ``options``."""
    kind = method_named(name)
    if preset is not None and preset not in kind.presets:
        raise UnknownName(f"preset of {name}", preset, kind.presets)
    base = kind.presets[preset or next(iter(kind.presets))]
    return kind(configure(type(base), {**vars(base), **options}, f"method {name!r}"))


__all__ = ["METHODS", "Info", "Method", "make_method", "method_named"]
