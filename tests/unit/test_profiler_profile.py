"""A profile tells apart what can be a target, says why the rest cannot, and captures what it offers."""

from pathlib import Path

import pytest
import torch

from forge_tui.core.errors import ModelError
from forge_tui.core.profiles import Profile
from forge_tui.core.records import Ceilings, Device, Target
from forge_tui.models import capture
from forge_tui.models.calls import make_reader
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.resolve import caller
from forge_tui.models.spec import parse_model
from forge_tui.profiler import targets as targets_module
from forge_tui.profiler.profile import profile_model

ZOO = Path(__file__).parent.parent / "fixtures" / "models" / "zoo.py"
#: ceilings far above any machine, so that everything has headroom
DEVICE = Device(name="cpu", model="test", arch="test",
                ceilings=Ceilings(copy_gbps=1e6, matmul_tflops={"float32": 1e3}, launch_us=1.0))  # fmt: skip


def profile_file(path: Path, folder: Path) -> tuple[LoadedModel, Profile]:
    """Profile a file, tiny calls included."""
    loaded = load_model(parse_model(str(path)), "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets_module, "MIN_SHARE", 0.0)
        return loaded, profile_model(loaded, DEVICE, folder, repeats=2, timing_passes=2)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> tuple[LoadedModel, Profile, Path]:
    """The zoo of callables, profiled once."""
    folder = tmp_path_factory.mktemp("zoo")
    return *profile_file(ZOO, folder), folder


def target(profile: Profile, name: str) -> Target:
    """The target of this name."""
    return next(t for t in profile.targets if t.name == name)


def test_targets(zoo):
    """Callables that take and return tensors are targets, whatever their arguments look like."""
    _, profile, _ = zoo
    names = {t.name for t in profile.targets}
    assert names >= {
        "plain", "Scaled", "Scaled@2", "several", "twice", "constant_inside", "integers", "expanded", "reads_table",
        "F.softmax",
    }  # fmt: skip


REASONS = {
    "writes": "it writes into one of its inputs",
    "random_noise": "it draws random numbers",
    "view": "the result is a view of an input",
    "uses_value": "Python code in it depends on the values of a tensor",
    "depends_on_data": "the shape of a result depends on values",
    "takes_named_tuple": "pair is of type Pair",
    "counts": "it changes STATE, which outlives the call",
    "Sequential": "a module inside it has hooks, which a kernel would skip",
    "ReLU": "it writes into one of its inputs",
    "Tensor.mul": "only modules, the model's own functions and torch.nn.functional can be replaced",
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(zoo, name):
    """What is not offered says why, in the tree of hotspots."""
    _, profile, _ = zoo
    assert not any(t.name == name for t in profile.targets)
    reasons = [h.reason for h in profile.hotspots if h.name == name]
    assert reasons
    assert all(r.startswith(REASONS[name]) for r in reasons)


def test_every_hotspot_is_a_target_or_says_why_not(zoo):
    """No hotspot is silent."""
    _, profile, _ = zoo
    ids = {t.id for t in profile.targets}
    assert all((h.target_id in ids) != bool(h.reason) for h in profile.hotspots)


def test_inner_functions_and_functions_without_tensors(zoo):
    """A function made by another one has no name to be found by; one that returns no tensor is no hotspot."""
    _, profile, _ = zoo
    assert not any(h.name == "no_tensor" for h in profile.hotspots)
    found = [t for t in profile.targets if t.name == "inner_function"]
    assert [t.qualname.split(":")[1] for t in found] == ["inner_function"]


def test_times_add_up(zoo):
    """Self times sum to the model's time, and no child is longer than its parent."""
    _, profile, _ = zoo
    assert sum(h.self_ms for h in profile.hotspots) == pytest.approx(profile.model_ms)
    by_id = {h.id: h for h in profile.hotspots}
    for spot in profile.hotspots:
        assert spot.parent is None or spot.total_ms <= by_id[spot.parent].total_ms + 1e-9
        assert spot.parent is None or spot.parent < spot.id
    root = profile.hotspots[0]
    assert (root.kind, root.share, root.total_ms) == ("model", pytest.approx(1.0), pytest.approx(profile.model_ms))


def test_instances_split_by_attributes(zoo):
    """Modules with equal attributes share a target with all their paths; another value is another target."""
    _, profile, _ = zoo
    first, second = target(profile, "Scaled"), target(profile, "Scaled@2")
    assert (first.instances, second.instances) == (("blocks.0", "blocks.1"), ("blocks.2",))
    assert [s.value for t in (first, second) for s in t.signature.scalars] == [2.0, 5.0]
    assert [i.path for i in first.signature.inputs] == ["x", "weight", "stray"]
    assert first.calls == 2
    assert first.captured_calls == 2


def test_captured_weights_are_each_instances_own(zoo):
    """Captured calls of several instances hold the weights of each."""
    loaded, profile, folder = zoo
    where = folder / target(profile, "Scaled").capture
    assert [capture.load(where, i, "cpu", loaded)[1][0].item() for i in range(2)] == [1.0, 3.0]


def test_same_call_written_differently_is_one_target(zoo):
    """Two ways to write the call of `plain` are one target with two calls."""
    _, profile, _ = zoo
    plain = target(profile, "plain")
    assert plain.calls == 2
    assert {s.path: s.value for s in plain.signature.scalars} == {"scale": 2.0, "flag": True}
    assert plain.signature.inputs[1].spec.strides == (1, 8)


def test_closure_tensors_are_inputs(zoo):
    """A tensor of the file that a function reads is an input, and the caller uses the given one."""
    loaded, profile, folder = zoo
    reads = target(profile, "reads_table")
    assert [(i.path, i.source) for i in reads.signature.inputs] == [("x", "arg"), ("TABLE", "closure")]
    x, table = capture.load(folder / reads.capture, 0, "cpu", loaded)
    assert torch.equal(table, loaded.source.TABLE)
    assert torch.equal(caller(reads, loaded)([x, table * 2])[0], x * table * 2)
    assert torch.equal(loaded.source.TABLE, table)


def test_every_target_replays_and_reads(zoo):
    """Every captured call can be made again, and the reader of the target takes it."""
    loaded, profile, folder = zoo
    assert len(profile.targets) > 10
    for item in profile.targets:
        for i in range(item.captured_calls):
            tensors = capture.load(folder / item.capture, i, "cpu", loaded)
            outputs = caller(item, loaded)(tensors)
            assert [(tuple(o.shape), tuple(o.stride())) for o in outputs] == [
                (o.spec.shape, o.spec.strides) for o in item.signature.outputs
            ]
    module = loaded.module.blocks[2]
    read = make_reader(target(profile, "Scaled@2"), module)
    with torch.no_grad():
        assert read((torch.ones(8, 16),), {})[1] is module.weight


def test_expanded_inputs_count_real_bytes(zoo):
    """An expanded input counts its real storage."""
    _, profile, _ = zoo
    assert target(profile, "expanded").bytes_moved == 4 * (16 + 8 * 16)


def test_model_is_as_before(zoo):
    """After profiling nothing of the listening is left in the model or its file."""
    loaded, _, _ = zoo
    assert not any("forward" in vars(m) for m in loaded.module.modules())
    assert not hasattr(loaded.source.plain, "__wrapped__")
    assert torch.nn.functional.softmax.__module__ == "torch.nn.functional"


def test_ids_and_names_are_stable(zoo, tmp_path):
    """A second profile gives the same targets under the same ids and names."""
    _, profile, _ = zoo
    _, again = profile_file(ZOO, tmp_path)
    assert {t.id: t.name for t in again.targets} == {t.id: t.name for t in profile.targets}
    assert {t.id: t.capture for t in again.targets} == {t.id: t.capture for t in profile.targets}


def write(tmp_path: Path, forward: str, extra: str = "") -> Path:
    """A model file with this forward."""
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nfrom torch import nn\n" + extra
        + "class Net(nn.Module):\n    def forward(self, x):\n        " + forward
        + "\ndef build():\n    return Net(), (torch.ones(4, 4),)\n"
    )  # fmt: skip
    return path


def test_forward_that_raises(tmp_path):
    """A forward that raises is one sentence with the line in the file."""
    with pytest.raises(ModelError) as caught:
        profile_file(write(tmp_path, "return x @ torch.ones(3, 3)"), tmp_path)
    assert str(caught.value).startswith("The forward of Net failed (line 5 of net.py): RuntimeError: mat1 and mat2")


def test_model_that_writes_its_inputs(tmp_path):
    """A model that changes its own inputs is warned about."""
    _, profile = profile_file(write(tmp_path, "return x.add_(1) * 2"), tmp_path)
    assert profile.warnings[0].startswith("The model writes into its own inputs")


def test_calls_that_change_from_run_to_run(tmp_path):
    """A model that takes another path each time is still profiled, with a warning."""
    extra = "N = [0]\ndef odd(x):\n    return x + 1\ndef even(x):\n    return x - 1\n"
    path = write(tmp_path, "N[0] += 1\n        return odd(x) if N[0] % 2 else even(x)", extra)
    _, profile = profile_file(path, tmp_path)
    assert any("not make the same calls" in w for w in profile.warnings)
    assert sum(h.self_ms for h in profile.hotspots) == pytest.approx(profile.model_ms)


def test_workload(tmp_path):
    """A workload is profiled as a whole: the module is a node below it, called as often as the workload does."""
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def twice(module):\n    x = torch.ones(2, 4)\n    return module(module(x))\n"
        "def build():\n    return nn.Linear(4, 4), twice\n"
    )
    _, profile = profile_file(path, tmp_path)
    spots = {h.name: h for h in profile.hotspots if h.kind == "module"}
    assert spots["Linear"].calls == 2
    linear = target(profile, "Linear")
    assert (linear.instances, linear.calls, linear.flops) == (("",), 2, 2 * 2 * 4 * 4)


def test_floor_counts_what_is_read(tmp_path):
    """Rows of a table, a slice of an input, and an input that is not read at all count as what is read of them."""
    extra = (
        "def rows(table, ids):\n    return torch.nn.functional.embedding(ids, table)\n"
        "def part(x, unused):\n    return x[:, :1] + 1\n"
        "def same(x, y):\n    return x + y\n"
    )
    body = (
        "t = torch.ones(1000, 4)\n        a = rows(t, torch.arange(3)) + part(x, t)[:3]\n"
        "        return a + same(x, x)[:3]"
    )
    _, profile = profile_file(write(tmp_path, body, extra), tmp_path)
    assert target(profile, "rows").bytes_moved == 4 * (3 * 4 + 3 * 4) + 8 * 3
    assert target(profile, "part").bytes_moved == 4 * (4 + 4)
    assert target(profile, "same").bytes_moved == 4 * (2 * 16 + 16), "two inputs, though one storage here"


ODD = {
    "transform": ("def f(a):\n    return a * 2\n", "return torch.vmap(f)(x)",
                  ("f", "it runs inside a transform of torch.func")),
    "dataclass": (("import dataclasses\n@dataclasses.dataclass\nclass Out:\n    a: torch.Tensor\n"
                  "class Inner(nn.Module):\n    def forward(self, x):\n        return Out(x + 1)\n"
                  "INNER = Inner()\n"), "return INNER(x).a", None),
    "script": (("class S(nn.Module):\n    def forward(self, x):\n        return x * 2 + 1\n"
               "SCRIPTED = torch.jit.script(S().eval())\n"), "return SCRIPTED(x)", None),
    "numpy": ("def via(x):\n    return torch.from_numpy(x.numpy() * 2)\n", "return via(x) + 1", None),
    "caught": ("def bad(x):\n    raise ValueError\n",
               "try:\n            bad(x)\n        except ValueError:\n            pass\n        return x + 1", None),
    "gradient": ("def energy(x):\n    return (x * x).sum()\n",
                 ("with torch.enable_grad():\n            y = x.detach().requires_grad_()\n"
                 "            return torch.autograd.grad(energy(y), y)[0]"), ("energy", "the result needs a gradient")),
    "autocast": ("LINEAR = nn.Linear(4, 4).eval().requires_grad_(False)\n",
                 ("with torch.autocast('cpu', torch.bfloat16):\n"
                  "            return torch.nn.functional.linear(x, LINEAR.weight)"),
                 ("F.linear", "called on its own it gives another form of out0")),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("case", ODD)
def test_odd_models(tmp_path, case):
    """Models that use more of torch are profiled without harm: the same calls in every pass, honest reasons."""
    extra, forward, refused = ODD[case]
    loaded, profile = profile_file(write(tmp_path, forward, extra), tmp_path)
    assert profile.warnings == ()
    assert sum(h.self_ms for h in profile.hotspots) == pytest.approx(profile.model_ms)
    if refused:
        assert refused in {(h.name, h.reason) for h in profile.hotspots}
    assert torch.isfinite(loaded.run().float()).all()


def test_size_limits(tmp_path):
    """What is too large to capture says so; a target's calls are captured as far as they fit."""
    extra = "def big(x):\n    return x * 2\ndef small(x):\n    return x[0] + x[1] * 3\n"
    body = "for _ in range(3):\n            x = big(x)\n            y = small(x[:, 0])\n        return y"
    path = write(tmp_path, body, extra)
    loaded = load_model(parse_model(str(path)), "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets_module, "MIN_SHARE", 0.0)
        patch.setattr(targets_module, "_TARGET_BYTES", {"cpu": 2 * 16})
        profile = profile_model(loaded, DEVICE, tmp_path, repeats=2, timing_passes=2, capture_bytes=60)
    why = "its inputs of 64 bytes are over the size cap of 60 bytes; raise it with --capture-gb"
    assert {h.reason for h in profile.hotspots if h.name == "big"} == {why}
    assert target(profile, "small").captured_calls == 2
    assert target(profile, "small").calls == 3
