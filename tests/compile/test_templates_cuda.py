"""Template kernels for CUDA: compiled by nvcc, and run by an emulation on the CPU against eager and float64."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from template_emulation import GPU, build_emulated
from template_support import assert_right, make_target
from template_zoo import cases

from forge_tui.compiler.toolchain import find_nvcc
from forge_tui.contract import header, lint, plan, tune
from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Target
from forge_tui.proposers.templates.proposer import fits, write

ZOO = cases()
Kernel = Callable[[Any], list[torch.Tensor]]
SPLIT = {
    "split_group_norm": (
        lambda x, w, b: torch.nn.functional.silu(torch.nn.functional.group_norm(x, 2, w, b)),
        (torch.randn(1, 8, 64, 64).bfloat16() + 3, torch.randn(8).bfloat16(), torch.randn(8).bfloat16()),
    ),
    "split_softmax": (lambda x: torch.softmax(x, -1), (torch.randn(2, 8199),)),
    "split_mean": (lambda x: x.mean(-1), (torch.randn(3, 8192),)),
}  # fmt: skip


def targets() -> dict[str, tuple[Target, Any]]:
    """Targets with their cases."""
    every = ZOO | SPLIT
    return {name: (make_target(*case, name), case) for name, case in every.items()}


@pytest.fixture(scope="module")
def every() -> dict[str, tuple[Target, Any]]:
    """Traced once."""
    return targets()


@pytest.fixture(scope="module")
def kernels(
    every: dict[str, tuple[Target, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[tuple[str, Kernel]]]:
    """Every variant of every case, emulated; split ones at two settings."""
    wanted = []
    for name, (target, _) in every.items():
        fit = fits(target, GPU)
        assert fit, f"{name}: {fit.reason}"
        for variant, _ in fit.variants:
            source = write(target, GPU, variant)
            lint.check(source, "cuda")
            wanted.append((name, variant, target, source, {}))
            if variant in ("registers", "lanes") and name in ("softmax", "layer_norm", "channel_norm"):
                settings = tune.neighbours(source, tune.defaults(source))
                wanted += [(name, f"{variant} {setting}", target, source, setting) for setting in settings]
    folder = tmp_path_factory.mktemp("emulated")
    built = build_emulated(folder, [(target, source, setting) for _, _, target, source, setting in wanted])
    found: dict[str, list[tuple[str, Kernel]]] = {}
    for (name, variant, *_), kernel in zip(wanted, built, strict=True):
        found.setdefault(name, []).append((variant, kernel))
    return found


@pytest.mark.parametrize("name", [*ZOO, *SPLIT])
def test_emulated_kernel_computes_what_eager_computes(
    kernels: dict[str, list[tuple[str, Kernel]]], every: dict[str, tuple[Target, Any]], name: str
) -> None:
    """Every variant gives eager's results within what the dtype allows."""
    call, inputs = every[name][1]
    for variant, kernel in kernels[name]:
        assert_right(call, inputs, kernel(inputs), f"{name}/{variant}")


def test_long_rows_are_split_over_blocks(every: dict[str, tuple[Target, Any]]) -> None:
    """Few long rows get variants of several launches, a variance needs one launch less, and workspace is asked for."""
    target = every["split_group_norm"][0]
    names = [name for name, _ in fits(target, GPU).variants]
    assert names[:2] == ["split_onepass", "split"]
    counts = {}
    for name in names[:2]:
        source = write(target, GPU, name)
        made = plan.make(source, target, GPU, tune.defaults(source))
        counts[name] = len(made.launches)
        assert made.workspace_bytes > 0
        assert made.launches[0].grid[0] > 1
    assert counts == {"split_onepass": 2, "split": 3}


def nvcc() -> str:
    """The compiler, or skip."""
    try:
        return str(find_nvcc().path)
    except EnvironmentFault as why:
        pytest.skip(str(why))


CHECKED = [
    ("rms_norm_bf16", "sm_90a"), ("softmax_f16_dim1", "sm_90a"), ("split_group_norm", "sm_90a"),
    ("rotary_bf16", "sm_90a"), ("cat_uneven", "sm_90a"), ("max_pool_bf16", "sm_90a"),
    ("floor_mod", "sm_90a"), ("integers", "sm_90a"),
    ("rms_norm_bf16", "sm_80"), ("split_softmax", "sm_80"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arch"), CHECKED)
def test_kernel_compiles_for_the_gpu(
    every: dict[str, tuple[Target, Any]], tmp_path: Path, name: str, arch: str
) -> None:
    """A cubin comes out of nvcc for every variant, with no register spilled."""
    compiler = nvcc()
    target = every[name][0]
    for variant, _ in fits(target, GPU).variants:
        source = write(target, GPU, variant)
        (tmp_path / "k.cu").write_text(source)
        (tmp_path / "forge_target.h").write_text(header.render(target, GPU))
        defines = [f"-D{key}={value}" for key, value in tune.defaults(source).items()]
        done = subprocess.run(
            [compiler, "-cubin", f"-arch={arch}", "-std=c++17", "-Xptxas", "-v", f"-I{tmp_path}", *defines,
             str(tmp_path / "k.cu"), "-o", str(tmp_path / "k.cubin")], capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr[:2000]}\n{source}"
        assert re.findall(r"[1-9]\d* bytes spill", done.stderr) == []


def test_bf16_rows_move_sixteen_bytes_at_once(every: dict[str, tuple[Target, Any]], tmp_path: Path) -> None:
    """The machine code of a bf16 RMSNorm reads and writes 128 bits a time."""
    compiler = Path(nvcc())
    target = every["rms_norm_bf16"][0]
    source = write(target, GPU, "registers")
    (tmp_path / "k.cu").write_text(source)
    (tmp_path / "forge_target.h").write_text(header.render(target, GPU))
    defines = [f"-D{key}={value}" for key, value in tune.defaults(source).items()]
    subprocess.run([str(compiler), "-ptx", "-arch=sm_90a", "-std=c++17", f"-I{tmp_path}", *defines,
                    str(tmp_path / "k.cu"), "-o", str(tmp_path / "k.ptx")], check=True)  # fmt: skip
    text = (tmp_path / "k.ptx").read_text()
    assert re.search(r"ld\.global\.nc\.v4|ld\.global\.nc\.v2\.(u|b)64", text)
    assert re.search(r"st\.global\.v4|st\.global\.v2\.(u|b)64", text)
