"""Any text at all before the contract: a result or a ContractError, never anything else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from targets_fixture import SOFTMAX_CPP, SOFTMAX_CUDA, cpu_device, cuda_device, softmax_target

from forge_tui.contract import directives, keys, lint, plan, tune
from forge_tui.contract.identifiers import word_set
from forge_tui.core.errors import ContractError

WORDS = word_set("""
//@tune //@workspace //@launch //@ A B grid= block= smem= cluster= cooperative ( ) , 1 32 x_shape_0 ceil_div zero k
extern "C" __global__ void k(FORGE_PARAMS) { } ; __device__ static const int x [ ] = < > << <<< :: namespace cuda using
#include <cmath> "forge_target.h" #define #if ## asm __attribute__ (( )) constructor struct operator template alignas
""")


def refusal(judge):
    """The sentence of a refusal, or None."""
    try:
        judge()
    except ContractError as error:
        return error.what
    return None


PIECES = [*sorted(WORDS), "\n", "\n", "\n", "\\\n", "/*", "*/", "'", '"', 'R"(', "\t"]
soup = st.lists(st.sampled_from(PIECES), max_size=60)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), soup.map(" ".join), soup.map("".join)))
def test_any_text_is_judged(text):
    """Directives, lint, plan, key and tunables take every text."""
    for judge in (
        lambda: directives.parse(text), lambda: lint.check(text, "cuda"), lambda: lint.check(text, "cpp"),
        lambda: plan.make(text, softmax_target(), cuda_device(), {}), lambda: keys.source_key(text, {}),
        lambda: plan.make(text, softmax_target(), cpu_device(), {}), lambda: tune.neighbours(text, {}),
    ):  # fmt: skip
        sentence = refusal(judge)
        assert sentence is None or (sentence.endswith(".") and "\n" not in sentence)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([SOFTMAX_CUDA, SOFTMAX_CPP]), st.integers(0, 2000), st.integers(0, 40), st.text(max_size=10))
def test_damaged_kernels_are_judged(source, at, length, insert):
    """A right kernel with a piece cut out or put in never breaks the contract's own code."""
    text = source[: at % len(source)] + insert + source[at % len(source) + length :]
    for language, device in (("cuda", cuda_device()), ("cpp", cpu_device())):
        try:
            lint.check(text, language)
            plan.make(text, softmax_target(), device, {})
        except ContractError:
            continue


@pytest.mark.parametrize("source", [SOFTMAX_CUDA, SOFTMAX_CPP])
@given(blank=st.sampled_from([" ", "  ", "\t", " /* c */ "]))
def test_blanks_and_comments_do_not_change_the_key(source, blank):
    """A key is one of the code, not of how it is set."""
    assert keys.source_key(source.replace(" = ", f"{blank}={blank}"), {}) == keys.source_key(source, {})
