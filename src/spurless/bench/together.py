"""Together: many runs at once on one device, each with the model and the record it would have alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from spurless.bench.fitting import Fitted, Protocol, Ready, carry_out, finish, prepare
from spurless.bench.hearing import heard
from spurless.bench.rules import set_criterion
from spurless.data.grouped import Grouped, Splits
from spurless.methods import Method
from spurless.methods.base import one_stage
from spurless.train.fleet import AT_ONCE, Outcome, arrivals, can_share
from spurless.train.loop import Job

Request: TypeAlias = tuple[Protocol, Method, nn.Module, Splits, int]
"""What :func:`~spurless.bench.fitting.fit_under` takes: protocol, method, model, data, seed."""


def fit_together(requests: Sequence[Request], at_once: int = AT_ONCE) -> Iterator[tuple[int, Fitted | Exception]]:
    """Fit many runs, and yield of each, once it has ended, its number and what ``fit_under`` would return or raise.

    Runs of methods with one stage that train from scratch advance together where their steps can be captured as a
    CUDA graph; all others are done one after another. The record of a run that shared its device says under
    ``hardware`` with how many; its seconds are those that went by, its peak of memory is that of all. Where runs are
    tracked, whoever takes one says so with ``told``, since it may add to its numbers.

    Args:
        requests: the runs; a tensor of inputs that several have lies on the device once.
        at_once: how many advance together.
    """
    harbour, sharers = _Harbour(), list[tuple[int, Ready, Job]]()
    for number, request in enumerate(requests):
        try:
            ready = harbour.ready(request)
            shared = harbour.shared(ready)
            if shared is not None:
                sharers.append((number, *shared))
                continue
            result: Fitted | Exception = carry_out(ready)
        except Exception as error:  # a failure is the run's own
            result = error
        yield number, result
    ends, said = arrivals([job for _, _, job in sharers], at_once), list[str]()
    while True:
        with heard() as words:
            end = next(ends, None)
        said += words
        if end is None:
            return
        place, outcome = end
        number, ready, _ = sharers[place]
        yield number, _finished(ready, outcome, said)


@dataclass
class _Harbour:
    """Makes runs ready, and does once what they have in common."""

    prints: dict[int, str] = field(default_factory=dict)
    """The fingerprint of every dataset."""
    homes: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict)
    """Every tensor of inputs, on its device."""

    def ready(self, request: Request) -> Ready:
        """Check a run and prepare it, as when it is alone."""
        data = request[3]
        ready = prepare(*request, fingerprint=self.prints.get(id(data)))
        self.prints[id(data)] = ready.fingerprint
        return ready

    def shared(self, ready: Ready) -> tuple[Ready, Job] | None:
        """Return the run, with its data in place, and its job, if it may share the device with others."""
        method = one_stage(ready.method)
        if method is None or ready.info.start != "scratch":
            return None
        data, device = ready.data, ready.run.device
        train, val, test = (self.placed(split, device) for split in (data.train, data.val, data.test))
        here = replace(ready, data=replace(data, train=train, val=val, test=test))
        job = method.job(here.model, here.shown, here.run)
        if not can_share(job):
            return None
        set_criterion(here.run, here.criterion, val)
        return here, job

    def placed(self, split: Grouped, device: torch.device) -> Grouped:
        """Return the split with its inputs on a device, where every run with the same tensor finds them."""

        def place(x: Tensor) -> Tensor:
            if (id(x), device) not in self.homes:
                self.homes[id(x), device] = x.to(device)
            return self.homes[id(x), device]

        if isinstance(split.x, Tensor):
            return replace(split, x=place(split.x))
        if isinstance(split.x, dict):
            return replace(split, x={key: place(x) for key, x in split.x.items()})
        return split


def _finished(ready: Ready, outcome: Outcome, said: Sequence[str]) -> Fitted | Exception:
    if outcome.error is not None:
        if ready.tracker is not None:
            ready.tracker.fail()
        return outcome.error
    try:
        return finish(ready, ready.model, None, said, sum(ready.run.seconds.values()), outcome.together)
    except Exception as error:
        return error
