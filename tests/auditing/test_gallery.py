"""Gallery: who is suspected, from which file, with a picture and where the model looked."""

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from spurless.auditing._context import AuditContext
from spurless.auditing.suspects import SuspectedMinority, example_file, list_suspects
from spurless.core.groups import Groups
from spurless.data.loaders.images import ImageFiles
from spurless.data.split import ExampleIds, Split
from spurless.models import build

N = 6


def context() -> AuditContext:
    x = torch.randint(0, 256, (N, 3, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    split = Split(x, torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 1, 1, 0, 1]), Groups(("a", "b"), ("p", "q")))
    model = build("small-cnn", input_shape=(3, 16, 16), n_classes=2)
    logits = torch.tensor([[2.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)
    return AuditContext(model, split, torch.randn(N, 4), logits)


def suspicion(score: list[float]) -> SuspectedMinority:
    values = torch.tensor(score)
    return SuspectedMinority(values, values >= 0.5, {}, 0.5)


def test_the_suspected_come_in_the_order_of_their_scores_with_their_words() -> None:
    found = list_suspects(context(), suspicion([0.1, 0.7, 0.2, 0.0, 0.9, 0.4]))
    assert [suspect.row for suspect in found] == [4, 1]
    first = found[0]
    assert (first.label, first.predicted, first.attribute, first.file, first.text) == ("a", "b", "p", None, None)
    assert first.suspected
    assert first.picture is not None
    assert first.heat is not None
    assert isinstance(first.picture.png, bytes)
    assert first.picture.png != first.heat.png


def test_only_the_first_are_drawn() -> None:
    found = list_suspects(context(), suspicion([0.9, 0.8, 0.7, 0.6, 0.0, 0.0]), max_pictures=2)
    assert [suspect.picture is not None for suspect in found] == [True, True, False, False]


def test_rows_of_numbers_have_no_picture_and_hidden_attributes_no_name() -> None:
    one = context()
    split = Split(torch.randn(N, 3), one.split.y, torch.full((N,), -1), one.split.groups)
    found = list_suspects(replace(one, split=split), suspicion([0.9] * N))
    assert len(found) == N
    assert all(suspect.picture is None and suspect.attribute is None for suspect in found)


def test_nobody_suspected_is_an_empty_gallery() -> None:
    assert list_suspects(context(), suspicion([0.0] * N)) == ()


def test_a_file_is_found_through_a_choice_of_a_choice(tmp_path: Path) -> None:
    for i in range(4):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i}.png")
    files = ImageFiles([tmp_path / f"{i}.png" for i in range(4)])
    split = Split(files, torch.zeros(4, dtype=torch.long), torch.full((4,), -1), Groups(("a", "b")))
    some = split.select(torch.tensor([3, 1, 0])).select(torch.tensor([2, 0]))
    assert [example_file(some, row) for row in range(2)] == [str(tmp_path / "0.png"), str(tmp_path / "3.png")]
    assert example_file(context().split, 0) is None


def test_names_win_over_what_is_read() -> None:
    one = context()
    names = ExampleIds.of_files(f"{row}.png" for row in range(N))
    found = list_suspects(replace(one, split=replace(one.split, names=names)), suspicion([0, 0.9, 0, 0, 0.8, 0]))
    assert [suspect.file for suspect in found] == ["1.png", "4.png"]
    ids = {"input_ids": torch.arange(N * 3).view(N, 3)}
    written = ExampleIds(torch.arange(N), prefix="own.csv, row", texts=[f"Text {row}!" for row in range(N)])
    split = Split(ids, one.split.y, one.split.a, one.split.groups, names=written)
    (said,) = list_suspects(replace(one, split=split, spelling=str), suspicion([0, 0, 0.9, 0, 0, 0]))
    assert (said.file, said.text) == ("own.csv, row 2", "Text 2!")
    (dumb,) = list_suspects(replace(one, split=replace(split, names=None)), suspicion([0, 0, 0.9, 0, 0, 0]))
    assert (dumb.file, dumb.text) == (None, None)


def test_a_text_is_cut_where_it_is_long() -> None:
    one = context()
    ids = {"input_ids": torch.arange(N * 3).view(N, 3), "attention_mask": torch.ones(N, 3)}
    split = Split(ids, one.split.y, one.split.a, one.split.groups)
    spelled = replace(one, split=split, spelling=lambda number: "w" * 1000 if number == 3 else f"t{number}")
    found = list_suspects(spelled, suspicion([0.9, 0.8, 0, 0, 0, 0]))
    assert found[0].text == "t0 t1 t2"
    assert found[1].text is not None
    assert len(found[1].text) == 600
    assert found[1].text.endswith("…")
