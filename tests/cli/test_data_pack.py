"""``spurless data pack``: one file that gives what its source gives, and replaces nothing by accident."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

Cli = Callable[..., Any]
Refused = Callable[..., None]


def counts(cli: Cli, *words: object) -> Any:
    told = json.loads(cli("data", "check", *words, "--json").out)
    return told["groups"], told["counts"]


def test_pack_of_a_folder_has_the_groups_and_splits_of_the_folder(cli: Cli, folder: Path) -> None:
    said = cli("data", "pack", folder, "own.npz", "--seed", 3)
    assert (said.status, said.err) == (0, "")
    size = Path("own.npz").stat().st_size
    first, *use = said.out.splitlines()
    assert first == f"own.npz: 30 images, {size:,} bytes"
    assert use[-1] == "Train on it: spurless fit erm --data own.npz"
    assert counts(cli, "own.npz") == counts(cli, folder, "--seed", 3)


def test_pack_of_a_table_takes_its_columns(cli: Cli, folder: Path) -> None:
    lines = [f"{path.relative_to(folder)},{path.parent.name},{i % 3}" for i, path in enumerate(folder.rglob("*.png"))]
    Path("meta.csv").write_text("\n".join(["file,y,fold", *lines]))
    words = ("--label", "y", "--attribute", "fold", "--split", "fold", "--root", folder)
    assert cli("data", "pack", "meta.csv", "own.npz", *words).status == 0
    assert counts(cli, "own.npz") == counts(cli, "meta.csv", *words)


def test_size_and_quality_make_it_smaller(cli: Cli, folder: Path) -> None:
    Image.effect_noise((64, 64), 80).convert("RGB").save(folder / "dark" / "0.png")
    Image.effect_noise((64, 64), 80).convert("RGB").save(folder / "light" / "0.png")
    sizes = []
    for words in ((), ("--quality", 5), ("--size", 8)):
        assert cli("data", "pack", folder, "own.npz", "--force", *words).status == 0
        sizes.append(Path("own.npz").stat().st_size)
    assert sizes[0] > sizes[1] > sizes[2]


def test_file_that_is_there_is_replaced_only_by_force(cli: Cli, refused: Refused, folder: Path) -> None:
    Path("own.npz").write_text("mine")
    refused(r"own\.npz: the file is there already.*--force", "data", "pack", folder, "own.npz")
    assert Path("own.npz").read_text() == "mine"
    assert cli("data", "pack", folder, "own.npz", "--force").status == 0


def test_what_cannot_be_packed_is_refused_and_nothing_is_left(refused: Refused, folder: Path, csv: Any) -> None:
    refused(r"a pack is called \.npz \(got own\.zip\)", "data", "pack", folder, "own.zip")
    refused(r"gone: no such file or folder", "data", "pack", "gone", "own.npz")
    refused(r"--root are for CSV files", "data", "pack", folder, "own.npz", "--label", "y")
    refused(r"own\.csv: a CSV needs --label", "data", "pack", csv(), "own.npz")
    refused(
        r"own\.csv: no column holds file names", "data", "pack", csv(), "own.npz", "--label", "y", "--split", "split"
    )
    (folder / "text.txt").write_text("x")
    refused(r"only class folders and CSV files of images", "data", "pack", folder / "text.txt", "own.npz")
    (folder / "dark" / "3.png").write_bytes(b"no picture")
    refused(r"dark/3\.png: the image cannot be read", "data", "pack", folder, "own.npz")
    assert not Path("own.npz").exists()


def test_broken_images_are_left_out_by_wish(cli: Cli, folder: Path) -> None:
    (folder / "dark" / "broken.png").write_bytes(b"no image")
    lines = [f"{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.png"))]
    Path("meta.csv").write_text("\n".join(["file,y", *lines]))
    for words in ((folder, "one.npz"), ("meta.csv", "two.npz", "--label", "y", "--root", folder)):
        assert cli("data", "pack", *words).status == 2
        said = cli("data", "pack", *words, "--skip-bad")
        assert said.status == 0, said.err
        assert said.out.startswith(f"{words[1]}: 30 images, ")
        assert "Left out images that cannot be read (1 of 31)" in said.err
    assert counts(cli, "one.npz") == counts(cli, folder, "--skip-bad")
