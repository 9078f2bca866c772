"""``spurless audit``: test whether a trained model relies on a shortcut, and write the findings to a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spurless.cli import params as cli
from spurless.cli.console import print_json, print_text, progress_bar
from spurless.cli.inputs import open_dataset, open_model, resolve_seed
from spurless.cli.outputs import check_outputs
from spurless.core.errors import InputError
from spurless.core.files import check_not_pipe

if TYPE_CHECKING:
    from torch import Tensor

    from spurless.core.findings import Audit

AUDITS = "Audits"


@cli.expand_params
def audit(
    *,
    data: cli.DataParams,
    given: cli.WeightsParams,
    part: str = cli.param(
        "val", AUDITS, "Split to audit: val or test; train shows what the model has memorized.", metavar="SPLIT"
    ),
    only: list[str] = cli.param(
        list, AUDITS, "Run only this audit (see: spurless ls audits); repeat for more.", metavar="NAME"
    ),
    crossed: bool = cli.param(
        False, AUDITS, "Test the combinations of several attribute columns instead of every column on its own."
    ),
    masks: Path | None = cli.param(
        None, AUDITS, "Foreground masks of the split, (N, height, width), to swap backgrounds.", metavar="NPY"
    ),
    permutations: int = cli.param(499, AUDITS, "Number of permutations.", min=1),
    level: float = cli.param(0.05, AUDITS, "Significance level: false-positive rate per test."),
    device: cli.DeviceParams,
    out: Path = cli.param(Path("audit.html"), cli.OUTPUT, "Page to write.", metavar="HTML"),
    export: Path | None = cli.param(
        None, cli.OUTPUT, "Also write the suspected examples to this table.", metavar="CSV"
    ),
    json: cli.Json = False,
    quiet: cli.Quiet = False,
) -> None:
    """Test which shortcuts the model in WEIGHTS relies on, with held-out examples.

    Attributes are not needed; if the data have some, they are tested too. Every
    test is compared with chance by permutation. The page starts with the verdict,
    then lists the findings, and shows examples that seem to contradict the
    shortcut. A JSON file with the same content is written next to it.

    Examples:
      spurless audit runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless audit mine.safetensors --data birds/ --model torchvision:resnet18
      spurless audit mine.safetensors --data meta.csv --label y --export suspects.csv
      spurless audit mine.safetensors --only image-properties --only hidden-regions
    """
    from spurless.auditing import audit as run_audit
    from spurless.reporting import audit_json, write_audit, write_json, write_suspects

    cli.check_split_name(part)
    if not 0 < level < 1:
        raise InputError("--level is out of range", expected="above 0 and below 1, such as 0.05", got=level)
    seed = resolve_seed(given.weights, given.seed)
    check_outputs([export], "--out, --export", page=out, inputs=[given.weights, *data.inputs, masks])
    splits = open_dataset(data, seed, given.model, given.weights, quiet or json)
    model = open_model(given.weights, given.model, given.options, splits, seed)
    with progress_bar(quiet or json) as progress:
        result = run_audit(
            model,
            splits,
            part=part,
            only=only,
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
    if json:
        print_json(audit_json(result))
        return
    _show(result)
    more = f", suspected examples in {export}" if export is not None else ""
    print_text(f"page in {page.resolve()}, JSON in {json_file}{more}")


def _show(result: Audit) -> None:
    """Print the verdict and a line per finding."""
    from spurless.reporting import summarize_audit

    verdict = summarize_audit(result)
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
