"""CivilComments: a tiny copy in the layout of WILDS, with either kind of groups."""

import csv
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.datasets.civilcomments import CARD, IDENTITIES, PUBLISHED, CivilCommentsConfig, civilcomments

SPLITS = ("train", "val", "test")


def rows() -> list[dict[str, Any]]:
    """24 comments: every other one toxic; number i mentions identity i, 16 and above mention nobody, 5 also black."""
    found = []
    for i in range(24):
        row: dict[str, Any] = {
            "": i,
            "id": 1000 + i,
            "comment_text": f"comment, {i}",
            "split": SPLITS[i // 2 % 3],
            "toxicity": 0.5 if i % 2 else 0.4999,
            **dict.fromkeys(IDENTITIES, 0.0),
            "identity_any": 0.0,
        }
        if i < 16:
            row[IDENTITIES[i % 8]] = 0.5
        if i == 5:
            row["black"] = 1.0
        if i == 20:
            row["male"] = ""
        found.append(row)
    return found


def write(root: Path) -> Path:
    folder = root / "civilcomments_v1.0"
    folder.mkdir()
    path = folder / "all_data_with_identities.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows()[0]))
        table.writeheader()
        table.writerows(rows())
    return path


def load(root: Path, tokenizer: str, **options: Any) -> Any:
    return civilcomments(CivilCommentsConfig(root=str(root), tokenizer=tokenizer, **options))


def numbers(split: Any, spoken: Callable[[Tensor], str]) -> list[int]:
    return [int(spoken(ids).removeprefix("comment , ")) for ids in split.x["input_ids"]]


def test_identities_overlap_as_in_wilds(tmp_path: Path, speller: str, spoken: Callable[[Tensor], str]) -> None:
    write(tmp_path)
    with pytest.warns(IncompleteDataWarning, match="train has 8 instead of 269,038; val has 8 instead of 45,180"):
        data = load(tmp_path, speller)
    assert data.groups.overlap
    assert data.groups.names[:2] == ("civil, male", "civil, female")
    for name, split in zip(SPLITS, (data.train, data.val, data.test), strict=True):
        assert numbers(split, spoken) == [i for i in range(24) if SPLITS[i // 2 % 3] == name]
        for i, y, a in zip(numbers(split, spoken), split.y, split.a, strict=True):
            assert int(y) == i % 2
            mentioned = {i % 8} if i < 16 else set()
            mentioned |= {IDENTITIES.index("black")} if i == 5 else set()
            assert set(a.nonzero().flatten().tolist()) == mentioned


def test_coarse_groups_are_label_by_any_identity(tmp_path: Path, speller: str, spoken: Callable[[Tensor], str]) -> None:
    write(tmp_path)
    with pytest.warns(IncompleteDataWarning, match="train has 1/3/1/3 instead of 148,186/90,337/12,731/17,784"):
        data = load(tmp_path, speller, groups="coarse")
    assert data.groups.names == (
        "civil, no identity",
        "civil, any identity",
        "toxic, no identity",
        "toxic, any identity",
    )
    for split in (data.train, data.val, data.test):
        assert torch.equal(split.a, torch.tensor([int(i < 16) for i in numbers(split, spoken)]))


def test_a_packed_file_will_do(tmp_path: Path, speller: str) -> None:
    path = write(tmp_path)
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with pytest.warns(IncompleteDataWarning):
        assert len(load(path.parent, speller).test) == 8


def test_the_published_counts_are_those_of_the_card() -> None:
    sizes = [sum(counts) for counts in PUBLISHED.values()]
    assert sizes == [269038, 45180, 133782]
    assert all(f"{size:,}" in CARD.splits for size in sizes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("LGBTQ", "lgbtq", r"identities.csv: no column is called 'LGBTQ'. Did you mean|no column is called 'LGBTQ'"),
        (",0.5,", ",half,", r"identities.csv, row \d+: 'half' is not a valid value of column '\w+' .expected a number"),
        (
            ",val,",
            ",dev,",
            r"identities.csv, row 4: 'dev' is not a valid value of column 'split' .expected train, val, test",
        ),
    ],
)
def test_a_wrong_table_is_refused_by_row_and_column(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=said):
        load(tmp_path, "none")


def test_a_missing_file_and_a_wrong_option_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"files of civilcomments are missing .*WILDS"):
        load(tmp_path, "none")
    with pytest.raises(InputError, match=r"option 'groups' is unknown .expected overlapping, coarse, got fine"):
        load(tmp_path, "none", groups="fine")
