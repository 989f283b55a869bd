"""The profiling worker answers over its pipes, and its faults are sentences."""

from pathlib import Path

import pytest
import torch

from forge_tui.core.errors import EnvironmentFault, ModelError, UsageError
from forge_tui.core.paths import Workspace
from forge_tui.models import capture
from forge_tui.models.spec import parse_model
from forge_tui.profiler import client
from forge_tui.profiler.device import cpu_arch, cuda_arch, describe
from forge_tui.targets.select import choose


def workspace(tmp_path: Path) -> Workspace:
    """A prepared workspace."""
    found = Workspace(tmp_path / "ws")
    found.prepare()
    return found


async def test_profile_of_an_example(tmp_path):
    """The tiny language model gives the targets it was written to have, with graphs and captured inputs."""
    ws = workspace(tmp_path)
    spec = parse_model("example:tiny-llm")
    found = await client.profile(spec, "cpu", ws, threads=2, seed=0, log=tmp_path / "log", timeout_s=240, repeats=2)
    assert (found.device.name, found.device.threads, found.device.language) == ("cpu", 2, "cpp")
    by_name = {t.name: t for t in found.targets}
    assert {"RMSNorm", "apply_rotary_pos_emb", "attention_softmax", "swiglu"} <= by_name.keys()
    norm, softmax = by_name["RMSNorm"], by_name["attention_softmax"]
    assert (norm.calls, len(norm.instances), norm.flops, norm.bound) == (9, 9, 0, "memory")
    assert norm.bytes_moved == 4 * (2 * 768 * 256 + 256)
    assert norm.qualname == "forge_tui.examples.tiny_llm:RMSNorm"
    assert "class RMSNorm" in norm.source
    assert norm.graph is not None
    assert [s.name for s in norm.signature.scalars] == ["variance_epsilon"]
    assert [i.name for i in softmax.signature.inputs] == ["scores", "mask"]
    assert softmax.signature.scalars[0].value == pytest.approx(32**-0.5)
    assert by_name["apply_rotary_pos_emb"].signature.inputs[0].spec.strides[1:] == (32, 256, 1)
    assert capture.count(ws.artifacts / norm.capture) == norm.captured_calls == 4
    assert [t.name for t in choose(found, names=("RMSNorm",))] == ["RMSNorm"]
    assert 0 < len(choose(found)) <= 12
    assert 0 < found.model_ms < 60_000
    assert found.warnings == ()


async def test_faults_cross_the_pipe(tmp_path):
    """A broken model, an absent device and a malformed one come back as the faults they are; the log has the rest."""
    ws, log = workspace(tmp_path), tmp_path / "log"
    path = tmp_path / "net.py"
    path.write_text("def build():\n    return 1 / 0\n")
    with pytest.raises(ModelError, match=r"^build\(\) failed \(line 2 of net\.py\): ZeroDivisionError"):
        await client.profile(parse_model(str(path)), "cpu", ws, log=log, timeout_s=120)
    assert "Traceback" in log.read_text()
    assert "ZeroDivisionError" in log.read_text()
    with pytest.raises(UsageError, match="'gpu' is not a device"):
        await client.describe_device("gpu", log=log)


async def test_death_and_time_limit(tmp_path):
    """A model that kills its process, or never ends, is a fault that names the log."""
    ws, log = workspace(tmp_path), tmp_path / "log"
    path = tmp_path / "net.py"
    path.write_text("import os\ndef build():\n    os.kill(os.getpid(), 11)\n")
    with pytest.raises(EnvironmentFault, match=r"Profiling ended early: The worker ended with signal SIGSEGV\..*log"):
        await client.profile(parse_model(str(path)), "cpu", ws, log=log, timeout_s=120)
    path.write_text("import time\ndef build():\n    time.sleep(600)\n")
    with pytest.raises(EnvironmentFault, match="Profiling did not end within 6 s"):
        await client.profile(parse_model(str(path)), "cpu", ws, log=log, timeout_s=6)


def test_device_record():
    """The CPU's record is the same each time but for what is measured, and its ceilings are plausible."""
    one = describe("cpu")
    assert one.identity == describe("cpu", ceilings=False).identity
    assert one.threads == torch.get_num_threads()
    assert one.cores >= 1
    assert one.ceilings is not None
    assert 0.5 < one.ceilings.copy_gbps <= one.ceilings.cached_copy_gbps < 10_000
    assert one.ceilings.matmul_tflops["float32"] > 1e-3
    assert 0 < one.ceilings.launch_us < 1000


def test_arch_names():
    """The CPU's arch changes with any feature flag; CUDA's is the architecture-specific one where it exists."""
    assert cpu_arch("x86_64", ["avx2", "sse"]).startswith("x86_64-avx2-")
    assert cpu_arch("x86_64", ["avx2", "sse"]) != cpu_arch("x86_64", ["avx2", "sse", "fma"])
    assert [cuda_arch(*c) for c in ((8, 0), (8, 6), (9, 0), (10, 0), (12, 0))] == [
        "sm_80", "sm_86", "sm_90a", "sm_100a", "sm_120a"
    ]  # fmt: skip
