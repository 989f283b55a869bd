"""A person's own templates tried on a small target before a run, so that they do not fail in its middle."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from forge_tui.core.errors import ConfigError
from forge_tui.core.ports import Task
from forge_tui.core.records import (
    Ceilings,
    Device,
    Edge,
    Evaluation,
    KernelInput,
    KernelOutput,
    Language,
    Node,
    RunOptions,
    Signature,
    Target,
    TensorSpec,
    Verdict,
)
from forge_tui.proposers import book, prompt

#: for every prompt once, where a busy machine needs one
_MOST_S = 30.0
_CEILINGS = Ceilings(copy_gbps=100.0, matmul_tflops={"float32": 1.0}, launch_us=1.0)
_DEVICES: dict[Language, Device] = {
    "cpp": Device(name="cpu", model="a CPU", arch="x86_64-avx2", cores=4, threads=4, ceilings=_CEILINGS),
    "cuda": Device(name="cuda:0", model="a GPU", arch="sm_90a", sms=100, smem_optin=232448, ceilings=_CEILINGS),
}


def checked_book(options: RunOptions) -> book.PromptBook:
    """The templates in force for a session.

    Raises:
        ConfigError: one of them does not work.
    """
    templates = book.PromptBook(book.folders(Path(options.workspace) if options.workspace else None),
                                whole_module=options.send_source == "module")  # fmt: skip
    templates.check_names()
    if templates.overridden():
        check(templates, "cuda" if options.device.startswith("cuda") else "cpp")
    return templates


def check(templates: book.PromptBook, language: Language) -> None:
    """Render every prompt once.

    Raises:
        ConfigError: one of them does not work, or all of them take long.
    """
    began = time.monotonic()
    for task in tasks(language):
        prompt.render(task, templates)
        if time.monotonic() - began > _MOST_S:
            own = ", ".join(str(path) for path in templates.overridden())
            raise ConfigError(f"The prompt templates take more than {_MOST_S:g} s to render: {own}.",
                              "Make them shorter, or remove them.")  # fmt: skip


def tasks(language: Language) -> list[Task]:
    """One task of each edge, with and without history."""
    spec = TensorSpec(shape=(64, 64), dtype="float32", strides=(64, 1))
    signature = Signature(inputs=(KernelInput(name="x", spec=spec, source="arg", path="x"),),
                          outputs=(KernelOutput(name="out0", spec=spec),), scalars=(), call={}, result={})  # fmt: skip
    target = Target(
        id="trial", name="trial", kind="function", qualname="trial:trial", instances=(), signature=signature, calls=1,
        time_us=10.0, share=0.5, floor_us=5.0, bound="memory", headroom_ms=0.005, bytes_moved=2 * spec.nbytes,
        flops=spec.numel, source="def trial(x):\n    return x\n", launches=2.0,
    )  # fmt: skip
    source = '#include "forge_target.h"\n'
    first = Node(id=0, target_id="trial", parent=None, edge=Edge.DRAFT, proposer="trial", source=source,
                 language=language, idea="an idea", family="a family", tunables={"A": 1},
                 evaluation=Evaluation(verdict=Verdict.FASTER, speedup=1.5, time_us=7.0, baseline_us=10.0))  # fmt: skip
    wrong = Evaluation(verdict=Verdict.REJECTED, reason="It is wrong.", log="a.cu:1: error: wrong")
    failed = msgspec.structs.replace(first, id=1, parent=0, edge=Edge.IMPROVE, evaluation=wrong)
    best = msgspec.structs.replace(first, id=2, source=source + "// best\n")
    bare = Task(target=target, device=_DEVICES[language], edge=Edge.DRAFT, parent=None, failed=None, best=None,
                lineage=(), nodes=(), seed=0)  # fmt: skip
    full = msgspec.structs.replace(bare, parent=first, best=best, lineage=(first,), nodes=(first, failed, best))
    moved = msgspec.structs.replace(failed, edge=Edge.TRANSFER)
    found = [bare, *(msgspec.structs.replace(full, edge=Edge.REPAIR, failed=node) for node in (failed, moved))]
    edges = (Edge.REWRITE, Edge.MERGE)
    found += [msgspec.structs.replace(full, edge=edge, other=best) for edge in edges]
    # with a named move, and without
    return found + [msgspec.structs.replace(full, edge=Edge.IMPROVE, seed=seed) for seed in range(4)]
