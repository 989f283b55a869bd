"""forge_target.h, the names of expressions, and the empty candidate."""

from __future__ import annotations

import math

import pytest
from targets_fixture import cpu_device, cuda_device, make_target, rms_norm_target, softmax_target, spec

from forge_tui.contract import directives, facts, header, lint, plan
from forge_tui.core.errors import ContractError


def test_shapes_strides_and_parameters_are_in_the_header():
    """A CUDA header has constants for each tensor and the parameter list in the contract's order."""
    text = header.render(rms_norm_target(rows=32, columns=128), cuda_device())
    assert (
        "constexpr int64_t hidden_states_shape_0 = 32, hidden_states_stride_0 = 128, hidden_states_shape_1 = 128, "
        "hidden_states_stride_1 = 1, hidden_states_numel = 4096, hidden_states_align = 16;"
    ) in text
    assert "constexpr int64_t weight_shape_0 = 128, weight_stride_0 = 1, weight_numel = 128, weight_align = 16;" in text
    assert "constexpr double eps = 1e-06;" in text
    assert (
        "#define FORGE_PARAMS const __nv_bfloat16* __restrict__ hidden_states, "
        "const __nv_bfloat16* __restrict__ weight, __nv_bfloat16* __restrict__ out0, "
        "void* __restrict__ workspace, ForgeDims dims\n"
    ) in text
    assert "struct ForgeDims { int64_t reserved; };" in text
    assert "#include <cuda_bf16.h>" in text
    assert "cuda_fp16" not in text


def test_the_cpu_header_uses_its_own_narrow_types():
    """A CPU header brings forge:: types and functions and declares the entry."""
    text = header.render(rms_norm_target(), cpu_device())
    assert "#define FORGE_PARAMS const forge::bfloat16* __restrict__ hidden_states, " in text
    assert 'extern "C" __attribute__((visibility("default"))) int forge_launch(FORGE_PARAMS);' in text
    assert "cuda" not in text
    for name in ("exp", "log", "tanh", "sigmoid", "erf", "rsqrt"):
        assert f"FORGE_INLINE float {name}(float x)" in text


@pytest.mark.parametrize(
    ("dtype", "cuda", "cpp"),
    [
        ("float64", "double", "double"), ("float32", "float", "float"), ("float16", "__half", "forge::half"),
        ("bfloat16", "__nv_bfloat16", "forge::bfloat16"), ("int64", "int64_t", "int64_t"),
        ("int32", "int32_t", "int32_t"), ("int16", "int16_t", "int16_t"), ("int8", "int8_t", "int8_t"),
        ("uint8", "uint8_t", "uint8_t"), ("bool", "bool", "bool"),
    ],
)  # fmt: skip
def test_every_dtype_has_its_c_type(dtype, cuda, cpp):
    """The dtypes of the contract map to the types that kernels are compiled with."""
    assert header.c_type(dtype, "cuda") == cuda
    assert header.c_type(dtype, "cpp") == cpp


def test_an_unknown_dtype_is_refused():
    """Complex tensors have no C type in the contract."""
    with pytest.raises(ContractError, match="dtype complex64"):
        header.c_type("complex64", "cuda")


@pytest.mark.parametrize(
    ("value", "cuda", "cpp"),
    [
        (True, "constexpr bool s = true;", None), (-3, "constexpr int64_t s = -3;", None),
        (2**40, "constexpr int64_t s = 1099511627776LL;", None),
        (-(2**63), "constexpr int64_t s = -9223372036854775807LL - 1;", None),
        (0.1, "constexpr double s = 0.1;", None), (5.0, "constexpr double s = 5.0;", None),
        (math.inf, "constexpr double s = __builtin_bit_cast(double, 0x7ff0000000000000ULL);",
         "constexpr double s = __builtin_huge_val();"),
        (-math.inf, "constexpr double s = __builtin_bit_cast(double, 0xfff0000000000000ULL);",
         "constexpr double s = -__builtin_huge_val();"),
        (math.nan, "constexpr double s = __builtin_bit_cast(double, 0x7ff8000000000000ULL);",
         'constexpr double s = __builtin_nan("");'),
    ],
)  # fmt: skip
def test_scalars_become_constants_of_their_type(value, cuda, cpp):
    """Booleans, integers at the ends of their range and floats with infinities keep type and value."""
    target = make_target("t", [("x", spec(4), "arg")], [spec(4)], [("s", value, "arg")])
    assert cuda in header.render(target, cuda_device())
    assert (cpp or cuda) in header.render(target, cpu_device())


def test_names_become_identifiers_that_are_free():
    """Dots become underscores; keywords, reserved names and clashes get an underscore behind."""
    target = make_target(
        "t", [(name, spec(4), "arg") for name in ("default", "a.b", "a_b", "workspace", "out0", "0")],
        [spec(4)], [("exp", 1, "attribute"), ("norm.eps", 0.5, "attribute"), ("default_numel", 7, "attribute")],
    )  # fmt: skip
    names = [name for name, _, _ in facts.parameters(target.signature)]
    assert names == ["default_", "a_b", "a_b_", "workspace_", "out0_", "v0", "out0"]
    text = header.render(target, cuda_device())
    assert "constexpr int64_t exp_ = 1;" in text
    assert "constexpr double norm_eps = 0.5;" in text
    assert "constexpr int64_t default_numel = 7;" in text


def test_expression_names_hold_shapes_scalars_device_and_tunables():
    """What an expression may use, with its value."""
    target = make_target(
        "t", [("x", spec(3, 5, strides=(1, 3)), "arg")], [spec(3)],
        [("n", 7, "arg"), ("flag", True, "arg"), ("e", 0.5, "arg")],
    )  # fmt: skip
    names = header.names(target, cuda_device(), {"SPLIT": 4})
    assert names == {
        "x_shape_0": 3, "x_shape_1": 5, "x_stride_0": 1, "x_stride_1": 3, "x_numel": 15, "x_align": 16,
        "out0_shape_0": 3, "out0_stride_0": 1, "out0_numel": 3, "out0_align": 16, "n": 7, "flag": 1, "SPLIT": 4,
        "sms": 132, "smem_optin": 232448, "l2_bytes": 52428800, "cores": 2, "threads": 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["x", "x_shape_0", "dim", "out0", "sms"])
def test_a_tunable_cannot_take_a_name_of_the_header(name):
    """A macro of that name would change the header."""
    with pytest.raises(ContractError, match=f"The tunable `{name}` has the name of something in forge_target.h."):
        header.names(softmax_target(), cuda_device(), {name: 1})


def test_comments_of_the_header_cannot_carry_code():
    """A target's name with a line break or a backslash stays inside its comment."""
    target = make_target("evil\n#error x\\", [("x", spec(4), "arg")], [spec(4)])
    lines = header.render(target, cuda_device()).splitlines()
    assert not any(line.startswith("#error") or line.endswith("\\") for line in lines)
    assert any("evil #error x/" in line for line in lines)


@pytest.mark.parametrize("device", [cpu_device(), cuda_device()], ids=["cpu", "cuda"])
@pytest.mark.parametrize("outputs", [[spec(100, 3)], []], ids=["one", "none"])
def test_the_empty_candidate_keeps_the_contract(device, outputs):
    """What a person starts from passes lint and plan."""
    target = make_target("t", [("x", spec(4), "arg")], outputs)
    source = header.empty_candidate(target, device)
    lint.check(source, device.language)
    made = plan.make(source, target, device, {})
    assert len(made.launches) == (1 if device.language == "cuda" else 0)
    if made.launches:
        assert made.launches[0].grid == ((2 if outputs else 1), 1, 1)
        assert directives.parse(source).defaults == {"BLOCK": 256}
