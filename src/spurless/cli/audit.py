"""``spurless audit``: test whether a trained model relies on a shortcut, and write the findings to a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spurless.cli import params as cli
from spurless.cli.console import open_page, print_error, print_json, print_text, progress_bar
from spurless.cli.inputs import open_dataset
from spurless.cli.outputs import check_outputs
from spurless.cli.weights import open_model, resolve_seed
from spurless.core.errors import InputError
from spurless.core.files import check_not_pipe
from spurless.core.findings import Gate

if TYPE_CHECKING:
    from torch import Tensor

    from spurless.core.findings import Audit

AUDITS, GATE = "Audits", "Gate"


@cli.expand_params
def audit(
    *,
    data: cli.DataParams,
    given: cli.WeightsParams,
    part: str | None = cli.param(
        None,
        AUDITS,
        "Split to audit: val, test, all, or train, which shows what the model has memorized.",
        metavar="SPLIT",
        show_default="val; all of data without splits that the weights were not trained on",
    ),
    only: list[str] = cli.param(
        list,
        AUDITS,
        "Run only this audit (see: spurless ls audits), or FILE.py:AUDIT; repeat for more.",
        metavar="NAME",
    ),
    add: list[str] = cli.param(
        list, AUDITS, "Also run this audit of your own: FILE.py:AUDIT or an installed one.", metavar="AUDIT"
    ),
    crossed: bool = cli.param(
        False, AUDITS, "Test the combinations of several attribute columns instead of every column on its own."
    ),
    masks: Path | None = cli.param(
        None, AUDITS, "Foreground masks of the split, (N, height, width), to swap backgrounds.", metavar="NPY"
    ),
    permutations: int = cli.param(499, AUDITS, "Number of permutations.", min=1),
    level: float = cli.param(0.05, AUDITS, "Significance level: false-positive rate per test."),
    fail_on: str | None = cli.param(
        None,
        GATE,
        "Exit with status 1 for this verdict or a worse one: shortcut, suspicious or inconclusive, from worst to "
        "mildest.",
        metavar="VERDICT",
        show_default="any verdict is status 0",
    ),
    min_worst_group: float | None = cli.param(
        None,
        GATE,
        "Exit with status 1 if the accuracy of the worst group (without attributes: class) is lower, as a fraction.",
        metavar="ACCURACY",
        show_default="any",
    ),
    allow: list[str] = cli.param(
        list, GATE, "Accept the findings of this audit in the gate; repeat for more.", metavar="NAME"
    ),
    junit: Path | None = cli.param(
        None, GATE, "Also write the result of the gate as JUnit XML, one test case per audit.", metavar="XML"
    ),
    device: cli.DeviceParams,
    out: Path = cli.param(Path("audit.html"), cli.OUTPUT, "Page to write.", metavar="HTML"),
    export: Path | None = cli.param(
        None, cli.OUTPUT, "Also write the suspected examples to this table.", metavar="CSV"
    ),
    track: cli.TrackResult = None,
    open_: cli.OpenPage = False,
    json: cli.Json = False,
    quiet: cli.Quiet = False,
) -> None:
    """Test which shortcuts the model in WEIGHTS relies on, with held-out examples.

    A folder or table without splits is audited as a whole: it should be held-out
    data. Attributes are not needed; if the data have some, they are tested too. Every
    test is compared with chance by permutation. The page starts with the verdict,
    then lists the findings, and shows examples that seem to contradict the
    shortcut. A JSON file with the same content is written next to it.

    Exit status: 0 if the audit was completed; 1 if it was completed and --fail-on
    or --min-worst-group fails; 2 for invalid input; 130, 143 or 129 if it was
    interrupted by Ctrl-C, SIGTERM or SIGHUP. The files are written before the gate
    decides. A model at chance level fails every --fail-on.

    Examples:
      spurless audit runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless audit mine.safetensors --data birds/ --model torchvision:resnet18
      spurless audit mine.safetensors --data heldout/ --model nets.py:make --classes cat,dog
      spurless audit mine.safetensors --data meta.csv --label y --export suspects.csv
      spurless audit mine.safetensors --fail-on suspicious --min-worst-group 0.8 --junit audit.xml
      spurless audit mine.safetensors --only image-properties --only hidden-regions
      spurless audit mine.safetensors --add audits.py:BRIGHTNESS
    """
    from spurless.auditing import ALL, MIN_LEVEL
    from spurless.auditing import audit as run_audit
    from spurless.reporting import audit_json, write_audit, write_json, write_junit, write_suspects
    from spurless.train.tracking import track_audit

    if part is not None:
        cli.check_split_name(part, ALL)
    if not MIN_LEVEL <= level < 1:
        expected = f"at least {MIN_LEVEL:g} and below 1, such as 0.05"
        raise InputError("--level is out of range", expected=expected, got=level)
    gate = _make_gate(fail_on, min_worst_group, allow, junit)
    track = cli.resolve_track(track, Path())
    seed = resolve_seed(given.weights, given.seed)
    check_outputs([export, junit], "--out, --export, --junit", page=out, inputs=[given.weights, *data.inputs, masks])
    splits = open_dataset(data, seed, given.model, given.weights, quiet or json, held_out=part in (None, ALL))
    model = open_model(given.weights, given.model, given.options, splits, seed)
    with progress_bar(quiet or json) as progress:
        result = run_audit(
            model,
            splits,
            part=part,
            only=only,
            extra=add,
            crossed=crossed,
            masks=None if masks is None else _load_masks(masks),
            seed=seed,
            permutations=permutations,
            level=level,
            compute=device.compute(),
            progress=progress,
        )
    page = write_audit(out, result)
    json_file = write_json(out.with_suffix(".json"), result)
    if export is not None:
        write_suspects(export, result)
    failures = gate.check(result)
    if junit is not None:
        write_junit(junit, result, gate)
    if track is not None:
        track_audit(track, result, [page, json_file])
    if json:
        print_json(audit_json(result))
    else:
        _show(result)
        more = f", suspected examples in {export}" if export is not None else ""
        more += f", JUnit XML in {junit}" if junit is not None else ""
        print_text(f"page in {page.resolve()}, JSON in {json_file}{more}")
    if open_:
        open_page(page)
    _exit_if_failed(failures)


def _exit_if_failed(failures: Mapping[str, str]) -> None:
    """Print the failures of the gate and exit with status 1 if there are any."""
    for name, failure in failures.items():
        print_error(f"gate: {name}: {failure}")
    if failures:
        raise typer.Exit(1)


def _make_gate(fail_on: str | None, min_worst_group: float | None, allow: list[str], junit: Path | None) -> Gate:
    """Return the conditions of the options; raise if an option has no effect without another."""
    if fail_on is None and (allow or (junit is not None and min_worst_group is None)):
        names = "--allow" if allow else "--junit"
        raise InputError(f"{names} needs a gate", hint="Add --fail-on suspicious.")
    return Gate(fail_on, min_worst_group, tuple(allow))


def _show(result: Audit) -> None:
    """Print the verdict and a line per finding."""
    from spurless.reporting import summarize_audit

    verdict = summarize_audit(result)
    if "audited" in result.facts:
        print_text(f"audited {result.facts['audited']}")
    if "input" in result.facts:
        print_text(f"input: {result.facts['input']}")
    print_text(verdict.headline)
    for line in filter(None, (verdict.what, verdict.certainty, verdict.next_step)):
        print_text(f"  {line}")
    for finding in result.findings:
        mark = "flagged" if finding.flagged else "       "
        chance = "" if finding.p is None else f", p = {finding.p:.3g}"
        print_text(f"  {mark}  {finding.audit}: {finding.title} (severity {finding.severity:.2f}{chance})")
        if finding.p is None:
            print_text(f"           {finding.because}")


def _load_masks(path: Path) -> Tensor:
    """Load masks without unpickling."""
    import numpy as np
    import torch

    check_not_pipe(path)
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except FileNotFoundError:
        raise InputError("no such file of masks", where=path) from None
    except (ValueError, TypeError, OSError, EOFError, MemoryError):  # NumPy's own message is about pickles
        expected = "one array of (N, height, width), as np.save writes it"
        raise InputError("the masks cannot be read", where=path, expected=expected) from None
