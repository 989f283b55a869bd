"""Compilers' messages: the first error, the resources, the limits, the faults of the machine."""

from __future__ import annotations

import pytest

from forge_tui.compiler import diagnostics

GXX = """\
candidate.cpp: In function 'int forge_launch(const float*, float*, void*, ForgeDims)':
candidate.cpp:4:74: error: expected ',' or ';' before '!' token
    4 |     constexpr int64_t rows = 1!
candidate.cpp:9:1: error: second
"""
NVCC = """\
candidate.cu(3): warning #177-D: variable "x" was declared but never referenced

candidate.cu(12): error: identifier "foo" is undefined
      foo(x);
      ^

1 error detected in the compilation of "candidate.cu".
"""
PTXAS = """\
ptxas info    : 36 bytes gmem
ptxas info    : Compiling entry function 'partial' for 'sm_90a'
ptxas info    : Function properties for partial
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function 'normalise' for 'sm_90a'
ptxas info    : Function properties for normalise
    72 bytes stack frame, 64 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 8 bytes cumulative stack size, 4096 bytes smem, 380 bytes cmem[0]
ptxas info    : Function properties for __internal_accurate_pow
    999 bytes stack frame, 999 bytes spill stores, 999 bytes spill loads
"""
NVRTC = """\
ptxas info    : 144 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 22 registers, used 1 barriers
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (GXX, "line 4: expected ',' or ';' before '!' token"),
        (NVCC, 'line 12: identifier "foo" is undefined'),
        ("forge_target.h(7): error: bad", "forge_target.h, line 7: bad"),
        ("candidate.cu(1): catastrophic error: cannot open source file \"x\"", "line 1: cannot open source file \"x\""),
        ("candidate.cpp:1:10: fatal error: x: No such file", "line 1: x: No such file"),
        ("ptxas candidate.ptx, line 22; error   : Illegal operand\nptxas fatal   : Ptx assembly aborted",
         "ptxas: Illegal operand"),
        ("ptxas fatal   : Unresolved extern function '_Z3fooi'", "ptxas: Unresolved extern function '_Z3fooi'"),
        ("ptxas error   : Entry function 'k' uses too much shared data",
         "ptxas: Entry function 'k' uses too much shared data"),
        ("candidate.o: in function `f':\nx.cpp:(.text+0x1): undefined reference to `foo'\ncollect2: error: ld failed",
         "undefined reference to `foo`"),
        ("nvcc error   : 'cicc' died due to signal 11", "'cicc' died due to signal 11"),
        ("one\nlast words\n\n", "last words"),
        ("", "The compiler failed without a message."),
    ],
)  # fmt: skip
def test_the_reason_is_the_first_real_error(log, reason):
    """Warnings, quotes and summaries are passed over."""
    assert diagnostics.reason(log) == reason


def test_every_located_error_is_found():
    """All errors of a log come in their order."""
    assert [(e.line, e.message) for e in diagnostics.errors(GXX)] == [
        (4, "expected ',' or ';' before '!' token"), (9, "second"),
    ]  # fmt: skip


def test_resources_are_read_by_kernel():
    """Registers, spills, shared memory and stack of each entry; functions that were not inlined do not mix in."""
    assert diagnostics.resources(PTXAS) == {
        "partial": {"spill_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0, "stack_bytes": 0, "registers": 20,
                    "smem_bytes": 128},
        "normalise": {"spill_bytes": 104, "spill_store_bytes": 64, "spill_load_bytes": 40, "stack_bytes": 72,
                      "registers": 255, "smem_bytes": 4096},
    }  # fmt: skip
    assert diagnostics.resources(NVRTC)["k"] == {
        "spill_bytes": 8, "spill_store_bytes": 4, "spill_load_bytes": 4, "stack_bytes": 8, "registers": 22,
        "smem_bytes": 0,
    }  # fmt: skip
    assert diagnostics.resources(GXX) == {}


def test_logs_lose_private_paths_and_their_tail():
    """The folder and nvcc's scratch names go, and a long log is cut with a note."""
    folder = "/tmp/forge-build-x"
    log = f"{folder}/candidate.cu(1): error: a\nptxas {folder}/tmpxft_0001a2b3_00000000-6_candidate.ptx"
    assert diagnostics.clean(log, folder) == "candidate.cu(1): error: a\nptxas candidate.ptx"
    cut = diagnostics.clean("é" * 10_000, "/tmp/x")
    assert cut.endswith("[... 8000 bytes more]")
    assert cut.startswith("é" * 6000 + "\n")


@pytest.mark.parametrize(
    ("log", "limit"),
    [
        ("cc1plus: out of memory allocating 65536 bytes after a total of 380", "memory"),
        ("virtual memory exhausted: Cannot allocate memory", "memory"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "memory"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "memory"),
        ("g++: internal compiler error: File size limit exceeded signal terminated program as", "file"),
        ("g++: internal compiler error: CPU time limit exceeded signal terminated program cc1plus", "time"),
        ("    4 | // out of memory", ""), ("candidate.cpp:1:1: error: x", ""),
    ],
)  # fmt: skip
def test_limits_are_recognised_in_the_compilers_own_words(log, limit):
    """Words in a quoted source line do not count."""
    assert diagnostics.exceeded(log) == limit


@pytest.mark.parametrize(
    ("log", "part"),
    [
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120a'", "does not know the architecture sm_120a"),
        ("nvrtc: error: invalid value for --gpu-architecture (-arch)", "does not know the architecture sm_120a"),
        ("nvcc fatal   : Cannot find compiler 'g++' in PATH", "install g++"),
        ('candidate.cu(1): catastrophic error: cannot open source file "cuda_bf16.h"', "cuda_bf16.h was not found"),
        ("forge_target.h:4:10: fatal error: cuda_fp16.h: No such file or directory", "cuda_fp16.h was not found"),
    ],
)
def test_faults_of_the_machine_are_told_from_faults_of_the_source(log, part):
    """A missing header, compiler or architecture is nobody's kernel's fault."""
    fault = diagnostics.environment_fault(log, "sm_120a")
    assert fault is not None
    assert part in fault[0]


def test_a_sources_own_fault_is_none_of_the_machines():
    """An error directive with such words, or any plain error, is the source's."""
    for log in (GXX, NVCC, "candidate.cu(1): error: #error nvcc fatal : Unsupported gpu architecture",
                "candidate.cpp:1:2: error: #error fatal error: cuda_fp16.h"):  # fmt: skip
        assert diagnostics.environment_fault(log, "sm_90a") is None
