"""The study of repairs: every way leaves its record, and the table can be counted by hand."""

import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from spurless.core.records import Record

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study() -> Any:
    """The script, by its file."""
    spec = spec_from_file_location("script_fixing", ROOT / "benchmarks/fixing.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def records(study: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """One model of a small problem, repaired in all ways."""
    row = study.PROBLEMS["planted"]
    small = replace(row, options={"n_train": 400, "n_val": 400, "n_test": 200}, train={**row.train, "epochs": 5})
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(study.PROBLEMS, "planted", small)
        patched.setattr(study, "CANDIDATES", ("self",))  # all of them take minutes
        patched.setenv("SPURLESS_CACHE", str(tmp_path_factory.mktemp("cache")))
        found: list[Record] = study.run("planted", 1000, study.Environment(device="cpu", permutations=99))
    return found


def test_every_way_leaves_a_record_with_the_truth_of_test(study: Any, records: list[Record]) -> None:
    called = [record.cell for record in records]
    assert len(set(called)) == len(called)
    for knowledge in study.KNOWLEDGE:
        for what in (study.OLD, study.CHOSEN, study.RANKED):
            assert study.cell("planted", knowledge, what) in called
    assert all(record.metrics["worst_group"] is not None for record in records)  # though nobody was shown attributes
    assert [name for name in called if "try" in name] == [
        study.cell("planted", knowledge, "try self") for knowledge in study.KNOWLEDGE
    ]


def test_the_table_counts_who_is_near_the_best(study: Any, records: list[Record]) -> None:
    def told(what: str, seed: int, worst: float, method: str) -> Record:
        metrics: dict[str, float | None] = {"worst_group": worst, "average": 0.8}
        called = study.cell("planted", "hidden", what)
        return replace(records[0], cell=called, seed=seed, method=method, metrics=metrics)

    other = replace(told("try dfr", 5, 0.7, "dfr"), cell=study.cell("planted-weak", "hidden", "try dfr"))
    kept = [replace(other, cell=study.cell("planted-weak", "hidden", what)) for what in (study.CHOSEN, study.RANKED)]
    made = [
        *(told(study.OLD, seed, 0.4, "before") for seed in (0, 1)),
        told(study.CHOSEN, 0, 0.4, "before"),
        told(study.CHOSEN, 1, 0.68, "afr"),
        *(told(study.RANKED, seed, 0.6, "self") for seed in (0, 1)),
        *(told("try self", seed, 0.6, "self") for seed in (0, 1)),
        told("try dfr", 1, 0.7, "dfr"),
    ]
    _, _, line, total, known = study.table(made).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert total == "| all | hidden | 2 models |  |  |  |  |  | 1 of 2 | 1 of 2 |  |"
    assert "| 0 of 0 | 0 of 0 |" in known
    old = replace(other, cell=study.cell("planted-weak", "hidden", study.OLD), method="before")
    more = study.table([*made, old, *kept, other]).splitlines()
    assert "| 3 models |  |  |  |  |  | 2 of 3 | 2 of 3 |" in more[-2]
    assert cells[:3] == ["`planted`", "hidden", "2"]
    assert cells[3].startswith("40 ")
    assert cells[5] == "none 1, afr 1"
    assert cells[7].startswith("65 ")  # 60 and 70
    assert cells[8:] == ["1 of 2", "1 of 2", "80 to 80"]  # 68 is near 70, 40 is not near 60; 60 is near 60, not near 70
