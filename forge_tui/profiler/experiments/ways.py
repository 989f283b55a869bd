"""Ways to run the phases of a model: as it is, compiled, replayed from CUDA graphs."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from forge_tui.launch.graphs import graph_capture
from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase

Run = Callable[[], Any]
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

_numbers = itertools.count()


def eager_runs(loaded: LoadedModel, phases: Sequence[Phase] | None = None) -> list[tuple[Run, float]]:
    """The phases as they are."""
    return [(functools.partial(phase.run, loaded.module), phase.weight) for phase in phases or loaded.phases]


def compiler(mode: str | None = None) -> Compiler:
    """`torch.compile` in this mode."""
    return functools.partial(torch.compile, mode=mode)


def compiled_runs(
    loaded: LoadedModel, compile_: Compiler, phases: Sequence[Phase] | None = None
) -> list[tuple[Run, float]]:
    """The phases with the module compiled, each by itself; the first call of each compiles.

    A workload that calls the module runs as it is around the compiled module; one that calls parts of it only (the
    decoder of an autoencoder) is compiled as a whole. Every call has code of its own, so what was compiled for one
    state of the model never serves another one.
    """
    return [(_compiled(loaded.module, phase, compile_), phase.weight) for phase in phases or loaded.phases]


def _compiled(module: nn.Module, phase: Phase, compile_: Compiler) -> Run:
    if not calls_module(module, phase):
        assert phase.workload is not None
        whole = replace(phase, workload=compile_(fresh(phase.workload)))
        return functools.partial(whole.run, module)
    inside = compile_(fresh(module._call_impl))  # noqa: SLF001 - what nn.Module.compile() compiles

    def run() -> Any:
        before = module._compiled_call_impl  # noqa: SLF001
        module._compiled_call_impl = inside  # noqa: SLF001
        try:
            return phase.run(module)
        finally:
            module._compiled_call_impl = before  # noqa: SLF001

    return run


def stepping(run: Run) -> Run:
    """The run as one step of CUDA-graph trees (`reduce-overhead`): it may overwrite the results of the step before."""

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return run()

    return step


def calls_module(module: nn.Module, phase: Phase) -> bool:
    """Whether a phase calls the module itself; a workload is run once to see."""
    if phase.workload is None:
        return True
    seen = False

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen = True
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # noqa: SLF001

    before = module._compiled_call_impl  # noqa: SLF001
    module._compiled_call_impl = watched  # noqa: SLF001
    try:
        phase.run(module)
    finally:
        module._compiled_call_impl = before  # noqa: SLF001
    return seen


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same and has code of its own: torch.compile keeps what it made by code object."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = call.__code__.replace(co_filename=f"<forge call {next(_numbers)}>")
    return types.FunctionType(code, call.__globals__, "call", None, call.__closure__)


def graph_runs(loaded: LoadedModel, phases: Sequence[Phase] | None = None) -> list[tuple[Run, float]]:
    """Replays of the phases, captured as they run now; each replay returns the same output tensors.

    Whatever the capture raises (a phase that waits for the device cannot be captured) passes through; then the
    process is best ended.
    """
    return [(captured(run, loaded.device), weight) for run, weight in eager_runs(loaded, phases)]


def captured(run: Run, device: torch.device) -> Run:
    """A replay of the CUDA graph of one call; it returns the output tensors of the capture, with new values."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries make their workspaces and choose their kernels outside of the capture
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with graph_capture(graph, device):
        output = run()
    torch.cuda.synchronize(device)

    def replay() -> Any:
        graph.replay()
        return output

    return replay
