"""Random sequences of calls, states and modes: a deployed model answers as the original does."""

import copy

import torch
from deploy_fakes import FakeKernel, Norm, module_target, norm_compute
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from forge_tui.deploy.patch import Deployable, Patch

SHAPES = [(4, 32), (2, 32), (4, 2, 32), (32,), (0, 32)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
LAYOUTS = ["plain", "transposed", "offset", "sliced", "expanded", "negated"]


def make_input(shape, dtype, layout, seed):
    """A tensor of this kind, equal for equal arguments."""
    generator = torch.Generator().manual_seed(seed)
    numel = 1
    for n in shape:
        numel *= n
    base = torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype).view(shape)
    if layout == "transposed" and len(shape) > 1:
        return base.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "offset":
        room = torch.empty(numel + 1, dtype=dtype)
        room[1:] = base.reshape(-1)
        return room[1:].view(shape)
    if layout == "sliced":
        room = torch.zeros((*shape[:-1], 2 * shape[-1]), dtype=dtype)
        room[..., ::2] = base
        return room[..., ::2]
    if layout == "expanded" and shape[0]:
        return base[:1].expand(shape)
    if layout == "negated" and dtype is not torch.bfloat16:
        return torch.complex(base, -base).conj().imag
    return base


calls = st.tuples(
    st.sampled_from(["call"]), st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.sampled_from(LAYOUTS),
    st.integers(0, 3), st.sampled_from(["grad", "no_grad", "inference", "autocast", "input_grad"]),
    st.sampled_from([None, 1.0, 2.0, 1]),
)  # fmt: skip
changes = st.tuples(
    st.sampled_from(["eps", "train", "eval", "weight", "requires_grad", "frozen", "double", "float", "hook", "unhook",
                     "suspend", "install", "assign", "fail"])
)  # fmt: skip
steps = st.lists(st.one_of(calls, calls, changes), min_size=1, max_size=12)


def build():
    """A norm inside a root, equal at every call."""
    torch.manual_seed(0)
    return nn.Sequential(Norm(), nn.Identity()).eval().requires_grad_(False)


def change(root, what):
    """One change of the model's state."""
    norm = root[0]
    match what:
        case "eps":
            norm.eps = 0.5 if norm.eps == 1e-6 else 1e-6
        case "train" | "eval":
            root.train(what == "train")
        case "weight":
            with torch.no_grad():
                norm.weight.mul_(1.25)
        case "requires_grad" | "frozen":
            norm.requires_grad_(what == "requires_grad")
        case "double" | "float":
            root.to(torch.float64 if what == "double" else torch.float32)
        case "hook":
            norm.register_forward_hook(lambda m, args, out: out + 1)
        case "unhook":
            norm._forward_hooks.clear()
        case "assign":
            norm.weight = nn.Parameter(norm.weight.detach() + 0.5, requires_grad=norm.weight.requires_grad)


def call(norm, shape, dtype, layout, seed, mode, gain):
    """The result of a call, or the kind of its error."""
    x = make_input(shape, dtype, layout, seed)
    if mode == "input_grad":
        x = x.detach().requires_grad_(True)
    args = (x,) if gain is None else (x, gain)
    context = {
        "grad": torch.enable_grad, "input_grad": torch.enable_grad, "no_grad": torch.no_grad,
        "inference": torch.inference_mode, "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }[mode]  # fmt: skip
    try:
        with context():
            y = norm(*args)
    except Exception as error:
        return type(error), None
    grad = None
    if y.requires_grad and mode == "input_grad":
        y.sum().backward()
        grad = x.grad
    return y, grad


@settings(max_examples=100, deadline=None)
@given(steps)
def test_a_deployed_model_answers_as_the_original_in_any_state(sequence):
    """Value, dtype, strides, gradient and errors are those of a twin without a kernel."""
    twin, root = build(), build()
    target = module_target(root, "0", make_input((4, 32), torch.float32, "plain", 0))
    kernel = FakeKernel(norm_compute)
    patch = Patch(root, [Deployable(target, kernel)])
    patch.install()
    total = 0
    for step in sequence:
        if step[0] in ("suspend", "install"):
            getattr(patch, step[0])()
        elif step[0] == "fail":
            kernel.fail = RuntimeError("broken")
        elif step[0] == "call":
            (wanted, wanted_grad), (got, grad) = call(twin[0], *step[1:]), call(root[0], *step[1:])
            total += patch.installed
            if not isinstance(wanted, torch.Tensor):
                assert got is wanted
                continue
            torch.testing.assert_close(got, wanted)
            assert got.dtype is wanted.dtype
            assert got.stride() == wanted.stride()
            assert got.requires_grad == wanted.requires_grad
            assert got.is_inference() == wanted.is_inference()
            if wanted_grad is not None:
                torch.testing.assert_close(grad, wanted_grad)
        else:
            change(twin, step[0])
            change(root, step[0])
    served, fallbacks = patch.counts(target.id)
    assert served == kernel.launches
    assert served + sum(fallbacks.values()) == total
    patch.undo()
    assert "forward" not in vars(root[0])
    assert "__getstate__" not in vars(root[0])


@settings(max_examples=40, deadline=None)
@given(calls)
def test_only_the_call_of_the_signature_is_served(step):
    """The kernel runs exactly where shape, dtype, strides, alignment, mode and constants are the signature's."""
    _, shape, dtype, layout, seed, mode, gain = step
    root = build()
    target = module_target(root, "0", make_input((4, 32), torch.float32, "plain", 0))
    kernel = FakeKernel(norm_compute)
    patch = Patch(root, [Deployable(target, kernel)])
    patch.install()
    call(root[0], shape, dtype, layout, seed, mode, gain)
    x = make_input(shape, dtype, layout, seed)
    fits = (
        shape == (4, 32) and dtype is torch.float32 and x.stride() == (32, 1) and x.data_ptr() % 16 == 0
        and not x.is_neg() and mode in ("grad", "no_grad", "inference") and (gain is None or type(gain) is float)
        and gain in (None, 1.0)
    )  # fmt: skip
    assert kernel.launches == int(fits)
    patch.undo()


def test_the_strategies_reach_the_kernel():
    """The plain call is served, so that the properties above are not about the original alone."""
    root = build()
    target = module_target(root, "0", make_input((4, 32), torch.float32, "plain", 0))
    kernel = FakeKernel(norm_compute)
    patch = Patch(root, [Deployable(target, kernel)])
    patch.install()
    call(root[0], (4, 32), torch.float32, "plain", 1, "no_grad", None)
    copy.deepcopy(root)
    assert kernel.launches == 1
    patch.undo()
