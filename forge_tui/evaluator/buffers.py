"""Tensors between guard zones: what a kernel writes where it must not is found afterwards.

The address of the data is aligned as the contract promises and no further, so that a kernel that assumes more fails
here and not in a model. On the CPU a second form ends at a page that cannot be touched.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from forge_tui.core.records import TensorSpec

GUARD_BYTES = 4096
#: fill bytes of outputs: the first makes NaN of every floating type, the second large numbers
POISONS = (0xFF, 0x4B)
#: fill bytes of a workspace, and of what surrounds inputs, by that of the outputs: others, so that a result computed
#: from them is not taken for one never written
AROUND = MappingProxyType({0xFF: 0x7F, 0x4B: 0xC3})
_PROT_NONE = 0


class Guarded:
    """One buffer with a tensor view in its middle.

    `span` bytes belong to the tensor, gaps between strided elements included.
    """

    def __init__(self, spec: TensorSpec, align: int, device: torch.device, *, fenced: bool = False) -> None:
        dtype = getattr(torch, spec.dtype)
        self.spec = spec
        self.span_bytes = spec.span * dtype.itemsize
        self._fence: mmap.mmap | None = None
        if fenced:
            self.raw, self.start = self._at_a_fence(align)
        else:
            self.raw = torch.empty(2 * GUARD_BYTES + self.span_bytes + 2 * align, dtype=torch.uint8, device=device)
            # aligned to `align`, and not to twice that
            self.start = GUARD_BYTES + (align - (self.raw.data_ptr() + GUARD_BYTES)) % (2 * align)
        self.flat = self.raw[self.start : self.start + self.span_bytes]
        self.tensor = self.flat.view(dtype).as_strided(spec.shape, spec.strides)

    def _at_a_fence(self, align: int) -> tuple[Tensor, int]:
        """The data ends, up to its alignment, where a page begins that no access is allowed to."""
        page = mmap.PAGESIZE
        body = -(-(GUARD_BYTES + self.span_bytes + align) // page) * page
        self._fence = mmap.mmap(-1, body + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole = torch.frombuffer(self._fence, dtype=torch.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if libc.mprotect(whole.data_ptr() + body, page, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
        return whole[:body], (body - self.span_bytes) // align * align

    def poison(self, byte: int) -> None:
        """Fill everything, guards, gaps and data."""
        self.raw.fill_(byte)

    def set_values(self, values: Tensor, byte: int) -> None:
        """Put values into the tensor, and poison around and between them."""
        self.raw.fill_(byte)
        if self.spec.numel:
            narrow_to, narrow_from = self.tensor, values
            for dim, (size, stride) in enumerate(zip(self.spec.shape, self.spec.strides, strict=True)):
                if stride == 0 and size > 1:
                    narrow_to, narrow_from = narrow_to.narrow(dim, 0, 1), narrow_from.narrow(dim, 0, 1)
            if _windowed(narrow_to):
                # windows over one run: element by element would write places twice
                run = values.as_strided((self.spec.span,), (1,))
                self.flat.view(values.dtype).copy_(run)
            else:
                narrow_to.copy_(narrow_from)

    def damage(self, before: Tensor) -> str:
        """Where the buffer differs from what it was: `before`, `behind`, `inside`, or nothing."""
        if torch.equal(self.raw, before):
            return ""
        differs = self.raw != before
        if bool(differs[: self.start].any()):
            return "before"
        if bool(differs[self.start + self.span_bytes :].any()):
            return "behind"
        return "inside"

    def guard_damage(self, byte: int) -> str:
        """Where what surrounds an output lost its poison: `before`, `behind`, `between` (gaps), or nothing."""
        if not bool((self.raw[: self.start] == byte).all()):
            return "before"
        if not bool((self.raw[self.start + self.span_bytes :] == byte).all()):
            return "behind"
        if self.spec.span > self.spec.numel and self.spec.numel:
            copy = self.flat.clone()
            copy.view(self.tensor.dtype).as_strided(self.spec.shape, self.spec.strides).zero_()
            rest = torch.full_like(copy, byte)
            rest.view(self.tensor.dtype).as_strided(self.spec.shape, self.spec.strides).zero_()
            if not torch.equal(copy, rest):
                return "between"
        return ""


def bytes_spec(size: int) -> TensorSpec:
    """A workspace as a tensor."""
    return TensorSpec(shape=(size,), dtype="uint8", strides=(1,))


def total_bytes(buffers: Sequence[Guarded]) -> int:
    """Memory of some buffers."""
    return sum(b.raw.numel() for b in buffers)


def _windowed(tensor: Tensor) -> bool:
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
