"""The templates proposer: what it fits, in which order it proposes, when it stops."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from forge_tui.contract import directives, lint, plan
from forge_tui.core.ports import Task
from forge_tui.core.records import (
    Device,
    Edge,
    Graph,
    GraphNode,
    KernelInput,
    KernelOutput,
    Node,
    Signature,
    Target,
    TensorSpec,
)
from forge_tui.proposers.templates import TemplateProposer
from forge_tui.proposers.templates.proposer import fits, write

CPU = Device(name="cpu", model="m", arch="a", cores=4, threads=4)
GPU = Device(name="cuda:0", model="m", arch="sm_90a", sms=132, smem_optin=232448)


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    """A row-major spec."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(shape=shape, dtype=dtype, strides=tuple(reversed(strides)))


def node(name: str, op: str, *args: Any, shape: tuple[int, ...], dtype: str = "float32", **kwargs: Any) -> GraphNode:
    """A graph node."""
    return GraphNode(name=name, op=op, args=list(args), kwargs=kwargs, shape=shape, dtype=dtype)


def target(nodes: list[GraphNode] | None, inputs: dict[str, TensorSpec], output: TensorSpec, name: str = "t") -> Target:
    """A target with a graph over its inputs."""
    return Target(
        id=name, name=name, kind="function", qualname=f"m:{name}", instances=(), calls=1, time_us=1.0, share=0.5,
        signature=Signature(
            inputs=tuple(KernelInput(name=key, spec=value, source="arg", path=key) for key, value in inputs.items()),
            outputs=(KernelOutput(name="out0", spec=output),), scalars=(), call={}, result={},
        ),
        floor_us=0.1, bound="memory", headroom_ms=1.0, bytes_moved=1, flops=1, graph_reason="It branches on data.",
        graph=Graph(inputs=list(inputs), nodes=nodes, outputs=[nodes[-1].name]) if nodes else None,
    )  # fmt: skip


X = {"ref": "x"}


def softmax(rows: int = 64, columns: int = 128) -> Target:
    """Softmax along rows."""
    full, row = (rows, columns), (rows, 1)
    return target([
        node("m", "aten.amax.default", X, [-1], True, shape=row),
        node("d", "aten.sub.Tensor", X, {"ref": "m"}, shape=full),
        node("e", "aten.exp.default", {"ref": "d"}, shape=full),
        node("s", "aten.sum.dim_IntList", {"ref": "e"}, [-1], True, shape=row),
        node("o", "aten.div.Tensor", {"ref": "e"}, {"ref": "s"}, shape=full),
    ], {"x": spec(*full)}, spec(*full))  # fmt: skip


def chain(name: str = "t", x: str = "x") -> Target:
    """One multiplication."""
    return target([node("o", "aten.mul.Tensor", {"ref": x}, 2, shape=(8, 5))], {x: spec(8, 5)}, spec(8, 5), name)


def task(aim: Target, edge: Edge = Edge.DRAFT, families: tuple[str, ...] = (), device: Device = CPU) -> Task:
    """A request to the proposer."""
    nodes = tuple(
        Node(id=number, target_id=aim.id, parent=None, edge=Edge.DRAFT, proposer="templates", source="", language="cpp",
             family=family)
        for number, family in enumerate(families)
    )  # fmt: skip
    return Task(target=aim, device=device, edge=edge, parent=None, failed=None, best=None, lineage=(), nodes=nodes,
                seed=0)  # fmt: skip


async def test_variants_are_proposed_one_after_the_other_until_none_is_left() -> None:
    """Each draft is another structure; when all were tried the proposer says that it cannot."""
    proposer, aim, families = TemplateProposer(), softmax(), ()
    sources = set()
    while proposer.can(task(aim, families=families)):
        proposal = await proposer.propose(task(aim, families=families))
        assert proposal.source is not None
        assert proposal.family.startswith("template:rows/")
        assert proposal.idea
        assert "\n" not in proposal.idea
        assert proposal.call is None
        sources.add(proposal.source)
        families = (*families, proposal.family)
    assert families == ("template:rows/kept", "template:rows/recompute")
    assert len(sources) == 2
    last = await proposer.propose(task(aim, families=families))
    assert last.source is None
    assert "tried" in last.failure
    assert not last.infra


async def test_same_task_gives_the_same_source() -> None:
    """Nothing depends on chance, time or what was asked before."""
    first = await TemplateProposer().propose(task(softmax()))
    await TemplateProposer().propose(task(chain("other")))
    assert await TemplateProposer().propose(task(softmax())) == first


@pytest.mark.parametrize(
    ("edge", "possible"), [(Edge.DRAFT, True), (Edge.IMPROVE, True), (Edge.REPAIR, False), (Edge.TUNE, False)]
)
async def test_only_drafts_and_improvements_are_written(edge: Edge, possible: bool) -> None:
    """Repair is for those who can read errors, tuning is the search's own."""
    assert TemplateProposer().can(task(softmax(), edge)) is possible
    assert ((await TemplateProposer().propose(task(softmax(), edge))).source is not None) is possible


async def test_target_without_graph_is_declined_with_its_reason() -> None:
    """No graph, no template: the reason of the trace is passed on."""
    bare = target(None, {"x": spec(4)}, spec(4))
    assert not TemplateProposer().can(task(bare))
    proposal = await TemplateProposer().propose(task(bare))
    assert proposal.source is None
    assert "branches on data" in proposal.failure


def test_name_does_not_decide() -> None:
    """A matrix product called softmax is declined; a softmax called mm fits."""
    product = target(
        [node("o", "aten.mm.default", X, X, shape=(8, 8))], {"x": spec(8, 8)}, spec(8, 8), "softmax"
    )
    assert "vendor library" in fits(product, CPU).reason
    assert fits(softmax(), CPU).family == "rows"


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("aim", [softmax(), chain(), softmax(2, 100_000)], ids=["softmax", "chain", "long"])
def test_sources_hold_the_contract(aim: Target, device: Device) -> None:
    """Directives parse, the lint is content, the launch plan is within limits, at every declared value."""
    fit = fits(aim, device)
    assert fit
    for variant, _ in fit.variants:
        source = write(aim, device, variant)
        lint.check(source, device.language)
        read = directives.parse(source)
        assert read.tunes
        for tune in read.tunes:
            for value in tune.values:
                made = plan.make(source, aim, device, {tune.name: value})
                assert bool(made.launches) == (device is GPU)


def test_parameter_with_a_name_of_the_source_gets_an_alias() -> None:
    """A tensor called like one of the kernel's own variables is not shadowed by it."""
    source = write(chain("named", "i0_i1"), CPU, "loops")
    assert "const float* __restrict__ parameter_0_ = i0_i1;" in source
    assert "parameter_0_[i0_i1]" in source
    assert "parameter_0_" not in write(chain("plain", "weight"), CPU, "loops")


def test_few_long_rows_are_split_only_where_it_helps() -> None:
    """Rows are split over threads where they are fewer than the threads can share out, and long."""
    assert "split" in dict(fits(softmax(2, 100_000), CPU).variants)
    assert "split" not in dict(fits(softmax(64, 100_000), CPU).variants)
    assert "split" not in dict(fits(softmax(2, 1000), CPU).variants)
    assert "split" in dict(fits(softmax(2, 100_000), GPU).variants)


def test_output_that_shares_memory_is_declined() -> None:
    """An expanded output has several indices for one element."""
    shared = TensorSpec(shape=(8, 5), dtype="float32", strides=(0, 1))
    aim = target([node("o", "aten.expand.default", X, [8, 5], shape=(8, 5))], {"x": spec(1, 5)}, shared)
    assert "share memory" in fits(aim, CPU).reason


def test_no_torch_in_the_engine() -> None:
    """The proposer is imported by the engine, which holds no torch."""
    code = "import sys, forge_tui.proposers.templates; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
