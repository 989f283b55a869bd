"""Tunables behind unroll pragmas."""

from __future__ import annotations

import pytest

from forge_tui.contract import pragmas
from forge_tui.contract.source import read


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#pragma unroll N", "#pragma unroll 4"),
        ("  #  pragma unroll (N * 2)", "  #  pragma unroll (4 * 2)"),
        ("#pragma GCC unroll N", "#pragma GCC unroll 4"),
        ("#pragma unroll(N)", "#pragma unroll(4)"),
        ("#pragma unroll NN", "#pragma unroll NN"),
        ("#pragma unroll", "#pragma unroll"),
        ("#pragma omp parallel for num_threads(N)", "#pragma omp parallel for num_threads(N)"),
        ("// #pragma unroll N", "// #pragma unroll N"),
        ("#define N2 N", "#define N2 N"),
    ],
)
def test_only_unroll_pragmas_are_filled(line, expected):
    """And nothing else moves or changes."""
    text = f"int a;\n{line}\nfor (;;) N;\n"
    assert pragmas.filled(read(text), {"N": 4}) == f"int a;\n{expected}\nfor (;;) N;\n"
