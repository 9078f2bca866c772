"""Figure 1 of AVP: decision boundaries while weights are pruned, on a page with a slider of epochs.

Run: python benchmarks/avp_figure1.py --out figure1.html

Malik and Fern, "Frequency based pruning improves latent identification and generalization", section 4.1. A network is
overfitted to five classes in the plane, including its wrong labels, with the settings of the claims
``avp/gaussians-*``, and then pruned. The last epoch is used, as in the paper. It takes one or two minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from spurless.bench.claims.avp import BIASED, UNBIASED
from spurless.bench.experiment import Experiment
from spurless.core.figures import Section
from spurless.core.files import check_writable
from spurless.core.progress import Progress
from spurless.data import load
from spurless.explain import BoundaryHistory, build_boundary_section, plot_boundary_curves, record_boundaries
from spurless.fitting import fit
from spurless.methods import make_method
from spurless.models import build
from spurless.reporting import write_sections
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

EXPERIMENTS = {
    "AVP, biased": BIASED.experiments["avp"],
    "AVP, unbiased": UNBIASED.experiments["avp"],
    "random, unbiased": UNBIASED.experiments["random"],
}
CPU = Compute("cpu")
FRAMES = 60


def print_progress(name: str) -> Progress:
    """Return a function that shows progress as one line on standard error."""

    def report(stage: str, step: int, total: int, word: str) -> None:
        sys.stderr.write(f"\r{name}: {stage} {step:,} of {total:,} {word:<12}" + "\n" * (step == total))

    return report


def record(name: str, experiment: Experiment, seed: int, epochs: int) -> BoundaryHistory:
    """Overfit and prune as the claim does, and record frames of the pruning."""
    report = print_progress(name)
    data = load(experiment.dataset, **{"seed": seed, **experiment.data_options})
    model = build(experiment.model, data, seed=seed, **experiment.model_options)
    overfitted = fit("erm", model, data, seed=seed, train=experiment.train, compute=CPU, progress=report).model
    options = {**experiment.method_options, "epochs": epochs, "keep": "last"}
    method = make_method(experiment.method, experiment.preset, **options)
    run = replace(make_run(CPU, seed, TrainConfig(**experiment.train)), progress=report)
    return record_boundaries(method, overfitted, data, run, interval=max(1, epochs // FRAMES))


def build_sections(histories: dict[str, BoundaryHistory]) -> list[Section]:
    boundaries = build_boundary_section(histories)
    labels = "Biased: the wrong labels of a class are all the same. Unbiased: any other class, at random."
    return [
        replace(boundaries, text=f"{boundaries.text}\n{labels}"),
        Section(
            "Numbers over the epochs",
            "Accuracy is on clean test examples. Random pruning is the baseline: if it is as good, the choice of the "
            "weights adds nothing. If sparsity is close to 100 %, too few weights are left to separate the classes.",
            [plot_boundary_curves(history, name) for name, history in histories.items()],
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="PAGE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1200)
    args = parser.parse_args()
    check_writable(args.out.parent)
    histories = {name: record(name, row, args.seed, args.epochs) for name, row in EXPERIMENTS.items()}
    about = f"Figure 1 of Malik and Fern, seed {args.seed}, {args.epochs:,} epochs of pruning."
    page = write_sections(args.out, "Decision boundaries under pruning", build_sections(histories), about=about)
    print(page.resolve())


if __name__ == "__main__":
    main()
