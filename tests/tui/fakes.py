"""A session made by hand, and a view of it in memory."""

# ruff: noqa: D103 - small helpers and checks say by their names what they do

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from forge_tui.core.errors import UsageError
from forge_tui.core.events import Kind
from forge_tui.core.profiles import Hotspot, KernelTime, PhaseTime, Profile, WhatIf
from forge_tui.core.records import (
    DeployDecision,
    Deployment,
    Device,
    Edge,
    Evaluation,
    Event,
    KernelInput,
    KernelOutput,
    ModelSpec,
    Node,
    RunOptions,
    SessionInfo,
    Signature,
    Target,
    TensorSpec,
    Verdict,
)

NOW = 1_750_000_000.0

SOURCE = """\
//@tune BLOCK 128 64 256
//@workspace x_shape_0 * 8
// One block for each row: the row is read once, kept in registers, and written once.
#include "forge_target.h"

template <typename T> __device__ inline float square(T value) { return float(value) * float(value); }

//@launch rms_norm grid=(x_shape_0) block=BLOCK
extern "C" __global__ void rms_norm(FORGE_PARAMS) {
    __shared__ float partial[32];
    const int row = blockIdx.x;
    float sum = 0.0f;
    for (int column = threadIdx.x; column < forge::x_shape_1; column += blockDim.x) {
        sum += square(x[row * forge::x_stride_0 + column]);
    }
    /* reduce over the block */
    partial[threadIdx.x / 32] = __shfl_xor_sync(0xffffffff, sum, 16);
    __syncthreads();
    if (threadIdx.x == 0) { printf("%f\\n", partial[0]); }
}
"""

DEVICE = Device(name="cpu", model="Intel(R) Xeon(R) 8481C", arch="x86-1234", cores=2, threads=2, torch_version="2.13.0")


class FakeView:
    """A `ViewSource` over plain lists, which a test changes and then calls `touch`."""

    def __init__(self) -> None:
        self.infos: dict[str, SessionInfo] = {}
        self.profiles: dict[str, Profile] = {}
        self.node_lists: dict[str, dict[int, Node]] = {}
        self.event_lists: dict[str, list[Event]] = {}
        self.deployments: dict[str, Deployment] = {}
        self.version = 1
        self.fault: Exception | None = None
        self.closed = False

    # ---- ViewSource

    def sessions(self) -> Sequence[SessionInfo]:
        return list(self.infos.values())

    def session(self, session_id: str) -> SessionInfo:
        if session_id not in self.infos:
            raise UsageError(f"There is no session {session_id}.")
        return self.infos[session_id]

    def profile(self, session_id: str) -> Profile | None:
        return self.profiles.get(session_id)

    def hotspots(self, session_id: str) -> Sequence[Hotspot]:
        found = self.profiles.get(session_id)
        return found.hotspots if found else ()

    def targets(self, session_id: str) -> Sequence[Target]:
        found = self.profiles.get(session_id)
        return found.targets if found else ()

    def nodes(self, session_id: str, target_id: str, sources: bool = False) -> Sequence[Node]:
        found = [n for n in self.node_lists.get(session_id, {}).values() if n.target_id == target_id]
        return found if sources else [msgspec.structs.replace(n, source="") for n in found]

    def node(self, session_id: str, node_id: int) -> Node:
        return self.node_lists[session_id][node_id]

    def events(self, session_id: str, after: int = 0) -> Sequence[Event]:
        return [e for e in self.event_lists.get(session_id, []) if e.id > after][:10]

    def deployment(self, session_id: str) -> Deployment | None:
        return self.deployments.get(session_id)

    def data_version(self) -> int:
        if self.fault is not None:
            raise self.fault
        return self.version

    def close(self) -> None:
        self.closed = True

    # ---- changes

    def touch(self) -> None:
        self.version += 1

    def event(self, session: str, kind: str, **data: Any) -> None:
        events = self.event_lists.setdefault(session, [])
        number = events[-1].id + 1 if events else 1
        events.append(Event(id=number, session=session, at=NOW - 600 + number, kind=kind, data=data))
        self.touch()

    def add(self, session: str, node: Node) -> None:
        """A node as the engine adds one: the row, then its event."""
        nodes = self.node_lists.setdefault(session, {})
        known = node.id in nodes
        nodes[node.id] = node
        if not known:
            self.event(session, Kind.NODE_ADDED, node=node.id, target=node.target_id, parent=node.parent,
                       edge=str(node.edge), proposer=node.proposer, idea=node.idea)  # fmt: skip
        if node.evaluation is not None:
            self.event(session, Kind.NODE_EVALUATED, node=node.id, target=node.target_id,
                       verdict=str(node.evaluation.verdict), speedup=node.evaluation.speedup,
                       reason=node.evaluation.reason)  # fmt: skip

    def state(self, session: str, state: str, **more: Any) -> None:
        self.infos[session] = msgspec.structs.replace(self.infos[session], state=state, **more)
        self.event(session, Kind.STATE, state=state, text=more.get("stop_reason", ""))


def tensor(*shape: int, dtype: str = "float32") -> TensorSpec:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return TensorSpec(shape=shape, dtype=dtype, strides=tuple(reversed(strides)))


def make_target(number: int, name: str, share: float = 0.2, headroom_ms: float = 3.0, calls: int = 9) -> Target:
    spec = tensor(2, 512, 256)
    return Target(
        id=f"t{number}", name=name, kind="module", qualname=f"model:{name}", instances=(f"layers.{number}",),
        signature=Signature(
            inputs=(KernelInput(name="x", spec=spec, source="arg", path="x"),
                    KernelInput(name="weight", spec=tensor(256), source="param", path="weight")),
            outputs=(KernelOutput(name="out0", spec=spec),), scalars=(), call={}, result={},
        ),
        calls=calls, time_us=412.0, share=share, floor_us=80.0, bound="memory", headroom_ms=headroom_ms,
        bytes_moved=2 * spec.nbytes, flops=10**6, source=f"class {name}(nn.Module):\n    ...\n",
    )  # fmt: skip


def verdict_of(verdict: Verdict, speedup: float | None = None, reason: str = "", **more: Any) -> Evaluation:
    right = verdict.right
    return Evaluation(
        verdict=verdict, reason=reason, compile_s=0.41, verify_s=0.23 if right else 0.0, timing_s=1.1 if right else 0.0,
        time_us=round(412.0 / speedup, 1) if speedup else None, baseline_us=412.0 if speedup else None, speedup=speedup,
        speedup_ci=(round(speedup * 0.97, 3), round(speedup * 1.03, 3)) if speedup else None,
        max_abs_error=1.9e-6 if right else None, error_vs_eager=0.8 if right else None, **more,
    )  # fmt: skip


def make_node(
    number: int, target: str, parent: int | None, edge: Edge, idea: str, evaluation: Evaluation | None, **more: Any
) -> Node:
    fields: dict[str, Any] = {"source": SOURCE, "language": "cuda", "proposer": "templates"} | more
    return Node(id=number, target_id=target, parent=parent, edge=edge, idea=idea, evaluation=evaluation, **fields)


def hotspots(targets: Sequence[Target]) -> tuple[Hotspot, ...]:
    spots = [
        Hotspot(id=1, parent=None, name="TinyLLM", kind="model", path="", calls=1, total_ms=48.2, self_ms=0.4,
                share=1.0, reason="the whole model"),
        Hotspot(id=2, parent=1, name="Block", kind="module", path="blocks.*", calls=4, total_ms=40.1, self_ms=1.2,
                share=0.83, reason="contains other targets"),
        Hotspot(id=3, parent=2, name="Linear", kind="module", path="blocks.*.mlp.up", calls=12, total_ms=17.9,
                self_ms=17.9, share=0.37, reason="a vendor library does this near its floor"),
    ]  # fmt: skip
    for number, target in enumerate(targets):
        spots.append(Hotspot(
            id=10 + number, parent=2 if number < 4 else 1, name=target.name, kind="module",
            path=f"blocks.*.{target.name.lower()}", calls=target.calls, total_ms=target.calls * target.time_us / 1e3,
            self_ms=1.0, share=target.share, headroom_ms=target.headroom_ms, target_id=target.id,
        ))  # fmt: skip
    spots.append(Hotspot(id=40, parent=2, name="dropout", kind="torch", path="torch.nn.functional.dropout", calls=8,
                         total_ms=0.3, self_ms=0.3, share=0.006, reason="draws random numbers"))  # fmt: skip
    return tuple(spots)


def busy_session(session: str = "20250615-1406-7f3a", *, state: str = "searching") -> FakeView:
    """A session in the middle of its search, with every verdict in it."""
    view = FakeView()
    targets = (
        make_target(1, "RMSNorm", 0.31, 12.4), make_target(2, "apply_rotary", 0.12, 3.1),
        make_target(3, "F.softmax", 0.08, 1.4, calls=4), make_target(4, "SwiGLU@2", 0.05, 0.4),
    )  # fmt: skip
    options = RunOptions(
        model=ModelSpec(text="example:tiny-llm", path="/examples/tiny_llm.py"), device="cpu", workspace="/w",
        max_evaluations=60, max_usd=5.0,
    )  # fmt: skip
    view.infos[session] = SessionInfo(
        id=session, options=options, state="searching", created_at=NOW - 700, updated_at=NOW - 1, device=DEVICE,
        elapsed_s=611.0, evaluations=12, cost_usd=0.42, engine_pid=4242, heartbeat_at=NOW - 1,
    )  # fmt: skip
    view.profiles[session] = Profile(
        device=DEVICE, model_ms=48.2, overhead=1.3, hotspots=hotspots(targets), targets=targets
    )
    view.event(session, Kind.STATE, state="profiling", text="")
    view.event(session, Kind.PROFILED, model_ms=48.2, hotspots=8, targets=4)
    for target in targets:
        usable = target.id != "t4"
        view.event(session, Kind.TARGET_OPENED, target=target.id, name=target.name, usable=usable,
                   reason="" if usable else "its outputs differ from one call to the next", eager_us=412.0)  # fmt: skip
    view.event(session, Kind.STATE, state="searching", text="")
    log = 'candidate.cu(11): error: identifier "blockIdy" is undefined\n1 error detected in the compilation.\n'
    nodes = [
        make_node(1, "t1", None, Edge.DRAFT, "row in registers, one block a row", verdict_of(Verdict.FASTER, 1.42),
                  family="row_reduction", tunables={"BLOCK": 128}),
        make_node(2, "t1", 1, Edge.TUNE, "", verdict_of(Verdict.FASTER, 1.61), family="row_reduction",
                  tunables={"BLOCK": 256}),
        make_node(3, "t1", 1, Edge.IMPROVE, "vectorised loads of four floats, two rows for each warp",
                  verdict_of(Verdict.COMPILE_ERROR, reason='identifier "blockIdy" is undefined', log=log),
                  proposer="claude-opus"),
        make_node(4, "t1", 1, Edge.REPAIR, "vectorised loads of four floats, two rows for each warp",
                  verdict_of(Verdict.FASTER, 2.35), repairs=3, proposer="claude-opus", cost_usd=0.013),
        make_node(5, "t1", 4, Edge.IMPROVE, "split the row over a cluster", verdict_of(
            Verdict.REJECTED, reason="out0 differs from the reference by 0.12 at (1, 7, 33), 0.0021 is allowed")),
        make_node(6, "t1", 4, Edge.TUNE, "", verdict_of(Verdict.INCONCLUSIVE, 1.01), tunables={"BLOCK": 64}),
        make_node(7, "t1", 4, Edge.IMPROVE, "prefetch the next row", verdict_of(Verdict.SLOWER, 0.82)),
        make_node(8, "t1", None, Edge.DRAFT, "two passes with a workspace", verdict_of(
            Verdict.TIMED_OUT, reason="no result within 60 s")),
        make_node(9, "t1", 8, Edge.REPAIR, "two passes, bounded loop", verdict_of(
            Verdict.CRASHED, reason="signal SIGSEGV while running"), repairs=8),
        make_node(10, "t1", 2, Edge.TUNE, "", verdict_of(Verdict.DUPLICATE, reason="of #2"), tunables={"BLOCK": 128}),
        make_node(11, "t2", None, Edge.DRAFT, "fused rotation of both halves", verdict_of(Verdict.FASTER, 3.1)),
        make_node(12, "t2", 11, Edge.IMPROVE, "read the angles once", None),
        make_node(13, "t1", None, Edge.START, "own kernel mine.cu", verdict_of(
            Verdict.REFUSED, reason="A mutable device global is not allowed."), proposer="person"),
        make_node(14, "t1", 4, Edge.IMPROVE, "read the weight once for eight rows", None),
    ]  # fmt: skip
    for node in nodes:
        view.add(session, node)
    view.event(session, Kind.PROPOSAL_FAILED, target="t3", edge="improve", proposer="claude-opus",
               reason="the provider did not answer")  # fmt: skip
    view.event(session, Kind.LLM_CALL, model="claude-opus", cost_usd=0.013, tokens=5120)
    view.event(session, Kind.LOG, level="warning", text="SwiGLU@2 is left out: its outputs differ between calls")
    if state != "searching":
        finish(view, session, state)
    return view


GPU = Device(name="cuda:0", model="NVIDIA H200", arch="sm_90a", sms=132, torch_version="2.11.0")


def phased_session(session: str = "20250615-1406-7f3a") -> FakeView:
    """The busy session with the profile of a GPU: two phases, floors, launches, kernels."""
    view = busy_session(session)
    targets = view.profiles[session].targets
    pow_kernel = KernelTime(name="void at::native::elementwise_kernel<4, float>(int, char*)", launches=36, total_ms=3.0)
    rest = [
        msgspec.structs.replace(
            spot, parent={None: None, 1: 2}.get(spot.parent, 3) if spot.id != 1 else None,
            id={1: 1, 2: 3, 3: 4}.get(spot.id, spot.id), floor_ms=spot.total_ms / 5 if spot.target_id else 0.0,
            bound="memory" if spot.target_id else "", host_ms=1.5 * spot.total_ms, launches=7 * spot.calls,
            signature="f32[2,512,256] -> f32[2,512,256]", kernels=(pow_kernel,) if spot.target_id else (),
        )
        for spot in hotspots(targets)
    ]  # fmt: skip
    phases = (
        Hotspot(id=2, parent=1, name="prefill", kind="phase", path="", calls=1, total_ms=40.5, self_ms=0.4, share=0.84,
                reason="a phase of the model", host_ms=60.0, launches=812),
        Hotspot(id=50, parent=1, name="decode", kind="phase", path="", calls=128, total_ms=7.7, self_ms=7.7, share=0.16,
                reason="a phase of the model", host_ms=21.0, launches=5120),
    )  # fmt: skip
    view.profiles[session] = Profile(
        device=GPU, model_ms=81.0, overhead=1.3, hotspots=(*rest[:1], *phases, *rest[1:]), targets=targets,
        busy_ms=48.2, launches=5932, agreement=0.9,
        phases=(PhaseTime(name="prefill", weight=1, ms=60.0, busy_ms=40.5, launches=812),
                PhaseTime(name="decode", weight=128, ms=0.164, busy_ms=0.06, launches=40)),
        what_ifs=(WhatIf(mode="eager", target_ids=("t1",), ms=72.0, base_ms=81.0),
                  WhatIf(mode="compile", target_ids=("t1",), ms=34.0, base_ms=33.0)),
    )  # fmt: skip
    view.infos[session] = msgspec.structs.replace(view.infos[session], device=GPU)
    return view


def finish(view: FakeView, session: str, state: str = "done") -> None:
    """End a session."""
    view.infos[session] = msgspec.structs.replace(view.infos[session], elapsed_s=612.0)
    if state == "done":
        view.deployments[session] = Deployment(
            baseline_ms=48.2, deployed_ms=35.6, speedup=1.354, speedup_ci=(1.331, 1.378), max_abs_error=2.4e-6,
            rms_error=1e-7, within_tolerance=True, tolerance="1e-4 relative, 1e-5 absolute",
            baselines_ms={"eager": 48.2, "compile": 41.0},
            decisions=(
                DeployDecision(target_id="t1", node_id=4, deployed=True, alone_speedup=1.24, calls=9),
                DeployDecision(target_id="t2", node_id=11, deployed=False,
                               why_not="the model is not faster with it: 0.99x [0.98, 1.01]"),
            ),
        )  # fmt: skip
        view.event(session, Kind.DEPLOY_DECISION, target="t1", deployed=True, why_not="", speedup=1.24)
        view.event(session, Kind.DEPLOYED, baseline_ms=48.2, deployed_ms=35.6, speedup=1.354)
        view.state(session, "done", stop_reason="All 60 evaluations were used.")
    elif state == "failed":
        error = {"what": "The workspace's disk is full.", "hint": "Free some space, then resume.", "exit_code": 4}
        view.state(session, "failed", stop_reason=error["what"], error=error)
    else:
        view.state(session, state, stop_reason="Stopped by request.")


def big_session(count: int, *, chain: int = 0) -> FakeView:
    """A session with many nodes in one target; `chain` of them in one long line."""
    view = busy_session("big")
    view.node_lists["big"] = {}
    verdicts = [Verdict.FASTER, Verdict.COMPILE_ERROR, Verdict.SLOWER, Verdict.REJECTED, Verdict.INCONCLUSIVE]
    for number in range(1, count + 1):
        verdict = verdicts[number % len(verdicts)]
        parent = None if number <= 3 else number - 1 if number <= chain else max(1, number // 3)
        speed = 1 + (number % 97) / 100 if verdict.right else None
        view.node_lists["big"][number] = make_node(
            number, "t1", parent, Edge.DRAFT if parent is None else Edge.IMPROVE,
            f"idea number {number} with some words", verdict_of(verdict, speed, "" if verdict.right else "it is wrong"),
        )  # fmt: skip
    view.event_lists["big"] = [e for e in view.event_lists["big"] if "node" not in e.data]
    return view


def sample(busy: float, *, gpus: int = 0) -> dict[str, Any]:
    """One line of the sampler."""
    return {
        "at": NOW, "no_gpus": "" if gpus else "NVML Shared Library Not Found",
        "host": {"cpu_percent": busy, "memory_used": 9 * 2**30, "memory_total": 31 * 2**30, "load": 1.5, "cores": 2},
        "gpus": [
            {"index": n, "uuid": f"GPU-{n}", "name": "NVIDIA H200", "util_percent": busy, "memory_used": 12 * 2**30,
             "memory_total": 141 * 2**30, "power_w": 350.0 + busy, "power_limit_w": 700.0, "temperature_c": 45.0,
             "sm_mhz": 1980.0, "memory_mhz": 3201.0, "throttle": ["power cap"] if busy > 90 else ["idle"]}
            for n in range(gpus)
        ],
    }  # fmt: skip


class FakeFeed:
    """Telemetry from a list."""

    def __init__(self, samples: Sequence[dict[str, Any]] = (), trouble: str = "") -> None:
        self.waiting = list(samples)
        self.said = trouble
        self.started = False
        self.stopped = False

    def start(self) -> None:
        self.started = True

    def drain(self) -> list[dict[str, Any]]:
        out, self.waiting = self.waiting, []
        return out

    def trouble(self) -> str:
        return self.said

    def stop(self) -> None:
        self.stopped = True


def waves(count: int = 60, gpus: int = 0) -> list[dict[str, Any]]:
    """A little history."""
    return [sample(50 + 45 * ((n * 7) % 13 - 6) / 6, gpus=gpus) for n in range(count)]
