"""The worker's measurements, in this process and with kernels that compute with torch."""

import time

import pytest
import torch
from deploy_fakes import FakeKernel, make_target, module_target
from torch import nn

from forge_tui.core.records import Built, LaunchPlan, Winner
from forge_tui.deploy import measure
from forge_tui.deploy.worker import Session
from forge_tui.launch.errors import LaunchError
from forge_tui.models.load import load_model
from forge_tui.models.spec import parse_model

TEXT = """
import torch, time
from torch import nn
from torch.nn import functional as F
def slow(x):
    time.sleep(0.01)
    return x * 2.0
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(32, 32)
    def forward(self, x):
        return F.silu(slow(self.lin(x)))
    def generate(self, x):
        return self.lin(x)
def build():
    torch.manual_seed(0)
    return Model(), (torch.randn(8, 32),), {}
def build_workload():
    torch.manual_seed(0)
    x = torch.randn(8, 32)
    return Model(), lambda module: module.generate(x)
"""


@pytest.fixture
def make_session(tmp_path, monkeypatch):
    """A session on the model above with these (name, compute) kernels."""
    (tmp_path / "model.py").write_text(TEXT)

    def make(kernels, factory=""):
        spec = parse_model(f"{tmp_path / 'model.py'}{factory}")
        loaded = load_model(spec, "cpu")
        x = torch.randn(8, 32)
        winners, fakes = [], {}
        for name, compute in kernels:
            if name == "slow":
                target = make_target(loaded.source.slow, (x,), kind="function",
                                     qualname=f"{loaded.source.__name__}:slow", name=name)
            elif name == "lin":
                target = module_target(loaded.module, "lin", x)
            else:
                target = make_target(torch.nn.functional.silu, (x,), kind="torch",
                                     qualname="torch.nn.functional:silu", name=name)
            built = Built(path=name, sha256="", language="cpp", plan=LaunchPlan(), compile_s=0)
            winners.append(Winner(target=target, node_id=1, built=built))
            fakes[name] = FakeKernel(compute)
        monkeypatch.setattr("forge_tui.launch.kernel.load_kernel", lambda built, signature, device: fakes[built.path])
        import msgspec

        session = Session({"spec": msgspec.to_builtins(spec), "device": "cpu", "threads": 0, "seed": 0,
                           "winners": [msgspec.to_builtins(w) for w in winners]})
        return session, fakes

    return make


def double(inputs, outputs):
    """The right kernel for `slow`."""
    outputs[0].copy_(inputs[0] * 2.0)


def silu(inputs, outputs):
    """The right kernel for `F.silu`."""
    outputs[0].copy_(inputs[0] * torch.sigmoid(inputs[0]))


def test_the_original_is_prepared(make_session):
    """Time and tolerance of the model; the sleep of 10 ms is in it."""
    session, _ = make_session([])
    prepared = session.prepared()
    assert 10 <= prepared.model_ms < 500
    assert "higher precision" in prepared.tolerance
    assert prepared.incomparable == ""


def test_a_right_kernel_is_checked_timed_and_counted(make_session):
    """The function sleeps, the kernel does not; afterwards the model is the original."""
    session, fakes = make_session([("slow", double), ("silu", silu)])
    check = session.check([0, 1])
    assert check.difference.within, check.difference.why
    assert [(s.calls, s.fallbacks, s.fault) for s in check.served] == [(1, 0, "")] * 2
    comparison = session.compare([0], [], 0.3)
    assert comparison.ci[0] > 1.5
    assert len(comparison.samples) >= 8
    host = session.host(0)
    assert host.original_us > 10_000 > host.guarded_us > 0
    launches = fakes["slow"].launches
    session._loaded.run()
    assert fakes["slow"].launches == launches


def test_a_set_against_a_set_times_their_difference(make_session):
    """Which side is divided by which; the 10 ms of `slow` on one side, or on neither."""
    session, _ = make_session([("slow", double), ("silu", silu)])
    assert session.compare([], [0], 0.2).ci[1] < 0.5
    # neither sleeps: what is left is far from a ratio of some hundred
    assert 0.02 < session.compare([0, 1], [0], 0.2).speedup < 50


def test_a_wrong_kernel_is_seen_in_the_models_outputs(make_session):
    """A difference of a part in a thousand is far beyond float32."""
    session, _ = make_session([("slow", lambda i, o: o[0].copy_(i[0] * 2.002))])
    check = session.check([0])
    assert not check.difference.within
    assert check.difference.max_abs > 1e-3
    assert session.check([]).difference.max_abs == 0


def test_a_failing_launch_is_reported_and_the_outputs_are_the_originals(make_session):
    """The guard gives the call back; the check says why."""
    session, fakes = make_session([("slow", double)])
    fakes["slow"].fail = LaunchError("forge_launch returned 7; 0 means success.")
    check = session.check([0])
    assert check.difference.max_abs == 0
    assert check.served[0].fault == "LaunchError: forge_launch returned 7; 0 means success."
    assert (check.served[0].calls, check.served[0].reasons) == (0, {"launch failed": 1})


def test_a_workload_that_calls_no_forward_still_reaches_children_and_functions(make_session):
    """`generate` calls a layer, and the layer is served."""
    def linear(inputs, outputs):
        x, bias, weight = inputs
        outputs[0].copy_(nn.functional.linear(x, weight, bias))

    session, _ = make_session([("lin", linear)], factory=":build_workload")
    check = session.check([0])
    assert check.served[0].calls == 1
    assert check.difference.within


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_is_a_baseline_only_with_right_results(make_session, monkeypatch):
    """Compiled and eager in turns; other results and a raising compiler are reasons."""
    plain = nn.Module.compile

    def use(backend):
        torch._dynamo.reset()
        monkeypatch.setattr(nn.Module, "compile", lambda self: plain(self, backend=backend))
        return make_session([])[0]

    session = use("eager")
    assert session.compile().failure == ""
    result = session.compiled(0.2)
    assert result.comparison.speedup == pytest.approx(1.0, abs=0.5)
    assert session._loaded.module._compiled_call_impl is None

    def other_results(graph, _inputs):
        return lambda *args: tuple(value * 1.01 for value in graph(*args))

    assert use(other_results).compile().failure.startswith("It gives other results: output differs by up to")

    def broken(graph, _inputs):
        raise RuntimeError("no compiler here\nand a long story")

    failure = use(broken).compile().failure
    assert "no compiler here" in failure
    assert "long story" not in failure
    torch._dynamo.reset()


def test_times_are_paired_in_both_orders_until_the_time_is_over():
    """First A before B, then B before A; the garbage collector is as it was."""
    import gc

    order = []
    state = []

    def run():
        order.append(state[-1])
        time.sleep(0.004 if state[-1] == "b" else 0.002)

    found = measure.compare([(run, 1.0)], lambda: state.append("a"), lambda: state.append("b"), lambda: None, 0.0)
    assert len(found.samples) == 8
    assert found.ci[0] > 1.2
    assert gc.isenabled()
    timed = "".join(order[-16 * (len(order) // 20):])
    assert "ab" in timed
    assert "bba" in timed or "bbaa" in timed
