"""Captured inputs on disk: safetensors for the values, JSON for shapes and strides, each distinct tensor once.

A folder is complete or absent: it is written under a temporary name, synced, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from forge_tui.core.errors import StoreError
from forge_tui.models.strided import from_flat, real_elements, to_flat

_INDEX = "calls.json"
_VALUES = "tensors.safetensors"


class TooLarge(Exception):
    """The calls pass the size cap; the text says by how much."""


def nbytes(calls: Sequence[Sequence[Tensor]]) -> int:
    """Bytes that the calls would take on disk, equal tensors counted each time."""
    return sum(real_elements(t.shape, t.stride()) * t.element_size() for call in calls for t in call)


def save(folder: Path, calls: Sequence[Sequence[Tensor]], max_bytes: int | None = None) -> None:
    """Write the inputs of some calls to `folder`; what was there is replaced.

    Raises:
        TooLarge: the calls take more than `max_bytes`.
        StoreError: the folder cannot be written.
    """
    temporary = _write(folder.parent, calls, max_bytes)[0]
    try:
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _full(folder, error) from error


def save_by_content(root: Path, calls: Sequence[Sequence[Tensor]], max_bytes: int | None = None) -> str:
    """Write the inputs to a folder below `root` that is named by their content; returns its name.

    Raises:
        TooLarge: the calls take more than `max_bytes`.
        StoreError: the folder cannot be written.
    """
    temporary, digest = _write(root, calls, max_bytes)
    folder = root / digest
    try:
        if folder.exists():
            shutil.rmtree(temporary)
        else:
            temporary.rename(folder)
            _sync(root)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.exists():  # another process may have put the same content there first
            raise _full(folder, error) from error
    return digest


def load(folder: Path, index: int, device: str | torch.device) -> list[Tensor]:
    """The inputs of one captured call, with their strides, on the device; every tensor on storage of its own.

    Raises:
        StoreError: the folder is missing or damaged.
        IndexError: there is no such call.
    """
    call = _index(folder)[index]
    try:
        with safe_open(folder / _VALUES, framework="pt") as file:
            return [
                from_flat(file.get_tensor(entry["key"]).to(device, copy=True), entry["shape"], entry["strides"])
                for entry in call
            ]
    except Exception as error:
        raise StoreError(f"The captured inputs in {folder} cannot be read: {error}.", "Profile again.") from error


def count(folder: Path) -> int:
    """How many calls the folder holds."""
    return len(_index(folder))


def _index(folder: Path) -> list[list[dict[str, Any]]]:
    try:
        calls: list[list[dict[str, Any]]] = json.loads((folder / _INDEX).read_text())["calls"]
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"There are no captured inputs in {folder}: {error}.", "Profile again.") from error
    return calls


def _write(parent: Path, calls: Sequence[Sequence[Tensor]], max_bytes: int | None) -> tuple[Path, str]:
    """The calls in a new temporary folder, and the hash of their content."""
    size = nbytes(calls)
    if max_bytes is not None and size > max_bytes:
        raise TooLarge(f"{size / 1e6:.0f} MB of inputs, more than the {max_bytes / 1e6:.0f} MB that are kept")
    values: dict[str, Tensor] = {}
    index = [[_entry(tensor, values) for tensor in call] for call in calls]
    text = json.dumps({"calls": index}, sort_keys=True)
    folder = parent / "unwritten"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".writing-", dir=parent))
        save_file(values, folder / _VALUES)
        (folder / _INDEX).write_text(text)
        for name in (_VALUES, _INDEX):
            _sync(folder / name)
    except Exception as error:  # safetensors raises its own error where the disk is full
        shutil.rmtree(folder, ignore_errors=True)
        raise _full(parent, error) from error
    return folder, hashlib.sha256(text.encode()).hexdigest()[:32]


def _entry(tensor: Tensor, values: dict[str, Tensor]) -> dict[str, Any]:
    flat = to_flat(tensor).cpu()
    digest = hashlib.sha256(str(flat.dtype).encode())
    digest.update(flat.view(torch.uint8).numpy().data)
    key = digest.hexdigest()[:32]
    values.setdefault(key, flat)
    return {"key": key, "shape": list(tensor.shape), "strides": list(tensor.stride())}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _full(path: Path, error: Exception) -> StoreError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return StoreError(f"Captured inputs cannot be written to {path}: {reason}.", "Free space there.")
