"""``spurless reproduce``: rerun a claim and check whether it holds."""

from __future__ import annotations

import json as json_module
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli import params as cli
from spurless.cli.console import print_json, print_text, progress_bar
from spurless.cli.outputs import check_appendable

if TYPE_CHECKING:
    from spurless.bench.claims import ClaimResult


@cli.expand_params
def reproduce(
    *,
    claim: Annotated[
        str | None, typer.Argument(help="Id of the claim, such as theory/planted-erm.", metavar="CLAIM")
    ] = None,
    list_: bool = cli.flag(None, "List every claim with its number, bar and cost.", "--list"),
    seeds: int | None = cli.param(None, None, "Number of seeds.", min=1, show_default="that of the claim"),
    seed: int = cli.param(
        0, None, "First seed; with --seeds 1, the seeds of a claim can run on several machines.", min=0
    ),
    device: cli.ComputeParams,
    together: int = cli.param(1, cli.COMPUTE, "Number of trainings that share a GPU.", min=1, metavar="K"),
    data_dir: Path | None = cli.param(
        None, None, "Folder of real datasets, for claims that need it.", metavar="FOLDER", show_default="$SPURLESS_DATA"
    ),
    out: Path | None = cli.param(None, cli.OUTPUT, "Append the records to this file.", metavar="FILE"),
    json: cli.Json = False,
    quiet: cli.Quiet = False,
) -> None:
    """Rerun the experiment of a published or derived number CLAIM and compare.

    The last line reads: ID  ours  paper  bar  HOLDS or FALLS SHORT.
    The exit status is 0 if the claim holds and 1 if it falls short.
    Runs that are already in the file --out are not repeated, and a killed run
    resumes from checkpoints next to it. With --together K, small networks are
    trained K at a time on one GPU; the numbers stay the same.

    Examples:
      spurless reproduce --list
      spurless reproduce theory/planted-group-dro --seeds 5 --out records.jsonl
      spurless reproduce large-lr/colored-mnist-resnet18 --together 6 --out records.jsonl
    """
    from spurless.bench.claims import CLAIMS, get_claim
    from spurless.bench.reproduce import reproduce as rerun
    from spurless.cli.ls import ls
    from spurless.core.errors import InputError

    if list_:
        ls("claims", json)
        return
    if claim is None:
        raise InputError(
            "missing argument CLAIM", expected=f"one of {', '.join(CLAIMS)}", hint="See: spurless reproduce --list"
        )
    chosen = get_claim(claim)
    if data_dir is not None:
        if not data_dir.is_dir():
            raise InputError("no such folder", where=data_dir, expected="a folder of datasets")
        os.environ["SPURLESS_DATA"] = str(data_dir)
    if out is not None:
        check_appendable(out)
    with progress_bar(quiet or json) as progress:
        compute = device.compute()
        verdict = rerun(chosen, seeds=seeds, first=seed, compute=compute, out=out, progress=progress, together=together)
    _show(verdict, json)
    if not verdict.holds:
        raise typer.Exit(1)


def _show(verdict: ClaimResult, json: bool) -> None:
    claim = verdict.claim
    if json:
        values = [value if value == value else None for value in (verdict.ours, *verdict.values)]  # JSON has no NaN
        row = {"id": claim.id, "ours": values[0], "values": values[1:], "paper": claim.paper}
        more = {"bar": str(claim.bar), "holds": verdict.holds, "cut_off": verdict.cut_off}
        print_json(json_module.dumps({**row, **more}))
        return
    print_text(f"{claim.quantity} ({claim.source})")
    print_text(f"by seed: {verdict.by_seed()}")
    if verdict.cut_off:
        print_text(f"cut off before the end of training: {', '.join(verdict.cut_off)}")
    print_text(verdict.line())
