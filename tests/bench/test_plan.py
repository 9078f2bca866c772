"""Plans: what is crossed, in which order, what it comes to, and what a file may say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.bench.executors import Resources, Task
from spurless.bench.executors.task import run_settings
from spurless.bench.experiment import Experiment, make_protocol_and_method, run_experiment
from spurless.bench.plan import Plan, PlanResult, plan_tasks, read_plan, run_plan
from spurless.core.errors import InputError, MissingAttributesError, UnknownNameError
from spurless.core.records import Record, read_records
from spurless.data import from_tensors, load
from spurless.data.split import Splits
from spurless.train.run import Compute

SMALL = {"n_train": 200, "n_val": 60, "n_test": 60}
CPU = Resources(Compute("cpu"))


def cell(method: str, dataset: str = "planted", **more: Any) -> Experiment:
    return Experiment(dataset, "mlp", method, SMALL, {"width": 8}, train={"steps": 12}, **more)


def crossed(*methods: str, seeds: int = 2) -> Plan:
    return Plan({"planted": {method: cell(method) for method in methods}}, seeds)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find no model that another test has trained."""
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "cache"))


# what is run


def test_every_method_meets_every_dataset_and_seed_and_gives_the_record_it_gives_alone(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    cells = {
        name: {
            method: replace(cell(method), data_options={**SMALL, "agreement": agreement}) for method in ("erm", "dfr")
        }
        for name, agreement in (("mild", 0.6), ("strong", 0.95))
    }
    benched = run_plan(Plan(cells, seeds=2, first=3), out=out, executor="local", resources=CPU)
    records = read_records(out)
    assert {(record.cell, record.seed) for record in records} == {
        (f"bench {method} on {name}", seed)
        for method in ("erm", "dfr")
        for name in ("mild", "strong")
        for seed in (3, 4)
    }
    assert len(records) == 8
    for (name, method), tasks in benched.tasks.items():
        for task in tasks:
            with run_settings(CPU):
                alone = run_experiment(cells[name][method], task.seed, Compute("cpu")).record
            ours = benched.records[task.key]
            assert (ours.key, ours.groups) == (alone.key, alone.groups)
            assert not ours.supervision["val_labels"] or method == "dfr"  # nothing was stopped by validation labels
    rows = benched.rows()
    assert {name: [row.name for row in part] for name, part in rows.items()} == {
        "mild": ["erm", "dfr"],
        "strong": ["erm", "dfr"],
    }
    assert all((row.seeds, row.runs) == (2, 2) for part in rows.values() for row in part)


def test_what_is_recorded_is_not_run_again_and_more_is_added(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    run_plan(crossed("erm", "group-dro"), out=out, executor="local", resources=CPU)
    first = out.read_text()
    run_plan(crossed("erm", "group-dro"), out=out, executor="local", resources=CPU)
    assert out.read_text() == first
    run_plan(crossed("erm", "group-resample", "group-dro", seeds=3), out=out, executor="local", resources=CPU)
    assert out.read_text().startswith(first)
    made = [(record.method, record.seed) for record in read_records(out)[4:]]
    assert sorted(made) == [("erm", 2), ("group-dro", 2), *(("group-resample", seed) for seed in range(3))]


@pytest.mark.slow
def test_a_model_is_trained_once_for_all_that_repair_it(tmp_path: Path) -> None:
    plan = crossed("class-balanced-head", "erm", "dfr", "jtt-head")
    tasks = plan_tasks(plan, CPU)
    ranks = {method: part[0].rank for (_, method), part in tasks.items()}
    assert ranks == {"class-balanced-head": 0, "erm": 0, "dfr": 1, "jtt-head": 1}
    run_plan(plan, out=tmp_path / "r.jsonl", executor="local", resources=CPU)
    trained = [(record.method, record.seed) for record in read_records(tmp_path / "r.jsonl") if "erm" in record.seconds]
    assert trained == [("class-balanced-head", 0), ("class-balanced-head", 1)]
    slow = {
        "slow": replace(cell("class-balanced-head"), train={"steps": 13}),
        "select": replace(cell("dfr"), select="val-average"),
    }
    apart = plan_tasks(Plan({"planted": {"dfr": cell("dfr"), **slow}}, seeds=1), CPU)
    assert {part[0].rank for part in apart.values()} == {0}  # each starts from another model


def test_a_run_that_fails_stops_no_other(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    plan = Plan(
        {"blind": {name: cell(name) for name in ("erm", "group-dro", "class-reweight")}}, 2, 0, {"blind": without}
    )
    benched = run_plan(plan, out=out, executor="local", resources=CPU)
    assert [(task.name, task.seed, type(error)) for task, error in benched.failures] == [
        ("group-dro on blind", 0, MissingAttributesError),
        ("group-dro on blind", 1, MissingAttributesError),
    ]
    assert [(row.name, row.runs) for row in benched.rows()["blind"]] == [
        ("erm", 2),
        ("group-dro", 0),
        ("class-reweight", 2),
    ]
    assert {record.method for record in read_records(out)} == {"erm", "class-reweight"}


def without(dataset: str, options: Any, seed: int) -> Splits:
    """Open data whose attributes nobody knows."""
    made = load(dataset, seed=seed, **options)
    return from_tensors(made.train.x, made.train.y, seed=seed)


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (lambda: crossed(), r"a plan needs a method and a dataset\. Write for example methods = "),
        (lambda: Plan({}), r"a plan needs a method and a dataset"),
        (lambda: crossed("erm", seeds=0), r"a plan needs at least one seed"),
        (lambda: crossed("erm", "ermm"), r"No method is called 'ermm'\. Did you mean 'erm'"),
        (lambda: Plan({"planted": {"erm": cell("erm", select="best")}}), r"No selection criterion is called 'best'"),
        (lambda: Plan({"planted": {"erm": cell("erm", method_options={"x": 1})}}), r"erm.* has no option 'x'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_opened(plan: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, UnknownNameError), match=match):
        run_plan(replace(plan(), loads={"planted": never}), out=tmp_path / "r.jsonl", executor="local", resources=CPU)
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    "cells",
    [
        {"planted": {"erm": cell("erm"), "again": cell("erm")}},
        {"planted": {"erm": cell("erm")}, "again": {"erm": cell("erm")}},
    ],
    ids=["method", "dataset"],
)
def test_the_same_run_under_two_names_is_refused(cells: dict[str, dict[str, Experiment]], tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"again.* is the same run as erm on planted\. Change the settings of one of them"
    ):
        run_plan(Plan(cells), out=tmp_path / "r.jsonl", executor="local", resources=CPU)
    assert not (tmp_path / "r.jsonl").exists()


def never(*_: Any) -> Splits:
    raise AssertionError("data take their time")


def test_a_gain_is_that_of_the_seeds_that_both_have() -> None:
    def record(worst: float | None) -> Record:
        return Record("m", 0, {}, {}, {}, {}, {}, "last", (), {"worst_group": worst}, {})

    values = {"a": (0.1, 0.2, 0.4, 0.9), "b": (0.4, 0.6, None, 0.9), "c": (None,) * 4}
    tasks = {("d", name): [Task(name, cell("erm"), seed, f"{name}{seed}") for seed in range(4)] for name in values}
    records = {f"{name}{seed}": record(value) for name, part in values.items() for seed, value in enumerate(part)}
    del records["b3"]  # not run yet
    benched = PlanResult(tasks, records, [])
    gain = benched.gain("d", "b")
    assert gain is not None
    assert (gain.n, round(gain.difference, 10)) == (2, 0.35)  # 0.4 - 0.1 and 0.6 - 0.2
    assert benched.gain("d", "a") is None  # it is the one that others are compared with
    assert benched.gain("d", "c") is None


# what a file may say

FILE = """
seeds = 2
seed = 5
model = "mlp"
model-options = { width = 8 }
select = "val-average"
train = { steps = 12, lr = 0.1 }

[method.erm]
[method.slow]
method = "dfr"
preset = "waterbirds"
options = { refits = 3 }
train = { lr = 0.001 }
select = "last"

[dataset.planted]
options = { n_train = 200 }
[dataset.other]
data = "planted"
model = "linear"
train = { lr = 0.5, momentum = 0.0 }
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_a_file_is_crossed_and_the_nearer_word_wins(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, FILE))
    assert (plan.seeds, plan.first, plan.loads) == (2, 5, {})
    assert {name: list(part) for name, part in plan.experiments.items()} == {
        "planted": ["erm", "slow"],
        "other": ["erm", "slow"],
    }
    assert plan.experiments["planted"]["erm"] == Experiment(
        "planted", "mlp", "erm", {"n_train": 200}, {"width": 8}, train={"steps": 12, "lr": 0.1}, select="val-average"
    )
    assert plan.experiments["other"]["slow"] == Experiment(
        "planted",
        "linear",
        "dfr",
        preset="waterbirds",
        method_options={"refits": 3},
        train={"steps": 12, "lr": 0.001, "momentum": 0.0},
        select="last",
    )


def test_a_plan_may_start_from_a_recipe(tmp_path: Path) -> None:
    text = 'methods = ["erm"]\ndatasets = ["planted"]\ntrain = { recipe = "waterbirds-dfr", steps = 3 }\n'
    plan = read_plan(written(tmp_path, text + '[method.erm]\ntrain = { recipe = "celeba-masktune" }\n'))
    protocol, _ = make_protocol_and_method(plan.experiments["planted"]["erm"], Compute("cpu"))
    assert (protocol.train.steps, protocol.train.lr, protocol.train.batch_size) == (3, 1e-4, 512)


def test_lists_give_the_order_and_names_need_no_table(tmp_path: Path) -> None:
    text = 'methods = ["dfr", "erm"]\ndatasets = ["planted"]\n[method.erm]\ntrain = { steps = 3 }\n'
    plan = read_plan(written(tmp_path, text))
    assert list(plan.experiments["planted"]) == ["dfr", "erm"]
    assert plan.experiments["planted"]["erm"].train == {"steps": 3}
    assert plan.experiments["planted"]["dfr"].train == {}


BOTH = 'methods = ["erm"]\ndatasets = ["planted"]\n'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"a plan needs a method and a dataset"),
        ('methods = ["erm"]\n', r"a plan needs a method and a dataset"),
        ("methods = [", r"plan\.toml: the file is not TOML"),
        (BOTH + "sedes = 3\n", r"the plan .*plan\.toml has no option 'sedes'\. Did you mean 'seeds'\?"),
        (BOTH + 'seeds = "many"\n', r"option 'seeds' of the plan .* has the wrong type \(expected an integer"),
        (BOTH + "train = 3\n", r"train of the plan .* is not a table \(got 3\)"),
        (
            BOTH + "[method.dfr]\n",
            r"\[method\.dfr\] is not in the list methods\. Add it to methods, or remove methods\.",
        ),
        (BOTH + "[method.erm]\nrate = 1\n", r"\[method\.erm\] has no option 'rate'"),
        (BOTH + "method = { erm = 3 }\n", r"\[method\.erm\] is not a table \(got 3\)"),
        (BOTH + "[dataset.planted]\noptions = 3\n", r"options of \[dataset\.planted\] is not a table"),
        (
            BOTH + '[dataset.planted]\nlabel = "y"\n',
            r"\[dataset\.planted\] has column settings, but there is no loader for it",
        ),
        ('methods = ["erm", "erm"]\n', r"a method is listed twice \(got erm\)"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=match):
        read_plan(written(tmp_path, text))


def test_a_door_is_told_the_columns_and_the_model(tmp_path: Path) -> None:
    asked = []

    def door(name: str, said: Any, model: str) -> Any:
        asked.append((name, dict(said), model))
        return never

    text = 'methods = ["erm"]\n[dataset.birds]\ndata = "birds.csv"\nlabel = "y"\nskip-bad = true\nmodel = "mlp"\n'
    plan = read_plan(written(tmp_path, text), door)
    assert asked == [("birds", {"label": "y", "skip-bad": True}, "mlp")]
    assert plan.loads == {"birds": never}
