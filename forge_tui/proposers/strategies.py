"""The catalogue of moves that an improvement can be asked for."""

from __future__ import annotations

import hashlib
from typing import Literal

from forge_tui.core.records import Language, Record

Bound = Literal["memory", "compute", "launch"]
FREE_CHOICE = 0.4


class Strategy(Record, frozen=True, kw_only=True):
    """One named move; `bounds` are the bottlenecks that it can help with."""

    name: str
    text: str
    bounds: tuple[Bound, ...]
    languages: tuple[Language, ...] = ("cuda", "cpp")


ANY: tuple[Bound, ...] = ("memory", "compute", "launch")
CATALOGUE: tuple[Strategy, ...] = (
    Strategy(name="vectorised access", bounds=("memory", "launch"), languages=("cuda",),
             text="Load and store 8 or 16 bytes per thread and access; mind alignment and tails."),
    Strategy(name="simd loops", bounds=ANY, languages=("cpp",),
             text="Give the innermost loop unit stride and no branches, and vectorise it with `#pragma omp simd`."),
    Strategy(name="more work per thread", bounds=ANY,
             text="Let each thread handle several elements or rows, so that fixed costs are shared."),
    Strategy(name="warp instead of block reduction", bounds=("memory", "launch"), languages=("cuda",),
             text="Reduce within warps by shuffles, and across warps at most once."),
    Strategy(name="one-pass algorithm", bounds=("memory", "compute"),
             text="Compute the statistics in one sweep (online, or sums of values and squares) instead of several."),
    Strategy(name="keep in registers", bounds=("memory",),
             text="Read each element once and keep it in registers or on-chip memory until its output is written."),
    Strategy(name="shared-memory staging", bounds=("memory", "compute"), languages=("cuda",),
             text="Stage tiles that are used more than once in shared memory, without bank conflicts."),
    Strategy(name="asynchronous copies", bounds=("memory", "compute"), languages=("cuda",),
             text="Overlap loads with arithmetic: asynchronous copies into a multi-stage buffer."),
    Strategy(name="persistent grid", bounds=("launch", "memory"), languages=("cuda",),
             text="Launch as many blocks as the device holds at once, and loop over the work."),
    Strategy(name="split reduction", bounds=("memory", "launch"),
             text="Split long reductions over several workers where rows are few, and combine by a second step."),
    Strategy(name="indexing and layout", bounds=ANY,
             text="Replace divisions and remainders in index arithmetic by loops; walk memory in its order."),
    Strategy(name="register tiling", bounds=("compute",),
             text="Compute a tile of outputs per thread, so that each loaded operand is used several times."),
    Strategy(name="tensor cores", bounds=("compute",), languages=("cuda",),
             text="Use tensor core instructions for the matrix products, with accumulation in float."),
    Strategy(name="cache blocking", bounds=("memory", "compute"), languages=("cpp",),
             text="Work in blocks that stay in the L1 or L2 cache between the steps of the computation."),
    Strategy(name="fusion of steps", bounds=("memory", "launch"),
             text="Merge the steps so that no intermediate result goes through memory, and use one launch."),
    Strategy(name="launch geometry", bounds=ANY, languages=("cuda",),
             text="Change block size, elements per thread and grid shape, and declare them with `//@tune`."),
    Strategy(name="parallel split", bounds=ANY, languages=("cpp",),
             text="Choose which loops run in parallel and the chunk per thread; no threads for small work."),
    Strategy(name="cheaper arithmetic", bounds=("compute", "launch"),
             text="Replace divisions, transcendental functions and conversions by cheaper ones in tolerance."),
)  # fmt: skip


def choose(bound: Bound, language: Language, seed: int, avoid: tuple[str, ...] = ()) -> Strategy | None:
    """A move for this bottleneck, drawn by the seed; None leaves the choice to the author.

    `avoid` names moves that were tried from the same parent; they are drawn only if nothing else is left.
    """
    if draw(seed, "free") < FREE_CHOICE:
        return None
    fitting = [s for s in CATALOGUE if bound in s.bounds and language in s.languages]
    fresh = [s for s in fitting if s.name not in avoid] or fitting
    return fresh[int(draw(seed, "strategy") * len(fresh))]


def draw(seed: int, purpose: str) -> float:
    """A number in [0, 1), a function of seed and purpose."""
    digest = hashlib.blake2b(f"{seed}|{purpose}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56
