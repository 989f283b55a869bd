"""Template kernels for the CPU: compiled by g++, called, compared with eager and with float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from template_support import CPU, assert_right, build_cpp, make_target, results
from template_zoo import cases, declined

from forge_tui.contract import tune
from forge_tui.proposers.templates.proposer import fits, write

ZOO = cases()
DECLINED = declined()
Kernel = Callable[[Any], list[torch.Tensor]]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, Kernel]]]:
    """Every variant of every case, built."""
    wanted = []
    for name, (call, inputs) in ZOO.items():
        target = make_target(call, inputs, name)
        fit = fits(target, CPU)
        assert fit, f"{name}: {fit.reason}"
        wanted += [(name, variant, target, write(target, CPU, variant)) for variant, _ in fit.variants]
    built = build_cpp(tmp_path_factory.mktemp("zoo"), [(target, source, {}) for _, _, target, source in wanted],
                      flags=("-O2", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared"))  # fmt: skip
    found: dict[str, list[tuple[str, Kernel]]] = {}
    for (name, variant, _, _), kernel in zip(wanted, built, strict=True):
        found.setdefault(name, []).append((variant, kernel))
    return found


@pytest.mark.parametrize("name", ZOO)
def test_kernel_computes_what_eager_computes(kernels: dict[str, list[tuple[str, Kernel]]], name: str) -> None:
    """Every variant gives eager's results within what the dtype allows."""
    call, inputs = ZOO[name]
    before = [t.clone() for t in inputs]
    for variant, kernel in kernels[name]:
        assert_right(call, inputs, kernel(inputs), f"{name}/{variant}")
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(before, inputs, strict=True))


def test_kernels_read_their_inputs_again(kernels: dict[str, list[tuple[str, Kernel]]]) -> None:
    """Other data in the same buffers gives other results: nothing is remembered or baked in."""
    for name in ("rms_norm", "rotary", "max_pool"):
        call, inputs = ZOO[name]
        fresh = [torch.randn_like(t) for t in inputs]
        fresh = [torch.empty_strided(t.shape, o.stride()).copy_(t) for t, o in zip(fresh, inputs, strict=True)]
        for variant, kernel in kernels[name]:
            assert_right(call, fresh, kernel(fresh), f"{name}/{variant}")


@pytest.mark.parametrize("name", DECLINED)
def test_graph_that_does_not_fit_is_declined_with_a_reason(name: str) -> None:
    """What the templates cannot do well is said, not tried."""
    (call, inputs), reason = DECLINED[name]
    fit = fits(make_target(call, inputs, name), CPU)
    assert not fit
    assert reason in fit.reason


def test_every_tunable_value_is_right(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each neighbour setting of a few kernels computes the same results; long rows are split and blocked."""
    torch.manual_seed(1)
    several = {
        "softmax_columns": (lambda x: torch.softmax(x, 0), (torch.randn(70, 100),)),
        "sum_all": (lambda x: x.double().square().sum().float(), (torch.randn(300, 1001),)),
        "long_mean": (lambda x: x - x.mean(-1, keepdim=True), (torch.randn(2, 40_000) + 3,)),
        "chain": (lambda x: torch.relu(x) * 2, (torch.randn(10_000),)),
    }
    wanted = []
    for name, (call, inputs) in several.items():
        target = make_target(call, inputs, name)
        for variant, _ in fits(target, CPU).variants:
            source = write(target, CPU, variant)
            settings = tune.neighbours(source, tune.defaults(source))
            assert settings
            wanted += [(name, variant, target, source, setting) for setting in settings if "GRAIN" not in setting
                       or setting["GRAIN"] in (4096, 16384)]  # fmt: skip
    built = build_cpp(tmp_path_factory.mktemp("tune"), [(t, source, setting) for _, _, t, source, setting in wanted],
                      flags=("-O1", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared"))  # fmt: skip
    for (name, variant, _, _, setting), kernel in zip(wanted, built, strict=True):
        call, inputs = several[name]
        assert_right(call, inputs, kernel(inputs), f"{name}/{variant} {setting}")


def test_outputs_are_written_whole_and_nothing_else(kernels: dict[str, list[tuple[str, Kernel]]]) -> None:
    """Bytes around an output keep their values, and every element of it is written."""
    call, inputs = ZOO["cat_uneven"]
    (want,) = results(call, inputs)
    room = torch.full((want.numel() + 128,), 7.5)
    inside = room[64 : 64 + want.numel()].view(want.shape)
    for _, kernel in kernels["cat_uneven"]:
        room.fill_(7.5)
        kernel(inputs, [inside])  # type: ignore[call-arg]
        assert torch.equal(inside, want)
        assert torch.cat((room[:64], room[-64:])).eq(7.5).all()
