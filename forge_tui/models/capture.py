"""Captured calls on disk: safetensors for the values, JSON for what each tensor is made of, each distinct one once.

A folder is complete or absent: it is written under a temporary name, synced, and renamed. Tensors of the model itself
are not stored: the folder names their place in the model and the hash of their content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from forge_tui.core.errors import StoreError
from forge_tui.models.held import Held, Places
from forge_tui.models.snapshot import Copier, Part, Snapshot, restore

if TYPE_CHECKING:
    from forge_tui.models.load import LoadedModel

_INDEX = "calls.json"
_VALUES = "tensors.safetensors"
_WRITING = ".writing-"
#: after so long nobody writes to a temporary folder any more
_ABANDONED_S = 24 * 3600
_NAME = re.compile(r"[0-9a-f]{32}")


class TooLarge(Exception):
    """The calls pass the size cap; the text says by how much."""


def save_by_content(
    root: Path, calls: Sequence[Snapshot | Sequence[Tensor]], max_bytes: int | None = None
) -> str:
    """Write the inputs of some calls to a folder below `root` that is named by their content; returns its name.

    Raises:
        TooLarge: the calls take more than `max_bytes`.
        StoreError: the folder cannot be written.
    """
    copier = Copier()
    snapshots = [call if isinstance(call, Snapshot) else copier.take(call) for call in calls]
    flats = {key: flat for snapshot in snapshots for key, flat in snapshot.flats.items()}
    size = flats_bytes(flats.values())
    if max_bytes is not None and size > max_bytes:
        raise TooLarge(f"{size_words(size)} of inputs, more than the {size_words(max_bytes)} that are kept")
    index = [[_to_json(part) for part in snapshot.parts] for snapshot in snapshots]
    text = json.dumps({"version": 2, "calls": index}, sort_keys=True)
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:32]
    if _complete(folder, text):
        with contextlib.suppress(OSError):
            os.utime(folder)  # young again, for a clean-up that goes by age
        return folder.name
    temporary = root / "unwritten"
    try:
        root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=_WRITING, dir=root))
        save_file(flats, temporary / _VALUES)
        (temporary / _INDEX).write_text(text)
        for name in (_VALUES, _INDEX):
            _sync(temporary / name)
        _put(temporary, folder, text)
        _sync(root)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, Exception):  # safetensors raises its own error where the disk is full
            raise _full(root, error) from error
        raise
    return folder.name


def load(
    folder: Path, index: int, device: str | torch.device, loaded: LoadedModel | None = None
) -> list[Tensor]:
    """The inputs of one captured call on the device, with their strides, alignment and common memory.

    What belongs to the model are views of the tensors that `loaded` holds: they must not be written to.

    Raises:
        StoreError: the folder is missing or damaged, or the model holds other tensors than it did.
        IndexError: there is no such call.
    """
    parts = [_from_json(entry, number, folder) for number, entry in enumerate(_index(folder)[index])]
    places = Places(loaded) if loaded is not None else None
    try:
        with safe_open(folder / _VALUES, framework="pt") as file:
            return restore(parts, file.get_tensor, torch.device(device), places)
    except (StoreError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise StoreError(f"The captured inputs in {folder} cannot be read: {error}.", "Profile again.") from error


def count(folder: Path) -> int:
    """How many calls the folder holds."""
    return len(_index(folder))


def unreferenced(root: Path, names: Iterable[str], older_than_s: float = 3600.0) -> list[Path]:
    """Folders of captured inputs below `root` that are none of `names`, and those that were never finished.

    `names` are folder names, with or without what stands before them (`captures/NAME`). Other files are left out, and
    folders younger than `older_than_s`: a profile that is being made may be about to name them.
    """
    kept = {Path(name).name for name in names}
    now = time.time()
    found = []
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted(root.iterdir()):
            if folder.is_symlink() or not folder.is_dir():
                continue
            unfinished = folder.name.startswith(_WRITING)
            if not unfinished and (folder.name in kept or not _NAME.fullmatch(folder.name)):
                continue
            with contextlib.suppress(FileNotFoundError):  # it may be gone, or have got its name, meanwhile
                if now - folder.stat().st_mtime >= (_ABANDONED_S if unfinished else older_than_s):
                    found.append(folder)
    return found


def flats_bytes(flats: Iterable[Tensor]) -> int:
    """Bytes of some contiguous tensors."""
    return sum(flat.numel() * flat.element_size() for flat in flats)


def size_words(size: int) -> str:
    """Bytes for sentences: `12 kB`, `340 MB`, `2.1 GB`."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 10 * unit else f"{size / unit:.0f} {name}"
    return f"{size} bytes"


def _to_json(part: Part) -> dict[str, Any]:
    entry: dict[str, Any] = {"key": part.key, "dtype": part.dtype, "shape": part.shape, "strides": part.strides}
    entry |= {"at": part.at} if part.at else {}
    entry |= {"same_as": part.same_as} if part.same_as is not None else {}
    if part.held is None:
        return entry | {"room": part.room}
    return entry | {"held": [part.held.function, part.held.name], "sample": [repr(value) for value in part.sample]}


def _from_json(entry: dict[str, Any], number: int, folder: Path) -> Part:
    try:
        held = Held(entry["held"][1], entry["held"][0]) if "held" in entry else None
        # folders of the first form have neither rooms nor dtypes: every tensor has memory of its own
        return Part(
            entry["key"], entry.get("dtype", ""), tuple(entry["shape"]), tuple(entry["strides"]),
            entry.get("room", number), entry.get("at", 0), entry.get("same_as"), held,
            tuple(float(value) for value in entry.get("sample", ())),
        )  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(folder, error) from error


def _index(folder: Path) -> list[list[dict[str, Any]]]:
    try:
        calls: list[list[dict[str, Any]]] = json.loads((folder / _INDEX).read_text())["calls"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"There are no captured inputs in {folder}: {error}.", "Profile again.") from error
    if not isinstance(calls, list) or not all(isinstance(call, list) for call in calls):
        raise _damaged(folder, "it is not a list of calls")
    return calls


def _damaged(folder: Path, reason: object) -> StoreError:
    return StoreError(f"The captured inputs in {folder} are damaged: {reason}.", "Profile again.")


def _complete(folder: Path, text: str) -> bool:
    """Whether this content is there already, as far as a look can tell."""
    try:
        return (folder / _INDEX).read_text() == text and (folder / _VALUES).is_file()
    except (OSError, UnicodeDecodeError):
        return False


def _put(temporary: Path, folder: Path, text: str) -> None:
    """The temporary folder in its place; another process may put the same content there at the same time."""
    try:
        temporary.rename(folder)
    except OSError:
        if _complete(folder, text):
            shutil.rmtree(temporary)
            return
        # what stands there is damaged
        aside = Path(tempfile.mkdtemp(prefix=_WRITING, dir=folder.parent))
        folder.rename(aside / folder.name)
        temporary.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _full(path: Path, error: Exception) -> StoreError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return StoreError(f"Captured inputs cannot be written to {path}: {reason}.", "Free space there.")
