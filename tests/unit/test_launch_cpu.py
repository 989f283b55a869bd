"""A built CPU kernel is verified, loaded and called."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
import torch

from forge_tui.core.records import Built, KernelInput, KernelOutput, LaunchPlan, Signature, TensorSpec
from forge_tui.launch.kernel import LaunchError, allocate_outputs, load_kernel

SOURCE = """
#include <cstdint>
struct ForgeDims { int64_t reserved; };
extern "C" int omp_get_max_threads();
extern "C" int forge_launch(const float* x, const int64_t* n, float* out0, float* out1, void* workspace,
                            ForgeDims dims) {
    if (dims.reserved != 0) return 9;
    if (*n < 0) return int(-*n);
    float* w = (float*)workspace;
    #pragma omp parallel for
    for (int i = 0; i < 8; ++i) out0[i] = x[i] * 2 + w[i];
    out1[0] = omp_get_max_threads();
    for (int i = 0; i < 8; ++i) w[i] = 100;
    return 0;
}
"""


def f32(*shape: int) -> TensorSpec:
    """A row-major float32 spec."""
    return TensorSpec(shape=shape, dtype="float32", strides=tuple(torch.empty(shape).stride()))


SIGNATURE = Signature(
    inputs=(KernelInput(name="x", spec=f32(8), source="arg", path="x"),
            KernelInput(name="n", spec=TensorSpec(shape=(), dtype="int64", strides=()), source="arg", path="n")),
    outputs=(KernelOutput(name="out0", spec=f32(8)), KernelOutput(name="out1", spec=f32(1))),
    scalars=(), call={}, result={},
)  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    """The kernel above, its OpenMP symbols left undefined as the compiler room leaves them."""
    folder = tmp_path_factory.mktemp("launch")
    (folder / "k.cpp").write_text(SOURCE)
    subprocess.run(["g++", "-O2", "-fopenmp", "-fPIC", "-c", "k.cpp", "-o", "k.o"], cwd=folder, check=True)
    subprocess.run(["g++", "-shared", "k.o", "-o", "kernel.so"], cwd=folder, check=True)
    data = (folder / "kernel.so").read_bytes()
    return Built(
        path=str(folder / "kernel.so"), sha256=hashlib.sha256(data).hexdigest(), language="cpp", compile_s=0.0,
        plan=LaunchPlan(workspace_bytes=32, workspace_zero=True),
    )  # fmt: skip


def test_outputs_are_written(built: Built):
    """Inputs, outputs, workspace and dims arrive in the order of the contract."""
    kernel = load_kernel(built, SIGNATURE, "cpu")
    x, outputs = torch.arange(8.0), allocate_outputs(SIGNATURE, "cpu")
    kernel.launch([x, torch.tensor(3)], outputs, kernel.allocate_workspace())
    assert torch.equal(outputs[0], x * 2)
    assert outputs[1].item() == torch.get_num_threads()


def test_workspace_is_zeroed_at_every_call(built: Built):
    """A workspace declared `zero` is zero again when the same one is used twice."""
    kernel = load_kernel(built, SIGNATURE, "cpu")
    workspace = torch.full((32,), 0x41, dtype=torch.uint8)
    x, outputs = torch.ones(8), allocate_outputs(SIGNATURE, "cpu")
    for _ in range(2):
        kernel.launch([x, torch.tensor(1)], outputs, workspace)
        assert torch.equal(outputs[0], torch.full((8,), 2.0))


def test_a_nonzero_return_is_an_error(built: Built):
    """What forge_launch returned is in the error."""
    kernel = load_kernel(built, SIGNATURE, "cpu")
    outputs, workspace = allocate_outputs(SIGNATURE, "cpu"), kernel.allocate_workspace()
    with pytest.raises(LaunchError, match="forge_launch returned 3") as caught:
        kernel.launch([torch.ones(8), torch.tensor(-3)], outputs, workspace)
    assert caught.value.returned == 3


def test_a_wrong_number_of_tensors_is_an_error(built: Built):
    """A missing tensor is refused before the kernel reads garbage."""
    kernel = load_kernel(built, SIGNATURE, "cpu")
    with pytest.raises(LaunchError, match="takes 2 inputs and 2 outputs"):
        kernel.launch([torch.ones(8)], allocate_outputs(SIGNATURE, "cpu"), None)


def test_another_file_is_not_loaded(built: Built, tmp_path: Path):
    """A file with one byte changed is refused by its hash."""
    other = tmp_path / "kernel.so"
    data = bytearray(Path(built.path).read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with pytest.raises(LaunchError, match="sha256 differs"):
        load_kernel(msgspec.structs.replace(built, path=str(other)), SIGNATURE, "cpu")


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path):
    """A damaged file gives a sentence, not a traceback of ctypes."""
    path = tmp_path / "kernel.so"
    path.write_bytes(b"nothing")
    bad = Built(path=str(path), sha256=hashlib.sha256(b"nothing").hexdigest(), language="cpp", plan=LaunchPlan(),
                compile_s=0)  # fmt: skip
    with pytest.raises(LaunchError, match="cannot be loaded"):
        load_kernel(bad, SIGNATURE, "cpu")


def test_a_missing_file_and_a_wrong_device_are_errors(built: Built, tmp_path: Path):
    """Both are said before anything is loaded."""
    gone = Built(path=str(tmp_path / "no.so"), sha256="", language="cpp", plan=LaunchPlan(), compile_s=0)
    with pytest.raises(LaunchError, match="cannot be read"):
        load_kernel(gone, SIGNATURE, "cpu")
    with pytest.raises(LaunchError, match="cannot run on cuda:0"):
        load_kernel(built, SIGNATURE, "cuda:0")


def test_outputs_have_the_strides_of_the_signature():
    """A channels-last output is allocated channels-last."""
    spec = TensorSpec(shape=(2, 3, 4, 5), dtype="bfloat16", strides=(60, 1, 15, 3))
    signature = Signature(inputs=(), outputs=(KernelOutput(name="out0", spec=spec),), scalars=(), call={}, result={})
    (out,) = allocate_outputs(signature, "cpu")
    assert (out.stride(), out.dtype, tuple(out.shape)) == ((60, 1, 15, 3), torch.bfloat16, (2, 3, 4, 5))


def test_openmp_is_found_where_torch_did_not_bring_it(built: Built):
    """Without torch's OpenMP runtime in the process the system's is loaded."""
    code = f"""
        import sys, types
        sys.modules["torch"] = types.SimpleNamespace(Tensor=object)  # launch.cpu only names it
        from pathlib import Path
        from forge_tui.launch.cpu import _open
        print(_open(Path({built.path!r})).forge_launch is not None)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
