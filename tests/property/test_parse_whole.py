"""A whole kernel in a reply that its provider calls finished comes out as it was written, whatever is around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.core.records import Language
from forge_tui.proposers import book
from forge_tui.proposers.parse import CUT_THOUGH_DONE, TRUNCATED, parse_reply

FOLDER = Path(__file__).parents[1] / "replies"
BASE: dict[Language, str] = {"cuda": (FOLDER / "softmax.cu").read_text(), "cpp": (FOLDER / "norm.cpp").read_text()}
SHORT: dict[Language, str] = {
    "cuda": '//@launch k grid=1 block=32\n#include "forge_target.h"\nextern "C" __global__ void k(FORGE_PARAMS) {\n}\n',
    "cpp": '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n    return 0;\n}\n',
}
#: what trips a reader that counts braces, fences or quotes without looking at what they stand in
TRAPS = '''\
/* How a row is read:
```
lane 0: x[0] } x[4] {
```
=======
*/
#if defined(FAST_PATH)
static int64_t first(int64_t n) {
#else
static int64_t last(int64_t n) {
#endif
    const char* open = "{ /* ' <think>"; // it's { open
    const int64_t table[2] = {1'000, '{'};
    return table[n & 1] + (open[0] == '"');
}
// </analysis> was here, and so was [reason]
static int64_t pick(const int64_t* table, int64_t analysis) { return table[analysis]; }
'''
KERNELS: dict[Language, list[str]] = {
    "cuda": [SHORT["cuda"], book.packaged().raw("example.cu"), book.packaged().raw("example_split.cu"),
             SHORT["cuda"].replace("extern", TRAPS + "extern")],
    "cpp": [SHORT["cpp"], book.packaged().raw("example.cpp"), book.packaged().raw("example_split.cpp"),
            SHORT["cpp"].replace("extern", TRAPS + "extern")],
}  # fmt: skip

TALK = [
    "Here is the kernel.", "It's faster: one pass, {a, b} in registers; `x[i]` is read once.", "### Notes",
    "family: one pass\nhypothesis: reads memory once", "I don't like `__syncthreads()` here, so we don't need it.",
    "1. Load\n2. Reduce\n3. Store", "The `forge_launch` entry and the `__global__` kernel stay.", "> a quoted remark",
    "| what | us |\n|---|---|\n| before | 12 |", "Let me know if you want a version with tensor cores!",
    "- **Risk:** tails", "\u201cSmart\u201d talk \u2014 it\u2019s fine.", "x < y && y > z, that's why.", "# Answer",
    "```", "---", "Use `<think>` sparingly.",
]  # fmt: skip
BLOCKS = [
    "```bash\nnvcc -cubin -arch=sm_90a k.cu\n```", "```python\nimport torch\nx = torch.ones(3)\n```",
    "```\n12.3 us\n```", "```text\nrow 0: { 1 2\n```", "~~~\nlane }\n~~~", "```cpp\nfor (;;) { __syncthreads();\n```",
    "```cuda\n__global__ void k(...)\n```", "```json\n{\"block\": 256}\n```", "````\n```\ninner\n```\n````",
]  # fmt: skip
OPEN_BLOCKS = ["```bash\nmake test", "```\n", "```python\nprint('it is {')", "~~~", "```text\n{ 1", "````"]
CLOSERS = ["</think>", "</analysis>", "[/THINK]", "</reasoning>", "</thought>\n</think>", "<|im_end|>", "</answer>"]
OPENERS = ["<think>\n", "<thinking>"]


def thoughts(language: Language) -> list[str]:
    """Reasoning that was closed, with drafts in it, whole and cut; the last one without its beginning."""
    draft = SHORT[language].replace("{\n", "{\n    // a draft\n")
    return [
        f"<think>Maybe\n```{language}\n{draft}```\nNo.</think>", f"<think>\n```{language}\n{draft[:-9]}\n</think>",
        "[THINK]Rows of 4096, so 8 each.[/THINK]", f"Let me see.\n```cpp\n{draft}```\nBetter:\n</think>",
    ]  # fmt: skip


def wrapped(tag: str, kernel: str) -> list[str]:
    """The ways to send a source."""
    lines = kernel.splitlines(keepends=True)
    indented = "".join(f"   {line}" if line.strip() else line for line in lines)
    quoted = "".join(f"> {line}" for line in lines)
    crlf = kernel.replace("\n", "\r\n")
    return [
        f"```{tag}\n{kernel}```", f"````{tag}\n{kernel}````", f"~~~{tag}\n{kernel}~~~", f"```\n{kernel}\n```",
        f"```c++ title=\"k.cu\"\n{kernel}\n```\n", f"1. The kernel:\n\n   ```{tag}\n{indented}   ```",
        f"> ```{tag}\n{quoted}> ```", f"Here: ```{tag}\n{kernel}```", f"```{tag}\n{kernel.rstrip()}```",
        f"<kernel>\n{kernel}</kernel>", f"```{tag}\nkernel.cu\n{kernel}```", f"- ```{tag}\n{kernel}```",
        f"```{tag}\r\n{crlf}```\r\n",
    ]  # fmt: skip


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, Language, str]:
    """A reply, its language, and the kernel that it answers with."""
    language: Language = draw(st.sampled_from(["cuda", "cpp"]))
    kernel = draw(st.sampled_from(KERNELS[language]))
    old = f"The kernel to improve was:\n```{language}\n{BASE[language]}```"
    once = [*TALK, *BLOCKS, *CLOSERS]
    draft = SHORT[language].replace("{\n", "{\n    // the first version\n")
    drafts = [f"First:\n```{language}\n{draft}```\nThat reads twice.", f"```\n{draft}```", f"```cpp\n{draft[:-9]}\n```"]
    before = draw(st.lists(st.sampled_from([*once, *thoughts(language), *OPEN_BLOCKS, old, *drafts]), max_size=4))
    closed = thoughts(language)[:-1]
    behind = draw(st.lists(st.sampled_from([*once, *closed, *OPENERS, f"For comparison:\n{old}"]), max_size=4))
    if "```" in kernel:
        # with fences of its own a kernel cannot be told from talk behind a fence that was never closed
        before = [piece for piece in before if piece not in OPEN_BLOCKS and piece != "```"]
    behind += draw(st.lists(st.sampled_from(OPEN_BLOCKS), max_size=1))
    return "\n".join([*before, draw(st.sampled_from(wrapped(language, kernel))), *behind]), language, kernel


@settings(max_examples=200)
@given(replies())
def test_a_whole_kernel_comes_out_unchanged(made: tuple[str, Language, str]) -> None:
    """Talk, other blocks, copies of the old source, reasoning and stray marks around it change nothing."""
    text, language, kernel = made
    found = parse_reply(text, language, "stop", BASE[language])
    assert found.failure == ""
    assert found.source == kernel


@pytest.mark.parametrize("form", ["```{}\n", "", "<kernel>\n", "A draft.\n```\n", "<think>hm</think>\n~~~~cpp\n"])
@pytest.mark.parametrize("name", ["example_split.cu", "example_split.cpp"])
def test_no_part_of_a_kernel_is_taken_for_a_whole_one(name: str, form: str) -> None:
    """Cut anywhere, between kernels and functions too: a cut where the provider says nothing, else a sentence."""
    language: Language = "cuda" if name.endswith(".cu") else "cpp"
    source = book.packaged().raw(name)
    begun = form.format(language) + source[:8]
    for at in range(8, len(source.rstrip()), 13):
        text = begun + source[8:at]
        assert parse_reply(text, language, "").failure == TRUNCATED, source[:at][-60:]
        assert parse_reply(text, language, "stop").failure == CUT_THOUGH_DONE, source[:at][-60:]
        assert parse_reply(text, language, "length").failure == TRUNCATED
    assert parse_reply(begun + source[8:], language, "").source == source


@pytest.mark.parametrize("finish", ["", "stop", "STOP", "end_turn", "unknown"])
@pytest.mark.parametrize("behind", ["```\n", "```bash\nnvcc -cubin k.cu\n", "\nIt's one pass, {a, b} in all.", "```"])
def test_what_is_open_behind_a_whole_kernel_is_no_cut(behind: str, finish: str) -> None:
    """A stray fence, an open block of something else, or talk behind a block without its last fence."""
    fence = "" if behind.startswith("\n") else "```\n"
    for language, kernels in KERNELS.items():
        for kernel in kernels:
            found = parse_reply(f"```{language}\n{kernel}{fence}{behind}", language, finish)
            assert (found.failure, found.source) == ("", kernel)
