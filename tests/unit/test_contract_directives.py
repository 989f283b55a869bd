"""Directives: what they say, and what is refused with which sentence."""

from __future__ import annotations

import pytest

from forge_tui.contract import directives
from forge_tui.core.errors import ContractError

KERNEL = '\nextern "C" __global__ void k(FORGE_PARAMS) {}\n'


def test_tunables_keep_their_order_and_the_first_value_is_the_default():
    """Values may be negative or hexadecimal; the declared order is kept."""
    read = directives.parse("//@tune SPLIT 64 16 -32 0x80\n//@tune B 1\n")
    assert [(t.name, t.values, t.default) for t in read.tunes] == [("SPLIT", (64, 16, -32, 128), 64), ("B", (1,), 1)]
    assert read.defaults == {"SPLIT": 64, "B": 1}


def test_workspace_is_an_expression_with_an_optional_zero():
    """`zero` behind the expression asks for zeros."""
    plain = directives.parse("//@workspace x_shape_0 * 8").workspace
    zeroed = directives.parse("//@workspace x_shape_0 * 8 zero").workspace
    assert (plain.bytes, plain.zero) == ("x_shape_0 * 8", False)
    assert (zeroed.bytes, zeroed.zero) == ("x_shape_0 * 8", True)


def test_launch_takes_tuples_single_expressions_and_blanks_inside_parentheses():
    """One value, a tuple, and a parenthesised expression are told apart."""
    source = (
        "//@launch k grid=(ceil_div(x_shape_0, 2), SPLIT, 3) block=256 smem=(4 * SPLIT) cluster=(2,1) cooperative\n"
        "//@launch k grid = (n + 1)/2 block= (32)\n" + KERNEL
    )
    first, second = directives.parse(source).launches
    assert first.grid == ("ceil_div(x_shape_0, 2)", "SPLIT", "3")
    assert (first.block, first.smem, first.cluster, first.cooperative) == (("256",), "(4 * SPLIT)", ("2", "1"), True)
    assert (second.grid, second.block, second.smem, second.cluster) == (("(n + 1)/2",), ("32",), "0", None)


def test_launches_keep_their_order_and_may_repeat_a_kernel():
    """The order written is the order run."""
    kernels = KERNEL + 'extern "C" {\n__global__ void __launch_bounds__(64) other(FORGE_PARAMS);\n}\n'
    source = "//@launch other grid=1 block=1\n//@launch k grid=2 block=1\n//@launch other grid=3 block=1" + kernels
    assert [(x.kernel, x.grid) for x in directives.parse(source).launches] == [
        ("other", ("1",)), ("k", ("2",)), ("other", ("3",)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source",
    ["/*\n//@tune A 1\n*/", 'const char* s = "//@tune A 1";', 'auto s = R"x(\n//@bogus\n)x";', "// //@tune A 1",
     "//  @tune A 1"],
)  # fmt: skip
def test_directives_in_comments_and_strings_do_not_count(source):
    """Only a line comment that begins with //@ is a directive."""
    assert directives.parse(source) == directives.Directives()


def test_a_directive_may_go_on_behind_a_line_continuation():
    """The compiler's view of a line is ours."""
    assert directives.parse("//@tune A 1 \\\n 2\n").tunes[0].values == (1, 2)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("\n//@tunes A 1", "Line 2: `//@tunes` is not a directive; tune, workspace and launch are."),
        ("//@", "Line 1: `//@` is not a directive; tune, workspace and launch are."),
        ("//@tensormap x", "Line 1: `//@tensormap` is not supported yet."),
        ("int a; //@tune A 1", "Line 1: a `//@tune` directive must stand on a line of its own."),
        ("//@tune", "Line 1: `//@tune` needs a name and its values, such as `//@tune SPLIT 64 16 32`."),
        ("//@tune 4 4", "Line 1: `//@tune` needs a name and its values, such as `//@tune SPLIT 64 16 32`."),
        ("//@tune A", "Line 1: the tunable `A` has no values."),
        ("//@tune A 1 2 3 4 5 6 7 8 9", "Line 1: the tunable `A` has 9 values; 8 are allowed."),
        ("//@tune A 1 1", "Line 1: the tunable `A` lists a value twice."),
        ("//@tune A 1.5", "Line 1: the tunable `A` has the value `1.5`, which is not an integer."),
        ("//@tune A 2147483648", "Line 1: the tunable `A` has the value 2147483648, which does not fit in 32 bits."),
        ("//@tune A 1\n//@tune A 2", "Line 2: the tunable `A` is declared twice."),
        ("//@tune int 1", "Line 1: a tunable cannot be called `int`, which has a meaning of its own."),
        ("//@tune __CUDA_ARCH__ 1",
         "Line 1: a tunable cannot be called `__CUDA_ARCH__`, which has a meaning of its own."),
        ("//@tune forge 1", "Line 1: a tunable cannot be called `forge`, which has a meaning of its own."),
        ("".join(f"//@tune A{i} 1\n" for i in range(7)), "Line 7: more than 6 tunables."),
        ("//@workspace", "Line 1: `//@workspace` needs a number of bytes."),
        ("//@workspace 1 +", "Line 1: `1 +` is not an integer expression: it ends too early."),
        ("//@workspace 1\n//@workspace 2", "Line 2: a second `//@workspace`; one is allowed."),
        ("//@launch", "Line 1: `//@launch` needs a kernel's name, then grid= and block=."),
        ("//@launch k grid=1", "Line 1: the launch of `k` has no `block=`."),
        ("//@launch k block=1", "Line 1: the launch of `k` has no `grid=`."),
        ("//@launch k grid=1 block=1 block=2", "Line 1: `block` is given twice."),
        ("//@launch k grid=1 block=1 stream=2", "Line 1: `stream` is no option of `//@launch`."),
        ("//@launch k grid=1 block=1 cooperative=1", "Line 1: `cooperative` takes no value."),
        ("//@launch k grid=1 block=1 smem", "Line 1: `smem` needs a value."),
        ("//@launch k grid= block=1", "Line 1: `grid` needs a value."),
        ("//@launch k grid=(1,2,3,4) block=1", "Line 1: `grid` has 4 dimensions; 1 to 3 are allowed."),
        ("//@launch k grid=(1 block=1", "Line 1: the parentheses of `grid` do not match."),
        ("//@launch k grid=n * 2 block=1",
         "Line 1: unexpected `* 2 block=1`; put expressions with blanks into parentheses."),
        ("//@launch k grid=1 block=1\n__global__ void j(FORGE_PARAMS) {}",
         'Line 1: the source has no `extern "C" __global__` function `k`.'),
        ("//@launch k grid=1 block=1\n__global__ void k(FORGE_PARAMS) {}",
         'Line 1: the kernel `k` must be `extern "C"` and take exactly `(FORGE_PARAMS)`.'),
        ('//@launch k grid=1 block=1\nextern "C" __global__ void k(float* x) {}',
         'Line 1: the kernel `k` must be `extern "C"` and take exactly `(FORGE_PARAMS)`.'),
        ('//@launch k grid=1 block=1\n// extern "C" __global__ void k(FORGE_PARAMS) {}',
         'Line 1: the source has no `extern "C" __global__` function `k`.'),
        ("//@launch k grid=1 block=1\n" * 33 + KERNEL, "The source has 33 launches; 32 are allowed."),
    ],
)  # fmt: skip
def test_each_fault_has_its_sentence(source, sentence):
    """A wrong directive is refused with its line and what is wrong."""
    with pytest.raises(ContractError) as caught:
        directives.parse(source)
    assert caught.value.what == sentence


def test_chosen_values_must_be_declared():
    """A tunable or a value that the source does not declare is refused; the rest takes its default."""
    read = directives.parse("//@tune A 1 2\n//@tune B 3 4")
    assert read.chosen({"B": 4}) == {"A": 1, "B": 4}
    with pytest.raises(ContractError, match="declares no tunable `C`"):
        read.chosen({"C": 1})
    with pytest.raises(ContractError, match="A=3 is not one of the values"):
        read.chosen({"A": 3})


def test_kernels_are_found_through_specifiers_and_templates():
    """Launch bounds, attributes and templates do not hide a kernel's name."""
    source = directives.read(
        'extern "C" __global__ void __launch_bounds__(256, 2) __cluster_dims__(2, 1, 1) a(FORGE_PARAMS) { if (x) {} }\n'
        'extern "C" __global__ __launch_bounds__(32) void b( FORGE_PARAMS );\n'
        "template <int N> __global__ void c(float* x) {}\n"
        'extern "C" { __global__ void d(FORGE_PARAMS) {} __device__ int e(int i) { return i; } }\n'
        "__global__ void f(FORGE_PARAMS) {}\n"
    )
    assert directives.kernel_functions(source) == {"a": True, "b": True, "c": False, "d": True, "f": False}
