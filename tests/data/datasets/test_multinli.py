"""MultiNLI: a tiny copy in the official layout is read as published; a wrong one is refused by name."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.datasets.multinli import CARD, PUBLISHED, MultiNLIConfig, multinli, negation

LABELS = ("contradiction", "entailment", "neutral")
PHRASES = ("we saw it", "nobody saw it", "we never saw it", "No! nothing was there")
HEADER = ("gold_label", "sentence1_parse", "sentence1", "sentence2", "pairID", "genre", "label1", "label2")


def pairs() -> list[tuple[str, str, str]]:
    """40 pairs, of which four have no gold label; the number of a pair is in its premise."""
    found = []
    for i in range(40):
        label = "-" if i % 10 == 7 else LABELS[i % 3]
        found.append((label, f'he said "{i}', PHRASES[i // 3 % 4]))
    return found


def write(root: Path, kind: str = "jsonl", metadata: bool = True) -> Path:
    """The three files, 30, 5 and 5 pairs, and the split of group_DRO: five by five train, val, test."""
    folder = root / "multinli" / "data"
    folder.mkdir(parents=True)
    rows = pairs()
    for part, piece in (("train", rows[:30]), ("dev_matched", rows[30:35]), ("dev_mismatched", rows[35:])):
        with (folder / f"multinli_1.0_{part}.{kind}").open("w") as file:
            if kind == "txt":
                file.write("\t".join(HEADER) + "\n")
            for label, premise, hypothesis in piece:
                if kind == "txt":  # as published: some rows have fewer labels than the header has columns
                    file.write("\t".join((label, "( he )", premise, hypothesis, "1n", "fiction", label)) + "\n")
                else:
                    names = {"gold_label": label, "sentence1": premise, "sentence2": hypothesis, "genre": "fiction"}
                    file.write(json.dumps(names) + "\n")
    if metadata:
        with (folder / "metadata_random.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("", "gold_label", "sentence2_has_negation", "split"))
            left = [(i, label, text) for i, (label, _, text) in enumerate(rows) if label != "-"]
            table.writerows((i, LABELS.index(label), negation(text), i // 5 % 3) for i, label, text in left)
    return folder


def load(root: Path, tokenizer: str, **options: Any) -> Any:
    return multinli(MultiNLIConfig(root=str(root), tokenizer=tokenizer, max_length=64, **options))


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_the_official_layout_is_read_as_published(
    tmp_path: Path, speller: str, spoken: Callable[[Tensor], str], kind: str
) -> None:
    write(tmp_path, kind)
    with pytest.warns(
        IncompleteDataWarning, match=r"multinli is not complete as published: train has .* instead of 57,498/11,158"
    ):
        data = load(tmp_path, speller)
    seen = 0
    for number, split in enumerate((data.train, data.val, data.test)):
        for ids, y, a in zip(split.x["input_ids"], split.y, split.a, strict=True):
            premise, hypothesis = spoken(ids).split(" | ")
            i = int(premise.removeprefix('he said " '))
            assert i // 5 % 3 == number
            assert LABELS[y] == pairs()[i][0]
            assert hypothesis == pairs()[i][2].lower().replace("!", " !")
            assert int(a) == int(i // 3 % 4 > 0)
            seen += 1
    assert seen == 36  # without gold label there is no pair
    assert data.groups.name(1) == "contradiction, negation"
    assert data.train.x["token_type_ids"].max() == 1


def test_without_the_table_the_split_is_drawn_by_seed_and_said(tmp_path: Path, speller: str) -> None:
    write(tmp_path, metadata=False)
    with pytest.warns(
        IncompleteDataWarning, match=r"metadata_random.csv is missing, so the split of the 36 pairs is sampled by"
    ):
        data = load(tmp_path, speller)
    assert data.notes[0].startswith("This is not multinli as published")
    assert [len(split) for split in (data.train, data.val, data.test)] == pytest.approx([18, 7.2, 10.8], abs=3)
    with pytest.warns(IncompleteDataWarning):
        again, other = load(tmp_path, speller), load(tmp_path, speller, seed=1)
    assert data.fingerprint() == again.fingerprint() != other.fingerprint()


def test_three_levels_and_the_imperfect_partition_of_gc_dro(tmp_path: Path, speller: str) -> None:
    write(tmp_path)
    with pytest.warns(IncompleteDataWarning, match="train has 14 instead of 206,175"):
        data = load(tmp_path, speller, negation=3, partition="imperfect")
    assert len(data.groups) == 9
    levels = torch.tensor([0, 1, 2, 1])  # "No! nothing" is of the first kind
    mixed = {(0, 0): 2, (0, 1): 2, (0, 2): 2, (1, 0): 0, (1, 1): 1, (1, 2): 1, (2, 0): 1, (2, 1): 0, (2, 2): 0}
    kept = [i for i in range(40) if i % 10 != 7]
    for number, split in enumerate((data.train, data.val)):
        mine = torch.tensor([i for i in kept if i // 5 % 3 == number])
        assert torch.equal(split.a, levels[mine // 3 % 4])
        assert split.domain.tolist() == [mixed[int(a), int(y)] for a, y in zip(split.a, split.y, strict=True)]
        assert split.given.groups.names == ("domain 0", "domain 1", "domain 2")
    assert data.test.domain is None
    with pytest.warns(IncompleteDataWarning):
        assert load(tmp_path, speller, negation=3).train.domain is None


@pytest.mark.parametrize(
    ("text", "two", "three"),
    [
        ("Nobody, it seems.", 1, 1),
        ("There was no one", 1, 2),
        ("There was no-one", 0, 0),  # stripped of its punctuation it is another word
        ("He'd never know nothing.", 1, 1),
        ("NEVER!", 1, 2),
        ("Now another noble notion", 0, 0),
        ("I don't", 0, 0),
        ("", 0, 0),
    ],
)
def test_negations_are_counted_as_group_dro_and_gc_dro_do(text: str, two: int, three: int) -> None:
    assert (negation(text), negation(text, 3)) == (two, three)


def test_the_published_counts_are_those_of_the_card() -> None:
    assert [sum(counts) for counts in PUBLISHED.values()] == [206175, 82462, 123712]
    assert sum(map(sum, PUBLISHED.values())) == 412349
    assert "206,175" in CARD.splits


def test_pickled_features_are_not_opened_and_it_is_said_why(tmp_path: Path) -> None:
    folder = tmp_path / "multinli" / "glue_data" / "MNLI"
    folder.mkdir(parents=True)
    (folder / "cached_train_bert-base-uncased_128_mnli").write_bytes(b"\x80\x04.")
    with pytest.raises(InputError, match=r"MNLI: .*only cached features of multinli: they are pickles"):
        load(tmp_path, "none")
    with pytest.raises(InputError, match=r"files of multinli are missing \(expected multinli_1.0_train.jsonl or"):
        load(tmp_path / "multinli" / "glue_data", "none")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("train.jsonl", '"entailment"', '"entails"', r"train.jsonl, line 2: the gold label 'entails' is unknown"),
        ("train.jsonl", '"sentence2"', '"sentence"', r"train.jsonl, line 1: a line lacks gold_label, sentence1, sen"),
        ("dev_matched.jsonl", '{"gold', '"gold', r"dev_matched.jsonl, line 1: the line is not JSON"),
        ("metadata_random.csv", "0,0,0,0", "0,1,0,0", r"metadata_random.csv, row 2: the gold label differs from that"),
        (
            "metadata_random.csv",
            "0,0,0,0",
            "0,0,0,5",
            r"metadata_random.csv, row 2: '5' is not a valid value of column 'spl",
        ),
        ("metadata_random.csv", "0,0,0,0\r\n", "", r"differ in the number of pairs .expected 36, got 35"),
        ("metadata_random.csv", "split", "part", r"metadata_random.csv: no column is called 'split'"),
    ],
)
def test_a_wrong_file_is_refused_by_line(tmp_path: Path, file: str, old: str, new: str, said: str) -> None:
    path = write(tmp_path) / (file if "metadata" in file else f"multinli_1.0_{file}")
    content = path.read_bytes().decode()
    assert old in content
    path.write_bytes(content.replace(old, new, 1).encode())
    with pytest.raises(InputError, match=said):
        load(tmp_path, "none")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / "multinli_1.0_dev_mismatched.jsonl").unlink()
    with pytest.raises(InputError, match=r"dev_mismatched.jsonl: a file of multinli is missing"):
        load(tmp_path, "none")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"negation": 4}, r"negation cannot be 4"),
        ({"partition": "dirty"}, r"option 'partition' is unknown .expected clean, imperfect, got dirty"),
        ({"partition": "imperfect"}, r"three levels of negation .got negation=2.*Pass negation=3"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load(tmp_path, "none", **options)
