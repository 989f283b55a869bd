"""Capturing CUDA graphs of code that may not let itself be captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def graph_capture(
    graph: torch.cuda.CUDAGraph, device: torch.device, stream: torch.cuda.Stream | None = None
) -> Iterator[None]:
    """`torch.cuda.graph`, after whose failure the process goes on as if it had not been tried.

    A capture that breaks off leaves torch's random generator believing that it is still being captured, and every
    later draw raises; the next capture that ends puts that right.
    """
    try:
        with torch.cuda.graph(graph, stream=stream):
            yield
    except BaseException:
        with contextlib.suppress(RuntimeError):
            _mend(device)
        raise


def _mend(device: torch.device) -> None:
    one = torch.zeros(1, device=device)
    # what the broken capture reported last is not of this one
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize(device)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        one.neg_()
    torch.cuda.synchronize(device)
