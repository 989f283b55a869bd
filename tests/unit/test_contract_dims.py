"""What varies at run time: fields of ForgeDims, their names in directives, and plans at every size."""

from __future__ import annotations

import msgspec
import pytest
from targets_fixture import cpu_device, cuda_device, make_target, spec

from forge_tui.contract import dims, header, plan
from forge_tui.core.errors import ContractError
from forge_tui.core.records import DynamicDim, Target

KERNEL = '\nextern "C" __global__ void k(FORGE_PARAMS) {}\n'


def at(seq: int, name: str) -> Target:
    """`x` of (2, seq, 8) with a gap behind each row, its result dense, and an integer that repeats the size."""
    x = spec(2, seq, 8, strides=(seq * 16, 16, 1))
    made = make_target(name, [("x", x, "arg")], [spec(2, seq, 8)], [("count", seq, "arg"), ("eps", 0.5, "arg")])
    return msgspec.structs.replace(made, id=name)


def family(*sizes: int, name: str = "seq") -> Target:
    """The first size with the others as its siblings."""
    first, *others = (at(size, f"t{size}") for size in sizes)
    varies = DynamicDim(name=name, sizes=tuple(sorted(sizes)), places=(("x", 1), ("out0", 1)), scalars=("count",))
    return msgspec.structs.replace(first, siblings=tuple(others), dynamic=(varies,))


def test_equal_numbers_share_a_field():
    """Size and scalar are one field by the dimension's name, strides and counts others; what is equal is no field."""
    found = {f.name: (set(f.places), f.values) for f in dims.fields(family(64, 7, 1))}
    assert found == {
        "seq": ({"x_shape_1", "out0_shape_1", "count"}, (64, 7, 1)),
        "x_stride_0": ({"x_stride_0", "x_numel", "out0_numel"}, (1024, 112, 16)),
        "out0_stride_0": ({"out0_stride_0"}, (512, 56, 8)),
    }
    assert dims.fields(at(64, "alone")) == ()


def test_strides_of_single_rows_mean_nothing():
    """A stride that differs only where its dimension has one element stays a constant."""
    target = family(64, 1)
    single = target.siblings[0]
    out = msgspec.structs.replace(single.signature.outputs[0], spec=spec(2, 1, 8, strides=(8, 99, 1)))
    signature = msgspec.structs.replace(single.signature, outputs=(out,))
    odd = msgspec.structs.replace(target, siblings=(msgspec.structs.replace(single, signature=signature),))
    assert [f.name for f in dims.fields(odd)] == [f.name for f in dims.fields(target)]
    assert "out0_stride_1 = 8" in header.render(odd, cuda_device())


@pytest.mark.parametrize("name", ["batch*seq", "int", "x_shape_0", "x"])
def test_a_field_never_takes_another_name(name):
    """A label that is no free identifier gives way to the first place."""
    assert dims.fields(family(64, 7, name=name))[0].name == "x_shape_1"


def test_header_has_no_constant_of_what_varies():
    """The struct has the fields in order with their ranges; comments show where each stands."""
    text = header.render(family(64, 7), cpu_device())
    assert "// input x: float32[2, dims.seq, 8], strides [dims.x_stride_0, 16, 1] in elements" in text
    assert "constexpr int64_t x_shape_0 = 2, x_stride_1 = 16, x_shape_2 = 8, x_stride_2 = 1, x_align = 16;" in text
    assert "    int64_t seq;  // 7 to 64: x_shape_1, out0_shape_1, count\n" in text
    assert "constexpr int64_t count" not in text
    assert "constexpr double eps = 0.5;" in text


def test_plans_at_every_size():
    """Grids and workspaces follow the sizes, under the field's name and under those of its places."""
    source = "//@workspace x_numel * 4\n//@launch k grid=(seq, x_shape_0) block=32" + KERNEL
    target = family(64, 7, 1)
    own = plan.make(source, target, cuda_device(), {})
    assert (own.launches[0].grid, own.workspace_bytes, own.dims) == ((64, 2, 1), 1024 * 4, (64, 1024, 512))
    others = plan.make_all(source, target, cuda_device(), {})
    assert {k: (p.launches[0].grid, p.workspace_bytes, p.dims) for k, p in others.items()} == {
        "t7": ((7, 2, 1), 112 * 4, (7, 112, 56)), "t1": ((1, 2, 1), 16 * 4, (1, 16, 8)),
    }


def test_a_plan_that_fails_at_one_size():
    """The sentence says at which size."""
    source = "//@launch k grid=(16 / (seq - 1)) block=32" + KERNEL
    with pytest.raises(ContractError, match=r"^At seq=1: Line 1: .* divides by zero"):
        plan.make_all(source, family(64, 7, 1), cuda_device(), {})


def test_an_empty_candidate_counts_at_run_time():
    """What a person starts from reads the count from `dims`."""
    assert "i >= dims.x_stride_0" in header.empty_candidate(family(64, 7), cuda_device())
    assert "i < dims.x_stride_0" in header.empty_candidate(family(64, 7), cpu_device())
    assert "i < forge::out0_numel" in header.empty_candidate(at(64, "alone"), cpu_device())


def test_a_tunable_cannot_take_the_name_of_a_field():
    """`seq` has a meaning of its own there."""
    with pytest.raises(ContractError, match="`seq` has the name of something"):
        header.names(family(64, 7), cuda_device(), {"seq": 4})
