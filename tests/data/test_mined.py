"""Mined lists: kept and read whole, refused with other data, compared with the truth, drawn from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from spurless.core.errors import InputError, MissingAttributesError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.mined import MinedExamples, MiningQuality, data_fingerprint, oversampled_order
from spurless.data.split import Split, Splits

Y = torch.tensor([0, 0, 1, 1, 1])
SPLIT = Split(torch.arange(5.0)[:, None], Y, torch.tensor([0, 1, 1, 0, 0]), Groups(("no", "yes"), ("dry", "wet")))
CHOSEN = torch.tensor([False, True, True, True, False])
MINED = MinedExamples(torch.tensor([0.0, 0.9, 0.6, 0.75, 0.2]), CHOSEN, "gce", data_fingerprint(SPLIT))


def test_precision_and_recall_by_hand() -> None:
    assert MINED.quality(SPLIT) == MiningQuality(precision=2 / 3, recall=2 / 3, base=3 / 5)  # 1, 3 and 4 conflict
    given = torch.tensor([True, True, False, False, False])
    assert MINED.quality(SPLIT.hide_attributes(), given) == MiningQuality(1 / 3, 1 / 2, 2 / 5)
    nobody = replace(MINED, chosen=torch.zeros(5, dtype=torch.bool))
    assert nobody.quality(SPLIT) == MiningQuality(None, 0.0, 3 / 5)
    assert MINED.quality(SPLIT, torch.zeros(5, dtype=torch.bool)) == MiningQuality(0.0, None, 0.0)


def test_without_a_truth_there_is_no_quality() -> None:
    with pytest.raises(MissingAttributesError, match="quality of mining needs the attribute a of every example"):
        MINED.quality(SPLIT.hide_attributes())
    three = replace(SPLIT, groups=Groups(("no", "yes"), ("dry", "wet", "icy")))
    with pytest.raises(InputError, match=r"labels and attributes do not correspond.*conflicting=MASK"):
        MINED.quality(three)
    with pytest.raises(InputError, match="one bool per example"):
        MINED.quality(SPLIT, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(InputError, match="one bool per example"):
        MINED.quality(SPLIT, torch.zeros(5))


def test_a_list_is_refused_with_other_data_and_not_for_hidden_attributes() -> None:
    MINED.check(SPLIT)
    MINED.check(SPLIT.hide_attributes())
    MINED.check(replace(SPLIT, domain=torch.zeros(5, dtype=torch.long), domains=("here",)))
    others = (
        replace(SPLIT, x=torch.arange(5.0)[:, None] + 1),
        replace(SPLIT, y=1 - Y),
        SPLIT.select(torch.tensor([1, 0, 2, 3, 4])),
        SPLIT.select(torch.arange(4)),
    )
    for other in others:
        with pytest.raises(InputError, match=r"mined from other data.*Mine again"):
            MINED.check(other)
        with pytest.raises(InputError, match="mined from other data"):
            MINED.quality(other)


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lists" / "mined"
    MINED.save(path)
    again = MinedExamples.load(path)
    assert torch.equal(again.score, MINED.score)
    assert torch.equal(again.chosen, MINED.chosen)
    assert (again.how, again.fingerprint) == (MINED.how, MINED.fingerprint)
    assert [p.name for p in path.parent.iterdir()] == ["mined"]  # no scratch file is left


def test_foreign_and_torn_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mined.npz"
    with pytest.raises(InputError, match="no such file"):
        MinedExamples.load(path)
    MINED.save(path)
    whole = path.read_bytes()
    for torn in (b"", b"{}", whole[:-20], whole[:60], whole[:100] + b"xxxx" + whole[104:]):
        path.write_bytes(torn)
        with pytest.raises(InputError, match=r"mined\.npz: the file does not contain mined examples"):
            MinedExamples.load(path)
    np.savez(path, score=np.zeros(3))
    with pytest.raises(InputError, match="does not contain mined examples"):
        MinedExamples.load(path)
    np.savez(path, score=np.zeros(3, "f4"), chosen=np.zeros(2, bool), how=np.array("gce"), fingerprint=np.array(""))
    with pytest.raises(InputError, match=r"does not contain mined examples.*\(3,\) and \(2,\)"):
        MinedExamples.load(path)
    np.savez(path, score=np.zeros(3, "f4"), chosen=np.zeros(3, "i8"), how=np.array("gce"), fingerprint=np.array(""))
    with pytest.raises(InputError, match="does not contain mined examples"):
        MinedExamples.load(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InputError, match="does not contain mined examples"):
        MinedExamples.load(tmp_path / "one.npy")


def test_the_chosen_are_drawn_as_much_more_often() -> None:
    order = oversampled_order(MINED, 3.0, Seeds(0), n=20_000)
    counts = torch.bincount(order(0), minlength=5).double()
    expected = 20_000 * torch.tensor([1, 3, 3, 3, 1]) / 11
    assert torch.all((counts - expected).abs() < 4 * expected.sqrt())
    assert not torch.equal(order(0), order(1))
    assert len(oversampled_order(MINED, 8.0, Seeds(0))(0)) == 5


def test_the_summary_counts() -> None:
    assert MINED.summary() == "gce chose 3 of 5 examples (60.0 %): score 0.750 against 0.100 on average."
    nobody = replace(MINED, chosen=torch.zeros(5, dtype=torch.bool))
    assert "chose 0 of 5 examples (0.0 %): score none against 0.490" in nobody.summary()


def test_a_list_is_groups_for_whoever_asks_by_hand() -> None:
    data = Splits(SPLIT.hide_attributes(), SPLIT, SPLIT)
    grouped = MINED.as_groups(data)
    assert grouped.train.given.groups.names == ("no, not listed", "no, listed", "yes, not listed", "yes, listed")
    assert grouped.train.given.g.tolist() == [0, 1, 3, 3, 2]
    assert grouped.train.given.has_attributes
    assert (grouped.val, grouped.test, grouped.groups) == (data.val, data.test, data.groups)  # judged as before
    (note,) = grouped.notes
    assert note == f"Groups of train are by label and by mined examples: {MINED.summary()}"
    with pytest.raises(InputError, match="mined from other data"):
        MINED.as_groups(Splits(SPLIT.select(torch.arange(4)), SPLIT, SPLIT))
