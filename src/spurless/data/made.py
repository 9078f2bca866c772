"""Made: tensors that took a while, kept in the cache folder under the hash of all that decides them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from torch import Tensor

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.files import replace_file
from spurless.core.places import cache_folder


def kept(key: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return what was made under ``key`` before, or make it now and keep it.

    A file that was cut off is made again. Where nothing can be written, everything works, but slowly each time.

    Args:
        key: a content hash of what goes in, of every option, and of a number that changes with the code.
        make: makes the tensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    path = cache_folder() / "made" / f"{key}.safetensors"
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        made = {name: tensor.contiguous() for name, tensor in make().items()}
    try:
        replace_file(path, lambda scratch: save_file(made, scratch))
    except (BadInput, SafetensorError) as error:
        warnings.warn(
            f"What was made is not kept, so that it will be made again: {error} Or set $SPURLESS_CACHE.",
            SpurlessWarning,
            stacklevel=2,
        )
    return made
