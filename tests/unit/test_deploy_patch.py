"""Patching a model: who is served where, and nothing is left behind."""

import copy
import inspect
import io
import pickle
import sys
import threading
import types
from typing import ClassVar

import deploy_functions
import pytest
import torch
import torch.nn.functional as F
from deploy_fakes import FakeKernel, Norm, make_target, module_target, norm_compute
from deploy_functions import Model, Ops, scale, twice
from torch import nn

from forge_tui.core.errors import ModelError
from forge_tui.deploy.patch import Deployable, Patch

X = torch.linspace(-2, 2, 128).view(4, 32)
ORIGINAL_GELU = F.gelu
ORIGINALS = (F.silu, F.softmax, scale, twice, Ops.shift)


@pytest.fixture
def model():
    """The model, and a check that nothing is left behind on it or in the namespaces."""
    torch.manual_seed(0)
    model = Model(Norm).eval().requires_grad_(False)
    before = [dict(vars(m)) for m in model.modules()]
    spaces = [dict(vars(deploy_functions)), dict(vars(F))]
    yield model
    assert [dict(vars(m)) for m in model.modules()] == before
    assert [dict(vars(deploy_functions)), dict(vars(F))] == spaces
    assert (F.silu, F.softmax, scale, twice, Ops.shift) == ORIGINALS
    assert deploy_functions.scale is scale


def norm_item(model, *paths):
    """The norms at these paths with one fake kernel."""
    target = module_target(model, paths[0], X)
    target = type(target)(**{f: getattr(target, f) for f in target.__struct_fields__} | {"instances": tuple(paths)})
    return Deployable(target, FakeKernel(norm_compute))


def function_item(fn, qualname, compute, *args, kind="function", **kwargs):
    """A function with a fake kernel."""
    target = make_target(fn, args, kwargs, kind=kind, qualname=qualname)
    return Deployable(target, FakeKernel(lambda i, o: o[0].copy_(compute(*i))))


def silu_item():
    """`F.silu` with a fake kernel."""
    return function_item(F.silu, "torch.nn.functional:silu", lambda x: x * torch.sigmoid(x), X, kind="torch")


def scale_item():
    """`scale` with a fake kernel."""
    return function_item(scale, "deploy_functions:scale", lambda x: x * 2.0, X)


def test_instances_are_patched_and_no_other_of_the_class(model):
    """One kernel, two instances, and a third norm that is none of them."""
    item = norm_item(model, "first", "second")
    other = Norm().eval().requires_grad_(False)
    wanted = model(X)
    patch = Patch(model, [item])
    patch.install()
    patch.install()
    torch.testing.assert_close(model(X), wanted)
    other(X)
    assert patch.counts(item.target.id) == (2, {})
    assert item.kernel.launches == 2
    assert len(patch.guards(item.target.id)) == 2
    patch.undo()
    model(X)
    assert item.kernel.launches == 2


def test_functions_are_patched_in_every_namespace_that_holds_them(model):
    """The file's own name, an import elsewhere, and a name that another target calls."""
    user = types.ModuleType("forge_test_user")
    user.other_name = scale
    sys.modules["forge_test_user"] = user
    try:
        item = scale_item()
        patch = Patch(model, [item])
        patch.install()
        torch.testing.assert_close(user.other_name(X), X * 2)
        twice(X)
        assert patch.counts(item.target.id) == (3, {})
        user.late = deploy_functions.scale  # imported while deployed
        kept = deploy_functions.scale  # a reference nobody can find
        patch.undo()
        assert user.other_name is ORIGINALS[2]
        assert user.late is ORIGINALS[2]
        kept(X)
        assert item.kernel.launches == 3
        assert kept.__name__ == "scale"
        assert inspect.signature(kept) == inspect.signature(ORIGINALS[2])
    finally:
        del sys.modules["forge_test_user"]


def test_torch_functions_are_replaced_inside_the_model_only(model):
    """By module, by attribute of an instance, by a name imported in the model's file, and inside torch's own layer."""
    item = silu_item()
    wanted = model(X)
    patch = Patch(model, [item])
    patch.install()
    try:
        F.silu(X)
        model.extra(X)
        nn.SiLU()(X)
        assert patch.counts(item.target.id) == (0, {})
        torch.testing.assert_close(model(X), wanted)
        assert patch.counts(item.target.id) == (4, {})
        inner = []

        def elsewhere(*_):
            thread = threading.Thread(target=lambda: inner.append(F.silu(X)))
            thread.start()
            thread.join()

        handle = model.first.register_forward_hook(elsewhere)
        model(X)
        handle.remove()
        assert len(inner) == 1
        assert patch.counts(item.target.id) == (8, {})  # the thread is not inside the model
    finally:
        patch.undo()


def test_a_torch_function_stays_active_after_an_error_only_where_it_should(model):
    """An exception leaves the model's scope."""
    item = silu_item()
    patch = Patch(model, [item])
    patch.install()
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 31))
    F.silu(X)
    assert patch.counts(item.target.id)[0] == 0
    patch.undo()


def test_further_scopes_count_as_the_model(model):
    """A workload may call a child instead of the root."""
    item = silu_item()
    patch = Patch(model, [item], scopes=list(model.children()))
    patch.install()
    model.layer(X)
    assert patch.counts(item.target.id) == (1, {})
    patch.undo()


def test_static_methods_are_patched_and_stay_static(model):
    """`Ops.shift` through the class, and an instance of it."""
    item = function_item(Ops.shift, "deploy_functions:Ops.shift", lambda x: x + 1.0, X)
    before = vars(Ops)["shift"]
    patch = Patch(model, [item], own_modules=["deploy_functions"])
    patch.install()
    torch.testing.assert_close(Ops().shift(X), X + 1)
    model(X)
    assert patch.counts(item.target.id) == (2, {})
    patch.undo()
    assert vars(Ops)["shift"] is before


class Registry:
    """A table of functions by name, as models keep their attention."""

    table: ClassVar[dict] = {"scale": deploy_functions.scale}


def test_functions_of_a_table_are_patched(model):
    """A function that the model looks up in a table is replaced there too, and is back after `undo`."""
    before = Registry.table["scale"]
    item = scale_item()
    patch = Patch(model, [item], own_modules=["deploy_functions"])
    patch.install()
    assert Registry.table["scale"] is not before
    torch.testing.assert_close(Registry.table["scale"](X), X * 2)
    assert patch.counts(item.target.id) == (1, {})
    patch.undo()
    assert Registry.table["scale"] is before


def test_several_signatures_of_one_callable_share_a_patch(model):
    """Each shape goes to its kernel; a third one goes back, counted for those that were asked."""
    small, big = torch.randn(2, 32), torch.randn(4, 32)
    items = []
    for name, value in (("small", small), ("big", big)):
        target = make_target(scale, (value,), kind="function", qualname="deploy_functions:scale", name=name)
        items.append(Deployable(target, FakeKernel(lambda i, o: o[0].copy_(i[0] * 2.0))))
    same_shape = make_target(scale, (big, 3.0), kind="function", qualname="deploy_functions:scale", name="by three")
    items.append(Deployable(same_shape, FakeKernel(lambda i, o: o[0].copy_(i[0] * 3.0))))
    patch = Patch(model, items)
    patch.install()
    call = deploy_functions.scale
    torch.testing.assert_close(call(small), small * 2)
    torch.testing.assert_close(call(big), big * 2)
    torch.testing.assert_close(call(big, 3.0), big * 3)
    torch.testing.assert_close(call(x=big), big * 2)
    assert [patch.counts(i.target.id) for i in items] == [(1, {}), (2, {}), (1, {})]
    call(torch.randn(3, 32))
    call(big, 4.0)
    assert [patch.counts(i.target.id)[1] for i in items] == [
        {"shape": 1}, {"shape": 1, "arguments": 1}, {"arguments": 2}]  # fmt: skip
    patch.undo()


def test_nested_targets_both_work(model):
    """The outer serves; where it gives a call back, the inner serves inside the original."""
    inner = scale_item()
    outer = function_item(twice, "deploy_functions:twice", lambda x: x * 4.0, X)
    patch = Patch(model, [inner, outer])
    patch.install()
    torch.testing.assert_close(deploy_functions.twice(X), X * 4)
    assert (outer.kernel.launches, inner.kernel.launches) == (1, 0)
    with torch.enable_grad():
        y = X.clone().requires_grad_(True)
        deploy_functions.twice(y).sum().backward()
    torch.testing.assert_close(y.grad, torch.full_like(X, 4.0))
    outer.kernel.fail = RuntimeError("broken")
    torch.testing.assert_close(deploy_functions.twice(X), X * 4)
    assert inner.kernel.launches == 2
    assert patch.fault(outer.target.id) == "RuntimeError: broken"
    patch.undo()


def test_a_target_inside_a_module_target_stays_usable(model):
    """A patched child is no change of its parent, and the parent's own fallback uses the child's kernel."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.act = F.silu

        def forward(self, x):
            return self.act(self.norm(x))

    pair = Pair().eval().requires_grad_(False)
    root = nn.Sequential(pair)
    outer = Deployable(module_target(root, "0", X), FakeKernel(
        lambda i, o: o[0].copy_(ORIGINALS[0](Norm.forward(pair.norm, i[0])))))
    inner = Deployable(module_target(root, "0.norm", X), FakeKernel(norm_compute))
    wanted = root(X)
    patch = Patch(root, [outer, inner, silu_item()])
    patch.install()
    torch.testing.assert_close(root(X), wanted)
    assert (outer.kernel.launches, inner.kernel.launches) == (1, 0)
    root(torch.randn(5, 32))
    assert patch.counts(inner.target.id)[1] == {"shape": 1}
    patch.undo()


def test_hooks_run_around_a_deployed_module(model):
    """Pre-hooks change the input, hooks the output, as without a kernel."""
    calls = []
    model.first.register_forward_pre_hook(lambda m, args: calls.append("pre") or (args[0] * 3,))
    model.first.register_forward_hook(lambda m, args, out: calls.append("post") or out + 1)
    wanted = model(X)
    item = norm_item(model, "first")
    patch = Patch(model, [item])
    patch.install()
    torch.testing.assert_close(model(X), wanted)
    assert patch.counts(item.target.id) == (1, {})
    assert calls == ["pre", "post"] * 2
    patch.undo()
    model.first._forward_hooks.clear()
    model.first._forward_pre_hooks.clear()


@pytest.mark.parametrize("way", ["deepcopy", "copy", "pickle", "torch.save"])
def test_copies_and_pickles_are_the_original(model, way):
    """A copy of a deployed model is undeployed and independent of it; functions go by name."""
    items = [norm_item(model, "first", "second"), silu_item(), scale_item()]
    wanted = model(X)
    plain = {name: set(vars(m)) for name, m in model.named_modules()}
    patch = Patch(model, items)
    patch.install()
    if way == "deepcopy":
        other = copy.deepcopy(model)
    elif way == "copy":
        other = copy.copy(model)
    elif way == "pickle":
        data = pickle.dumps(model)
        assert b"forge_tui" not in data
        other = pickle.loads(data)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert set(vars(other)) == plain[""]
    if way != "copy":  # a shallow copy has the same children
        assert {name: set(vars(m)) for name, m in other.named_modules()} == plain
        other.first.eps = 10.0
        other.first.weight.fill_(0.5)
        item = items[0]
        before = patch.counts(item.target.id)[0]
        before_silu = items[1].kernel.launches
        assert not torch.allclose(other(X), wanted)
        assert patch.counts(item.target.id)[0] == before
        assert items[1].kernel.launches == before_silu  # the copy is not the model
    torch.testing.assert_close(model(X), wanted)
    assert patch.counts(items[0].target.id) == (2, {})
    launches = [item.kernel.launches for item in items]
    patch.undo()
    other(X)
    assert [item.kernel.launches for item in items] == launches


def test_functions_in_c_are_pickled_by_the_name_they_were_called_by(model):
    """`F.gelu` is at home in torch's C part; deployed, an instance that holds it can still be pickled."""
    item = function_item(F.gelu, "torch.nn.functional:gelu", ORIGINAL_GELU, X, kind="torch")
    model.second.act = F.gelu
    patch = Patch(model, [item])
    patch.install()
    data = pickle.dumps(model)
    patch.undo()
    assert pickle.loads(data).second.act is ORIGINAL_GELU
    del model.second.act


def test_a_shallow_copy_with_another_number_is_not_served_by_the_kernel(model):
    """It shares the parameters, but its eps is its own."""
    item = norm_item(model, "first")
    patch = Patch(model, [item])
    patch.install()
    other = copy.copy(model.first)
    other.eps = 5.0
    torch.testing.assert_close(other(X), Norm.forward(other, X))
    assert item.kernel.launches == 0
    patch.undo()


def test_code_that_copies_the_dictionary_itself_gets_the_original(model):
    """Second line: a deep copy or pickle of the raw attributes."""
    item = norm_item(model, "first")
    patch = Patch(model, [item])
    patch.install()
    raw = vars(model.first)["forward"]
    assert copy.deepcopy(raw).__func__ is Norm.forward
    assert pickle.loads(pickle.dumps(raw)).__func__ is Norm.forward
    assert inspect.signature(model.first.forward) == inspect.signature(Norm().forward)
    assert model.first.forward.__func__ is Norm.forward
    patch.undo()


def test_an_instance_forward_of_somebody_else_is_kept(model):
    """A wrapper that was there before is the original, and is there again afterwards."""
    calls = []
    plain = model.first.forward

    def theirs(x):
        calls.append(1)
        return plain(x)

    vars(model.first)["forward"] = theirs
    target = make_target(theirs, (X,), module=model.first, instances=["first"], name="theirs")
    item = Deployable(target, FakeKernel(norm_compute))
    patch = Patch(model, [item])
    patch.install()
    calls.clear()
    model.first(X)
    assert item.kernel.launches == 1
    assert calls == []
    model.first(torch.randn(5, 32))
    assert calls == [1]
    patch.undo()
    assert vars(model.first)["forward"] is theirs
    del vars(model.first)["forward"]


def test_what_wraps_a_deployed_forward_later_keeps_working(model):
    """Somebody wraps our forward; undo leaves the wrapper, which now reaches the original."""
    item = norm_item(model, "first")
    patch = Patch(model, [item])
    patch.install()
    ours = model.first.forward
    theirs = lambda x: ours(x) + 1  # noqa: E731
    vars(model.first)["forward"] = theirs
    torch.testing.assert_close(model.first(X), Norm.forward(model.first, X) + 1)
    assert item.kernel.launches == 1
    patch.undo()
    assert vars(model.first)["forward"] is theirs
    torch.testing.assert_close(model.first(X), Norm.forward(model.first, X) + 1)
    assert item.kernel.launches == 1
    del vars(model.first)["forward"]


def test_one_module_under_two_names_is_patched_once():
    """Shared modules are one instance."""
    norm = Norm().eval().requires_grad_(False)
    root = nn.ModuleDict({"a": norm, "b": norm})
    target = module_target(root, "a", X)
    target = type(target)(**{f: getattr(target, f) for f in target.__struct_fields__} | {"instances": ("a", "b")})
    item = Deployable(target, FakeKernel(norm_compute))
    patch = Patch(root, [item])
    patch.install()
    root["b"](X)
    assert patch.counts(item.target.id) == (1, {})
    assert len(patch.guards(item.target.id)) == 1
    patch.undo()
    assert "forward" not in vars(norm)


def test_suspend_and_install_switch_back_and_forth(model):
    """What the gate does between samples."""
    item = norm_item(model, "first")
    patch = Patch(model, [item])
    for _ in range(3):
        patch.install()
        model(X)
        patch.suspend()
        patch.suspend()
        model(X)
    assert item.kernel.launches == 3
    patch.reset()
    assert patch.counts(item.target.id) == (0, {})
    patch.undo()


def test_a_model_that_changed_since_the_profile_is_an_error(model):
    """Neither the module nor the function is there."""
    item = norm_item(model, "first")
    gone = type(item.target)(**{f: getattr(item.target, f) for f in item.target.__struct_fields__}
                             | {"instances": ("third",)})
    with pytest.raises(ModelError, match="no module 'third'"):
        Patch(model, [Deployable(gone, item.kernel)])
    gone = type(item.target)(**{f: getattr(item.target, f) for f in item.target.__struct_fields__}
                             | {"kind": "function", "qualname": "deploy_functions:gone"})
    with pytest.raises(ModelError, match="no function gone"):
        Patch(model, [Deployable(gone, item.kernel)])


def test_a_deployed_model_compiles_to_the_original_graph():
    """torch.compile traces through all three kinds without a break and without a kernel."""
    model = Model(Norm).eval().requires_grad_(False)
    items = [norm_item(model, "first", "second"), silu_item(), scale_item()]
    wanted = model(X)
    patch = Patch(model, items)
    patch.install()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), wanted)
    assert [item.kernel.launches for item in items] == [0, 0, 0]
    patch.undo()
    torch._dynamo.reset()


def test_state_dict_to_and_training_work_on_a_deployed_model(model):
    """Names of parameters are untouched; another dtype and training mode take the originals."""
    names = list(model.state_dict())
    item = norm_item(model, "first", "second")
    patch = Patch(model, [item])
    patch.install()
    assert list(model.state_dict()) == names
    state = {k: v + 0.5 for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    torch.testing.assert_close(model.first(X), Norm.forward(model.first, X))
    model.train()
    model.requires_grad_(True)
    model(X).sum().backward()
    assert model.first.weight.grad is not None
    model.eval().requires_grad_(False).double()
    assert model(X.double()).dtype is torch.float64
    model.float()
    assert patch.counts(item.target.id) == (1, {"training mode": 2, "dtype": 2})
    model.first.weight.grad = model.second.weight.grad = None
    patch.undo()


def test_eight_threads_call_a_deployed_model(model):
    """Every result is right; every call is counted."""
    items = [norm_item(model, "first", "second"), silu_item(), scale_item()]
    wanted = model(X)
    patch = Patch(model, items)
    patch.install()
    wrong = []

    def work():
        wrong.extend(i for i in range(50) if not torch.allclose(model(X), wanted, atol=1e-6))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [patch.counts(i.target.id)[0] for i in items] == [800, 1600, 800]
    patch.undo()
