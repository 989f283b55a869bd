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
from forge_tui.core.records import Signature

_ALIGN = 64


def slot_bytes(signature: Signature) -> int:
    """Bytes that the outputs of one run take."""
    return sum(_rounded(o.spec.nbytes) for o in signature.outputs)


def _rounded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class OutputFile:
    """Slots for the outputs of some runs; writable in the process that made it and its children."""

    def __init__(self, path: Path, signature: Signature, slots: int) -> None:
        self._signature = signature
        self.slots = slots
        self._slot_bytes = slot_bytes(signature)
        size = max(self._slot_bytes * slots, mmap.PAGESIZE)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
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
            offset += _rounded(item.spec.nbytes)


def read(path: Path, slot: int, signature: Signature, device: str | torch.device) -> list[Tensor]:
    """The outputs in a slot, row-major, on the device; copies."""
    found = []
    offset = slot * slot_bytes(signature)
    with open(path, "rb") as file:
        for item in signature.outputs:
            file.seek(offset)
            data = bytearray(file.read(item.spec.nbytes))
            if len(data) != item.spec.nbytes:
                raise EOFError(f"{path} ends before slot {slot}")
            dtype = getattr(torch, item.spec.dtype)
            flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            found.append(flat.view(item.spec.shape).to(device))
            offset += _rounded(item.spec.nbytes)
    return found
