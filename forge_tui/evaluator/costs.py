"""What a call costs on a GPU beside the deciding clock: on the device alone, and with the host's part."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forge_tui.evaluator.timing import Clock
from forge_tui.launch.graphs import graph_capture

Side = Callable[[list[Tensor]], list[Tensor]]

#: a graph is replayed for at least this long, so that its launch does not count: short calls stand in it several times
_GRAPH_US = 60.0
_MOST_IN_GRAPH = 50
_REPLAYS = 7
_ROUNDS = 5
_ROUND_US = 2000.0
_MOST_CALLS = 200


@dataclass(slots=True)
class Cost:
    """Microseconds a call; None with the reason in `why` where it cannot be measured."""

    call_us: float
    device_us: float | None
    why: str = ""


def costs(
    sides: Mapping[str, Side], times_us: Mapping[str, float], buffers: Sequence[list[Tensor]], clock: Clock,
    device: torch.device, *, graphs: frozenset[str],
) -> dict[str, Cost]:  # fmt: skip
    """Both costs of every side; `times_us` are those of the deciding clock. Only sides in `graphs` are captured."""
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(_ROUNDS):
        for name, side in sides.items():
            rounds[name].append(_call_us(side, buffers, times_us[name], device))
    found = {name: Cost(statistics.median(values), None, "not captured") for name, values in rounds.items()}
    for name, side in sides.items():
        if name in graphs:
            found[name].device_us, found[name].why = graph_us(side, buffers, times_us[name], clock, device)
    return found


def calls_in(total_us: float, us: float, most: int) -> int:
    """How many calls of `us` make up the total, 1 to `most`."""
    return max(1, min(most, math.ceil(total_us / max(us, 0.1))))


def _call_us(side: Side, buffers: Sequence[list[Tensor]], us: float, device: torch.device) -> float:
    count = calls_in(_ROUND_US, us, _MOST_CALLS)
    torch.cuda.synchronize(device)
    begun = time.perf_counter_ns()
    for number in range(count):
        side(buffers[number % len(buffers)])
    torch.cuda.synchronize(device)
    return (time.perf_counter_ns() - begun) / 1e3 / count


def graph_us(
    side: Side, buffers: Sequence[list[Tensor]], us: float, clock: Clock, device: torch.device
) -> tuple[float | None, str]:
    """Device time of one call in a replayed CUDA graph; None and the reason where it cannot be captured.

    Long calls stand alone in the graph, behind an empty L2. Short ones stand in it several times, the later ones with
    a warm L2.
    """
    count = calls_in(_GRAPH_US, us, _MOST_IN_GRAPH)
    graph = torch.cuda.CUDAGraph()
    try:
        torch.cuda.synchronize(device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries make their workspaces outside of the capture
                side(buffers[0])
        torch.cuda.synchronize(device)
        with graph_capture(graph, device):
            outputs = [side(buffers[number % len(buffers)]) for number in range(count)]
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return None, f"it cannot be captured in a CUDA graph: {str(error).partition(chr(10))[0][:120]}"

    def replay(_: list[Tensor]) -> list[Tensor]:
        graph.replay()
        return outputs[-1]

    times = [clock.sample(replay, [buffers[0]])[0] / count for _ in range(_REPLAYS)]
    return statistics.median(times[2:]), ""
