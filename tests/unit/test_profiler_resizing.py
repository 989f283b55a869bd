"""Siblings of a target whose sizes vary: those seen, and those made by cutting captured inputs."""

import dataclasses
import sys

import msgspec
import pytest
import torch
from torch import nn

from forge_tui.core.records import Ceilings, Device, ModelSpec
from forge_tui.models import capture
from forge_tui.models.held import origins_of
from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.models.resolve import caller
from forge_tui.profiler.families.resizing import between
from forge_tui.profiler.profile import profile_model

CPU = Device(name="cpu", model="test", arch="test", cores=2, threads=2,
             ceilings=Ceilings(copy_gbps=1e4, matmul_tflops={"float32": 100.0}, launch_us=0.001))  # fmt: skip
WIDTH = 48


class Norm(nn.Module):
    """Of any length."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Positions(nn.Module):
    """Has a table as long as the longest text."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.rand(400, WIDTH))

    def forward(self, x):
        return (x + self.table[: x.shape[1]]).sin().exp()


def turned(x, cos, sin):
    """Reads heads as they lie behind a transposition; `count` repeats the length."""
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat([-other, one], -1) * sin


def pairs(x, count):
    """Fails on a single row; takes the length as a number."""
    if count < 2:
        raise ValueError("there is no pair")
    return (x[:, :count] * 2).sin().cos() + x[:, :1]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.positions = Norm(), Positions()

    def forward(self, x):
        batch, length, _ = x.shape
        y = self.positions(self.norm(x))
        angles = torch.arange(length)[:, None] * torch.linspace(0.1, 1, WIDTH // 2)
        heads = turned(y.view(batch, length, 2, WIDTH // 2).transpose(1, 2), angles.cos(), angles.sin())
        return pairs(heads.transpose(1, 2).reshape(batch, length, WIDTH), length)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Profile, artifacts and model of two lengths."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine threads wait for one another, and small calls come to look large
    torch.manual_seed(5)
    model = Model().eval().requires_grad_(False)
    phases = tuple(Phase(name, args=(torch.randn(3, size, WIDTH),)) for name, size in (("long", 400), ("short", 70)))
    loaded = LoadedModel(ModelSpec(text="m", path="", dynamic=("seq",)), model, phases, torch.device("cpu"),
                         sys.modules[__name__], (__name__,), origins_of(model, (__name__,)))  # fmt: skip
    folder = tmp_path_factory.mktemp("artifacts")
    yield profile_model(loaded, CPU, folder, repeats=2, timing_passes=1), folder, loaded
    torch.set_num_threads(threads)


def joined(profile, qualname):
    """The target of this callable that has siblings."""
    return next(t for t in profile.targets if t.qualname.endswith(qualname) and t.siblings)


def lengths(target, place):
    """Sizes at a place, with whether calls had them."""
    name, index = place
    every = (target, *target.siblings)
    return {next(i for i in t.signature.inputs if i.name == name).spec.shape[index]: not t.made for t in every}


@pytest.mark.parametrize(
    ("sizes", "made"),
    [((64, 600), [1, 9, 333, 512, 599]), ((1,), []), ((2,), [1]), ((3,), [1, 2]), ((1, 4), [3]), ((1, 2), []),
     ((8,), [1, 3, 5, 7]), ((1, 1024), [513, 1023]), ((70, 400), [1, 9, 235, 256, 399]),
     ((100, 173, 331), [1, 11, 215, 256, 329])],
)  # fmt: skip
def test_sizes_in_between(sizes, made):
    """One, a few, a power of two, an odd one in the middle, one below the largest; none seen, none beyond what was."""
    assert between(sizes) == made


def test_rare_calls_of_a_worthy_callable_count(tmp_path):
    """A call far below the share of a target is one of the sizes where sizes vary, and none where they do not."""
    model = Norm().eval().requires_grad_(False)
    root = nn.Sequential(model).eval()
    phases = (Phase("long", args=(torch.randn(8, 4000, WIDTH),), weight=50.0),
              Phase("short", args=(torch.randn(8, 2, WIDTH),)))
    for named, expected in ((("seq",), [4000, 2, 1, 2001, 2048, 3999]), ((), [4000])):
        loaded = LoadedModel(ModelSpec(text="m", path="", dynamic=named), root, phases, torch.device("cpu"),
                             sys.modules[__name__], (__name__,), origins_of(root, (__name__,)))  # fmt: skip
        profile = profile_model(loaded, CPU, tmp_path, repeats=2, timing_passes=1)
        target = max(profile.targets, key=lambda t: t.headroom_ms)
        assert [t.signature.inputs[0].spec.shape[1] for t in (target, *target.siblings)] == expected


def test_sizes_seen_and_made(profiled):
    """Both lengths that calls had, and five that none had."""
    profile, _, _ = profiled
    made = {1: False, 9: False, 235: False, 256: False, 399: False}
    assert lengths(joined(profile, "Norm"), ("x", 1)) == {400: True, 70: True} | made
    assert lengths(joined(profile, "turned"), ("cos", 0)) == {400: True, 70: True} | made


def test_a_made_call_is_the_one_that_the_model_would_make(profiled):
    """Its signature is that of a model run at this length, scalars and strides of results included."""
    profile, folder, loaded = profiled
    (long, *_) = loaded.phases
    cut = dataclasses.replace(long, args=(long.args[0][:, :235].clone(),), name="")
    other = dataclasses.replace(loaded, phases=(cut,), spec=ModelSpec(text="m", path=""))
    real = {t.qualname: t.signature for t in profile_model(other, CPU, folder, repeats=2, timing_passes=1).targets}
    compared = 0
    for target in (joined(profile, q) for q in ("Norm", "turned", "pairs")):
        mine = next(s for s in target.siblings if s.made and s.signature.outputs[0].spec.shape[-2] == 235)
        theirs = real[target.qualname]
        plain = [[msgspec.structs.replace(i, align=1) for i in s.inputs] for s in (mine.signature, theirs)]
        assert plain[0] == plain[1]
        assert (mine.signature.outputs, mine.signature.call, mine.signature.scalars) == \
            (theirs.outputs, theirs.call, theirs.scalars)  # fmt: skip
        compared += 1
    assert compared == 3


def test_made_inputs_are_captured_ones_cut(profiled):
    """They can be loaded, and the original gives on them what it gives on the beginning of the longer call."""
    profile, folder, loaded = profiled
    target = joined(profile, "Norm")
    longest = max((target, *target.siblings), key=lambda t: t.signature.inputs[0].spec.shape[1])
    whole = capture.load(folder / longest.capture, 0, "cpu", loaded)
    mine = next(s for s in target.siblings if s.signature.inputs[0].spec.shape[1] == 399)
    part = capture.load(folder / mine.capture, 0, "cpu", loaded)
    assert torch.equal(part[0], whole[0][:, :399])
    assert torch.equal(part[1], loaded.module.norm.weight)
    assert torch.equal(caller(mine, loaded)(part)[0], caller(longest, loaded)(whole)[0][:, :399])


def test_what_the_original_does_not_take_is_said(profiled):
    """A length at which it raises is left out with the reason; a table of that length is no obstacle."""
    profile, _, _ = profiled
    made = {9: False, 235: False, 256: False, 399: False}
    assert lengths(joined(profile, "pairs"), ("x", 1)) == {400: True, 70: True} | made
    assert [w for w in profile.warnings if "pairs" in w] == [
        f"{joined(profile, 'pairs').name} is not verified at seq=1: the original raises ValueError (there is no pair)."
    ]


def test_without_a_name_nothing_varies(profiled, tmp_path):
    """Sizes are dynamic where somebody says so; else each is a target of its own."""
    _, _, loaded = profiled
    plain = dataclasses.replace(loaded, spec=ModelSpec(text="m", path=""))
    profile = profile_model(plain, CPU, tmp_path, repeats=2, timing_passes=1)
    assert profile.targets
    assert not any(t.siblings for t in profile.targets)


def test_a_size_that_belongs_to_the_model_cannot_vary(profiled, tmp_path):
    """`width=48` is a parameter's size too."""
    _, _, loaded = profiled
    fixed = dataclasses.replace(loaded, spec=ModelSpec(text="m", path="", dynamic=("width=48",)))
    profile = profile_model(fixed, CPU, tmp_path, repeats=2, timing_passes=1)
    said = {w.partition(" ")[2] for w in profile.warnings if w.startswith("Norm") and "width=1:" in w}
    assert said == {"is not verified at width=1: width is a size of weight too, which belongs to the model."}
    assert not any(t.siblings for t in profile.targets if t.qualname.endswith(":Norm"))
