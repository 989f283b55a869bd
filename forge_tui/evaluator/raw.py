"""Inputs as bytes in a file, for programs that have no torch: each tensor from its first to its last element."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from forge_tui.evaluator.job import rounded


def write(path: Path, sets: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """Write the tensors of some sets one behind the other; returns the bytes of each, padding left out."""
    sizes: list[list[int]] = []
    with open(path, "xb") as file:
        for tensors in sets:
            sizes.append([])
            for tensor in tensors:
                span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
                flat = tensor.as_strided((span if tensor.numel() else 0,), (1,)).detach().cpu()
                size = flat.numel() * flat.element_size()
                if size:
                    file.write((ctypes.c_char * size).from_address(flat.data_ptr()))
                file.write(bytes(rounded(size) - size))
                sizes[-1].append(size)
    return sizes
