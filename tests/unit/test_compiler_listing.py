"""Disassemblies in few words."""

from __future__ import annotations

import pytest

from forge_tui.compiler import listing

#: of the form that cuobjdump prints, written for this test
SASS = """
Fatbin elf code:
arch = sm_90a
		Function : rows
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                     /* 0x00000a00ff017b82 */
                                                                              /* 0x000fe20000000800 */
        /*0010*/                   S2R R0, SR_CTAID.X ;                       /* 0x0000000000007919 */
        /*0020*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;           /* 0x0 */
        /*0030*/                   FADD R8, R8, R4 ;                          /* 0x0 */
        /*0040*/                   FADD R8, R8, R5 ;                          /* 0x0 */
        /*0050*/               @P1 BRA 0x20 ;                                 /* 0x0 */
        /*0060*/                   ISETP.NE.AND P2, PT, R9, RZ, PT ;          /* 0x0 */
        /*0070*/               @P2 BRA 0x10 ;                                 /* 0x0 */
        /*0080*/                   EXIT ;                                     /* 0x0 */
        /*0090*/                   BRA 0x90;                                  /* 0x0 */
		Function : other
        /*0000*/                   EXIT ;
"""
OBJDUMP = """
forge.so:     file format elf64-x86-64

Disassembly of section .text:

0000000000001100 <forge_launch>:
    1100:	push   %rbp
    1104:	vaddps (%rdi,%rax,1),%ymm1,%ymm1
    1109:	add    $0x20,%rax
    110d:	jne    1104 <forge_launch+0x4>
    110f:	ret
"""


def test_the_largest_inner_loop_of_a_gpu_kernel() -> None:
    """Predicates are no names; the outer loop and the jump to itself behind the end are no inner loops."""
    text = listing.brief(SASS, ["rows"])
    assert text.splitlines()[0].startswith("rows: 10 instructions: BRA 3, FADD 2, LDC 1, S2R 1, LDG.E.128 1")
    assert text.splitlines()[1] == "Its largest inner loop has 4: FADD 2, LDG.E.128 1, BRA 1."
    assert text.splitlines()[2:] == ["  @!P0 LDG.E.128 R4, desc[UR4][R2.64]", "  FADD R8, R8, R4",
                                     "  FADD R8, R8, R5", "  @P1 BRA 0x20"]  # fmt: skip
    assert listing.brief(SASS, ["unknown"]).splitlines()[-1] == "other: 1 instructions: EXIT 1. It has no loop."


def test_a_cpu_kernel() -> None:
    """Jumps name a place and a symbol."""
    assert listing.brief(OBJDUMP, ["forge_launch"]).splitlines()[:2] == [
        "forge_launch: 5 instructions: push 1, vaddps 1, add 1, jne 1, ret 1.",
        "Its largest inner loop has 3: vaddps 1, add 1, jne 1."]  # fmt: skip


def test_long_loops_are_cut() -> None:
    """At most sixty lines are shown, and the rest is counted."""
    lines = "\n".join(f"    {at:x}:\tadd{at % 40}   %rax,%rbx" for at in range(100))
    text = listing.brief(f"0000 <f>:\n{lines}\n    64:\tjne    0 <f>\n", ["f"])
    assert text.count("\n") == listing.MOST_LINES + 2
    assert text.endswith("... 41 more")
    assert "and 25 other kinds" in text


@pytest.mark.parametrize("text", ["", "nothing\n", "    1:\tadd x\n"])
def test_no_disassembly(text: str) -> None:
    """Without functions there is nothing to say."""
    assert listing.brief(text, ["f"]) == ""
