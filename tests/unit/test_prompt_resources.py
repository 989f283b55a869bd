"""What the compiler said of registers and memory becomes sentences; what inputs look like becomes numbers."""

from __future__ import annotations

import math

import pytest
import torch

from forge_tui.core.records import Device, Edge, Evaluation, Launch, Node, Verdict
from forge_tui.profiler import stats
from forge_tui.proposers import resources
from forge_tui.search import simulate

H100 = Device(name="cuda:0", model="GPU", arch="sm_90a", sms=132, smem_optin=232448)
SOURCE = """\
//@tune THREADS 256 128
//@launch rows grid=x_shape_0 block=THREADS smem=1024
#include "forge_target.h"
extern "C" __global__ void rows(FORGE_PARAMS) {}
"""


def node(registers: int, spilled: int = 0, source: str = SOURCE) -> Node:
    """A kernel with these figures."""
    used = {"rows": {"registers": registers, "spill_bytes": spilled, "smem_bytes": 128}}
    return Node(id=0, target_id="t", parent=None, edge=Edge.DRAFT, proposer="m", source=source, language="cuda",
                evaluation=Evaluation(verdict=Verdict.FASTER, resources=used))  # fmt: skip


def test_figures_become_a_sentence() -> None:
    """Registers, shared memory, spills, how full an SM is, and whether every SM has work."""
    (text,) = resources.sentences(node(32), simulate.target("t"), H100)
    assert text == ("`rows`: 32 registers a thread, 1152 bytes of shared memory a block, no spills; 64 blocks of 256 "
                    "threads, 100% of an SM's threads; only 64 of 132 SMs have work.")  # fmt: skip
    (text,) = resources.sentences(node(168, 96), simulate.target("t"), H100)
    assert "96 bytes spilled to local memory" in text
    assert "12% of an SM's threads at once, limited by registers" in text


def test_nothing_is_made_up() -> None:
    """Without figures, or on the CPU, nothing is said; without a launch nothing of how full an SM is."""
    bare = Node(id=0, target_id="t", parent=None, edge=Edge.DRAFT, proposer="m", source=SOURCE, language="cuda")
    assert resources.sentences(bare, simulate.target("t"), H100) == []
    assert resources.sentences(node(32), simulate.target("t"), simulate.DEVICE) == []
    (text,) = resources.sentences(node(32, source="//@launch"), simulate.target("t"), H100)
    assert text == "`rows`: 32 registers a thread, 128 bytes of shared memory a block, no spills."


@pytest.mark.parametrize(("registers", "smem", "block", "arch", "share", "what"), [
    (32, 0, 1024, "sm_90a", 1.0, "registers"),
    (33, 0, 1024, "sm_90a", 0.5, "registers"),
    (255, 0, 256, "sm_90a", 0.125, "registers"),
    (16, 100 << 10, 128, "sm_90a", 0.125, "shared memory"),
    (16, 0, 32, "sm_90a", 0.5, "the number of blocks"),
    (32, 0, 1024, "sm_89", 2 / 3, "the size of a block"),
])  # fmt: skip
def test_occupancy_is_what_the_calculator_gives(
    registers: int, smem: int, block: int, arch: str, share: float, what: str
) -> None:
    """The share of an SM's threads, and which resource is the first to end."""
    launch = Launch(kernel="k", grid=(1000, 1, 1), block=(block, 1, 1))
    found = resources.occupancy(registers, smem, launch, Device(name="cuda:0", model="g", arch=arch))
    assert found[0] == pytest.approx(share)
    assert found[1] == what or found[0] == 1.0


def test_statistics_of_an_input() -> None:
    """Range, mean, spread, zeros and the share of finite values; integers and flags too."""
    found = stats.of(torch.tensor([[0.0, 2.0], [4.0, math.inf]]))
    assert found is not None
    assert (found.low, found.high, found.mean, found.zeros, found.finite) == (0.0, 4.0, 2.0, 0.25, 0.75)
    assert found.std == pytest.approx(math.sqrt(8 / 3))
    flags = stats.of(torch.tensor([True, False]))
    assert flags is not None
    assert (flags.low, flags.high, flags.mean) == (0.0, 1.0, 0.5)
    nothing = stats.of(torch.full((3,), math.nan))
    assert nothing is not None
    assert nothing.finite == 0.0
    assert stats.of(torch.empty(0, 4)) is None
    assert stats.of(torch.ones(2, dtype=torch.complex64)) is None


def test_a_big_input_is_looked_at_in_part() -> None:
    """At most about a million elements of a view are read, however the tensor lies in memory."""
    big = torch.ones(1, 1, dtype=torch.bfloat16).expand(1 << 20, 1 << 20)
    found = stats.of(big)
    assert found is not None
    assert (found.low, found.high, found.std) == (1.0, 1.0, 0.0)
    assert stats._thinned(big).numel() <= stats.MOST
    assert stats._thinned(torch.ones(3, 5)).shape == (3, 5)
