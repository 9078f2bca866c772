"""``spurless demo``: the whole story on embedded data: a classifier that cheats, a fix, the proof."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from spurless.cli.console import progress_bar, share
from spurless.cli.flags import Quiet
from spurless.core.files import check_writable
from spurless.core.findings import Audit
from spurless.core.records import Record

TRAIN = {"steps": 170, "batch_size": 64, "lr": 0.01}
STORY = {
    "erm": "",
    "masktune": "nothing else",
    "neurontune": "the validation labels",
    "group-resample": "the training attributes",
    "dfr": "the validation attributes",
}
"""The methods that are shown, and what each uses beyond the training labels."""
PRESETS = {"masktune": "digits", "neurontune": "digits"}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the records.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(help="How often to repeat everything, with other seeds.", min=1)] = 5,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.", metavar="")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a classifier that cheats, audit it, show the groups it fails, repair it, and prove it, on one page.

    The data are handwritten digits, 0-4 against 5-9. In training 99 % of the first
    carry a red square and 99 % of the second do not; in the test half of each do.
    Runs offline on a CPU in a minute or two.

    Examples:
      spurless demo
      spurless demo --out story --seeds 1 --open
    """
    from spurless.auditing import audit
    from spurless.bench.fitting import fit
    from spurless.core.records import append
    from spurless.data import load
    from spurless.methods import method_named
    from spurless.models import build
    from spurless.reporting import write_report
    from spurless.reporting.audit_words import opinion

    check_writable(out)
    records_file = out / "records.jsonl"
    records_file.unlink(missing_ok=True)
    records: list[Record] = []
    looks: list[Audit] = []
    with progress_bar(quiet) as progress:
        for seed in range(seeds):
            data = load("patched-digits", conflicting=0.01, seed=seed)
            fresh = trained = build("small-cnn", data, seed=seed)
            for name in STORY:
                given = trained if method_named(name).info.start == "trained" else fresh
                told = _named(progress, f"{name}, seed {seed}")
                fitted = fit(name, given, data, seed=seed, preset=PRESETS.get(name), train=TRAIN, progress=told)
                trained = fitted.model if name == "erm" else trained
                if name == "erm" and not looks:
                    looks.append(audit(trained, data, seed=seed, progress=_named(progress, "audit")))
                records.append(fitted.record)
                append(records_file, fitted.record)
    page = write_report(
        out / "report.html",
        records,
        audits=looks,
        title="A classifier that cheats, and its repair",
        pictures=[_examples(load("patched-digits", conflicting=0.01))],
    )
    _summarise(records, seeds, opinion(looks[0]).headline)
    print(f"\nThe page: {page.resolve()}")
    if open_:
        webbrowser.open(page.resolve().as_uri())


def _named(progress: Any, name: str) -> Any:
    """Report progress under another name than the stage's."""
    return progress and (lambda _, step, total, word: progress(name, step, total, word))


def _summarise(records: list[Record], seeds: int, headline: str) -> None:
    """Print the story in a few lines."""
    mean = {
        name: {
            metric: sum(r.metrics[metric] or 0.0 for r in records if r.method == name) / seeds
            for metric in ("average", "adjusted_average", "worst_group")
        }
        for name in STORY
    }
    erm = mean["erm"]
    seems, worst = share(erm["adjusted_average"]), share(erm["worst_group"])
    print(f"On data like its training data ERM is right {seems} of the time; in its worst group, {worst}.")
    print(f"It reads the red square instead of the digit. The audit says: {headline}")
    print("Worst group and average after a fix:")
    for name, with_ in list(STORY.items())[1:]:
        print(f"  {name:<15} {share(mean[name]['worst_group']):>7} {share(mean[name]['average']):>7}  using {with_}")


def _examples(data: Any, each: int = 8) -> Any:
    """Draw a few training examples of every group, one row per group."""
    import io

    import torch
    from PIL import Image

    from spurless.reporting import Picture

    train, names = data.train, data.groups.names
    rows = []
    for g in range(len(names)):
        members = (train.g == g).nonzero().flatten()[:each]
        tiles = torch.nn.functional.pad(train.x[members], [1] * 4, value=255)
        blank = torch.full((each - len(members), *tiles.shape[1:]), 255, dtype=torch.uint8)
        rows.append(torch.cat(list(torch.cat([tiles, blank])), dim=2))
    sheet = torch.cat(rows, dim=1)
    image = Image.fromarray(sheet.permute(1, 2, 0).numpy())
    image = image.resize((image.width * 2, image.height * 2), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return Picture(
        title="What the classifier was shown",
        caption="Training examples, one row per group: "
        + "; ".join(f"{name} ({int(n)})" for name, n in zip(names, train.counts, strict=True)),
        png=buffer.getvalue(),
        alt="Handwritten digits in four rows, one per group; the rows of marked digits have a red square in the corner",
    )
