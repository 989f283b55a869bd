"""Sessions as an engine would write them, for tests of the store, the reports and the command line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from targets_fixture import cpu_device, cuda_device, rms_norm_target, softmax_target

from forge_tui.core.events import Kind
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import (
    Baseline,
    Hotspot,
    KernelTime,
    PhaseTime,
    Profile,
    TargetBaselines,
    WhatIf,
)
from forge_tui.core.records import (
    Ceilings,
    DeployDecision,
    Deployment,
    DynamicDim,
    Edge,
    Evaluation,
    LlmCall,
    ModelSpec,
    Node,
    RunOptions,
    Target,
    Verdict,
)
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

CEILINGS = Ceilings(copy_gbps=20.0, matmul_tflops={"float32": 0.1}, launch_us=2.0)


def options(workspace: Workspace, text: str = "example:tiny-llm", **changes: object) -> RunOptions:
    """What a session was asked to do."""
    fields: dict[str, object] = {
        "model": ModelSpec(text=text, path="/models/tiny_llm.py"), "device": "cpu", "workspace": str(workspace.root),
    }  # fmt: skip
    return RunOptions(**(fields | changes))


def targets() -> tuple[Target, ...]:
    """Two targets: `F.softmax` with 0.09 ms of headroom, `RMSNorm` with 1.5 ms."""
    norm = msgspec.structs.replace(
        rms_norm_target(), calls=9, time_us=200.0, share=0.36, floor_us=33.0, headroom_ms=1.5, instances=("norm",)
    )
    return softmax_target(), norm


def profile(**changes: object) -> Profile:
    """A profile of a 5 ms model with three hotspots and two targets."""
    softmax, norm = targets()
    fields: dict[str, object] = {
        "device": cpu_device(ceilings=CEILINGS), "model_ms": 5.0, "overhead": 1.5,
        "hotspots": (
            Hotspot(id=1, parent=None, name="TinyLLM", kind="model", path="", calls=1, total_ms=5.0, self_ms=0.5,
                    share=1.0, reason="the whole model"),
            Hotspot(id=2, parent=1, name="RMSNorm", kind="module", path="norm", calls=9, total_ms=1.8, self_ms=1.8,
                    share=0.36, headroom_ms=1.5, target_id=norm.id),
            Hotspot(id=3, parent=1, name="softmax", kind="torch", path="", calls=1, total_ms=0.1, self_ms=0.1,
                    share=0.02, headroom_ms=0.09, target_id=softmax.id),
        ),
        "targets": (softmax, norm), "warnings": ("Two calls were left out.",),
    }  # fmt: skip
    return Profile(**(fields | changes))


def whole_profile(**changes: object) -> Profile:
    """A profile with everything in it: a CUDA device, two phases, kernels, baselines, what-ifs."""
    softmax, norm = targets()
    norm = msgspec.structs.replace(
        norm, family="f1", phases=("prefill", "decode"), launches=7.0, host_us=250.0,
        dynamic=(DynamicDim(name="seq", sizes=(1, 32), places=(("hidden_states", 0), ("out0", 0))),),
    )  # fmt: skip
    pow_kernel = KernelTime(name="void at::native::pow_kernel<float>(int)", launches=36, total_ms=0.75)
    spots = (
        Hotspot(id=1, parent=None, name="TinyLLM", kind="model", path="", calls=1, total_ms=4.0, self_ms=0.125,
                share=1.0, reason="the whole model", host_ms=5.0, launches=100, floor_ms=1.0),
        Hotspot(id=2, parent=1, name="prefill", kind="phase", path="", calls=1, total_ms=3.0, self_ms=0.25, share=0.75,
                reason="a phase", host_ms=3.5, launches=60),
        Hotspot(id=3, parent=2, name="RMSNorm", kind="module", path="layers.*.norm", calls=9, total_ms=1.8, self_ms=1.8,
                share=0.45, headroom_ms=1.5, target_id=norm.id, floor_ms=0.3, bound="memory", host_ms=2.0, launches=63,
                signature="bf16[32,128], bf16[128] -> bf16[32,128]", kernels=(pow_kernel,)),
        Hotspot(id=4, parent=2, name="linear", kind="torch", path="", calls=4, total_ms=0.95, self_ms=0.95,
                share=0.2375, reason="a vendor library does this near its floor", floor_ms=0.9, bound="compute",
                host_ms=0.4, launches=4,
                kernels=(KernelTime(name="sm90_gemm", launches=4, total_ms=0.95),)),
        Hotspot(id=5, parent=1, name="decode", kind="phase", path="", calls=128, total_ms=0.875, self_ms=0.475,
                share=0.21875, reason="a phase", host_ms=1.4, launches=40),
        Hotspot(id=6, parent=5, name="softmax", kind="torch", path="", calls=128, total_ms=0.4, self_ms=0.4, share=0.1,
                headroom_ms=0.09, target_id=softmax.id, floor_ms=0.31, bound="launch", host_ms=0.5, launches=40,
                kernels=(msgspec.structs.replace(pow_kernel, launches=4, total_ms=0.25),)),
    )  # fmt: skip
    rows = (
        Baseline(name="eager", ms=5.0), Baseline(name="compile", ms=2.5, setup_s=28.0, max_abs_error=1e-3),
        Baseline(name="compile max-autotune-no-cudagraphs", ms=None, failure="it did not end within 300 s"),
        Baseline(name="graph", ms=4.0, setup_s=0.5, max_abs_error=0.0),
    )
    fields: dict[str, object] = {
        "device": cuda_device(ceilings=CEILINGS), "hotspots": spots, "targets": (softmax, norm),
        "phases": (PhaseTime(name="prefill", weight=1.0, ms=3.5, busy_ms=3.0, launches=60),
                   PhaseTime(name="decode", weight=128.0, ms=0.01171875, busy_ms=0.0078125, launches=3)),
        "busy_ms": 4.0, "launches": 100, "agreement": 0.9, "baselines": rows,
        "target_baselines": (TargetBaselines(target_id=norm.id, baselines=(
            Baseline(name="eager", ms=0.2), Baseline(name="compile", ms=0.05),
            Baseline(name="graph", ms=None, failure="capture failed"))),),
        "what_ifs": (
            WhatIf(mode="eager", target_ids=(norm.id,), ms=3.5, base_ms=5.0),
            WhatIf(mode="eager", target_ids=(softmax.id,), ms=4.875, base_ms=5.0),
            WhatIf(mode="eager", target_ids=(norm.id, softmax.id), ms=3.375, base_ms=5.0),
            WhatIf(mode="compile", target_ids=(norm.id,), ms=2.75, base_ms=2.5),
            WhatIf(mode="compile", target_ids=(norm.id, softmax.id), ms=None, base_ms=2.5, failure="it broke"),
        ),
    }  # fmt: skip
    return profile(**(fields | changes))


def node(number: int, target: str = "test-RMSNorm", **changes: object) -> Node:
    """A node; a draft of the templates unless told otherwise."""
    fields: dict[str, object] = {
        "id": number, "target_id": target, "parent": None, "edge": Edge.DRAFT, "proposer": "templates",
        "source": f"// kernel {number}\n", "language": "cpp", "idea": f"idea {number}", "key": f"key-{number}",
    }  # fmt: skip
    return Node(**(fields | changes))


def faster(speedup: float, baseline_us: float = 200.0, **changes: object) -> Evaluation:
    """A verdict `faster` with three samples."""
    fields: dict[str, object] = {
        "verdict": Verdict.FASTER, "compile_s": 0.5, "verify_s": 0.25, "timing_s": 1.0,
        "time_us": baseline_us / speedup, "baseline_us": baseline_us, "speedup": speedup,
        "speedup_ci": (speedup - 0.25, speedup + 0.25), "max_abs_error": 1e-6, "error_vs_eager": 0.5,
        "samples": ((100.0, 200.0), (101.5, 203.25), (99.0, 198.0)), "sha256": f"sha-{speedup}",
        "resources": {"forge_launch": {"registers": 32}},
    }  # fmt: skip
    return Evaluation(**(fields | changes))


def failed(verdict: Verdict, reason: str) -> Evaluation:
    """A verdict without a time."""
    return Evaluation(verdict=verdict, reason=reason, compile_s=0.5, log="line 1\nline 2\n")


def llm_call(**changes: object) -> LlmCall:
    """A call that cost a cent."""
    fields: dict[str, object] = {
        "model": "openai/some", "prompt": "Write a kernel.", "reply": "```cpp\n```", "prompt_tokens": 1000,
        "cached_tokens": 400, "completion_tokens": 200, "cost_usd": 0.01, "priced": True, "latency_s": 2.5,
    }  # fmt: skip
    return LlmCall(**(fields | changes))


def deployment(**changes: object) -> Deployment:
    """RMSNorm went in, softmax did not help; compile was the fastest baseline, at 4.5 ms."""
    fields: dict[str, object] = {
        "baseline_ms": 5.0, "deployed_ms": 4.0, "speedup": 1.25, "speedup_ci": (1.2, 1.3), "max_abs_error": 2e-6,
        "rms_error": 1e-7, "within_tolerance": True, "tolerance": "1e-4 relative", "samples": ((4.0, 5.0), (4.1, 5.1)),
        "decisions": (
            DeployDecision(target_id="test-RMSNorm", node_id=3, deployed=True, alone_speedup=1.24,
                           alone_ci=(1.2, 1.28), calls=9),
            DeployDecision(target_id="test-F.softmax", node_id=4, deployed=False, why_not="the model is not faster"),
        ),
        "baselines_ms": {"compile": 4.5}, "baseline_failures": {},
    }  # fmt: skip
    return Deployment(**(fields | changes))


@contextlib.contextmanager
def session(workspace: Workspace, **changes: object) -> Iterator[tuple[Store, Reader, str]]:
    """An open store and reader with a new session, held by this process and profiled."""
    with contextlib.closing(Store.open(workspace)) as store:
        info = store.create_session(options(workspace, **changes))
        store.acquire(info.id, os.getpid())
        with contextlib.closing(Reader.open(workspace)) as reader:
            store.save_device(info.id, profile().device)
            store.save_profile(info.id, profile())
            yield store, reader, info.id


def finished(root: Path) -> tuple[Workspace, str]:
    """A workspace with one session that is done: 3 of its 5 verdicts are for RMSNorm, 2 for softmax."""
    workspace = Workspace(root)
    with session(workspace) as (store, _, name):
        store.set_state(name, "searching")
        for target, eager_us in (("test-RMSNorm", 210.0), ("test-F.softmax", 105.0)):
            store.event(name, Kind.TARGET_OPENED, {
                "target": target, "name": target.removeprefix("test-"), "usable": True, "reason": "",
                "eager_us": eager_us,
            })  # fmt: skip
        store.add_llm_call(name, llm_call(), target_id="test-RMSNorm", edge=Edge.DRAFT, node_id=1)
        store.add_node(name, node(1, cost_usd=0.01))
        store.set_evaluation(name, 1, failed(Verdict.COMPILE_ERROR, "no such name: foo"))
        store.add_node(name, node(2))
        store.set_evaluation(name, 2, faster(1.5))
        store.add_node(name, node(3, parent=2, edge=Edge.IMPROVE))
        store.set_evaluation(name, 3, faster(2.0))
        store.add_node(name, node(4, "test-F.softmax"))
        store.set_evaluation(name, 4, faster(1.25, 100.0))
        store.add_node(name, node(5, "test-F.softmax"))
        store.set_evaluation(name, 5, Evaluation(
            verdict=Verdict.SLOWER, time_us=200.0, baseline_us=100.0, speedup=0.5, speedup_ci=(0.4, 0.6),
        ))  # fmt: skip
        store.event(name, Kind.LOG, {"level": "warning", "text": "The clock was not steady."})
        store.set_state(name, "deploying")
        store.save_deployment(name, deployment())
        store.set_state(name, "done", stop_reason="All 5 evaluations are used up.")
        store.add_elapsed(name, 90.0)
    return workspace, name
