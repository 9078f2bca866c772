"""``spurless demo``: train a classifier that relies on a shortcut, audit and repair it, on embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spurless.cli import params as cli
from spurless.cli.console import open_page, print_text, progress_bar
from spurless.core.errors import InputError
from spurless.core.files import check_writable
from spurless.core.findings import Audit
from spurless.core.records import Record, read_records
from spurless.reporting.format import format_percent

TRAIN = {"steps": 170, "batch_size": 64, "lr": 0.01}
METHODS = {
    "erm": "",
    "masktune": "nothing else",
    "neurontune": "the validation labels",
    "group-resample": "the training attributes",
    "dfr": "the validation attributes",
}
"""Methods of the demo, and the labels that each uses in addition to the training labels."""
PRESETS = {"masktune": "digits", "neurontune": "digits"}


@cli.expand_params
def demo(
    out: Path = cli.param(Path("demo"), None, "Folder for the page and the records."),
    seeds: int = cli.param(5, None, "Number of seeds.", min=1),
    open_: cli.OpenPage = False,
    quiet: cli.Quiet = False,
) -> None:
    """Train a classifier that relies on a shortcut, audit and repair it, and write one page.

    The data are handwritten digits, 0-4 against 5-9. In training 99 % of the first
    have a red square and 99 % of the second do not; in the test split half of each
    have one. Runs offline on a CPU in a minute or two.

    Examples:
      spurless demo
      spurless demo --out digits --seeds 1 --open
    """
    from spurless.auditing import audit
    from spurless.core.records import append_record
    from spurless.data import load
    from spurless.fitting import fit
    from spurless.methods import method_named
    from spurless.models import build
    from spurless.reporting import report
    from spurless.reporting.audit_text import summarize_audit

    records_file = out / "records.jsonl"
    _check_earlier_records(records_file)
    check_writable(out)
    records_file.unlink(missing_ok=True)
    records: list[Record] = []
    audits: list[Audit] = []
    with progress_bar(quiet) as progress:
        for seed in range(seeds):
            data = load("patched-digits", conflicting=0.01, seed=seed)
            untrained = trained = build("small-cnn", data, seed=seed)
            for name in METHODS:
                model = trained if method_named(name).info.start == "trained" else untrained
                stage = _rename_stage(progress, f"{name}, seed {seed}")
                fitted = fit(name, model, data, seed=seed, preset=PRESETS.get(name), train=TRAIN, progress=stage)
                trained = fitted.model if name == "erm" else trained
                if name == "erm" and not audits:
                    audits.append(audit(trained, data, seed=seed, progress=_rename_stage(progress, "audit")))
                records.append(fitted.record)
                append_record(records_file, fitted.record)
    title, examples = "A classifier with a shortcut, and its repair", load("patched-digits", conflicting=0.01)
    page = report(out / "report.html", records, audits=audits, title=title, pictures=[_examples(examples)])
    _summarise(records, seeds, summarize_audit(audits[0]).headline)
    print_text()
    print_text(f"The page: {page.resolve()}")
    if open_:
        open_page(page)


def _check_earlier_records(path: Path) -> None:
    """Raise if a file that the demo replaces has records of other commands."""
    if path.exists() and any(record.command.split()[1:2] != ["demo"] for record in read_records(path)):
        hint = "Choose another folder with --out."
        raise InputError(
            "the file has records of other commands, and the demo would replace them", where=path, hint=hint
        )


def _rename_stage(progress: Any, name: str) -> Any:
    """Report progress under another name than the stage's."""
    return progress and (lambda _, step, total, message: progress(name, step, total, message))


def _summarise(records: list[Record], seeds: int, headline: str) -> None:
    """Print the main results in a few lines."""
    mean = {
        name: {
            metric: sum(r.metrics[metric] or 0.0 for r in records if r.method == name) / seeds
            for metric in ("average", "adjusted_average", "worst_group")
        }
        for name in METHODS
    }
    erm = mean["erm"]
    average, worst = format_percent(erm["adjusted_average"]), format_percent(erm["worst_group"])
    print_text(f"On data like its training data ERM has an accuracy of {average}; in its worst group, {worst}.")
    print_text(f"It uses the red square instead of the digit. Audit: {headline}")
    print_text("Worst-group and average accuracy after a repair:")
    for name, labels in list(METHODS.items())[1:]:
        worst, average = (format_percent(mean[name][metric]) for metric in ("worst_group", "average"))
        print_text(f"  {name:<15} {worst:>7} {average:>7}  using {labels}")


def _examples(data: Any, per_group: int = 8) -> Any:
    """Draw a few training examples of every group, one row per group."""
    import io

    import torch
    from PIL import Image

    from spurless.reporting import Picture

    train, names = data.train, data.groups.names
    rows = []
    for g in range(len(names)):
        members = (train.g == g).nonzero().flatten()[:per_group]
        tiles = torch.nn.functional.pad(train.x[members], [1] * 4, value=255)
        blank = torch.full((per_group - len(members), *tiles.shape[1:]), 255, dtype=torch.uint8)
        rows.append(torch.cat(list(torch.cat([tiles, blank])), dim=2))
    sheet = torch.cat(rows, dim=1)
    image = Image.fromarray(sheet.permute(1, 2, 0).numpy())
    image = image.resize((image.width * 2, image.height * 2), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    counts = "; ".join(f"{name} ({int(n)})" for name, n in zip(names, train.counts, strict=True))
    alt = "Handwritten digits in four rows, one per group; the rows of marked digits have a red square in the corner"
    return Picture("Training examples", caption=f"One row per group: {counts}", png=buffer.getvalue(), alt=alt)
