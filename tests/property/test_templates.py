"""Random expressions through the templates, against torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "compile"))

from template_emulation import GPU, build_emulated
from template_support import CPU, assert_right, build_cpp, make_target

from forge_tui.proposers.templates.proposer import fits, write

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "negated": torch.neg, "square": torch.square,
    "absolute": torch.abs, "exp": lambda x: torch.exp(-x.abs()), "gelu": torch.nn.functional.gelu,
}  # fmt: skip
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum,
    "where": lambda x, y: torch.where(x > 0.1, y, x * 0.5),
}  # fmt: skip
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "swap": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2), "flip": lambda x: x.flip(-1),
    "halves": lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1),
    "flat": lambda x: x.reshape(-1).view(x.shape), "double": lambda x: torch.cat((x, x + 1), 0)[: x.shape[0]],
    "shift": lambda x: torch.cat((x[..., 1:], x[..., :1]), -1),
}  # fmt: skip
REDUCE: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "mean": lambda x, d: x - x.mean(d, keepdim=True), "norm": lambda x, d: x * (x.square().mean(d, True) + 1).rsqrt(),
    "softmax": lambda x, d: torch.exp(x - x.amax(d, True)) / torch.exp(x - x.amax(d, True)).sum(d, True),
    "variance": lambda x, d: (x - x.mean(d, True)) * (x.var(d, correction=0, keepdim=True) + 0.1).rsqrt(),
    "kept": lambda x, d: x.sum(d) * 0.5,
}  # fmt: skip

steps = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY))),
    st.tuples(st.just("binary"), st.sampled_from(sorted(BINARY)), st.integers(0, 2)),
    st.tuples(st.just("move"), st.sampled_from(sorted(MOVES))),
)
programs = st.fixed_dictionaries({
    "shape": st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 17]), min_size=2, max_size=4),
    "before": st.lists(steps, max_size=4),
    "reduce": st.none() | st.tuples(st.sampled_from(sorted(REDUCE)), st.integers(0, 5)),
    "after": st.lists(steps, max_size=3),
    "dtype": st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16]),
    "turned": st.booleans(),
})  # fmt: skip


def case(program: dict[str, Any], seed: int) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """A callable and its inputs: the tensor itself, one that broadcasts along rows, one along columns."""
    generator = torch.Generator().manual_seed(seed)
    shape = program["shape"]

    def make(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(program["dtype"])

    x = make(*shape)
    if program["turned"]:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    inputs = (x, make(shape[-1]), make(*shape[:-1], 1))

    def apply(value: Tensor, step: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> Tensor:
        if step[0] == "unary":
            return UNARY[step[1]](value)
        if step[0] == "move":
            return MOVES[step[1]](value)
        return BINARY[step[1]](value, tensors[step[2]])

    def call(*tensors: Tensor) -> Tensor:
        value = tensors[0] * 1.25
        for step in program["before"]:
            value = apply(value, step, tensors)
        if program["reduce"] is None:
            return value
        name, pick = program["reduce"]
        rank = len(shape)
        dims = [[-1], [0], [rank - 2], list(range(1, rank)), list(range(rank)), [0, rank - 1]][pick]
        value = REDUCE[name](value, dims)
        if name == "kept":
            return value
        for step in program["after"]:
            if step[0] != "move":
                value = apply(value, step, tensors)
        return value

    return call, inputs


@pytest.mark.timeout(240)
def test_random_programs_compute_what_torch_computes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every variant of a batch of random programs is right on the CPU, the CUDA sources under emulation as well."""
    found: list[dict[str, Any]] = []

    @settings(max_examples=40, database=None, derandomize=True, deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(programs)
    def collect(program: dict[str, Any]) -> None:
        found.append(program)

    collect()
    cpu: list[Any] = []
    gpu: list[Any] = []
    fitting = 0
    for seed, program in enumerate(found):
        call, inputs = case(program, seed)
        target = make_target(call, inputs, f"program{seed}")
        for device, wanted in ((CPU, cpu), (GPU, gpu)):
            fit = fits(target, device)
            fitting += bool(fit)
            wanted += [(program, call, inputs, variant, target, write(target, device, variant))
                       for variant, _ in fit.variants]  # fmt: skip
    assert fitting >= 1.8 * len(found) * 0.9, "most random programs fit a template"
    flags = ("-O1", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared")
    kernels = build_cpp(tmp_path_factory.mktemp("cpu"), [(item[4], item[5], {}) for item in cpu], flags)
    kernels += build_emulated(tmp_path_factory.mktemp("gpu"), [(item[4], item[5], {}) for item in gpu])
    for (program, call, inputs, variant, _, source), kernel in zip([*cpu, *gpu], kernels, strict=True):
        try:
            assert_right(call, inputs, kernel(inputs), variant)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{program}\n{source}") from None
