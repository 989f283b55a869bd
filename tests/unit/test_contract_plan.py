"""Launch plans: the numbers, and the bounds of hardware and contract."""

from __future__ import annotations

import pytest
from targets_fixture import cpu_device, cuda_device, softmax_target

from forge_tui.contract import keys, plan, tune
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Launch, LaunchPlan

KERNEL = '\nextern "C" __global__ void k(FORGE_PARAMS) {}\n'


def make(*lines, device=None, tunables=None):
    """The plan of directives for a softmax of 64 rows and 256 columns."""
    return plan.make("\n".join(lines) + KERNEL, softmax_target(64, 256), device or cuda_device(), tunables or {})


def test_sizes_are_worked_out_with_the_chosen_tunables():
    """Expressions see shapes, device facts and the chosen value of each tunable."""
    lines = (
        "//@tune SPLIT 4 8", "//@tune BLOCK 128 256", "//@workspace x_shape_0 * SPLIT * 8 zero",
        "//@launch k grid=(x_shape_0, SPLIT) block=(BLOCK, 2) smem=(BLOCK * 4)",
        "//@launch k grid=min(sms, x_shape_0) block=32 cluster=2 cooperative",
    )  # fmt: skip
    assert make(*lines, tunables={"SPLIT": 8}) == LaunchPlan(
        launches=(
            Launch(kernel="k", grid=(64, 8, 1), block=(128, 2, 1), smem=512),
            Launch(kernel="k", grid=(64, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1), cooperative=True),
        ),
        workspace_bytes=64 * 8 * 8, workspace_zero=True,
    )  # fmt: skip


def test_a_zero_grid_is_a_plan():
    """A launch with nothing to do is skipped later, not refused."""
    assert make("//@launch k grid=(x_shape_0 - 64) block=32").launches[0].grid == (0, 1, 1)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("//@launch k grid=1 block=1025", "has 1025 threads in x; 1 to 1024 are allowed."),
        ("//@launch k grid=1 block=(1, 1, 65)", "has 65 threads in z; 1 to 64 are allowed."),
        ("//@launch k grid=1 block=(64, 32)", "has 2048 threads in a block; 1024 are allowed."),
        ("//@launch k grid=1 block=0", "has 0 threads in x"),
        ("//@launch k grid=2147483648 block=1", "has 2147483648 blocks in x; 0 to 2147483647 are allowed."),
        ("//@launch k grid=(1, 65536) block=1", "has 65536 blocks in y; 0 to 65535 are allowed."),
        ("//@launch k grid=(1, 1, 65536) block=1", "has 65536 blocks in z"),
        ("//@launch k grid=-1 block=1", "has -1 blocks in x"),
        ("//@launch k grid=1 block=1 smem=232449", "asks for 232449 bytes of shared memory; 0 to 232448 are allowed."),
        ("//@launch k grid=1 block=1 smem=-1", "asks for -1 bytes"),
        ("//@launch k grid=16 block=1 cluster=16", "has clusters of 16 blocks; 1 to 8 are allowed."),
        ("//@launch k grid=16 block=1 cluster=0", "has clusters of 0 blocks"),
        ("//@launch k grid=(9, 2) block=1 cluster=(2, 1)", "has 9 blocks in x, which clusters of 2 do not divide."),
        ("//@launch k grid=5000 block=1 cooperative", "cannot all be resident on 132 SMs."),
        ("//@workspace 4294967297\n//@launch k grid=1 block=1", "the workspace has 4294967297 bytes"),
        ("//@workspace 0 - 1\n//@launch k grid=1 block=1", "the workspace has -1 bytes"),
        ("//@launch k grid=y_shape_0 block=1", "`y_shape_0` in `y_shape_0` is not a name of this target."),
        ("//@launch k grid=1/0 block=1", "`1/0` divides by zero."),
        ("//@tune x_shape_0 1\n//@launch k grid=1 block=1", "has the name of something in forge_target.h"),
        ("", "The source has no `//@launch` directive, so nothing would run."),
    ],
)
def test_what_no_device_could_run_is_refused(line, part):
    """Every bound has its sentence."""
    with pytest.raises(ContractError) as caught:
        make(line)
    assert part in caught.value.what


def test_bounds_are_those_of_the_device():
    """Clusters need their architecture; shared memory goes up to the device's own figure, 48 KiB where unknown."""
    with pytest.raises(ContractError, match="has clusters, which sm_80 does not have"):
        make("//@launch k grid=2 block=1 cluster=2", device=cuda_device("sm_80"))
    assert make("//@launch k grid=1 block=1 smem=232448").launches[0].smem == 232448
    with pytest.raises(ContractError, match="0 to 49152 are allowed"):
        make("//@launch k grid=1 block=1 smem=49153", device=cuda_device(smem_optin=0))


def test_a_cpu_kernel_has_a_workspace_and_no_launches():
    """The CPU's plan is its workspace; launches are CUDA's."""
    made = plan.make("//@workspace cores * 64 zero\n", softmax_target(), cpu_device(), {})
    assert made == LaunchPlan(workspace_bytes=128, workspace_zero=True)
    with pytest.raises(ContractError, match="a CPU kernel has no `//@launch`"):
        make("//@launch k grid=1 block=1", device=cpu_device())


def test_neighbours_are_one_step_away_in_declared_order():
    """Each other value of each tunable, the rest kept."""
    source = "//@tune A 1 2 3\n//@tune B 8 4\n"
    assert tune.defaults(source) == {"A": 1, "B": 8}
    assert tune.neighbours(source, {"A": 2}) == [
        {"A": 1, "B": 8}, {"A": 3, "B": 8}, {"A": 2, "B": 4},
    ]  # fmt: skip
    assert tune.neighbours("int x;", {}) == []


BASE = "//@tune A 1 2\n//@workspace A * 8\nint f() { return A; }\n"


@pytest.mark.parametrize(
    "other",
    [
        "// a comment\n" + BASE, BASE.replace("int f() {", "int  f( )\n{"), BASE.replace("A * 8", "A*8"),
        BASE.replace("\n", "\r\n"), BASE.replace("A 1 2", "A 1 2 4"),
    ],
)  # fmt: skip
def test_equal_kernels_have_equal_keys(other):
    """Comments, blanks and further values to sweep do not make another kernel."""
    assert keys.source_key(other, {}) == keys.source_key(BASE, {"A": 1})


@pytest.mark.parametrize(
    "other",
    [
        BASE.replace("return A", "return B"), BASE.replace("A * 8", "A * 4"), BASE.replace("A * 8", "A * 8 zero"),
        BASE.replace("A 1 2", "A 2 1"), BASE + "#define F(x) x\n", BASE.replace("return A", "return 'A'"),
    ],
)  # fmt: skip
def test_different_kernels_have_different_keys(other):
    """Code, workspace and the values in force count."""
    assert keys.source_key(other, {}) != keys.source_key(BASE, {})


def test_keys_see_tunables_macros_and_launches():
    """Another setting, another macro shape or another launch is another kernel."""
    assert keys.source_key(BASE, {"A": 2}) != keys.source_key(BASE, {})
    assert keys.source_key("#define F(x) x\n", {}) != keys.source_key("#define F (x) x\n", {})
    assert keys.source_key("//@launch k grid=1 block=1" + KERNEL, {}) != keys.source_key(
        "//@launch k grid=2 block=1" + KERNEL, {}
    )
