"""Records that cross rooms and processes: frozen, typed, JSON both ways through msgspec.

Units are in the names: `_us` microseconds, `_ms` milliseconds, `_s` seconds, `_usd` dollars. Times are device times
on CUDA and wall times on the CPU.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal

import msgspec

from forge_tui.core.timings import Timings

Language = Literal["cuda", "cpp"]
TargetKind = Literal["module", "function", "torch"]
Under = Literal["eager", "compile"]

#: bytes per element of every dtype the kernel contract knows, by torch's name of it
ITEMSIZE: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every record: immutable, keyword-only."""

    def to_json(self) -> str:
        """The record as one line of JSON."""
        return msgspec.json.encode(self).decode()


class Verdict(StrEnum):
    """How an evaluation ended."""

    COMPILE_ERROR = "compile_error"
    REFUSED = "refused"
    REJECTED = "rejected"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    DUPLICATE = "duplicate"
    INCONCLUSIVE = "inconclusive"
    SLOWER = "slower"
    FASTER = "faster"
    #: a fault of ours or of a provider: counts for nothing, may be tried again
    INFRA = "infra"

    @property
    def right(self) -> bool:
        """Whether the kernel computed the right results (its speed is another matter)."""
        return self in (Verdict.INCONCLUSIVE, Verdict.SLOWER, Verdict.FASTER)

    @property
    def repairable(self) -> bool:
        """Whether a repair edge makes sense."""
        return self in (Verdict.COMPILE_ERROR, Verdict.REFUSED, Verdict.REJECTED, Verdict.CRASHED, Verdict.TIMED_OUT)


class HfOptions(Record, frozen=True, kw_only=True):
    """How a Hugging Face configuration becomes a model with inputs."""

    batch: int = 1
    length: int | None = None
    """Tokens of a text; None is 1024, or fewer where the model has fewer positions."""
    layers: int | None = None
    """Most layers (blocks) of each stack, or None for all."""
    attention: str = ""
    """`eager` or `sdpa`; empty leaves the choice to the library."""
    remote_code: bool = False
    """Whether Python files of the folder may run."""


class ModelSpec(Record, frozen=True, kw_only=True):
    """Where the model and its inputs come from. Paths are absolute."""

    text: str
    """What the user typed: `file.py`, `file.py:factory`, `example:NAME` or `hf:FOLDER`."""
    path: str
    """The Python file, or the `config.json` of a Hugging Face model."""
    factory: str | None = None
    dtype: str | None = None
    """Floating dtype the module and its inputs are moved to, or None to leave them as built."""
    content_hash: str = ""
    """sha256 of the model file and of the files of inputs."""
    hf: HfOptions | None = None
    """Set for `hf:` models only."""
    inputs: str = ""
    """A `.safetensors` or `.pt` file of input sets, in place of the model's own inputs."""
    vary: str = ""
    """`file.py:function`, which yields input sets, in place of the model's own inputs."""
    phases: dict[str, float] = msgspec.field(default_factory=dict)
    """Weights by name of phase; phases that are not named keep theirs, and a weight of 0 leaves a phase out."""
    dynamic: tuple[str, ...] = ()
    """Names of dimensions that vary at run time."""


class TensorSpec(Record, frozen=True, kw_only=True):
    """Shape, dtype and strides (in elements) of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps."""
        return self.numel * ITEMSIZE[self.dtype]

    @property
    def span(self) -> int:
        """Elements from the first to one past the last, gaps included; 0 for an empty tensor."""
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def contiguous(self) -> bool:
        """Row-major without gaps; dimensions of size 1 do not count."""
        expect = 1
        for n, s in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1:
                if s != expect:
                    return False
                expect *= n
        return True


class KernelInput(Record, frozen=True, kw_only=True):
    """One tensor that the callable reads, in the order of the kernel's parameters."""

    name: str
    """A C identifier, unique in the target."""
    spec: TensorSpec
    source: Literal["arg", "param", "buffer", "closure"]
    path: str
    """Where it comes from: a dotted call path (`hidden_states`, `cos`, `pair.0`) or a qualified parameter name."""
    align: int = 16
    """Bytes of alignment that the guard checks and the kernel may rely on."""


class KernelOutput(Record, frozen=True, kw_only=True):
    """One output, allocated by the harness; `name` is out0, out1, ..."""

    name: str
    spec: TensorSpec


class Scalar(Record, frozen=True, kw_only=True):
    """A value constant over the captured calls: a constant of the header and part of the guard."""

    name: str
    value: bool | int | float
    source: Literal["arg", "attribute"]
    path: str


class GraphNode(Record, frozen=True, kw_only=True):
    """One operation of a traced callable.

    `op` is an overload name such as `aten.mul.Tensor`. In `args` and `kwargs` a reference to another node or to an
    input is `{"ref": name}`; everything else is a plain JSON value (dtypes as their torch names).
    """

    name: str
    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    shapes: list[tuple[int, ...]] = msgspec.field(default_factory=list)
    """For operations with several results: the shape of each; results are taken by `getitem` nodes."""


class Graph(Record, frozen=True, kw_only=True):
    """A callable traced to core ATen operations on its captured inputs; static shapes.

    `inputs` are names of `KernelInput`s, `outputs` names of nodes (or inputs) for out0, out1, ...
    """

    inputs: list[str]
    nodes: list[GraphNode]
    outputs: list[str]


class Signature(Record, frozen=True, kw_only=True):
    """What a kernel is written for: tensors in, tensors out, constants, and how call and result are put together.

    `call` and `result` are JSON trees. Leaves: `{"in": i}` the i-th input, `{"out": i}` the i-th output,
    `{"value": v}` a constant (None, bool, int, float, str), `{"dtype": name}`, `{"device": true}`; containers:
    `{"list": [...]}`, `{"tuple": [...]}`, `{"dict": {...}}`. `call` is `{"tuple": [args, kwargs]}`.
    """

    inputs: tuple[KernelInput, ...]
    outputs: tuple[KernelOutput, ...]
    scalars: tuple[Scalar, ...]
    call: dict[str, Any]
    result: dict[str, Any]
    device: str = ""
    """Where the captured calls ran, `cpu` or `cuda:N`; empty if unknown."""

    def describe(self) -> str:
        """A short text for tables: `f32[2,512,256] -> f32[2,512,256]`."""
        ins = ", ".join(short_spec(i.spec) for i in self.inputs)
        outs = ", ".join(short_spec(o.spec) for o in self.outputs)
        return f"{ins} -> {outs}"


_SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b8",
}  # fmt: skip


def short_spec(spec: TensorSpec) -> str:
    """`f32[2,512]`, with strides where they are not row-major."""
    text = f"{_SHORT.get(spec.dtype, spec.dtype)}[{','.join(map(str, spec.shape))}]"
    return text if spec.contiguous else f"{text}:({','.join(map(str, spec.strides))})"


class Ceilings(Record, frozen=True, kw_only=True):
    """What this device was measured to do; the roofline of every floor."""

    copy_gbps: float
    """Copy bandwidth, bytes read plus bytes written, 1e9 bytes a second."""
    matmul_tflops: dict[str, float]
    """Matrix rate by dtype name."""
    launch_us: float
    """Device time of a smallest kernel (CUDA), or time of a smallest operator call (CPU)."""
    cached_copy_gbps: float = 0.0
    """CPU: copy bandwidth of what fits the last-level cache; 0 where not measured (CUDA is timed with a cold L2)."""
    cache_bytes: int = 0
    """CPU: working set up to which `cached_copy_gbps` holds."""


class Device(Record, frozen=True, kw_only=True):
    """The machine a session is about. Two sessions compare only if `identity` is equal."""

    name: str
    """`cpu` or `cuda:N`."""
    model: str
    arch: str
    """`sm_90a` for CUDA; a hash of the CPU's feature flags behind its model name for the CPU."""
    uuid: str = ""
    sms: int = 0
    cores: int = 0
    smem_optin: int = 0
    l2_bytes: int = 0
    torch_version: str = ""
    runtime_version: str = ""
    """CUDA runtime of torch, or g++ version."""
    driver_version: str = ""
    threads: int = 0
    ceilings: Ceilings | None = None

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """Which of the two back ends."""
        return "cuda" if self.name.startswith("cuda") else "cpu"

    @property
    def language(self) -> Language:
        """Which language a candidate is written in."""
        return "cuda" if self.kind == "cuda" else "cpp"

    @property
    def identity(self) -> str:
        """Equal only where timings compare."""
        return "|".join((self.model, self.arch, self.uuid, self.torch_version, self.runtime_version, str(self.threads)))


class InputStats(Record, frozen=True, kw_only=True):
    """What the values of one captured input look like; of its finite elements, unless said otherwise."""

    low: float
    high: float
    mean: float
    std: float
    zeros: float
    """Share of elements that are zero."""
    finite: float = 1.0
    """Share of elements that are finite."""


class DynamicDim(Record, frozen=True, kw_only=True):
    """A dimension that differs between the calls of one callable."""

    name: str
    sizes: tuple[int, ...]
    """Sizes seen, ascending."""
    places: tuple[tuple[str, int], ...]
    """(name of an input or output, dimension) wherever it stands in the signature."""
    scalars: tuple[str, ...] = ()
    """Names of the integer scalars that repeat it."""


class Target(Record, frozen=True, kw_only=True):
    """A callable with its signature, chosen for search."""

    id: str
    """Stable over runs: hash of callable, signature and scalars."""
    name: str
    """What a person types: `RMSNorm`, `apply_rotary`, `F.softmax`, with `@2`, `@3` for more signatures."""
    kind: TargetKind
    qualname: str
    """Class or function as `module:qualname`; `torch.nn.functional:softmax` for torch functions."""
    instances: tuple[str, ...]
    """Module paths for kind `module` (each one a caller of the kernel), else empty."""
    signature: Signature
    calls: int
    """Calls per model call, weighted by phase."""
    time_us: float
    """Mean device time of one call, children included, as seen in the profile; wall time on the CPU."""
    share: float
    """calls x time_us over the model's device time, 0 to 1."""
    floor_us: float
    bound: Literal["memory", "compute", "launch"]
    headroom_ms: float
    bytes_moved: int
    flops: int
    source: str = ""
    """Python source of the original callable."""
    module_source: str = ""
    """Python source of the file that it stands in; empty for PyTorch's own."""
    graph: Graph | None = None
    graph_reason: str = ""
    """Why there is no graph."""
    capture: str = ""
    """Folder of the captured inputs, below the workspace's artifacts."""
    captured_calls: int = 0
    host_us: float = 0.0
    """Mean host time of one call, children included; on the CPU the same as `time_us`."""
    launches: float = 0.0
    """Mean number of device kernels of one call; 0 on the CPU."""
    phases: tuple[str, ...] = ()
    """Names of the phases that call it; empty where the model has one phase."""
    family: str = ""
    """Equal for signatures of one callable that differ in sizes alone."""
    dynamic: tuple[DynamicDim, ...] = ()
    """What differs within the family."""
    variant: str = ""
    """Equal for modules whose attributes differ in numbers alone: a sibling has the same one."""
    siblings: tuple[Target, ...] = ()
    """Where sizes vary at run time: the other sizes that one kernel must serve, each with its own signature and
    captured inputs, without source and graph."""
    made: bool = False
    """No call of this size was seen: its inputs are captured ones cut to size."""
    statistics: dict[str, InputStats] = msgspec.field(default_factory=dict)
    """Of the first captured call's inputs, by name."""

    def called(self, name: str) -> bool:
        """Whether a person means this target: by its name or id, or by those of a size that it serves."""
        return any(name in (t.name, t.id) for t in (self, *self.siblings) if not t.made)

    @property
    def floor_share(self) -> float:
        """How much of the floor is reached, 0 to 1."""
        return min(1.0, self.floor_us / self.time_us) if self.time_us > 0 else 0.0


class Launch(Record, frozen=True, kw_only=True):
    """One kernel launch with its numbers worked out."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int = 0
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False


class LaunchPlan(Record, frozen=True, kw_only=True):
    """What the harness does around a kernel: launches in order, workspace. On the CPU `launches` is empty."""

    launches: tuple[Launch, ...] = ()
    workspace_bytes: int = 0
    workspace_zero: bool = False
    dims: tuple[int, ...] = ()
    """Values of the fields of ForgeDims; empty where nothing varies."""


class Built(Record, frozen=True, kw_only=True):
    """A compiled candidate: the one file that is verified, timed and deployed."""

    path: str
    sha256: str
    language: Language
    plan: LaunchPlan
    compile_s: float
    cached: bool = False
    log: str = ""
    resources: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """By kernel: registers, spill_bytes, smem_bytes."""
    plans: dict[str, LaunchPlan] = msgspec.field(default_factory=dict)
    """Plans at the other sizes of a target whose sizes vary, by the id of the sibling."""

    def at(self, sibling: Target) -> Built:
        """The same file for calls of another size."""
        return msgspec.structs.replace(self, plan=self.plans[sibling.id], plans={})


class CompileFailure(Record, frozen=True, kw_only=True):
    """Why there is no built file. `verdict` is compile_error, refused or timed_out."""

    verdict: Verdict
    reason: str
    log: str = ""
    compile_s: float = 0.0


class Confirmation(Record, frozen=True, kw_only=True):
    """A winner's file verified and timed once more by fresh processes on other seeds, then run under a sanitizer."""

    verdict: Verdict
    """`faster` where it is confirmed, else what it turned out to be."""
    reason: str = ""
    time_us: float | None = None
    baseline_us: float | None = None
    speedup: float | None = None
    speedup_ci: tuple[float, float] | None = None
    sha256: str = ""
    sanitised: tuple[str, ...] = ()
    """Names of the sanitizer's passes that found nothing."""
    unsanitised: str = ""
    """Why a pass is missing: one sentence; empty where all were made."""
    seconds: float = 0.0
    log: str = ""

    @property
    def passed(self) -> bool:
        """Whether the kernel may count as a winner."""
        return self.verdict is Verdict.FASTER


class Evaluation(Record, frozen=True, kw_only=True):
    """What became of one candidate."""

    verdict: Verdict
    reason: str = ""
    compile_s: float = 0.0
    verify_s: float = 0.0
    timing_s: float = 0.0
    time_us: float | None = None
    baseline_us: float | None = None
    speedup: float | None = None
    """baseline over candidate, from paired samples."""
    speedup_ci: tuple[float, float] | None = None
    """95% interval of `speedup`."""
    max_abs_error: float | None = None
    """Against the float64 reference."""
    error_vs_eager: float | None = None
    """Largest error over eager's own largest error against the same reference; below 1 is better than eager."""
    samples: tuple[tuple[float, float], ...] = ()
    """Paired (candidate_us, baseline_us) samples."""
    sha256: str = ""
    log: str = ""
    resources: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    timings: Timings | None = None
    """Every side, noise and clocks; None where it was not timed."""
    confirmation: Confirmation | None = None
    """None where it was not, or not yet, a winner. One that failed has already changed `verdict` and `reason`."""


class Edge(StrEnum):
    """How a node came from its parent."""

    DRAFT = "draft"
    IMPROVE = "improve"
    REPAIR = "repair"
    #: its parent anew, by another approach
    REWRITE = "rewrite"
    #: the ideas of its parent and of another kernel together
    MERGE = "merge"
    TUNE = "tune"
    #: a kernel that was found elsewhere: at another size of the same callable, or in an earlier session
    TRANSFER = "transfer"
    #: a person's own kernel (`--start`)
    START = "start"


#: `open`: on its way; `done`: it answered; `failed`: refused, so not charged; `broken`: it may have been charged and
#: did not answer; `cancelled`: by us, on its way; `lost`: on its way when the engine was killed
CallState = Literal["open", "done", "failed", "broken", "cancelled", "lost"]


class LlmCall(Record, frozen=True, kw_only=True):
    """One request to a model, as the ledger keeps it. Unknown price: `cost_usd` is None and `priced` False."""

    model: str
    prompt: str
    reply: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    priced: bool = False
    latency_s: float = 0.0
    error: str = ""
    state: CallState = "done"
    attempt: int = 1
    """Which try of one proposal it is."""
    reserved_usd: float | None = None
    """The most that it could cost, set aside before it was made; None where the price is not known."""
    exact: bool = True
    """Whether `cost_usd` follows from the provider's own count of tokens; else it is what was set aside."""
    cache_write_tokens: int = 0
    """Of the prompt's tokens, those written to the provider's cache."""
    reasoning_tokens: int = 0
    """Of the completion's tokens, those of hidden reasoning."""
    price: str = ""
    """The price that was used, with its source: `$3 in, $15 out a million tokens (litellm 1.110.2)`."""
    seed: int = 0
    """Of the step that it was made for."""
    finish: str = ""
    """The provider's word for how the reply ended: `stop`, `length`."""

    def unanswered(self, state: CallState, error: str, latency_s: float = 0.0) -> LlmCall:
        """The call without an answer, booked at what was set aside for it."""
        return msgspec.structs.replace(
            self, state=state, error=error, latency_s=latency_s, cost_usd=self.reserved_usd,
            priced=self.reserved_usd is not None, exact=False,
        )  # fmt: skip


class ToolUse(Record, frozen=True, kw_only=True):
    """One thing that a model tried by a tool before it answered: an evaluation that is no node."""

    call_id: int
    """The ledger's number of the reply that asked for it."""
    target_id: str
    tool: str
    source: str
    verdict: str
    """The verdict's word; empty where nothing was evaluated."""
    answer: str
    """What the model was told."""
    seconds: float = 0.0


class Proposal(Record, frozen=True, kw_only=True):
    """What a proposer returns: a source, or a reason why not."""

    source: str | None
    idea: str = ""
    family: str = ""
    tunables: dict[str, int] = msgspec.field(default_factory=dict)
    """Values chosen for `//@tune` macros; missing ones take their defaults."""
    call: LlmCall | None = None
    failure: str = ""
    """Why `source` is None."""
    infra: bool = False
    """The failure is a provider's or ours: counts for nothing."""
    fatal: bool = False
    """The proposer cannot work at all (no key, unknown model): asking again is useless until a person acts."""
    this_request: bool = False
    """The provider does not take this request (too long, filtered): others may pass."""
    retry_after_s: float | None = None
    """How long the provider asked to be left alone."""
    booked: int = 0
    """The ledger's number of `call`; 0 where it is not in the books."""


class Node(Record, frozen=True, kw_only=True):
    """A candidate in the search tree of one target."""

    id: int
    target_id: str
    parent: int | None
    edge: Edge
    proposer: str
    source: str
    language: Language
    idea: str = ""
    family: str = ""
    tunables: dict[str, int] = msgspec.field(default_factory=dict)
    key: str = ""
    """Hash of the normalised source and tunables."""
    evaluation: Evaluation | None = None
    """None while in flight."""
    cost_usd: float = 0.0
    repairs: int | None = None
    """For a repair: the failed node it mends; it hangs under that node's own parent."""


class StartKernel(Record, frozen=True, kw_only=True):
    """A person's own kernel that seeds a tree (`run --start`)."""

    source: str
    language: Language
    target: str | None = None
    """Target name; None takes the first target it compiles for."""
    path: str = ""


class ModelOptions(Record, frozen=True, kw_only=True):
    """What holds for one model instead of what holds for all."""

    api_base: str | None = None
    max_tokens: int | None = None
    """Most output tokens of a call."""
    temperature: float | None = None


SendSource = Literal["callable", "module"]


class RunOptions(Record, frozen=True, kw_only=True):
    """What a session was asked to do; stored with it, so that a resume does the same."""

    model: ModelSpec
    device: str
    """`cpu` or `cuda:N`, resolved; `sim:NAME` for a recorded landscape, which lies at the model's path."""
    workspace: str
    proposers: tuple[str, ...] = ("templates",)
    under: Under = "eager"
    max_evaluations: int = 60
    max_minutes: float = 60.0
    """Of the search, over all resumes: neither profiling nor waiting for nothing but a person counts."""
    max_usd: float | None = None
    """For model calls and rent together."""
    gpu_usd_per_hour: float = 0.0
    """Rent of the machine; 0 where it costs nothing, or nobody said."""
    usd_per_percent: float = 5.0
    """What 1% of the model's time is worth; the search ends where the next dollar is expected to buy less."""
    max_targets: int = 12
    seed: int = 0
    threads: int = 0
    """CPU threads for torch and kernels; 0 is all of them."""
    target_names: tuple[str, ...] = ()
    """Search only these; empty is all."""
    start: tuple[StartKernel, ...] = ()
    api_base: str | None = None
    send_source: SendSource = "callable"
    """How much of the model's Python source models get to read."""
    tools: int = 0
    """How often a model may try kernels by tools before it answers."""
    model_options: dict[str, ModelOptions] = msgspec.field(default_factory=dict)
    """By model."""
    prices: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """By model, dollars per million tokens: input, output, then cached input and cache writes where given."""
    attended: bool = False
    """Whether a person follows on a screen: what they could mend then pauses the search instead of ending it."""
    transfer: bool = True
    """Whether kernels of earlier sessions on this device, and of other sizes, are tried."""
    compile_baseline: bool = True
    """Whether `torch.compile` of the whole model is measured beside eager."""
    capture_bytes: int = 2 << 30
    """Most bytes of captured inputs of all targets together."""
    compile_timeout_s: float = 60.0
    evaluate_timeout_s: float = 60.0
    pace: float = 0.0
    """Seconds that a recorded second takes on a `sim:` device; 0 does not wait."""


class Winner(Record, frozen=True, kw_only=True):
    """A kernel that the gate decides on."""

    target: Target
    node_id: int
    built: Built
    unsanitised: str = ""


class DeployDecision(Record, frozen=True, kw_only=True):
    """Whether one winner stays in the model."""

    target_id: str
    node_id: int
    deployed: bool
    why_not: str = ""
    alone_speedup: float | None = None
    """Whole model with only this kernel, over without."""
    alone_ci: tuple[float, float] | None = None
    calls: int = 0
    """Calls served by the kernel in one model call."""
    fallbacks: int = 0
    """Calls that the guard gave back to the original in one model call."""
    host_us: float | None = None
    """Host time of one guarded call, kernel included on the CPU, launch only on CUDA."""
    host_us_original: float | None = None
    unsanitised: str = ""
    """Why the kernel was not, or not wholly, run under a sanitizer; empty where it was."""


class Deployment(Record, frozen=True, kw_only=True):
    """The in-model gate's result: the whole model before and after, interleaved in one process."""

    baseline_ms: float
    deployed_ms: float
    speedup: float
    speedup_ci: tuple[float, float]
    max_abs_error: float
    """Largest absolute difference to the original model's outputs."""
    rms_error: float
    within_tolerance: bool
    decisions: tuple[DeployDecision, ...]
    baselines_ms: dict[str, float] = msgspec.field(default_factory=dict)
    """Other ways to run the original model, by name (`compile`), each right within tolerance."""
    baseline_failures: dict[str, str] = msgspec.field(default_factory=dict)
    """Baselines that could not be measured or gave other results, with the reason."""
    tolerance: str = ""
    samples: tuple[tuple[float, float], ...] = ()
    """Paired (deployed_ms, baseline_ms)."""


SessionState = Literal["starting", "profiling", "searching", "deploying", "done", "interrupted", "failed"]


class SessionInfo(Record, frozen=True, kw_only=True):
    """One row of the session list."""

    id: str
    options: RunOptions
    state: SessionState
    created_at: float
    """Unix seconds."""
    updated_at: float
    device: Device | None = None
    stop_reason: str = ""
    error: dict[str, Any] | None = None
    """`what`, `hint`, `exit_code` of the fault that ended it."""
    elapsed_s: float = 0.0
    """Engine time spent, over all resumes: what a rented machine is paid for."""
    profile_s: float = 0.0
    """Of that, profiling."""
    search_s: float = 0.0
    """Of that, what counts for the limit of minutes: searching, without waiting for nothing but a person."""
    evaluations: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    engine_pid: int = 0
    """0 when no engine runs it."""
    heartbeat_at: float = 0.0


class Event(Record, frozen=True, kw_only=True):
    """Something that happened; append-only. `data` is small: ids, not sources."""

    id: int
    session: str
    at: float
    kind: str
    data: dict[str, Any]
