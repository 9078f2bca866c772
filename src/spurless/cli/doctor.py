"""``spurless doctor``: show versions, devices, extras and folders, and empty the cache."""

from __future__ import annotations

import json as json_module
import re
from importlib import metadata
from typing import Any

from spurless.cli import params as cli
from spurless.cli.console import print_fact, print_json, print_text

NOT_FOR_USERS = ("dev", "docs")  # extras
MISSING = "not installed"


@cli.expand_params
def doctor(
    *,
    clear_cache: bool = cli.flag(cli.OUTPUT, "Delete the files of the cache that are not in use.", "--clear-cache"),
    json: cli.Json = False,
) -> None:
    """Show versions, devices, extras, the data folder and the cache.

    Include the output in a report of a problem. Only files that Spurless has
    written to the cache are deleted; they are computed again when needed.

    Examples:
      spurless doctor
      spurless doctor --json
      spurless doctor --clear-cache
    """
    from spurless.core.cache import clear_cache as delete_files
    from spurless.core.provenance import versions

    deleted = delete_files() if clear_cache else None
    facts: dict[str, Any] = {
        "versions": versions(),
        "devices": _list_devices(),
        "extras": _list_extras(),
        "data": _describe_data(),
        "cache": _describe_cache(),
    }
    if deleted is not None:
        facts["deleted"] = {"files": deleted[0], "bytes": deleted[1]}
    if json:
        print_json(json_module.dumps(facts, indent=2))
        return
    _show(facts)


def _show(facts: dict[str, Any]) -> None:
    for package, version in facts["versions"].items():
        print_fact(package, version)
    print_fact("devices", ", ".join(facts["devices"]))
    for extra, packages in facts["extras"].items():
        print_fact(extra, ", ".join(f"{package} {version or MISSING}" for package, version in packages.items()))
    data, cache = facts["data"], facts["cache"]
    print_fact("data", f"{data['folder']}{'' if data['exists'] else ' (not found; set $SPURLESS_DATA)'}")
    size = f"{cache['files']:,} files, {cache['bytes'] / 1e6:,.1f} MB"
    print_fact("cache", f"{cache['folder']} ({size}{'' if cache['writable'] else ', cannot be written'})")
    if "deleted" in facts:
        deleted = facts["deleted"]
        print_text(f"deleted {deleted['files']:,} files, {deleted['bytes'] / 1e6:,.1f} MB")


def _list_devices() -> list[str]:
    import os

    import torch

    names = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*names, *mps, f"cpu with {os.cpu_count()} cores"]


def _list_extras() -> dict[str, dict[str, str | None]]:
    """Return the packages of every extra with their versions; None if a package is not installed."""
    extras: dict[str, dict[str, str | None]] = {}
    try:
        requirements = metadata.requires("spurless") or []
    except metadata.PackageNotFoundError:  # run from a folder that was not installed
        return extras
    for requirement in requirements:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        package = re.match(r"[\w.-]+", requirement)
        if extra is not None and package is not None and extra[1] not in NOT_FOR_USERS:
            extras.setdefault(extra[1], {})[package[0]] = _find_version(package[0])
    return extras


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _describe_data() -> dict[str, Any]:
    from spurless.core.files import data_folder

    folder = data_folder()
    return {"folder": str(folder.absolute()), "exists": folder.is_dir()}


def _describe_cache() -> dict[str, Any]:
    from spurless.core.cache import list_cache_files
    from spurless.core.errors import InputError
    from spurless.core.files import cache_folder, check_writable

    folder, files = cache_folder(), list_cache_files()
    existing = next((parent for parent in (folder, *folder.absolute().parents) if parent.exists()), folder)
    try:
        check_writable(existing)  # of a folder that exists, so that nothing is created
        writable = True
    except InputError:
        writable = False
    n_bytes = sum(path.lstat().st_size for path in files)
    return {"folder": str(folder.absolute()), "writable": writable, "files": len(files), "bytes": n_bytes}
