"""The quick check of tensors: trusted only after it was tried out, and right without it."""

import pytest
import torch
from deploy_fakes import FakeKernel, Norm, make_target, norm_compute

from forge_tui.deploy import quick
from forge_tui.deploy.guard import GuardedKernel


@pytest.fixture
def fresh():
    """The trial is made anew before and after."""
    quick._trusted.cache_clear()
    yield
    quick._trusted.cache_clear()


def test_this_torch_has_a_check_that_tells_apart_what_it_must(fresh):
    """The trial passes here; equal tensors pass, others do not."""
    check = quick.same_kind([torch.zeros(2, 3)])
    assert check is not None
    assert check(torch.ones(2, 3))
    assert not check(torch.ones(3, 2))


@pytest.mark.parametrize("answer", [lambda *_: True, lambda *_: False, None])
def test_a_check_that_answers_otherwise_is_not_used(fresh, monkeypatch, answer):
    """One that always says yes is the dangerous one: without trust every call is compared in Python."""
    monkeypatch.setattr(quick, "_make", lambda tensors: answer)
    assert quick.same_kind([torch.zeros(2)]) is None
    norm = Norm().eval().requires_grad_(False)
    x = torch.randn(4, 32)
    kernel = FakeKernel(norm_compute)
    guard = GuardedKernel(make_target(norm.forward, (x,), module=norm), kernel, norm.forward, module=norm)
    for _ in range(3):
        torch.testing.assert_close(guard(x), norm(x))
        torch.testing.assert_close(guard(x[:2]), norm(x[:2]))
    assert guard.counts() == (3, {"shape": 3})


def test_alternating_modes_do_not_make_a_check_at_every_call():
    """Inference tensors are other ones to torch's check; both are served, and the making is bounded."""
    norm = Norm().eval().requires_grad_(False)
    x = torch.randn(4, 32)
    kernel = FakeKernel(norm_compute)
    guard = GuardedKernel(make_target(norm.forward, (x,), module=norm), kernel, norm.forward, module=norm)
    for _ in range(12):
        with torch.no_grad():
            guard(x)
        with torch.inference_mode():
            guard(x)
    assert guard.counts() == (24, {})
    assert guard._quick_left == 0
