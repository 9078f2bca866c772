"""``spurless reproduce``: rerun a claim and say whether it holds."""

from __future__ import annotations

import json as json_module
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli.console import check_appendable, progress_bar
from spurless.cli.flags import MACHINE, OUTPUT, Device, Json, Precision, Quiet

if TYPE_CHECKING:
    from spurless.bench.claims import Verdict


def reproduce(
    claim: Annotated[
        str | None, typer.Argument(help="Id of the claim, such as theory/planted-erm.", metavar="CLAIM")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List every claim with its number, bar and cost.", metavar="")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Run so many seeds.", min=1, show_default="the claim's own number")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The first seed; with --seeds 1, a claim can be shared out over machines.", min=0)
    ] = 0,
    device: Device = "auto",
    precision: Precision = "auto",
    together: Annotated[
        int, typer.Option(help="So many trainings share a GPU.", min=1, metavar="K", rich_help_panel=MACHINE)
    ] = 1,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of real datasets, for claims that need one.", metavar="FOLDER", show_default="$SPURLESS_DATA"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Append the records to this file.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rerun the published or derived number CLAIM and compare.

    The last line reads: ID  ours  paper  bar  HOLDS or FALLS SHORT.
    The exit status is 0 where the claim holds, 1 where it falls short.
    Runs that the file --out holds already are not repeated, and a killed one goes on
    from checkpoints beside it.
    With --together K small networks advance K at a time on one GPU, to the same numbers.

    Examples:
      spurless reproduce --list
      spurless reproduce theory/planted-group-dro --seeds 5 --out records.jsonl
      spurless reproduce large-lr/colored-mnist-resnet18 --together 6 --out records.jsonl
    """
    from spurless.bench.claims import CLAIMS, claim_named
    from spurless.bench.reproduce import reproduce as rerun
    from spurless.cli.ls import ls
    from spurless.core.errors import BadInput
    from spurless.train.run import Engine

    if list_:
        ls("claims", json)
        return
    if claim is None:
        raise BadInput("no claim is named", expected=f"one of {', '.join(CLAIMS)}", do="See: spurless reproduce --list")
    chosen = claim_named(claim)
    if data_dir is not None:
        if not data_dir.is_dir():
            raise BadInput("no such folder", where=data_dir, expected="a folder of datasets")
        os.environ["SPURLESS_DATA"] = str(data_dir)
    if out is not None:
        check_appendable(out)
    with progress_bar(quiet or json) as progress:
        engine = Engine(device, precision=precision)
        verdict = rerun(chosen, seeds=seeds, first=seed, engine=engine, out=out, progress=progress, together=together)
    _show(verdict, json)
    if not verdict.holds:
        raise typer.Exit(1)


def _show(verdict: Verdict, json: bool) -> None:
    claim = verdict.claim
    if json:
        values = [value if value == value else None for value in (verdict.ours, *verdict.values)]  # JSON knows no NaN
        row = {"id": claim.id, "ours": values[0], "values": values[1:], "paper": claim.paper}
        more = {"bar": str(claim.bar), "holds": verdict.holds, "cut_off": verdict.cut_off}
        print(json_module.dumps({**row, **more}))
        return
    print(f"{claim.quantity} ({claim.place})")
    print(f"by seed: {verdict.by_seed()}")
    if verdict.cut_off:
        print(f"cut off before the end of training: {', '.join(verdict.cut_off)}")
    print(verdict.line())
