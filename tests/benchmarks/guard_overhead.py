"""Host time of a guarded call against the original's, for a leaf, a module of several launches, and a function.

Run with `python tests/benchmarks/guard_overhead.py [cpu|cuda:0]`. The kernel is one that does nothing, so on both
devices the figures are the cost of the guard itself: checks, outputs, bookkeeping; on CUDA `launch` adds what a real
launch of an empty kernel costs through the driver (needs nvcc). Tensors are small, so that the original's time is its
host time too. Microseconds, medians of many calls in turns.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy_fakes import Norm, make_target

from forge_tui.core.records import Built, Device, LaunchPlan, Target
from forge_tui.deploy import measure
from forge_tui.deploy.guard import GuardedKernel
from forge_tui.deploy.patch import Deployable, Patch

EMPTY = """#include "forge_target.h"
//@launch nothing grid=1 block=32
extern "C" __global__ void nothing(FORGE_PARAMS) {}
"""


class Nothing:
    """A kernel that leaves its outputs as they are."""

    plan = LaunchPlan()

    def launch(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor | None, stream: int | None = None
    ) -> None:
        """Do nothing."""


def empty_cuda_kernel(target: Target, device: str) -> Any:
    """A kernel that is really launched and does nothing."""
    from forge_tui.compiler.build import CommandCompiler
    from forge_tui.launch.kernel import load_kernel

    major, minor = torch.cuda.get_device_capability(device)
    where = Device(name=device, model=torch.cuda.get_device_name(device), arch=f"sm_{major}{minor}")
    compiler = CommandCompiler(where, Path(tempfile.mkdtemp()), timeout_s=60)
    built = asyncio.run(compiler.build(target, EMPTY, {}))
    if not isinstance(built, Built):
        raise SystemExit(f"The empty kernel did not compile: {built.reason}")
    return load_kernel(built, target.signature, device)


def main(device: str) -> None:
    """Print a table."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    x = torch.randn(4, 64, device=device, dtype=dtype)
    norm = Norm(64).eval().requires_grad_(False).to(device, dtype)
    layer = nn.LayerNorm(64).eval().requires_grad_(False).to(device, dtype)
    block = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64)).to(device, dtype)
    block.eval().requires_grad_(False)
    cases: list[tuple[str, Any, nn.Module | None]] = [
        ("F.silu (leaf)", lambda t: F.silu(t), None),
        ("LayerNorm (leaf)", layer.forward, layer),
        ("RMSNorm written out (7 launches)", norm.forward, norm),
        ("Linear, SiLU, Linear (children)", block.forward, block),
    ]
    sync = measure.synchroniser(torch.device(device))
    print(f"{device}, torch {torch.__version__}, microseconds of host time\n")
    last = "   launch" if device.startswith("cuda") else ""
    print(f"{'callable':36} {'original':>9} {'guarded':>9} {'given back':>11}{last}")
    for name, fn, module in cases:
        target = make_target(fn, (x,), module=module, kind="module" if module else "function", name=name)
        guard = GuardedKernel(target, Nothing(), fn, module=module)
        other = x[:2]
        times = measure.host_times(lambda: guard(x), lambda: fn(x), sync)  # noqa: B023 - called at once
        back = measure.host_times(lambda: guard(other), lambda: fn(other), sync)  # noqa: B023
        assert times.guarded_us is not None
        assert back.guarded_us is not None
        assert back.original_us is not None
        row = f"{name:36} {times.original_us:9.2f} {times.guarded_us:9.2f} {back.guarded_us - back.original_us:+11.2f}"
        if device.startswith("cuda"):
            real = GuardedKernel(target, empty_cuda_kernel(target, device), fn, module=module)
            row += f" {measure.host_times(lambda: real(x), lambda: fn(x), sync).guarded_us:8.2f}"  # noqa: B023
        print(row)
    root = nn.ModuleDict({"norm": norm})
    target = make_target(norm.forward, (x,), module=norm, instances=["norm"], name="patched")
    patch = Patch(root, [Deployable(target, Nothing())])
    plain = norm.forward
    patch.install()
    deployed = vars(norm)["forward"]
    times = measure.host_times(lambda: deployed(x), lambda: plain(x), sync)
    patch.undo()
    print(f"{'RMSNorm patched in its module':36} {times.original_us:9.2f} {times.guarded_us:9.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ("cuda:0" if torch.cuda.is_available() else "cpu"))
