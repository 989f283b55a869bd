"""Raw outputs on their way from the process that ran a kernel to the judge: one file, mapped on both sides.

The file has its size from the start and its blocks reserved, so that a full disk is an error here and not a signal in
the middle of a kernel, and the candidate's process may be forbidden to write files at all.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Signature, TensorSpec
from forge_tui.evaluator.job import rounded


def slot_bytes(signature: Signature) -> int:
    """Bytes that the outputs of one run take."""
    return sum(rounded(o.spec.nbytes) for o in signature.outputs)


class OutputFile:
    """Slots for the outputs of some runs; writable in the process that made it and its children."""

    def __init__(self, path: Path, signature: Signature, slots: int, *, reuse: bool = False) -> None:
        """Make the file; with `reuse` one that is there, and at least as large, will do.

        Raises:
            EnvironmentFault: there is no space for it.
            FileExistsError: it is there, and is not to be used again.
        """
        self._signature = signature
        self.slots = slots
        self._slot_bytes = slot_bytes(signature)
        size = max(self._slot_bytes * slots, mmap.PAGESIZE)
        new = 0 if reuse else os.O_EXCL
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | new, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.posix_fallocate(descriptor, 0, size)
            # what comes page by page later costs several times as much
            self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | (mmap.MAP_POPULATE if reuse else 0))
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG):
                raise
            raise EnvironmentFault(
                f"There is no space for {size / 1e6:.0f} MB of outputs in {path.parent}.", "Free space there."
            ) from error
        finally:
            os.close(descriptor)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def write(self, slot: int, outputs: Sequence[Tensor]) -> None:
        """Copy the outputs of one run, without gaps."""
        assert 0 <= slot < self.slots
        offset = slot * self._slot_bytes
        for output, item in zip(outputs, self._signature.outputs, strict=True):
            raw = output.contiguous().reshape(-1).view(torch.uint8)
            self._bytes[offset : offset + raw.numel()].copy_(raw)
            offset += rounded(item.spec.nbytes)


def read(path: Path, slot: int, signature: Signature, device: str | torch.device) -> list[Tensor]:
    """The outputs in a slot, row-major, on the device; copies."""
    offset = slot * slot_bytes(signature)
    # a CPU kernel could cut a file that is mapped here; a CUDA kernel has no host code to do it with
    fetch = _mapped if torch.device(device).type == "cuda" else _read
    return fetch(path, slot, offset, signature, device)


def _read(path: Path, slot: int, offset: int, signature: Signature, device: str | torch.device) -> list[Tensor]:
    found = []
    with open(path, "rb") as file:
        for item in signature.outputs:
            file.seek(offset)
            data = bytearray(item.spec.nbytes)
            if file.readinto(data) != item.spec.nbytes:
                raise EOFError(f"{path} ends before slot {slot}")
            found.append(_tensor(data, 0, item.spec).to(device))
            offset += rounded(item.spec.nbytes)
    return found


def _mapped(path: Path, slot: int, offset: int, signature: Signature, device: str | torch.device) -> list[Tensor]:
    """Copied to the device straight from the file's pages."""
    found = []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        if offset + slot_bytes(signature) > len(pages):
            raise EOFError(f"{path} ends before slot {slot}")
        for item in signature.outputs:
            host = _tensor(pages, offset, item.spec)
            found.append(host.to(device, copy=True))
            del host
            offset += rounded(item.spec.nbytes)
    return found


def _tensor(data: bytearray | mmap.mmap, offset: int, spec: TensorSpec) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    if not spec.numel:
        return torch.empty(spec.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=spec.numel, offset=offset).view(spec.shape)
