"""Stand-ins have the form of what they replace, cost its floor, leave no trace, and show what the model would gain."""

import contextlib
import functools
import inspect
import sys
import time

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from what_if_support import (
    loaded_model,
    module_with,
    norm_target,
    rotate_target,
    softmax_target,
    target_of,
    write_model,
)

from forge_tui.core.errors import ModelError, UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Profile, WhatIf
from forge_tui.core.records import Ceilings, Device, TensorSpec
from forge_tui.models.phases import Phase
from forge_tui.profiler import client
from forge_tui.profiler.experiments.costs import Counter, make_produce, opaque
from forge_tui.profiler.experiments.replacing import StandIns
from forge_tui.profiler.experiments.standins import Unreplaceable, make_stand_in
from forge_tui.profiler.experiments.ways import calls_module, fresh
from forge_tui.profiler.experiments.whatif import WhatIfBench, what_if

CPU = torch.device("cpu")
TRACED = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)


def counted(target, original, *, device=CPU):
    """A stand-in for the target, and the counter of the calls that it served."""
    counter = Counter()
    produce = make_produce([o.spec for o in target.signature.outputs], target.floor_us, device, counter)
    return make_stand_in(target.signature, original, produce, site=1, device=device), counter


def functions(**given):
    """Qualified names of functions put into a Python module of their own."""
    module_with("forge_what_if_functions", **given)
    return {name: f"forge_what_if_functions:{name}" for name in given}


@pytest.fixture(autouse=True)
def _forget():
    yield
    sys.modules.pop("forge_what_if_functions", None)
    torch._dynamo.reset()


def several(x, *, flag=True, pair=(1, 2.5)):
    """Outputs in containers: strided, integer, bool, 0-dim, passed through, and plain values."""
    values, order = x.transpose(0, 1).contiguous().transpose(0, 1).sort(-1)
    return {"sorted": (values.mT.contiguous().mT, order), "same": x, "none": None, "flag": flag, "size": x.shape,
            "rest": [x.sum(), x > 0]}  # fmt: skip


def test_outputs_have_the_form_of_the_originals():
    """Shapes, dtypes, strides, containers, None, plain values and passed-through inputs are those of the original."""
    name = functions(several=several)["several"]
    x = torch.randn(4, 6)
    target = target_of(name, (x,))
    stand_in, counter = counted(target, several)
    want, have = several(x), stand_in(x)
    assert counter.calls == 1
    assert have.keys() == want.keys()
    assert have["same"] is x
    assert (have["none"], have["flag"], have["size"]) == (None, True, torch.Size([4, 6]))
    tensors = lambda found: [*found["sorted"], *found["rest"]]  # noqa: E731
    for a, b in zip(tensors(have), tensors(want), strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        assert not a.any()
    assert want["sorted"][0].stride() == (1, 4)
    assert type(have["sorted"]) is tuple
    assert type(have["rest"]) is list


def test_only_calls_of_the_signature_are_replaced():
    """Other shapes, dtypes, constants, structures and numbers of arguments reach the original with all they hold."""

    def scaled(x, factor, rest, *more, mode="a", bias=None, **named):
        return x * 2 + 1

    name = functions(scaled=scaled)["scaled"]
    x = torch.randn(2, 3)
    args, kwargs = (x, 0.5, [x, {"k": x}], 7), {"mode": "b", "extra": None}
    target = target_of(name, args, kwargs)
    seen = []
    stand_in, counter = counted(target, functools.wraps(scaled)(lambda *a, **k: seen.append((a, k))))
    stand_in(*args, **kwargs)
    stand_in(x, 0.5, [x + 1, {"k": x}], 7, extra=None, mode="b")
    assert (counter.calls, seen) == (2, [])
    others = [
        ((torch.randn(3, 3), *args[1:]), kwargs), ((x.double(), *args[1:]), kwargs), ((None, *args[1:]), kwargs),
        ((x, 0.25, *args[2:]), kwargs), ((x, 1, *args[2:]), kwargs), ((x, x, *args[2:]), kwargs),
        ((x, 0.5, (x, {"k": x}), 7), kwargs), ((x, 0.5, [x], 7), kwargs), ((x, 0.5, [x, {"j": x}], 7), kwargs),
        (args[:3], kwargs), ((*args, 8), kwargs), (args, {"mode": "b"}), (args, {"mode": "b", "other": None}),
        (args, {**kwargs, "mode": "c"}), (args, {**kwargs, "bias": x}), (args, {**kwargs, "more": 1}),
    ]  # fmt: skip
    for number, (given, named) in enumerate(others, 1):
        stand_in(*given, **named)
        assert (counter.calls, len(seen)) == (2, number), (given, named)
        passed, passed_named = seen[-1]
        bound = inspect.signature(scaled).bind(*given, **named)
        bound.apply_defaults()
        again = inspect.signature(scaled).bind(*passed, **passed_named)
        again.apply_defaults()
        assert repr(again.arguments) == repr(bound.arguments)
    with pytest.raises(TypeError):
        stand_in()


def test_functions_without_a_python_signature():
    """A function in C takes the call as it was captured; written otherwise it reaches the original."""
    x = torch.randn(4, 4)
    target = target_of("torch.nn.functional:gelu", (x,), {"approximate": "tanh"})
    stand_in, counter = counted(target, F.gelu)
    assert not stand_in(x, approximate="tanh").any()
    assert torch.equal(stand_in(x), F.gelu(x))
    assert counter.calls == 1


def test_tensors_in_containers_that_are_not_known():
    """A target whose arguments cannot be looked into is refused with the reason."""
    target = norm_like(call={"tuple": [{"tuple": [{"box": [{"in": 0}]}]}, {"dict": {}}]})
    with pytest.raises(Unreplaceable, match="it takes tensors inside of a box"):
        counted(target, lambda x: x)
    target = norm_like(result={"in": 0}, call={"tuple": [{"tuple": []}, {"dict": {}}]})
    with pytest.raises(Unreplaceable, match="gives a tensor back that is no argument"):
        counted(target, lambda: None)


def norm_like(**changes):
    """A target with parts of its signature replaced."""
    target = target_of(functions(double=lambda x: x * 2)["double"], (torch.ones(2),))
    return msgspec.structs.replace(target, signature=msgspec.structs.replace(target.signature, **changes))


def test_a_stand_in_takes_the_floor():
    """The wait holds the zeroing of the outputs, and a floor of 0 waits for nothing."""
    spec = TensorSpec(shape=(4, 4), dtype="float32", strides=(4, 1))
    for count in (1, 2):
        produce = make_produce([spec] * count, 3000.0, CPU, Counter())
        start = time.perf_counter()
        produce([], 0)
        assert 0.003 <= time.perf_counter() - start < 0.2


def test_everything_is_put_in_place_and_taken_out_again(tmp_path):
    """Instances, namespaces, tables and torch's functions are replaced inside the block only, also after an error."""
    loaded = loaded_model(tmp_path)
    source, layer = vars(loaded.source), loaded.module.layers[0]
    own = layer.norm.forward
    layer.norm.forward = own
    rotate, softmax, torchs = source["rotate"], source["softmax"], torch.softmax
    x = loaded.phases[0].args[0]
    before = loaded.run()
    targets = [norm_target(loaded), rotate_target(loaded), softmax_target()]
    stand_ins = StandIns(loaded, targets)
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError), stand_ins.active():
            assert source["rotate"] is source["TABLE"]["rotate"] is not rotate
            assert source["softmax"] is F.softmax is not softmax
            assert torch.softmax is torchs
            assert "forward" in vars(loaded.module.layers[1].norm)
            loaded.run()
            raise ZeroDivisionError
    assert stand_ins.counter.calls == 2 * 2 * 3
    assert source["rotate"] is source["TABLE"]["rotate"] is rotate
    assert source["softmax"] is F.softmax is softmax
    assert vars(layer.norm)["forward"] is own
    assert "forward" not in vars(loaded.module.layers[1].norm)
    assert torch.equal(loaded.run(), before)
    assert x is loaded.phases[0].args[0]


def test_several_signatures_of_one_callable(tmp_path):
    """One instance with two targets serves both, and gives every other call to the original."""
    loaded = loaded_model(tmp_path)
    norm = loaded.module.layers[0].norm
    targets = [
        target_of("m:Norm", (torch.randn(*shape),), module=norm, instances=("layers.0.norm",), name=f"n{i}")
        for i, shape in enumerate([(3, 8), (4, 8)])
    ]
    stand_ins = StandIns(loaded, targets)
    with stand_ins.active(), torch.no_grad():
        assert not norm(torch.randn(3, 8)).any()
        assert not norm(torch.randn(4, 8)).any()
        assert norm(torch.randn(5, 8)).any()
    assert stand_ins.counter.calls == 2


def test_nested_targets_together(tmp_path):
    """Replaced together, the outer one wins: what runs inside of it is not called at all."""
    loaded = loaded_model(tmp_path)
    layer = target_of("m:Layer", (torch.randn(3, 5, 8),), module=loaded.module.layers[0], name="Layer",
                      instances=("layers.0", "layers.1"))  # fmt: skip
    rows = what_if(loaded, [norm_target(loaded), layer], "eager", budget_s=0.0)
    assert [(row.target_ids, row.calls, row.failure) for row in rows] == [
        (("id-Norm",), 2.0, ""), (("id-Layer",), 2.0, ""), (("id-Norm", "id-Layer"), 2.0, ""),
    ]  # fmt: skip


SLOW = """
import time
import torch
from torch import nn

def slow(x):
    time.sleep(0.02)
    return x + 1

class Model(nn.Module):
    def forward(self, x):
        return slow(slow(x)) * 2

def build():
    return Model(), (torch.ones(4),)
"""


def test_gain_in_eager(tmp_path):
    """Two calls of 20 ms that cost 1 ms at their floor leave a model of 2 ms, and the row says what it was before."""
    loaded = loaded_model(tmp_path, SLOW)
    target = target_of(f"{loaded.source.__name__}:slow", (torch.ones(4),), floor_us=1000.0)
    (row,) = what_if(loaded, [target], "eager", budget_s=0.2)
    assert (row.mode, row.target_ids, row.failure, row.calls) == ("eager", ("id-slow",), "", 2.0)
    assert 2.0 <= row.ms < 20 < 40 <= row.base_ms
    assert row.gain_ms == row.base_ms - row.ms
    (whole,) = [WhatIfBench(loaded, "eager").measure([], 0.1)]
    assert (whole.target_ids, whole.gain_ms) == ((), 0.0)
    assert whole.ms >= 40


def test_phases_count_by_weight(tmp_path):
    """Calls and times of a phase count as often as the phase does."""
    loaded = loaded_model(tmp_path, SLOW)
    x = torch.ones(4)
    loaded.phases = (Phase("one", (x,)), Phase("many", (torch.ones(5),), weight=10.0),
                     Phase("work", workload=lambda module: module(module(x)), weight=0.5))  # fmt: skip
    target = target_of(f"{loaded.source.__name__}:slow", (torch.ones(4),))
    (row,) = what_if(loaded, [target], "eager", budget_s=0.1)
    assert row.calls == 2 + 0.5 * 4
    assert row.base_ms >= 20 * (2 + 10 * 2 + 0.5 * 4)
    assert 400 <= row.ms <= row.base_ms - 50


def test_failures_are_rows(tmp_path):
    """A target that is gone, or that is not called with its shapes, is a row with the reason; others go on."""
    loaded = loaded_model(tmp_path)
    good = norm_target(loaded)
    gone = msgspec.structs.replace(good, id="gone", instances=("layers.9.norm",))
    function = msgspec.structs.replace(rotate_target(loaded), id="lost", qualname=f"{loaded.source.__name__}:lost")
    other = norm_target(loaded)
    wide = target_of("m:Norm", (torch.randn(9, 8),), module=loaded.module.layers[0].norm, instances=("layers.0.norm",))
    rows = what_if(loaded, [gone, function, good, wide], "eager", budget_s=0.0)
    assert other.signature == good.signature
    assert [row.failure for row in rows] == [
        "The model has no module 'layers.9.norm'.", f"There is no function lost in {loaded.source.__name__}.", "",
        "none of its calls could be replaced in this mode", "The model has no module 'layers.9.norm'.",
    ]  # fmt: skip
    assert [row.gain_ms for row in rows if row.failure] == [0.0] * 4


def test_models_that_fail_on_the_stand_ins_values(tmp_path):
    """What the model raises about the stand-in's outputs is the row's reason, and nothing stays in place."""
    text = SLOW.replace("return slow(slow(x)) * 2", "y = slow(x)\n        assert bool((y > 0).all())\n        return y")
    loaded = loaded_model(tmp_path, text)
    (row,) = what_if(loaded, [target_of(f"{loaded.source.__name__}:slow", (torch.ones(4),))], "eager", budget_s=0.0)
    assert row.failure == "AssertionError:"
    assert loaded.run().tolist() == [2.0] * 4


def test_no_graph_breaks_under_compile(tmp_path):
    """Traced as one graph: modules, functions and torch's functions are opaque operators, other calls the original."""
    loaded = loaded_model(tmp_path)
    x = loaded.phases[0].args[0]
    loaded.phases = (*loaded.phases, Phase("other", (torch.randn(2, 4, 8),)))
    targets = [norm_target(loaded), rotate_target(loaded), softmax_target()]
    rows = what_if(loaded, targets, "compile", budget_s=0.0, compile_=TRACED)
    assert [(row.failure, row.calls) for row in rows] == [("", 2.0), ("", 2.0), ("", 2.0), ("", 6.0)]
    assert loaded.phases[0].args[0] is x
    stand_ins = StandIns(loaded, targets, compiled=True)
    with stand_ins.active(), torch.no_grad():
        explained = torch._dynamo.explain(fresh(loaded.module._call_impl))(x)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    nodes = [str(node.target) for graph in explained.graphs for node in graph.graph.nodes]
    assert sum(name.startswith("forge_what_if.") for name in nodes) == 6


def test_what_was_compiled_for_the_stand_ins_never_serves_the_model(tmp_path):
    """With the stand-ins out, the compiled model computes its own results, however often they were in."""
    loaded = loaded_model(tmp_path)
    bench = WhatIfBench(loaded, "compile", compile_=TRACED)
    want = loaded.run()
    for _ in range(2):
        assert bench.measure([norm_target(loaded)], 0.0).failure == ""
        for run, _ in bench._base_runs():
            torch.testing.assert_close(run(), want)
    torch.testing.assert_close(loaded.run(), want, rtol=0, atol=0)


def test_the_opaque_operator_passes_torchs_own_check():
    """Schema, fake implementation and aliasing are what torch.library asks for; strides are those of the original."""
    target = target_of(functions(several=several)["several"], (torch.randn(4, 6),))
    specs = [o.spec for o in target.signature.outputs]
    counter = Counter()
    for outputs in (specs, specs[:1]):
        operator = opaque(make_produce(outputs, 0.0, CPU, counter), outputs, CPU)
        torch.library.opcheck(operator, ([torch.randn(4, 6)], 3))
        torch.library.opcheck(operator, ([], 3))
    compiled = torch.compile(lambda x: operator([x.sin()], 1), fullgraph=True, backend="aot_eager")
    assert compiled(torch.randn(4, 6)).stride() == specs[0].strides == (1, 4)


def test_compiled_for_real(tmp_path):
    """torch.compile with its own backend takes the stand-ins, strides and all."""
    loaded = loaded_model(tmp_path)
    rows = what_if(loaded, [norm_target(loaded), rotate_target(loaded)], "compile", budget_s=0.1)
    assert [(row.mode, row.failure, row.calls) for row in rows] == [
        ("compile", "", 2.0), ("compile", "", 2.0), ("compile", "", 4.0),
    ]  # fmt: skip


def test_which_phases_call_the_module():
    """A workload that calls parts of a module only is told from one that calls the module."""
    module = nn.Sequential(nn.Linear(2, 2))
    x = torch.ones(1, 2)
    assert calls_module(module, Phase(args=(x,)))
    assert calls_module(module, Phase(workload=lambda m: m(x)))
    assert not calls_module(module, Phase(workload=lambda m: m[0](x)))
    assert module._compiled_call_impl is None


FATAL = """
import os
import torch
from torch import nn

class Part(nn.Module):
    def forward(self, x):
        return x * 2

class Other(nn.Module):
    def forward(self, x):
        return x + 1

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.other = Part(), Other()

    def forward(self, x):
        if "forward" in vars(self.part):
            os._exit(7)
        return self.other(self.part(x))

def build():
    return Model(), (torch.ones(4),)
"""


def saved_profile(*targets) -> Profile:
    """A profile with these targets on a CPU."""
    device = Device(name="cpu", model="", arch="", ceilings=Ceilings(copy_gbps=1, matmul_tflops={}, launch_us=1))
    kept = WhatIf(mode="compile", target_ids=("id-old",), ms=1.0, base_ms=2.0)
    stale = WhatIf(mode="eager", target_ids=("id-part",), ms=1.0, base_ms=99.0)
    return Profile(device=device, model_ms=1.0, overhead=1.0, hotspots=(), targets=targets, what_ifs=(kept, stale))


async def test_a_worker_that_dies_costs_its_own_row(tmp_path):
    """The row says how it ended, the others are measured by a fresh worker, and other rows of the profile stay."""
    spec = write_model(tmp_path, FATAL)
    targets = [
        target_of(f"m:{name}", (torch.ones(4),), module=nn.Softsign(), instances=(name,), name=name)
        for name in ("part", "other")
    ]
    said: list[str] = []
    profile = await client.what_if(
        spec, saved_profile(*targets), Workspace(tmp_path), device_name="cpu", log=tmp_path / "log", modes=("eager",),
        budget_s=0.0, on_progress=said.append,
    )  # fmt: skip
    rows = {row.target_ids: row for row in profile.what_ifs if row.mode == "eager"}
    assert list(rows) == [(), ("id-part",), ("id-other",), ("id-part", "id-other")]
    assert rows["id-part",].failure == rows["id-part", "id-other"].failure == "The worker ended with exit code 7."
    assert (rows["id-other",].failure, rows["id-other",].calls) == ("", 1.0)
    assert rows["id-other",].base_ms < 99
    assert profile.what_ifs[0].target_ids == ("id-old",)
    assert len(said) == 4
    assert said[1] == "eager, part: The worker ended with exit code 7."


async def test_wrong_requests(tmp_path):
    """An unknown target and a mode that the device lacks are usage errors; a broken model is a model error."""
    spec = write_model(tmp_path, "def build():\n    return 1 / 0\n")
    profile = saved_profile(target_of(functions(double=lambda x: x * 2)["double"], (torch.ones(2),)))
    ask = functools.partial(client.what_if, spec, profile, Workspace(tmp_path), device_name="cpu", log=tmp_path / "log")
    with pytest.raises(UsageError, match="The profile has no target nope"):
        await ask(target_ids=["nope"])
    with pytest.raises(UsageError, match="CUDA graphs need a CUDA device"):
        await ask(modes=("graph",))
    with pytest.raises(ModelError, match="ZeroDivisionError"):
        await ask(modes=("eager",))
    profile = await ask(modes=("eager",), timeout_s=0.0)
    assert [row.failure for row in profile.what_ifs[-1:]] == ["there was no time left"]


@pytest.mark.gpu
def test_on_cuda(tmp_path):
    """Stand-ins wait on the device for their floor in every mode, captured graphs included."""
    from forge_tui.models.load import load_model

    loaded = load_model(write_model(tmp_path), "cuda:0")
    norm = loaded.module.layers[0].norm
    target = target_of("m:Norm", (torch.randn(3, 5, 8, device="cuda"),), module=norm, name="Norm",
                       instances=("layers.0.norm", "layers.1.norm"), floor_us=20_000.0)  # fmt: skip
    for mode in ("eager", "compile", "graph"):
        (row,) = what_if(loaded, [target], mode, budget_s=0.5)
        assert (row.failure, row.calls) == ("", 2.0)
        assert 36 < row.ms < 48
        assert row.base_ms < 20
