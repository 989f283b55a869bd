"""The guard: the kernel serves the call it was made for, the original every other one, counted by reason."""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from deploy_fakes import FakeKernel, Norm, make_target, norm_compute
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from forge_tui.core.records import LaunchPlan
from forge_tui.deploy.guard import GuardedKernel
from forge_tui.launch.errors import LaunchError


def guard_of(module, *args, plan=None, compute=norm_compute, **kwargs):
    """A guarded fake kernel for this call of the module."""
    target = make_target(module.forward, args, kwargs, module=module)
    kernel = FakeKernel(compute, plan)
    return GuardedKernel(target, kernel, module.forward, module=module), kernel


@pytest.fixture
def norm():
    """A module whose parameters need no gradient."""
    torch.manual_seed(0)
    return Norm().eval().requires_grad_(False)


@pytest.fixture
def x():
    """Its input."""
    torch.manual_seed(1)
    return torch.randn(4, 32)


def reasons(guard):
    """Counts by reason."""
    return guard.counts()[1]


def test_the_call_of_the_signature_is_served(norm, x):
    """Equal values, the signature's strides, and one launch."""
    guard, kernel = guard_of(norm, x)
    with torch.no_grad():
        y = guard(x)
    torch.testing.assert_close(y, norm(x))
    assert y.stride() == (32, 1)
    assert kernel.launches == 1
    assert guard.counts() == (1, {})


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: (torch.randn(5, 32),), "shape"),
        (lambda x: (x.double(),), "dtype"),
        (lambda x: (torch.randn(32, 4).t(),), "strides"),
        (lambda x: (torch.randn(4 * 32 + 1)[1:].view(4, 32),), "alignment"),
        (lambda x: (torch.imag(torch.randn(4, 32, dtype=torch.complex64).conj()),), "layout"),
        (lambda x: (x.to_sparse(),), "layout"),
        (lambda x: (x.to_mkldnn(),), "layout"),
        (lambda x: (x.to("meta"),), "device"),
        (lambda x: (x, 2.0), "arguments"),
        (lambda x: (x, 1), "arguments"),
        (lambda x: (x, True), "arguments"),
        (lambda x: (x, torch.tensor(1.0)), "arguments"),
        (lambda x: (3.0,), "tensor type"),
        (lambda x: (nn.Parameter(x, requires_grad=True),), "needs gradient"),
        (lambda x: (x.as_subclass(type("Marked", (torch.Tensor,), {})),), "tensor subclass"),
    ],
)  # fmt: skip
def test_another_call_goes_to_the_original(norm, x, call, reason):
    """Whatever the original does with it, result or error, happens; the kernel does not run."""
    guard, kernel = guard_of(norm, x)
    args = call(x)

    def outcome(fn):
        try:
            return fn(*args)
        except Exception as error:
            return type(error)

    wanted, got = outcome(norm.forward), outcome(guard)
    if isinstance(wanted, torch.Tensor) and wanted.device.type == "cpu" and wanted.layout is torch.strided:
        torch.testing.assert_close(got, wanted)
        assert got.requires_grad == wanted.requires_grad
    else:
        assert type(got) is type(wanted)
    assert kernel.launches == 0
    assert reasons(guard) == {reason: 1}


def test_the_same_call_written_otherwise_is_served(norm, x):
    """Keyword or position, default left out or given: one call."""
    guard, kernel = guard_of(norm, x)
    for args, kwargs in (((), {"x": x}), ((x, 1.0), {}), ((x,), {"gain": 1.0}), ((), {"gain": 1.0, "x": x})):
        torch.testing.assert_close(guard(*args, **kwargs), norm(x))
    assert kernel.launches == 4
    with pytest.raises(TypeError):
        guard(x, y=1)
    with pytest.raises(TypeError):
        guard()
    assert reasons(guard) == {"arguments": 2}


def test_grad_mode_counts_only_where_something_needs_gradients(norm, x):
    """Grad mode alone is no obstacle; a weight that learns is."""
    guard, kernel = guard_of(norm, x)
    with torch.enable_grad():
        guard(x)
    norm.weight.requires_grad_(True)
    y = guard(x)
    y.sum().backward()
    assert norm.weight.grad is not None
    with torch.no_grad():
        guard(x)
    with torch.inference_mode():
        z = guard(x)
    assert z.is_inference()
    assert kernel.launches == 3
    assert reasons(guard) == {"needs gradient": 1}


def test_autocast_goes_to_the_original(norm, x):
    """Autocast may change the dtypes inside."""
    guard, kernel = guard_of(norm, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guard(x)
    assert kernel.launches == 0
    assert reasons(guard) == {"autocast": 1}


def test_modes_and_transforms_see_the_original(norm, x):
    """Tracing, vmap, forward AD, function and dispatch modes would not see the kernel."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Ignored(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Function(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    guard, kernel = guard_of(norm, x)
    graph = make_fx(lambda t: guard(t))(x)
    assert any("rsqrt" in str(node.target) for node in graph.graph.nodes)
    torch.testing.assert_close(torch.func.vmap(guard)(torch.stack([x, x]))[1], norm(x))
    traced = torch.jit.trace(lambda t: guard(t), (x,), check_trace=False)
    torch.testing.assert_close(traced(2 * x), norm(2 * x))
    with Ignored():
        guard(x)
    with Function():
        guard(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert forward_ad.unpack_dual(guard(dual)).tangent is not None
    assert kernel.launches == 0
    found = reasons(guard)
    assert found.pop("tracing or transform") == 4
    assert found == {"torch function mode": 1, "forward-mode AD": 1}


def test_a_default_device_is_no_obstacle(norm, x):
    """`torch.device` as a context touches factory functions alone."""
    guard, kernel = guard_of(norm, x)
    with torch.device("cpu"):
        guard(x)
    assert kernel.launches == 1


def test_compile_and_export_trace_the_original(norm, x):
    """Under torch.compile the graph is the original's, without a break."""
    guard, kernel = guard_of(norm, x)

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, t):
            return guard(t) + 1

    compiled = torch.compile(guard.__call__, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), norm(x))
    exported = torch.export.export(Holder(), (x,), strict=False)
    torch.testing.assert_close(exported.module()(x), norm(x) + 1)
    assert kernel.launches == 0


def test_weights_are_read_at_call_time(norm, x):
    """Updates in place, by state dict, by assignment and by .data reach the kernel."""
    guard, kernel = guard_of(norm, x)
    with torch.no_grad():
        norm.weight.mul_(2)
        torch.testing.assert_close(guard(x), norm(x))
        norm.load_state_dict({"weight": torch.full((32,), 3.0)})
        torch.testing.assert_close(guard(x), norm(x))
        norm.load_state_dict({"weight": torch.full((32,), 4.0)}, assign=True)
        torch.testing.assert_close(guard(x), norm(x))
        norm.weight = nn.Parameter(torch.full((32,), 5.0))
        torch.testing.assert_close(guard(x), norm(x))
        norm.weight.data = torch.full((32,), 6.0)
        torch.testing.assert_close(guard(x), norm(x))
        swapped = torch.func.functional_call(norm, {"weight": torch.full((32,), 7.0)}, (x,))
        norm.forward = guard
        torch.testing.assert_close(
            torch.func.functional_call(norm, {"weight": torch.full((32,), 7.0)}, (x,)), swapped)
        del norm.forward
    assert kernel.launches == 6


def test_a_moved_or_cast_module_goes_to_the_original(norm, x):
    """.to(float64) changes the weight's dtype; moved back, the kernel serves again."""
    guard, kernel = guard_of(norm, x)
    norm.double()
    assert guard(x.double()).dtype is torch.float64
    norm.float()
    guard(x)
    assert kernel.launches == 1
    assert reasons(guard) == {"dtype": 1}


def _add_hooked_child(m):
    m.extra = nn.Identity()


def _parametrize(m):
    nn.utils.parametrize.register_parametrization(m, "weight", nn.Identity())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: setattr(m, "eps", 0.5), "attributes"),
        (lambda m: setattr(m, "eps", 0), "attributes"),
        (lambda m: m.train(), "training mode"),
        (lambda m: m.register_parameter("bias", nn.Parameter(torch.ones(32), requires_grad=False)), "module structure"),
        (lambda m: m.register_buffer("scale", torch.ones(32)), "module structure"),
        (_add_hooked_child, "module structure"),
        (_parametrize, "module structure"),
        (lambda m: setattr(m, "__class__", type("Other", (Norm,), {})), "module structure"),
    ],
)  # fmt: skip
def test_a_changed_module_goes_to_the_original(norm, x, change, reason):
    """What the kernel has baked in is looked at in every call."""
    guard, kernel = guard_of(norm, x)
    guard(x)
    change(norm)
    torch.testing.assert_close(guard(x), norm.forward(x))
    assert kernel.launches == 1
    assert reasons(guard) == {reason: 1}


def test_an_equal_number_under_another_object_is_still_served(norm, x):
    """The value counts, not the object."""
    guard, kernel = guard_of(norm, x)
    norm.eps = float("1e-6")
    guard(x)
    assert kernel.launches == 1


def test_an_instance_that_never_fitted_is_never_served(x):
    """The signature's eps is not that of this instance."""
    target = make_target(Norm().eval().requires_grad_(False).forward, (x,), module=Norm().eval())
    other = Norm(eps=0.1).eval().requires_grad_(False)
    kernel = FakeKernel(norm_compute)
    guard = GuardedKernel(target, kernel, other.forward, module=other)
    torch.testing.assert_close(guard(x), other(x))
    assert reasons(guard) == {"attributes": 1}


class Block(nn.Module):
    """A layer with children, a function as attribute, and a tied weight."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(32, 32)
        self.two = nn.Linear(32, 32)
        self.two.weight = self.one.weight
        self.drop = nn.Dropout(0.5)
        self.act = F.relu

    def forward(self, x):
        return self.drop(self.act(self.two(self.act(self.one(x)))))


def block_compute(inputs, outputs):
    """By the order of the signature: x, one.bias, one.weight, two.bias."""
    x, bias_one, weight, bias_two = inputs
    outputs[0].copy_(F.relu(F.linear(F.relu(F.linear(x, weight, bias_one)), weight, bias_two)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.drop.train(), "training mode"),
        (lambda m: m.one.register_forward_hook(lambda *_: None), "hooks"),
        (lambda m: m.two.register_forward_pre_hook(lambda *_: None), "hooks"),
        (lambda m: setattr(m, "act", F.gelu), "attributes"),
        (lambda m: setattr(m, "one", nn.Linear(32, 32).requires_grad_(False)), "module structure"),
        (lambda m: setattr(m, "drop", nn.Identity()), "module structure"),
        (lambda m: setattr(m.two, "weight", nn.Parameter(torch.ones(32, 32), requires_grad=False)), "weight tying"),
        (lambda m: vars(m.one).__setitem__("forward", lambda t: t), "module structure"),
        (lambda m: setattr(m.one, "bias", None), "tensor type"),
    ],
)  # fmt: skip
def test_a_change_inside_a_target_with_children_goes_to_the_original(x, change, reason):
    """Adapters that replace children, hooks on children, an untied weight: the kernel knows none of them."""
    torch.manual_seed(0)
    block = Block().eval().requires_grad_(False)
    guard, kernel = guard_of(block, x, compute=block_compute)
    torch.testing.assert_close(guard(x), block(x))
    change(block)
    torch.manual_seed(2)
    got = guard(x)
    torch.manual_seed(2)
    torch.testing.assert_close(got, block.forward(x))
    assert kernel.launches == 1
    assert reasons(guard) == {reason: 1}


def test_a_global_hook_concerns_targets_with_children(norm, x):
    """Global hooks run for every module; the target's own still run around it."""
    block = Block().eval().requires_grad_(False)
    guard, kernel = guard_of(block, x, compute=block_compute)
    leaf, leaf_kernel = guard_of(norm, x)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        guard(x)
        leaf(x)
    finally:
        handle.remove()
    assert (kernel.launches, leaf_kernel.launches) == (0, 1)
    assert reasons(guard) == {"hooks": 1}


def test_a_class_patched_later_wins(norm, x, monkeypatch):
    """Somebody replaces the class's forward after deployment: the kernel is of the old one."""
    guard, kernel = guard_of(norm, x)
    monkeypatch.setattr(Norm, "forward", lambda self, x, gain=1.0: x)
    guard(x)
    assert kernel.launches == 0
    assert reasons(guard) == {"module structure": 1}


def test_a_failed_launch_goes_to_the_original_and_disables_the_kernel(norm, x):
    """The model gets its result; the kernel is off and says why."""
    guard, kernel = guard_of(norm, x)
    kernel.fail = LaunchError("forge_launch returned 3; 0 means success.", returned=3)
    torch.testing.assert_close(guard(x), norm(x))
    kernel.fail = None
    torch.testing.assert_close(guard(x), norm(x))
    assert kernel.launches == 0
    assert reasons(guard) == {"launch failed": 1, "kernel disabled": 1}
    assert guard.fault == "LaunchError: forge_launch returned 3; 0 means success."


def test_workspaces_belong_to_one_thread(norm, x):
    """Each thread has one of its own, used again in its next call, and freed on release."""
    guard, kernel = guard_of(norm, x, plan=LaunchPlan(workspace_bytes=64))

    def twice():
        guard(x)
        guard(x)

    twice()
    thread = threading.Thread(target=twice)
    thread.start()
    thread.join()
    a, b, c, d = (w.data_ptr() for w in kernel.workspaces)
    assert a == b
    assert c == d
    assert a != c
    assert kernel.workspaces[0].numel() == 64
    guard.release()
    guard(x)
    assert kernel.workspaces[4].data_ptr() != a


def test_results_are_put_together_as_the_original_does():
    """Passed-through inputs, None, constants, one tensor twice, in a tuple with a dictionary."""

    def fn(x, y):
        a = x + y
        return a, {"same": a, "in": x, "none": None, "list": [1, y * 2]}

    def compute(inputs, outputs):
        outputs[0].copy_(inputs[0] + inputs[1])
        outputs[1].copy_(inputs[1] * 2)

    x, y = torch.randn(3), torch.randn(3)
    kernel = FakeKernel(compute)
    guard = GuardedKernel(make_target(fn, (x, y), kind="function"), kernel, fn)
    a, rest = guard(x, y)
    torch.testing.assert_close(a, x + y)
    assert rest["same"] is a
    assert rest["in"] is x
    assert rest["none"] is None
    assert rest["list"][0] == 1
    torch.testing.assert_close(rest["list"][1], y * 2)
    assert kernel.launches == 1
    assert guard(x, y)[1]["list"] is not rest["list"]


def test_constants_of_every_kind_are_compared():
    """Signed zeros, NaN, dtypes, devices, slices, sizes, nested containers."""

    def fn(x, pair=(1, 2), *, zero=0.0, nan=float("nan"), dtype=torch.float32, device=None,
           where=slice(0, 2), size=None):
        return x.to(dtype) + 1

    x = torch.randn(3)
    good = {"zero": 0.0, "nan": float("nan"), "dtype": torch.float32, "device": torch.device("cpu"),
            "where": slice(0, 2), "size": torch.Size([2, 3])}
    kernel = FakeKernel(lambda inputs, outputs: outputs[0].copy_(inputs[0] + 1))
    guard = GuardedKernel(make_target(fn, (x,), good, kind="function"), kernel, fn)
    guard(x, **good)
    assert kernel.launches == 1
    bad = [{"zero": -0.0}, {"zero": 0}, {"nan": 1.0}, {"dtype": torch.float64}, {"device": None},
           {"where": slice(0, 3)},
           {"device": torch.device("meta")}, {"size": torch.Size([3, 2])}, {"size": (2, 3)}, {"pair": [1, 2]},
           {"pair": (1, 2.0)}, {"pair": (1, 2, 3)}]
    for change in bad:
        guard(x, **(good | change))
    assert kernel.launches == 1
    assert reasons(guard) == {"arguments": len(bad)}


def test_tensors_in_containers_are_found_and_checked():
    """A list and a dictionary of tensors are inputs like others."""

    def fn(pair, named):
        return pair[0] + pair[1] * named["z"]

    x, y, z = torch.randn(3), torch.randn(3), torch.randn(3)
    kernel = FakeKernel(lambda i, o: o[0].copy_(i[0] + i[1] * i[2]))
    guard = GuardedKernel(make_target(fn, ([x, y], {"z": z}), kind="function"), kernel, fn)
    torch.testing.assert_close(guard([x, y], {"z": z}), x + y * z)
    assert kernel.launches == 1
    guard((x, y), {"z": z})
    guard([x, y], {"z": z, "w": z})
    guard([x, y[:1]], {"z": z})
    guard([x, 2.0], {"z": z})
    assert kernel.launches == 1
    assert reasons(guard) == {"arguments": 3, "shape": 1}


SCALE = 2.0


def uses_global(x):
    """Reads a number of its module."""
    return x * SCALE


def test_a_global_that_changes_goes_to_the_original(monkeypatch):
    """A number of the function's module is baked into the kernel."""
    x = torch.randn(3)
    kernel = FakeKernel(lambda i, o: o[0].copy_(i[0] * 2.0))
    guard = GuardedKernel(make_target(uses_global, (x,), kind="function"), kernel, uses_global)
    guard(x)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    torch.testing.assert_close(guard(x), x * 3.0)
    assert kernel.launches == 1
    assert reasons(guard) == {"globals": 1}


def test_closure_tensors_are_read_at_call_time():
    """A tensor of the enclosing function is an input; a number there is a constant."""

    def make(table, factor):
        def fn(x):
            return x + table * factor

        def change(t, f):
            nonlocal table, factor
            table, factor = t, f

        return fn, change

    table = torch.randn(3)
    fn, change = make(table, 2.0)
    x = torch.randn(3)
    target = make_target(fn, (x,), kind="function", closure={"table": table})
    kernel = FakeKernel(lambda i, o: o[0].copy_(i[0] + i[1] * 2.0))
    guard = GuardedKernel(target, kernel, fn)
    torch.testing.assert_close(guard(x), x + table * 2)
    other = torch.randn(3)
    change(other, 2.0)
    torch.testing.assert_close(guard(x), x + other * 2)
    change(other, 3.0)
    torch.testing.assert_close(guard(x), x + other * 3)
    assert kernel.launches == 2
    assert reasons(guard) == {"globals": 1}


def test_eight_threads_get_right_results_and_no_call_is_lost(norm, x):
    """Counts of threads that ended stay; every result is right whatever the others do."""
    guard, kernel = guard_of(norm, x, plan=LaunchPlan(workspace_bytes=256))

    def compute(inputs, outputs):
        norm_compute(inputs, outputs)

    kernel.compute = compute
    wanted = {n: norm(torch.ones(n, 32)) for n in (4, 5)}
    failures = []

    def work(seed):
        for i in range(100):
            n = 4 if (i + seed) % 4 else 5
            if not torch.equal(guard(torch.ones(n, 32)), wanted[n]):
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del thread, threads
    gc.collect()
    assert failures == []
    assert guard.counts() == (600, {"shape": 200})
    guard.reset()
    assert guard.counts() == (0, {})


def test_many_ways_of_writing_a_call_do_not_fill_memory(norm, x):
    """The forms that are kept are bounded, and calls beyond them still come out right."""
    guard, _ = guard_of(norm, x)
    for i in range(200):
        with pytest.raises(TypeError):
            guard(x, **{f"k{i}": 1})
    assert len(guard._forms) <= 64
    torch.testing.assert_close(guard(x), norm(x))
