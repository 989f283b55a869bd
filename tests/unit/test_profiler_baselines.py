"""Baselines are timed in turns with eager, checked against its outputs, and leave the model as it was."""

import contextlib
import functools

import msgspec
import pytest
import torch
from torch import nn
from what_if_support import loaded_model, norm_target, rotate_target, softmax_target, target_of, write_model

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Baseline, Profile
from forge_tui.core.records import Ceilings, Device
from forge_tui.models import capture
from forge_tui.models.load import load_model
from forge_tui.models.phases import Phase
from forge_tui.profiler import client
from forge_tui.profiler.experiments import names, standard
from forge_tui.profiler.experiments.agree import agreement, leaf_tensors
from forge_tui.profiler.experiments.baselines import ModelBaselines, TargetBaselines
from forge_tui.profiler.experiments.in_turns import State, in_turns
from forge_tui.profiler.experiments.rows import shortened

CONVOLUTIONS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.ConvTranspose2d(8, 4, 3)
        self.register_buffer("table", torch.randn(1, 4, 1, 1))

    def forward(self, x, flags=None):
        assert x.is_contiguous(memory_format=torch.channels_last) == self.first.weight.is_contiguous(
            memory_format=torch.channels_last)
        return self.second(torch.relu(self.norm(self.first(x)))) * self.table

def build():
    torch.manual_seed(0)
    return Model(), (torch.randn(2, 3, 9, 9),), {"flags": torch.ones(2, 2, 2, 2, dtype=torch.int64)}
"""


@pytest.fixture(autouse=True)
def _forget():
    yield
    torch._dynamo.reset()


def traced(_mode):
    """torch.compile without a code generator."""
    return functools.partial(torch.compile, backend="aot_eager")


def wrong(_mode):
    """A compiler that gets everything a little wrong."""
    return lambda function: lambda *args, **kwargs: function(*args, **kwargs) * 1.01


class Ticks:
    """A clock on which every call takes what it says."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def mark(self):
        return self.now

    def settle(self):
        pass

    def between_us(self, start, end):
        return (end - start) * 1e3

    def call(self, name, ms, cold_ms=0.0):
        def run():
            self.now += ms + (cold_ms if self.calls[-1:] != [name] else 0.0)
            self.calls.append(name)

        return run


def test_samples_are_taken_in_turns():
    """A B, B A, ...: entered around each sample, warmed up before it, medians weighted by phase."""
    clock = Ticks()
    entered = []

    @contextlib.contextmanager
    def b():
        entered.append(True)
        yield
        entered.append(False)

    states = [State([(clock.call("a", 3.0, 50.0), 1.0), (clock.call("A", 5.0), 10.0)]),
              State([(clock.call("b", 1.0, 70.0), 1.0), (clock.call("B", 2.0), 10.0)], b)]  # fmt: skip
    assert in_turns(states, clock, budget_s=0.0) == [3.0 + 50.0, 1.0 + 20.0]
    first = [name for name in clock.calls if name in "ab"]
    assert first == [*"aaabbb", *"aabb", *"bbaa", *"aabb", *"bbaa"]
    assert entered == [True, False] * 10


def test_one_state_and_a_flush():
    """Alone, nothing is warmed up in between; what runs before a call is not timed."""
    clock = Ticks()
    before = clock.call("flush", 40.0)
    assert in_turns([State([(clock.call("a", 3.0), 2.0)])], clock, budget_s=0.0, before=before) == [6.0]
    assert clock.calls == ["a", "a", *["flush", "a"] * 5]


def test_agreement_tells_wrong_from_rounded():
    """Limits go by dtype; NaNs, shapes, structures and integers count; equal NaNs do not."""

    def compared(one, other, **more):
        return agreement(list(leaf_tensors(one)), list(leaf_tensors(other)), **more)

    x = torch.linspace(-1, 1, 1000)
    assert compared({"a": x * 1.0001}, {"a": x}).why == ""
    assert compared(x + 0.5, x).max_abs_error == pytest.approx(0.5)
    assert compared([x * 1.01], [x]).why == "the output.0 differs by 0.01 of its size (limit 0.001)"
    assert compared([x * 1.01], [x], tf32=True).why == ""
    assert compared((x * 1.01).bfloat16(), x.bfloat16()).why == ""
    assert "differs by" in compared((x * 1.3).bfloat16(), x.bfloat16()).why
    assert "differs by" in compared((x * 1.3).bfloat16(), x.bfloat16(), tf32=True).why
    assert "differs by inf" in compared(x, torch.zeros_like(x)).why
    assert compared(torch.zeros(3), torch.zeros(3)).why == ""
    holes = torch.tensor([1.0, float("nan"), float("inf")])
    assert compared(holes, holes.clone()).why == ""
    assert compared(holes, torch.ones(3)).why == "the output is NaN or infinite in other places"
    assert compared(x[:5], x).why == "the output is float32[5] instead of float32[1000]"
    assert compared([x], [x, x]).why == "it gives outputs of another structure"
    whole = torch.arange(1000)
    assert compared(whole, whole) == agreement([], [])
    assert compared(whole.roll(1), whole).why == "100.0% of the elements of the output differ (limit 1.0%)"
    few = whole.clone()
    few[:5] += 1
    assert compared(few, whole).why == ""
    assert compared(torch.complex(x, x) * 1.1, torch.complex(x, x)).why.startswith("the output differs by 0.1")
    assert compared(torch.empty(0), torch.empty(0)).max_abs_error is None
    assert compared(torch.tensor(2.0), torch.tensor(2.5)).max_abs_error == 0.5
    assert compared({"a": None, "b": 3, "c": "text"}, {"a": None, "b": 4, "c": ""}).why == ""


def test_model_eager_and_compiled(tmp_path):
    """Eager alone has no error; a compiled model has its own, its setup time, and wrong results are a failure."""
    loaded = loaded_model(tmp_path)
    bench = ModelBaselines(loaded, traced)
    eager = bench.measure("eager", budget_s=0.0)
    assert (eager.name, eager.failure, eager.setup_s, eager.max_abs_error) == ("eager", "", 0.0, 0.0)
    compiled = bench.measure("compile", budget_s=0.0)
    assert (compiled.name, compiled.failure) == ("compile", "")
    assert compiled.setup_s > 0
    assert compiled.max_abs_error < 1e-5
    assert loaded.module._compiled_call_impl is None
    bad = ModelBaselines(loaded, wrong).measure("compile max-autotune-no-cudagraphs", budget_s=0.0)
    assert bad.ms is None
    assert bad.failure == "it gives other results: the output differs by 0.01 of its size (limit 0.001)"
    assert bad.max_abs_error > 0
    with pytest.raises(TypeError):
        ModelBaselines(loaded, lambda _: lambda function: lambda: None).measure("compile", budget_s=0.0)
    assert loaded.module._compiled_call_impl is None


def test_phases_and_workloads_are_compiled(tmp_path):
    """Each phase has its own compiled call; a workload that calls a part only is compiled as a whole."""
    loaded = loaded_model(tmp_path)
    x = torch.randn(3, 5, 8)
    loaded.phases = (Phase("a", (x,)), Phase("b", workload=lambda m: m(m(x))),
                     Phase("c", workload=lambda m: m.layers[0](x)))  # fmt: skip
    made = []

    def compile_(_mode):
        def one(function):
            made.append(function)
            return function

        return one

    row = ModelBaselines(loaded, compile_).measure("compile", budget_s=0.0)
    assert (row.failure, len(made), row.max_abs_error) == ("", 3, 0.0)
    assert len({id(f.__code__) for f in made}) == 3


def test_models_that_cannot_be_compared(tmp_path):
    """A model that draws random numbers is timed, with no error to tell."""
    text = "import torch\nfrom torch import nn\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
    text += "        return x + torch.randn_like(x)\n\ndef get_inputs():\n    return [torch.ones(4)]\n"
    loaded = load_model(write_model(tmp_path, text), "cpu")
    row = ModelBaselines(loaded, wrong).measure("compile", budget_s=0.0)
    assert (row.failure, row.max_abs_error) == ("", None)
    assert row.ms is not None


def test_channels_last(tmp_path):
    """Weights, 4-d buffers and float inputs are laid out inside the switch only, and come back as the same memory."""
    loaded = load_model(write_model(tmp_path, CONVOLUTIONS), "cpu")
    assert standard.applicable(loaded, allow_tf32=True) == ("channels-last",)
    weight = loaded.module.first.weight
    before = {name: (t.data_ptr(), t.stride()) for name, t in loaded.module.state_dict().items()}
    want = loaded.run()
    configured = standard.configure(loaded, ["channels-last"])
    with contextlib.suppress(ZeroDivisionError), configured.switch():
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert weight is loaded.module.first.weight
        (phase,) = configured.phases
        assert phase.args[0].is_contiguous(memory_format=torch.channels_last)
        assert phase.kwargs["flags"] is loaded.phases[0].kwargs["flags"]
        torch.testing.assert_close(phase.run(loaded.module), want)
        1 / 0  # noqa: B018
    assert {name: (t.data_ptr(), t.stride()) for name, t in loaded.module.state_dict().items()} == before
    row = ModelBaselines(loaded).measure("eager", ("channels-last",), budget_s=0.0)
    assert (row.name, row.failure) == ("eager, channels-last", "")
    assert row.max_abs_error < 1e-5
    assert {name: (t.data_ptr(), t.stride()) for name, t in loaded.module.state_dict().items()} == before


def test_what_models_may_take(tmp_path):
    """A model without convolutions takes no channels-last; 3-d ones have their own format; TF32 is for CUDA."""
    loaded = loaded_model(tmp_path)
    assert standard.applicable(loaded, allow_tf32=True) == ()
    row = ModelBaselines(loaded).measure("eager", ("channels-last",), budget_s=0.0)
    assert (row.ms, row.failure) == (None, "it has no convolution")
    loaded.module = nn.Conv3d(2, 2, 1)
    loaded.phases = (Phase("", (torch.randn(1, 2, 3, 3, 3),)),)
    assert standard.applicable(loaded, allow_tf32=False) == ("channels-last",)
    with standard.configure(loaded, ["channels-last"]).switch():
        assert loaded.module.weight.is_contiguous(memory_format=torch.channels_last_3d)


def test_tf32_is_put_back():
    """The matrix precision is what it was behind the switch, also after an error."""
    configured = standard.configure(_shell(), ["tf32"])
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with contextlib.suppress(ZeroDivisionError), configured.switch():
        assert torch.get_float32_matmul_precision() == "high"
        1 / 0  # noqa: B018
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def _shell():
    from types import SimpleNamespace

    return SimpleNamespace(phases=(), module=nn.Module(), device=torch.device("cpu"))


def test_sdpa_attention():
    """A transformers model with written-out attention takes SDPA inside the switch, gives the same, and is put back."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=64, attn_implementation="eager")  # fmt: skip
    torch.manual_seed(0)
    loaded = _shell()
    loaded.module = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    loaded.phases = (Phase("", (torch.arange(12)[None],), {"use_cache": False}),)
    assert standard.applicable(loaded, allow_tf32=False) == ("sdpa",)
    states = vars(config).copy()
    configured = standard.configure(loaded, ["sdpa"])
    assert vars(config) == states
    called = []
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention",
                      lambda *a, **k: called.append(1) or sdpa(*a, **k))  # fmt: skip
        want = loaded.phases[0].run(loaded.module).logits
        assert not called
        with configured.switch():
            assert config._attn_implementation == "sdpa"
            torch.testing.assert_close(loaded.phases[0].run(loaded.module).logits, want)
        assert len(called) == 2
    assert vars(config) == states
    row = ModelBaselines(loaded).measure("eager", ("sdpa",), budget_s=0.0)
    assert (row.name, row.failure) == ("eager, SDPA attention", "")
    loaded.module.set_attn_implementation("sdpa")
    assert standard.applicable(loaded, allow_tf32=False) == ()


def test_names():
    """Settings are named in one order; the best row is the fastest that is right; what runs depends on the device."""
    assert names.row_name("compile", ["sdpa", "channels-last"]) == "compile, channels-last + SDPA attention"
    assert names.one_by_one("abc") == [("a",), ("b",), ("c",), ("a", "b", "c")]
    assert names.one_by_one("a") == [("a",)]
    rows = [Baseline(name="a", ms=3.0), Baseline(name="b", ms=None, failure="no"), Baseline(name="c", ms=2.0)]
    assert names.best(rows).name == "c"
    assert names.best(rows[1:2]) is None
    assert names.model_ways("cpu") == ["eager", "compile", "compile max-autotune-no-cudagraphs"]
    assert names.model_ways("cuda") == ["eager", "graph", "compile", "compile max-autotune-no-cudagraphs",
                                        "compile reduce-overhead"]  # fmt: skip
    assert names.target_ways("cpu") == ["eager", "compile", "compile max-autotune-no-cudagraphs"]
    assert names.target_ways("cuda") == [*names.target_ways("cpu"), "graph"]


@pytest.mark.parametrize("make", [norm_target, rotate_target, lambda _: softmax_target()])
def test_targets(tmp_path, make):
    """A module's forward, a function and a torch function are timed on their inputs, eager and compiled."""
    loaded = loaded_model(tmp_path)
    target = make(loaded)
    tensors = [torch.randn(3, 5, 8), torch.ones(8)][: len(target.signature.inputs)]
    bench = TargetBaselines(loaded, target, tensors, traced)
    rows = [bench.measure(way, budget_s=0.0) for way in names.target_ways("cpu")]
    assert [(row.name, row.failure) for row in rows] == [(way, "") for way in names.target_ways("cpu")]
    assert all(row.ms > 0 and row.max_abs_error < 1e-5 for row in rows)
    if make is norm_target:
        bad = TargetBaselines(loaded, target, tensors, wrong).measure("compile", budget_s=0.0)
        assert (bad.ms, bad.failure.partition(":")[0]) == (None, "it gives other results")


def test_messages_are_shortened():
    """The first line stands for a long message, two where the first only announces the second."""
    assert shortened("BackendError: failed:\n  ValueError: x\nmore") == "BackendError: failed: ValueError: x"
    assert shortened("one\ntwo") == "one"
    assert shortened("\n") == "no message"
    assert len(shortened("x" * 900)) == 300


DYING = """
import os, time
import torch
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x / x.abs().max()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 2), Norm()

    def forward(self, x):
        if self._compiled_call_impl is not None:
            if self.conv.weight.is_contiguous():
                os._exit(3)
            time.sleep(60)
        return self.norm(self.conv(x))

def build():
    return Model(), (torch.ones(2, 2, 4, 4),)
"""


async def test_failures_cost_their_own_row(tmp_path):
    """A compile that hangs and one that dies have their reason; the other rows and the targets are measured."""
    spec = write_model(tmp_path, DYING)
    place = Workspace(tmp_path / "ws")
    place.prepare()
    loaded = load_model(spec, "cpu")
    x = torch.rand(2, 2, 3, 3)
    target = target_of("m:Norm", (x,), module=loaded.module.norm, instances=("norm",), name="Norm")
    target = msgspec.structs.replace(target, capture=f"captures/{capture.save_by_content(place.captures, [[x]])}")
    lost = msgspec.structs.replace(target, id="id-lost", name="Lost", capture="captures/nowhere")
    device = Device(name="cpu", model="", arch="", ceilings=Ceilings(copy_gbps=1, matmul_tflops={}, launch_us=1))
    profile = Profile(device=device, model_ms=1.0, overhead=1.0, hotspots=(), targets=(target, lost))
    said: list[str] = []
    found = await client.baselines(
        spec, profile, place, device_name="cpu", log=tmp_path / "log", target_ids=["id-lost", "id-Norm"],
        row_timeout_s=6.0, budget_s=0.0, on_progress=said.append,
    )  # fmt: skip
    rows = {row.name: row for row in found.baselines}
    assert list(rows) == ["eager", "eager, channels-last", "compile", "compile max-autotune-no-cudagraphs",
                          "compile, channels-last"]  # fmt: skip
    assert rows["eager"].failure == rows["eager, channels-last"].failure == ""
    died = "The worker ended with exit code 3."
    assert [row.failure for row in found.baselines[2:]] == [died, died, "it did not end within 6 s"]
    assert [t.target_id for t in found.target_baselines] == ["id-Norm", "id-lost"]
    good, missing = (t.baselines for t in found.target_baselines)
    assert [row.name for row in good] == names.target_ways("cpu")
    assert good[0].failure == ""
    assert all("There are no captured inputs in" in row.failure for row in missing)
    assert said[0].startswith("model, eager: ")
    assert len(said) == 5 + 1 + 6


async def test_a_model_that_dies_while_it_is_loaded(tmp_path):
    """Nothing can be measured then: an environment fault that names the log."""
    spec = write_model(tmp_path, "import os\n\ndef build():\n    os._exit(4)\n")
    device = Device(name="cpu", model="", arch="")
    profile = Profile(device=device, model_ms=1.0, overhead=1.0, hotspots=(), targets=())
    with pytest.raises(EnvironmentFault, match="Loading the model ended early: The worker ended with exit code 4"):
        await client.baselines(spec, profile, Workspace(tmp_path), device_name="cpu", log=tmp_path / "log")


@pytest.mark.gpu
def test_on_cuda(tmp_path):
    """Graph replay of model and target gives eager's outputs; the standard settings apply with TF32 where allowed."""
    loaded = load_model(write_model(tmp_path, CONVOLUTIONS), "cuda:0")
    assert standard.applicable(loaded, allow_tf32=True) == ("channels-last", "tf32")
    bench = ModelBaselines(loaded)
    for way, settings in [("graph", ()), ("compile reduce-overhead", ()), ("eager", ("channels-last", "tf32"))]:
        row = bench.measure(way, settings, budget_s=0.2)
        assert (row.name, row.failure) == (names.row_name(way, settings), "")
        assert row.ms > 0
