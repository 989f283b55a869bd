"""One built kernel with its buffers, as a program that knows nothing of PyTorch is told: sizes, launches, a file."""

from __future__ import annotations

from pathlib import Path

from forge_tui.core.records import LaunchPlan, Record

_ALIGN = 64


def rounded(size: int) -> int:
    """Bytes that a tensor takes in a file of several."""
    return -(-size // _ALIGN) * _ALIGN


class Job(Record, frozen=True, kw_only=True):
    """What to run. Sizes are bytes from the first to the last element."""

    image: str
    """The cubin."""
    plan: LaunchPlan
    device_index: int
    inputs_path: str
    """Tensors of every set one behind the other, each rounded up to 64 bytes."""
    input_names: list[str]
    input_bytes: list[list[int]]
    """By set and input."""
    output_names: list[str]
    output_bytes: list[int]

    def write(self, path: Path) -> None:
        """Leave it in a file."""
        path.write_text(self.to_json())
