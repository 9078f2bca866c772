"""Tweets: the table is read, and the mark that stands for a dialect is found where it is."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.datasets.tweets import TweetsConfig, has_cue, tweets
from spurless.metrics.association import associate


def write(root: Path, name: str = "labeled_data.csv") -> Path:
    """120 tweets in the published columns; every fourth has a hashtag, every fifth is a retweet."""
    lines = [",count,hate_speech,offensive_language,neither,class,tweet\n"]
    for i in range(120):
        tweet = f"{'RT @x: ' if i % 5 == 0 else ''}tweet {i}{' #tag' if i % 4 == 0 else ' &#8220;'}"
        lines.append(f'{i},3,0,0,3,{i % 3},"{tweet}"\n')
    path = root / name
    path.write_text("".join(lines))
    return path


def load(root: Path, tokenizer: str, **options: Any) -> Any:
    return tweets(TweetsConfig(root=str(root), tokenizer=tokenizer, **options))


@pytest.mark.parametrize(("cue", "every"), [("hashtag", 4), ("retweet", 5), ("mention", 5)])
def test_every_tweet_is_read_with_its_mark(
    tmp_path: Path, speller: str, spoken: Callable[[Tensor], str], cue: str, every: int
) -> None:
    write(tmp_path)
    data = load(tmp_path, speller, cue=cue)
    found = []
    for split in (data.train, data.val, data.test):
        for ids, y, a in zip(split.x["input_ids"], split.y, split.a, strict=True):
            i = int(spoken(ids).split("tweet ")[1].split()[0])
            assert (int(y), int(a)) == (i % 3, int(i % every == 0))
            found.append(i)
    assert sorted(found) == list(range(120))
    assert [len(split) for split in (data.train, data.val, data.test)] == pytest.approx([84, 18, 18], abs=3)
    assert data.groups.names[:2] == (f"hate, no {cue}", f"hate, {cue}")


@pytest.mark.parametrize(
    ("text", "cues"),
    [
        ("go #Team", {"hashtag"}),
        ("&#128514; &#8220;x", set()),
        ("a@b.com C#", set()),
        ("!!! RT @her: see http://t.co/x", {"retweet", "mention", "link"}),
        ("START @her", {"mention"}),
    ],
)
def test_marks_are_told_from_what_looks_like_them(text: str, cues: set[str]) -> None:
    assert {cue for cue in ("hashtag", "link", "mention", "retweet") if has_cue(text, cue)} == cues


def test_a_wrong_table_or_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="files of tweets are missing"):
        load(tmp_path, "none")
    path = write(tmp_path)
    path.write_text(path.read_text().replace("3,2,", "3,5,", 1))
    with pytest.raises(InputError, match=r"labeled_data.csv, row 4: '5' is not a valid value of column 'class'"):
        load(tmp_path, "none")
    path.write_text(path.read_text().replace("class,tweet", "class,text", 1))
    with pytest.raises(InputError, match=r"labeled_data.csv: no column is called 'tweet'"):
        load(tmp_path, "none")
    with pytest.raises(
        InputError, match=r"option 'cue' is unknown .expected hashtag, link, mention, retweet, got emoji"
    ):
        load(tmp_path, "none", cue="emoji")


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_table(speller: str) -> None:
    data = load(Path(os.environ["SPURLESS_DATA"]), speller)
    assert sum(len(split) for split in (data.train, data.val, data.test)) == 24783
    assert associate(data.train.y, data.train.a, data.groups).cramers_v == pytest.approx(0.16, abs=0.01)
