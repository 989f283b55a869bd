"""Profiles kept in the workspace: found again while nothing that they hang on has changed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

import msgspec

import forge_tui
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Profile
from forge_tui.core.records import RunOptions
from forge_tui.engine.rooms import Rooms
from forge_tui.models.sources import unchanged
from forge_tui.models.spec import is_example
from forge_tui.store import codec

#: rooms of this program that decide what a profile says
_ROOMS = ("core", "models", "profiler", "processes")
_LIBRARIES = ("torch", "triton", "transformers", "diffusers", "numpy")
#: settings of the environment that change how PyTorch computes
_SETTINGS = ("CUDA_", "CUDNN_", "CUBLAS_", "TORCH", "PYTORCH", "ATEN_", "OMP_", "MKL_", "KMP_", "GOMP_", "DNNL_",
             "ONEDNN_", "TRITON_", "NVIDIA_TF32", "PYTHONPATH")  # fmt: skip
_MAX_KEPT = 24


async def profile_cached(rooms: Rooms, options: RunOptions, workspace: Workspace, *, fresh: bool = False) -> Profile:
    """The model's profile: a saved one where it still holds, else a new one, which is saved.

    Raises:
        ForgeError: the model cannot be profiled.
    """
    workspace.prepare()
    saved = None if fresh else find(options, workspace)
    if saved is not None:
        return saved
    return keep(await rooms.profile(), options, workspace)


def find(options: RunOptions, workspace: Workspace) -> Profile | None:
    """The saved profile of this model under these options, unless a file of the model or a capture has changed."""
    # what cannot be read, or is of another version, is no saved profile
    with contextlib.suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError):
        saved = codec.load(_path(options, workspace).read_text(), Profile)
        captures = (workspace.captures / Path(t.capture).name for t in saved.targets if t.capture)
        if _is_tree(saved) and unchanged(saved.sources) and all(capture.exists() for capture in captures):
            return saved
    return None


def _is_tree(profile: Profile) -> bool:
    """Whether every callable comes behind the one that it is called by: a damaged file may close a circle."""
    known: set[int | None] = {None}
    for spot in profile.hotspots:
        if spot.parent not in known or spot.id in known:
            return False
        known.add(spot.id)
    return True


def keep(profile: Profile, options: RunOptions, workspace: Workspace) -> Profile:
    """Save a profile in the place of an earlier one; where that fails, the profile says so in its warnings."""
    path = _path(options, workspace)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(codec.dump(profile))
        temporary.replace(path)
        _prune(path.parent)
    except OSError as error:
        text = f"The profile could not be saved for the next time: {error.strerror or error}."
        return msgspec.structs.replace(profile, warnings=(*profile.warnings, text))
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return profile


def _prune(folder: Path) -> None:
    kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[:-_MAX_KEPT]:
        path.unlink(missing_ok=True)


def _path(options: RunOptions, workspace: Workspace) -> Path:
    return workspace.artifacts / "profiles" / f"{profile_key(options)}.json"


def profile_key(options: RunOptions) -> str:
    """Equal only where the same profile would be expected, as far as can be told without running the model."""
    model = msgspec.to_builtins(options.model)
    model["text"] = is_example(options.model)  # how a file was typed does not matter
    what = [
        model, options.device, options.threads, options.seed, options.capture_bytes, _machine(options.device),
        {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)},
        {name: _version(name) for name in _LIBRARIES}, sys.version, _this_program(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _this_program() -> list[object]:
    root = Path(forge_tui.__file__).parent
    files = [file for room in _ROOMS for file in sorted((root / room).rglob("*.py"))]
    states = [(str(file.relative_to(root)), info.st_size, info.st_mtime_ns) for file in files
              if (info := file.stat())]  # fmt: skip
    return [forge_tui.__version__, states]


def _machine(device: str) -> list[object]:
    """What tells this machine from another one, without torch."""
    found: list[object] = [platform.machine(), len(os.sched_getaffinity(0)), *_processor(Path("/proc/cpuinfo"))]
    return found + _gpus() if device.startswith("cuda") else found


def _processor(path: Path) -> list[str]:
    try:
        first = path.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return [platform.processor()]
    return [line for line in first if line.startswith(("model name", "flags", "Features", "CPU part"))]


def _gpus() -> list[object]:
    """Driver and GPUs, in NVML's order; nothing where NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [str(pynvml.nvmlSystemGetDriverVersion()), *(str(pynvml.nvmlDeviceGetUUID(h)) for h in handles)]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
