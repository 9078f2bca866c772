"""Figure 1 of AVP: decision boundaries while weights are pruned, on a page, still and moving.

Run: python benchmarks/avp_figure1.py --out figure1.html --gif figure1.gif

Malik and Fern, "Frequency based pruning improves latent identification and generalization", section 4.1. A network is
overfitted to five classes in the plane, wrong labels and all, with the settings of the claims ``avp/gaussians-*``, and
then pruned. The last epoch is kept, as in the paper: no epoch is chosen here. A minute or two on one core.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spurless.bench.cell import Cell
from spurless.bench.claims.avp import BIASED, UNBIASED
from spurless.bench.fitting import fit
from spurless.core.figures import Section
from spurless.core.files import check_writable
from spurless.core.progress import Progress, listening
from spurless.data import load
from spurless.explain.boundaries import Film, film
from spurless.explain.films import animation, boundary_section, curves, save_gif
from spurless.methods import make_method
from spurless.models import build
from spurless.reporting import write_sections
from spurless.train.config import TrainConfig
from spurless.train.run import Engine, start

ROWS = {
    "AVP, biased": BIASED.cells["avp"],
    "AVP, unbiased": UNBIASED.cells["avp"],
    "random, unbiased": UNBIASED.cells["random"],
}
CPU = Engine("cpu")
FRAMES = 60


def teller_of(what: str) -> Progress:
    """Return what shows progress as one line on standard error."""

    def tell(stage: str, step: int, total: int, word: str) -> None:
        sys.stderr.write(f"\r{what}: {stage} {step:,} of {total:,} {word:<12}" + "\n" * (step == total))

    return tell


def watched(name: str, cell: Cell, seed: int, epochs: int) -> Film:
    """Overfit and prune as the claim does, and take frames of the pruning."""
    tell = teller_of(name)
    data = load(cell.dataset, **{"seed": seed, **cell.data_options})
    model = build(cell.model, data, seed=seed, **cell.model_options)
    overfitted = fit("erm", model, data, seed=seed, train=cell.train, engine=CPU, progress=tell).model
    method = make_method(cell.method, cell.preset, **{**cell.method_options, "epochs": epochs, "keep": "last"})
    run = start(CPU, seed, TrainConfig(**cell.train))
    run.progress = tell
    return film(method, overfitted, data, run, every=max(1, epochs // FRAMES))


def sections(films: dict[str, Film]) -> list[Section]:
    biased = "Biased: the wrong labels of a class are all the same. Unbiased: any other class, by chance."
    still = boundary_section(films)
    return [
        Section(still.title, f"{still.text}\n{biased}", still.items),
        Section("The same, moving", "The three trainings side by side, epoch by epoch.", [animation(films)]),
        Section(
            "The numbers",
            "Accuracy is on clean test examples. Random pruning is there to be compared with: where it does as well, "
            "the choice of the weights brings nothing. Where sparsity comes close to 100 %, too few weights are left "
            "to tell the classes apart.",
            [curves(each, name) for name, each in films.items()],
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="PAGE")
    parser.add_argument("--gif", type=Path, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1200)
    given = parser.parse_args()
    for path in filter(None, (given.out, given.gif)):
        check_writable(path.parent)
    films = {name: watched(name, cell, given.seed, given.epochs) for name, cell in ROWS.items()}
    about = f"Figure 1 of Malik and Fern, seed {given.seed}, {given.epochs:,} epochs of pruning."
    with listening(teller_of("moving picture")):
        print(write_sections(given.out, "Decision boundaries under pruning", sections(films), about=about).resolve())
        if given.gif is not None:
            print(save_gif(given.gif, films).resolve())


if __name__ == "__main__":
    main()
