"""Files in the form of KernelBench, all three levels, load and profile as they are."""

import functools
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from forge_tui.core.profiles import Profile
from forge_tui.core.records import Ceilings, Device, Target
from forge_tui.models import capture
from forge_tui.models.attributes import module_tensors
from forge_tui.models.calls import rebuild_call, take_outputs
from forge_tui.models.load import LoadedModel, load_model, seed_everything
from forge_tui.models.resolve import caller, original
from forge_tui.models.spec import parse_model
from forge_tui.profiler import targets as targets_module
from forge_tui.profiler.families.siblings import families
from forge_tui.profiler.profile import profile_model

FOLDER = Path(__file__).parent.parent / "fixtures" / "kernelbench"
HUGE = "level1/18_huge_scale"
FILES = sorted(str(p.relative_to(FOLDER).with_suffix("")) for p in FOLDER.rglob("*.py"))
#: far above any machine, so that everything has headroom
DEVICE = Device(name="cpu", model="test", arch="test",
                ceilings=Ceilings(copy_gbps=1e6, matmul_tflops={"float32": 1e3}, launch_us=1.0))  # fmt: skip
NOT_REPLACEABLE = "only modules, the model's own functions and torch.nn.functional can be replaced"
WRITES_INPUTS = "The model writes into its own inputs, so each call sees other values than the one before."
#: models whose second call does not give what the first gave: one writes into its inputs
CHANGING = {"level1/15_relu_in_place"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small models: threads only cost time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def profiled(name: str, folder: Path, **options) -> tuple[LoadedModel, Profile]:
    """One file, tiny calls included."""
    loaded = load_model(parse_model(str(FOLDER / f"{name}.py")), "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets_module, "MIN_SHARE", 0.0)
        return loaded, profile_model(loaded, DEVICE, folder, repeats=2, timing_passes=2, **options)


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    """The profile of a file by name, made once."""
    return functools.lru_cache(maxsize=None)(
        lambda name: (*profiled(name, folder := tmp_path_factory.mktemp("kernelbench")), folder)
    )


def leaves(value: object) -> list[torch.Tensor]:
    """The tensors of a result, dataclasses included."""
    found = pytree.tree_leaves(vars(value) if hasattr(value, "__dataclass_fields__") else value)
    return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]


def test_there_are_files_of_all_levels():
    """The corpus is large enough to mean something."""
    levels = [name.partition("/")[0] for name in FILES]
    assert min(levels.count(f"level{n}") for n in (1, 2, 3)) >= 15
    assert len(FILES) >= 45


@pytest.mark.parametrize("name", [name for name in FILES if name != HUGE])
def test_profile(profiles, name):
    """A file loads and profiles: times add up, and what is no target says why."""
    _, profile, _ = profiles(name)
    assert profile.warnings == ((WRITES_INPUTS,) if name in CHANGING else ())
    assert profile.model_ms > 0
    assert sum(h.self_ms for h in profile.hotspots) == pytest.approx(profile.model_ms)
    known = {target.id for target in profile.targets}
    assert all((h.target_id in known) != bool(h.reason) for h in profile.hotspots)
    assert known == {h.target_id for h in profile.hotspots if h.target_id}
    assert len({target.name for target in profile.targets}) == len(profile.targets)


@pytest.mark.parametrize("name", [name for name in FILES if name != HUGE])
def test_captured_calls_replay(profiles, name):
    """Every captured call, made again, gives what the original gives, and writes nowhere."""
    loaded, profile, folder = profiles(name)
    for target in profile.targets:
        assert target.captured_calls == capture.count(folder / target.capture) > 0
        for number in range(target.captured_calls):
            tensors = capture.load(folder / target.capture, number, "cpu", loaded)
            for tensor, item in zip(tensors, target.signature.inputs, strict=True):
                assert (tuple(tensor.shape), tensor.stride()) == (item.spec.shape, item.spec.strides)
            before = [t.clone() for t in tensors]
            outputs = caller(target, loaded)(tensors)
            assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
            args, kwargs = rebuild_call(target.signature, tensors)
            with torch.no_grad():
                result = original(target, loaded, instance_of(target, loaded, tensors))(*args, **kwargs)
            expected = take_outputs(target.signature, result)
            assert [tuple(o.shape) for o in outputs] == [o.spec.shape for o in target.signature.outputs]
            assert [o.stride() for o in outputs] == [o.spec.strides for o in target.signature.outputs]
            for have, want in zip(outputs, expected, strict=True):
                torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def instance_of(target: Target, loaded: LoadedModel, tensors: list[torch.Tensor]) -> str | None:
    """The module whose own parameters are the captured ones."""
    if target.kind != "module":
        return None
    captured = {item.path: tensor for item, tensor in zip(target.signature.inputs, tensors, strict=True)
                if item.source != "arg"}  # fmt: skip
    for path in target.instances:
        own = {name: tensor for _, name, tensor in module_tensors(loaded.module.get_submodule(path))}
        if all(torch.equal(own[name], tensor) for name, tensor in captured.items()):
            return path
    raise AssertionError(f"{target.name}: no instance has the captured parameters")


@pytest.mark.parametrize("name", [name for name in FILES if name not in (HUGE, *CHANGING)])
def test_model_gives_the_same_as_before(profiles, name):
    """Profiling leaves the model as it was: a fresh one with the same seed gives the same result."""
    loaded, _, _ = profiles(name)
    fresh = load_model(parse_model(str(FOLDER / f"{name}.py")), "cpu")
    results = []
    for model in (loaded, fresh):
        seed_everything(3)
        results.append(leaves(model.run()))
    assert results[0]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


TARGETS = {
    "level1/4_softmax": {"F.softmax"},
    "level1/10_embedding": {"Embedding", "F.embedding"},
    "level1/11_cumsum": {"reverse_cumsum"},
    "level1/14_scatter_add": {"scatter_rows"},
    "level1/17_gelu_float64": {"F.gelu"},
    "level1/19_zero_rows": {"F.softplus"},
    "level1/20_scalar_tensors": {"lerp"},
    "level1/21_expanded_input": {"F.elu"},
    "level1/24_bool_mask": {"choose"},
    "level1/12_argmax": set(),
    "level1/16_masked_select": set(),
    "level1/25_complex_product": set(),
    "level2/5_noise": {"Linear", "F.linear"},
    "level2/6_two_results": {"mean_and_spread"},
    "level2/7_dict_result": {"pyramid", "F.avg_pool1d", "F.avg_pool1d@2"},
    "level2/11_fft_filter": {"low_pass"},
    "level2/12_in_place_residual": {"Linear", "F.linear"},
    "level2/14_rotary": {"apply_rotary", "rotate_half"},
    "level2/17_variadic": {"merge", "merge@2", "merge@3"},
    "level2/18_autocast_linear": {"LayerNorm", "F.layer_norm"},
    "level2/19_dataclass_input": {"Linear", "F.linear"},
    "level3/4_lstm": {"LSTM", "Linear", "F.linear"},
    "level3/5_gru_bidirectional": {"GRU"},
    "level3/9_selective_scan": {"selective_scan", "F.softplus", "Linear", "F.linear"},
    "level3/15_gradient_inside": set(),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets(profiles, name):
    """These files have these targets and no other."""
    assert {target.name for target in profiles(name)[1].targets} == TARGETS[name]


REASONS = [
    ("level1/12_argmax", "torch.argmax", NOT_REPLACEABLE),
    ("level1/15_relu_in_place", "F.relu_", "it writes into one of its inputs"),
    ("level1/16_masked_select", "positive", "the shape of a result depends on values"),
    ("level1/25_complex_product", "rotate", "x has the dtype complex64, which the kernel contract lacks"),
    ("level2/2_conv_bn_relu", "ReLU", "it writes into one of its inputs"),
    ("level2/4_dropout_in_eval", "Dropout", "it returns no new tensor"),
    ("level2/5_noise", "jitter", "it draws random numbers"),
    ("level2/8_named_tuple_result", "gate", "the result is of type Gate, a named tuple"),
    ("level2/9_dataclass_result", "Encoder", "the result is of type Output, a dataclass"),
    ("level2/11_fft_filter", "spectrum_of", "the result has the dtype complex64, which the kernel contract lacks"),
    ("level2/12_in_place_residual", "add_into", "it writes into one of its inputs"),
    ("level2/13_topk_early_exit", "best", "Python code in it depends on the values of a tensor"),
    ("level2/16_view_of_input", "heads", "the result is a view of an input"),
    ("level2/18_autocast_linear", "Linear", "called on its own it gives another form of out0"),
    ("level2/19_dataclass_input", "masked_mean", "batch is of type Batch, a dataclass"),
    ("level3/15_gradient_inside", "F.linear", "the result needs a gradient"),
]


@pytest.mark.parametrize(("name", "callee", "reason"), REASONS)
def test_reasons(profiles, name, callee, reason):
    """What cannot be a target says why."""
    assert {h.reason for h in profiles(name)[1].hotspots if h.name == callee} == {reason}


def test_numbers_of_a_known_call(profiles):
    """Calls, bytes and matrix work of calls that can be counted by hand."""
    _, profile, _ = profiles("level2/1_linear_gelu_scale")
    linear = next(t for t in profile.targets if t.name == "Linear")
    assert (linear.calls, linear.instances) == (1, ("linear",))
    assert linear.bytes_moved == 4 * (16 * 64 + 64 * 32 + 32 + 16 * 32)
    assert linear.flops == 2 * 16 * 64 * 32
    _, profile, _ = profiles("level1/10_embedding")
    rows = next(t for t in profile.targets if t.name == "F.embedding")
    assert rows.bytes_moved == 4 * 24 * (8 + 2 * 4 * 32), "ids, and 96 of the 1000 rows, in and out"


def test_siblings_of_one_model(profiles):
    """A layer called with two lengths is a family with the length as its dimension; so are convolutions by size."""
    loaded, profile, _ = profiles("level3/14_shared_and_tied")
    found = families(profile.targets, ["length"])
    norms = {t.name: found[t.id] for t in profile.targets if t.name.startswith("RMSNorm")}
    assert len(norms) == 2
    assert norms["RMSNorm"] == norms["RMSNorm@2"]
    (dim,) = norms["RMSNorm"][1]
    assert (dim.name, dim.sizes, dim.places) == ("length", (3, 6), (("x", 1), ("out0", 1)))
    assert isinstance(loaded.module.norm, nn.RMSNorm)


@pytest.mark.parametrize("name", [name for name in FILES if name != HUGE])
def test_families_hold_one_callable(profiles, name):
    """Every target has a family, and a family one callable; the dimensions stand where they say."""
    _, profile, _ = profiles(name)
    found = families(profile.targets)
    assert set(found) == {t.id for t in profile.targets}
    kinds: dict[str, set[tuple[str, str]]] = {}
    for target in profile.targets:
        family, dims = found[target.id]
        kinds.setdefault(family, set()).add((target.kind, target.qualname))
        shapes = {t.name: t.spec.shape for t in [*target.signature.inputs, *target.signature.outputs]}
        for dim in dims:
            assert len({shapes[place][at] for place, at in dim.places}) == 1
            assert all(shapes[place][at] in dim.sizes for place, at in dim.places)
    assert all(len(callables) == 1 for callables in kinds.values())


def test_huge_input(tmp_path):
    """An input above the cap of captures is profiled but not captured."""
    loaded, profile = profiled(HUGE, tmp_path, capture_bytes=100 << 20)
    (reason,) = {h.reason for h in profile.hotspots if h.name == "scale"}
    assert reason.startswith("its inputs of 235 MB are over the size cap of 105 MB")
    assert profile.targets == ()
    assert not list(tmp_path.rglob("*.safetensors"))
    spot = next(h for h in profile.hotspots if h.name == "scale")
    assert spot.floor_ms == pytest.approx(2 * 4 * 56 * (1 << 20) / 1e6 / 1e9 * 1e3)
    assert loaded.phases[0].args[0].numel() == 56 << 20
