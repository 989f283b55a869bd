"""The template grid of a recording: more values and more switches than a search sweeps, written into the source.

A search tries few settings, chosen to be good ones. A landscape needs the bad ones too, so each source that the
templates write gets further values for its tunables, and tunables for what is fixed in it: vector length, unrolling,
schedule and arithmetic of loops on the CPU; residency, arithmetic and the order of blocks on CUDA. The first setting
of every source is what the template itself has.
"""

from __future__ import annotations

import math
import re

from forge_tui.core.records import Language

_TUNE = re.compile(r"^//@tune (\w+) (.*)$", re.MULTILINE)
#: values beside those that a template declares; none of them is needed for a right kernel
_MORE: dict[Language, dict[str, tuple[int, ...]]] = {
    "cpp": {},
    "cuda": {"THREADS": (64, 1024, 384), "UNROLL": (1, 2, 4, 8, 3, 6)},
}
_GRAINS = (16384, 262144)
_MOST_VALUES = 8

_Tunes = dict[str, tuple[int, ...]]

_HEADER = '#include "forge_target.h"\n'
_FAST = ("expf", "logf", "sinf", "cosf")
_BLOCK = "const index_t block = blockIdx.x;"
_CPU_SWITCHES = """\
#if LOOPS == 1
#pragma GCC optimize("unroll-loops")
#elif LOOPS == 2
#pragma GCC optimize("prefetch-loop-arrays")
#elif LOOPS == 3
#pragma GCC optimize("finite-math-only", "no-signed-zeros", "associative-math", "reciprocal-math")
#elif LOOPS == 4
#pragma GCC optimize("fp-contract=off")
#elif LOOPS == 5
#pragma GCC optimize("Os")
#endif
"""
_CPU_SIMD = """\
#if SIMD
#define LOOP_SIMD simdlen(SIMD)
#else
#define LOOP_SIMD
#endif
"""
_CPU_SCHEDULE = """\
#if SCHEDULE == 1
#define LOOP_SCHEDULE dynamic, 8
#elif SCHEDULE == 2
#define LOOP_SCHEDULE static, 4
#else
#define LOOP_SCHEDULE static
#endif
"""


def widened(source: str, language: Language, most: int) -> str:
    """A template's source with the tunables of a recording, at most so many settings where its own are not more.

    Its defaults compile to what they did before.
    """
    tunes = {match[1]: [int(text) for text in match[2].split()] for match in _TUNE.finditer(source)}
    own = {name: len(values) for name, values in tunes.items()}
    for name, values in tunes.items():
        if name == "GRAIN":
            # the two sides of a threshold are all that one size has
            values[:] = _GRAINS
        values += [value for value in _MORE[language].get(name, ()) if value not in values]
    bare = _TUNE.sub("", source).lstrip("\n")
    more, text = (_for_cuda if language == "cuda" else _for_cpu)(bare)
    tunes = {**{name: [*values] for name, values in more.items()}, **tunes}
    while math.prod(map(len, tunes.values())) > most:
        # one that is not the template's own goes, of the tunable that has most of them
        extra = {name: len(values) - own.get(name, 1) for name, values in tunes.items()}
        longest = max(extra, key=lambda name: (extra[name], len(tunes[name])))
        if extra[longest] <= 0:
            break
        tunes[longest].pop()
    # a single value is still a macro that the source needs
    lines = [f"//@tune {name} {' '.join(map(str, values[:_MOST_VALUES]))}" for name, values in tunes.items()]
    return "\n".join([*lines, text])


def _for_cpu(source: str) -> tuple[_Tunes, str]:
    more: _Tunes = {"LOOPS": (0, 1, 2, 3, 4, 5)}
    if "#pragma omp simd" in source:
        more["SIMD"] = (0, 4, 8, 16, 32)
        source = source.replace("#pragma omp simd", "#pragma omp simd LOOP_SIMD")
    if "schedule(static)" in source:
        more["SCHEDULE"] = (0, 1, 2)
        source = source.replace("schedule(static)", "schedule(LOOP_SCHEDULE)")
    switches = _CPU_SWITCHES + (_CPU_SIMD if "SIMD" in more else "") + (_CPU_SCHEDULE if "SCHEDULE" in more else "")
    return more, source.replace(_HEADER, switches + _HEADER, 1)


def _for_cuda(source: str) -> tuple[_Tunes, str]:
    more: _Tunes = {}
    defines = ""
    if "__launch_bounds__" in source:
        more["RESIDENT"] = (0, 2, 4, 1)
        source = re.sub(r"__launch_bounds__\(([^()]*)\)", r"__launch_bounds__(\1, RESIDENT)", source)
    if re.search(rf"\b({'|'.join(_FAST)})\(", source):
        more["FAST"] = (0, 1)
        defines = "".join(["#if FAST\n", *(f"#define {name} __{name}\n" for name in _FAST), "#endif\n"])
    if _BLOCK in source:
        more["REVERSED"] = (0, 1)
        source = source.replace(_BLOCK, "const index_t block = REVERSED ? gridDim.x - 1 - blockIdx.x : blockIdx.x;")
    # behind the header, whose own functions keep their meaning
    return more, source.replace(_HEADER, _HEADER + defines, 1)
