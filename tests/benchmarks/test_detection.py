"""The study of detection: the truth that audits are judged by is the truth, and the tables can be counted by hand."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

from spurless.auditing import audit
from spurless.core.findings import Audit, Finding, Suspect
from spurless.core.groups import Groups
from spurless.core.records import Record, append_record, read_records
from spurless.data import Split, Splits, load
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GROUPS = Groups(("a", "b"), ("left", "right"))


def script(path: str) -> Any:
    """Import a script by its file."""
    spec = spec_from_file_location(f"script_{Path(path).stem}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def study() -> Any:
    return script("benchmarks/detection.py")


@pytest.fixture
def tiny(study: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A problem of which a training takes no time."""
    small = replace(
        study.PROBLEMS["planted"], options={"n_train": 400, "n_val": 300, "n_test": 300}, train={"steps": 60}
    )
    monkeypatch.setitem(study.PROBLEMS, "planted", small)
    study.load_source.cache_clear()
    yield "planted"
    study.load_source.cache_clear()


def call(study: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["detection.py", *words])
    study.main()


def test_a_line_of_the_record_is_one_audit_and_what_is_there_is_not_made_again(
    study: Any, tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.jsonl"
    words = ("--out", str(out), "--problems", tiny, "--seed", "1000", "--seeds", "1", "--permutations", "99")
    call(study, monkeypatch, *words)
    records = read_records(out)
    assert [record.cell for record in records] == [
        f"planted, {version}, attributes {knowledge}"
        for version in ("biased", "clean")
        for knowledge in ("hidden", "known")
    ]
    hidden, known, clean, _ = records
    assert not any(row["audit"] in study.ATTRIBUTE_AUDITS for row in hidden.history)
    assert {row["audit"] for row in known.history} - {row["audit"] for row in hidden.history} == {
        *study.ATTRIBUTE_AUDITS
    }
    assert (hidden.supervision["val_attributes"], known.supervision["val_attributes"]) == (False, True)
    assert (hidden.metrics["leans"], known.metrics["leans"]) == (1.0, 1.0)
    assert (known.metrics["rank"] or 9) <= 3
    assert clean.metrics["rank"] is None
    assert (clean.metrics["worst_group"] or 0) > 0.6 > (hidden.metrics["worst_group"] or 0)
    assert max(map(len, out.read_text().splitlines())) < 2400
    before = out.read_bytes()
    *kept, last = before.splitlines(keepends=True)
    monkeypatch.setattr(study, "run", no_run)
    call(study, monkeypatch, *words)
    assert out.read_bytes() == before
    assert "| `planted` | hidden | 1 |" in capsys.readouterr().out
    monkeypatch.setattr(study, "run", lambda *_: records[2:])  # the version whose second line is removed
    out.write_bytes(b"".join(kept))
    call(study, monkeypatch, *words)
    assert [json.loads(line)["cell"] for line in out.read_text().splitlines()] == [r.cell for r in records]
    assert json.loads(last)["cell"] == records[3].cell


def no_run(*_: Any) -> list[Record]:
    raise AssertionError("nothing is left to do")


def test_a_task_that_fails_leaves_a_hole(
    study: Any, tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = study.run

    def fails(task: Any, environment: Any) -> list[Record]:
        if task.version == "biased":
            raise RuntimeError("out of luck")
        return list(real(task, environment))

    monkeypatch.setattr(study, "run", fails)
    out = tmp_path / "r.jsonl"
    call(study, monkeypatch, "--out", str(out), "--problems", tiny, "--seeds", "1", "--permutations", "99")
    assert {record.cell.split(", ")[1] for record in read_records(out)} == {"clean"}
    assert "out of luck" in capsys.readouterr().out


def test_both_audits_together_are_the_audit_with_attributes(study: Any, tiny: str) -> None:
    task, environment = study.Task(tiny, "biased", 1000), study.Environment(permutations=99)
    data = study.load_all(task, environment)
    model = study.load_or_train(task, data, environment)
    hidden, known = (report for report, _ in study.audit_twice(model, data, task, environment).values())
    plain = audit(model, data, seed=1000, permutations=99, pictured=0)
    assert [(f.audit, f.p, f.severity, f.numbers) for f in known.findings] == [
        (f.audit, f.p, f.severity, f.numbers) for f in plain.findings
    ]
    assert [finding.audit for finding in known.confirmed] == [finding.audit for finding in plain.confirmed]
    assert [suspect.row for suspect in hidden.suspects] == [suspect.row for suspect in plain.suspects]
    assert all(suspect.attribute is None for suspect in hidden.suspects)


def test_a_model_that_was_kept_is_not_trained_again(
    study: Any, tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task, environment = study.Task(tiny, "biased", 1000), study.Environment(models=tmp_path)
    data = study.load_all(task, environment)
    one = study.load_or_train(task, data, environment)
    monkeypatch.setattr(study, "train_model", no_run)
    again = study.load_or_train(task, data, environment)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert again.trained
    other = replace(study.PROBLEMS[tiny], train={"steps": 61})
    monkeypatch.setitem(study.PROBLEMS, tiny, other)
    with pytest.raises(AssertionError, match=r"nothing is left to do"):  # another length is another model
        study.load_or_train(task, data, environment)


@pytest.mark.parametrize("name", ["planted", "colored-digits", "patched-digits-mlp", "double-digits", "negated-claims"])
def test_attribute_and_label_are_associated_only_in_the_biased_version(study: Any, name: str) -> None:
    rare = {}
    for version in study.VERSIONS:
        task = study.Task(name, version, 1000)
        data = task.spec.sample(study.load_all(task, study.Environment()), version, 1000)
        rare[version] = float(task.spec.conflicts(data.train.y, data.train.a).double().mean())
        held_out = getattr(data, task.spec.part)
        even = 1 - 1 / len(held_out.groups.attributes)
        assert float(task.spec.conflicts(held_out.y, held_out.a).double().mean()) == pytest.approx(even, abs=0.03)
    assert rare["biased"] < 0.06
    assert rare["clean"] == pytest.approx(even, abs=0.03)


def made(counts: tuple[int, ...], width: int = 1) -> Split:
    """A split with so many examples of every group, each with its own number as input."""
    g = torch.cat([torch.full((n,), i) for i, n in enumerate(counts)])
    x = torch.arange(len(g))[:, None].expand(-1, width).float()
    return Split(x, g // 2, g % 2, GROUPS)


def test_birds_are_audited_on_a_fifth_of_test_and_the_clean_version_is_trained_on_the_rest(study: Any) -> None:
    data = Splits(made((90, 10, 10, 90)), made((1, 1, 1, 1)), made((100, 100, 50, 50)))
    biased, clean = (study.sample_birds(data, version, 1000) for version in study.VERSIONS)
    assert biased.train.counts.tolist() == [81, 9, 9, 81]
    assert clean.train.counts.tolist() == [80, 80, 40, 40]
    assert biased.val.counts.tolist() == clean.val.counts.tolist() == [20, 20, 10, 10]
    assert biased.val.x.tolist() == clean.val.x.tolist()
    assert not {*clean.train.x[:, 0].tolist()} & {*clean.val.x[:, 0].tolist()}
    assert study.sample_birds(data, "clean", 1001).val.x.tolist() != clean.val.x.tolist()


def test_clean_faces_have_as_many_men_as_women_of_either_hair(study: Any) -> None:
    data = Splits(made((200, 190, 60, 8)), made((40, 40, 10, 1)), made((40, 40, 10, 1)))
    biased, clean = (study.sample_faces(data, version, 1000) for version in study.VERSIONS)
    assert (biased.train.counts + biased.val.counts).tolist() == [280, 270, 80, 10]
    assert (clean.train.counts + clean.val.counts).tolist() == [60, 60, 10, 10]
    assert clean.train.counts.tolist() == [36, 36, 6, 6]


def test_fewer_digits_keep_the_share_of_every_group(study: Any) -> None:
    data = Splits(made((990, 10, 10, 990)), made((40, 40, 40, 40)), made((4, 4, 4, 4)))
    few = study.subsample_digits(data, "biased", 1000)
    assert few.train.counts.tolist() == [99, 1, 1, 99]
    assert few.val.counts.tolist() == [10, 10, 10, 10]


def test_a_probe_reads_raw_features_as_its_head_read_scaled_ones(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("planted", seed=1000, n_train=300, n_val=100, n_test=100)
    stretch = torch.tensor([100.0, 0.01])
    parts = {name: replace(part, x=part.x * stretch + 7) for name, part in study.splits_by_name(data).items()}
    data = replace(data, **parts)
    row = replace(study.PROBLEMS["planted"], probe=True, model="linear", model_options={}, train={"steps": 200})
    monkeypatch.setitem(study.PROBLEMS, "planted", row)
    monkeypatch.setattr(study, "load_features", lambda *_: data)
    task = study.Task("planted", "biased", 1000)
    model = study.train_model(task, build("linear", data), data, study.Environment())
    agree = model(data.test.x).argmax(dim=1) == data.test.y  # by the spurious feature at least, on 1/2 of all
    aligned = data.test.y == data.test.a
    assert float(agree[aligned].double().mean()) > 0.9 > 0.5 > float(agree[~aligned].double().mean())


def make_evaluation(study: Any, version: str = "biased") -> Any:
    """Two examples of each group, and a model: its first neuron is the label, its second the attribute."""
    y, a = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
    split = Split(torch.stack([y, a], dim=1).float(), y, a, GROUPS)
    task = study.Task("planted", version, 0)
    model = build("linear", input_shape=(2,), n_classes=2, bias=False)
    head: Any = model.head
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0, -1.0], [0.0, 1.0]]))  # it follows the attribute
    return study.Evaluation(task, model, split, make_run(Compute("cpu"), 0, TrainConfig()))


def finding(name: str, severity: float = 0.5, **parts: Any) -> Finding:
    filled: dict[str, Any] = {"flagged": True, "p": 0.002, **parts}
    return Finding(name, "", severity, because="", remedy="", **filled)


def test_suspects_are_judged_by_who_breaks_the_shortcut(study: Any) -> None:
    suspects = tuple(Suspect(row, "a", "b", 0.9, True) for row in (2, 3, 0))  # two of four who do, and one who does not
    numbers = make_evaluation(study).compute_metrics(Audit((finding("error-slices"),), suspects))
    assert (numbers["precision"], numbers["recall"], numbers["conflicting"]) == (0.6667, 0.5, 0.5)
    assert (numbers["average"], numbers["worst_group"], numbers["mistakes"]) == (0.5, 0.0, 4.0)
    assert (numbers["suspected"], numbers["leans"], numbers["rank"]) == (0.375, 1.0, None)
    assert make_evaluation(study).compute_metrics(Audit(()))["precision"] is None


def test_the_rank_is_that_of_the_first_flagged_finding_that_names_the_shortcut(study: Any) -> None:
    seen = make_evaluation(study)
    nameless, region = finding("error-slices"), finding("hidden-regions", shortcut="the region that the model looks at")
    label, attribute = (finding("biased-neurons", shortcut=f"neuron {i}", numbers={"neuron": float(i)}) for i in (0, 1))
    assert seen.rank(Audit((nameless, region, label))) is None
    assert seen.rank(Audit((nameless, label, attribute))) == 3
    assert seen.rank(Audit((nameless, finding("group-gap", shortcut="left")))) == 2
    assert seen.rank(Audit((finding("group-gap", flagged=False, shortcut="left"),))) is None
    assert make_evaluation(study, "clean").rank(Audit((attribute,))) is None


@pytest.mark.parametrize(
    ("problem", "shortcut", "true"),
    [
        ("colored-digits", "blue of the frame", True),
        ("colored-digits", "hue of the image", True),
        ("colored-digits", "brightness of the image", False),
        ("patched-digits", "red of the top left corner", True),
        ("patched-digits", "brightness of the upper left", True),
        ("patched-digits", "red of the top right corner", False),
        ("double-digits", "brightness of the middle right", True),
        ("double-digits", "brightness of the bottom left corner", False),
        ("negated-claims", "a negation in the second text", True),
        ("negated-claims", 'the word "nobody" in the second text', True),
        ("negated-claims", 'the word "everybody" in the second text', False),
        ("waterbirds-rebuilt", "green of the frame", True),
        ("waterbirds-rebuilt", "the background", True),
        ("waterbirds-rebuilt", "contrast of the image", False),
        ("celeba10k", "red of the image", False),
    ],
)
def test_what_a_shortcut_may_be_called(study: Any, problem: str, shortcut: str, true: bool) -> None:
    seen = replace(make_evaluation(study), task=study.Task(problem, "biased", 0))
    assert seen.names_shortcut(finding("image-properties", shortcut=shortcut)) is true


def test_explained_variance_weights_groups_equally(study: Any) -> None:
    y, a = torch.tensor([0] * 9 + [1] + [0] + [1] * 9), torch.tensor([0] * 9 + [0] + [1] + [1] * 9)
    g = GROUPS.encode(y, a)
    assert study.explained_variance(y.float(), y, g) == pytest.approx(1)
    assert study.explained_variance(y.float(), a, g) == pytest.approx(0)  # though both are the same in 18 of 20


def record(cell: str, seed: int, rows: tuple[dict[str, Any], ...], **metrics: float | None) -> Record:
    filled = {"average": 0.9, "worst_group": 0.5, "leans": 0.0, "rank": None, "conflicting": 0.5} | metrics
    empty: dict[str, Any] = {"data": {}, "model": {}, "config": {}, "train": {}, "supervision": {}, "groups": ()}
    parts: dict[str, Any] = {"versions": {"torch": "2"}, "hardware": {"device": "cpu", "machine": "here"}}
    return Record("audit", seed, selection="last", seconds={"audit": 30.0}, cell=cell, metrics=filled, history=rows,
                  commit="abc", **empty, **parts)  # fmt: skip


def by_hand() -> list[Record]:
    """Four biased models, of which three lean, and four clean ones, of which one is accused."""
    use = {"audit": "error-slices", "severity": 0.5, "p": 0.01, "use": True}
    hard = {"audit": "worst-class", "severity": 0.2, "p": 0.01, "flagged": True}
    silent = {"audit": "error-slices", "severity": 0.0, "p": None, "use": True}
    found = [
        record(f"planted, biased, attributes {k}", seed, ({**use, "flagged": True}, hard), leans=float(seed < 3),
               rank=float(seed + 1) if seed < 2 else None, precision=0.8, recall=0.25)
        for k in ("hidden", "known")
        for seed in range(4)
    ]  # fmt: skip
    clean = ({**use, "flagged": True}, use, silent, silent)
    found += [
        record(f"planted, clean, attributes {k}", seed, (row,), leans=float(k == "known" and seed == 0))
        for k in ("hidden", "known")
        for seed, row in enumerate(clean)
    ]
    return found


def rows_of(table: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {f"{line[0]} {line[1]}": line[2:] for line in lines}


def test_the_tables_by_hand(study: Any) -> None:
    problems, audits = map(rows_of, study.tables([*by_hand(), by_hand()[0]]))  # a line twice counts once
    assert problems["`planted` hidden"] == [
        "4", "90, 50", "75 % (30 to 95)", "100 % (51 to 100)", "2 of 4 (1.5)", "0.80 of 0.50, recall 0.25",
        "4", "90, 50", "0 % (0 to 49)", "25 % (5 to 70)",
    ]  # fmt: skip
    assert problems["`planted` known"][-2:] == ["25 % (5 to 70)", "25 % (5 to 70)"]
    assert audits["`error-slices` yes"] == [
        "4", "2", "25 % (5 to 70)", "50 % (9 to 91)", "4", "4", "100 % (51 to 100)", "100 % (51 to 100)",
    ]  # fmt: skip
    assert audits["`worst-class` no"] == ["0", "0", "-", "-", "4", "4", "100 % (51 to 100)", "100 % (51 to 100)"]
    assert audits["verdict *shortcut*, attributes hidden yes"][2] == "0 % (0 to 49)"
    assert audits["verdict *shortcut*, attributes known yes"][2] == "25 % (5 to 70)"


def test_the_page_is_made_of_the_records_alone(study: Any, tmp_path: Path) -> None:
    generate = script("docs/generate.py")
    assert "not measured here" in generate.detection_page(tmp_path / "none.jsonl")
    for each in by_hand():
        append_record(tmp_path / "r.jsonl", each)
    page = generate.detection_page(tmp_path / "r.jsonl")
    assert all(table in page for table in study.tables(by_hand()))
    assert "8 models, 4 minutes of audits, on cpu, here, torch 2, commit abc." in page
