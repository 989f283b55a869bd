"""The parts of reading a reply: edits, host code, what is left out, reasoning, notes."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.contract import directives
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Node
from forge_tui.proposers import codetext, diffs, edits, elision, fields, hostside, prompt, thoughts, trial
from forge_tui.proposers.edits import Edit
from forge_tui.proposers.parse import parse_reply

FOLDER = Path(__file__).parents[1] / "replies"
NORM = (FOLDER / "norm.cpp").read_text()
KERNEL = '//@launch k grid=1 block=32\n#include "forge_target.h"\nextern "C" __global__ void k(FORGE_PARAMS) {\n}\n'

# ---- edits


@pytest.mark.parametrize("first", ["<<<<<<< SEARCH", "<<<<<<<", "  <<<<<<< search", "<<<<< ORIGINAL",
                                   "<<<<<<<<< HEAD x",
                                   "------- SEARCH"])  # fmt: skip
def test_marks_are_read_in_many_forms(first: str) -> None:
    """Shorter and longer ones, without words, and those of other tools."""
    ends = [">>>>>>> REPLACE", ">>>>>>>", ">>>>> REPLACE", "  >>>>> ", ">>>>>>> END.", "+++++++ REPLACE",
            ">>>>>>>REPLACE"]
    for middle, last in itertools.product(["=======", " =====", "======= ", "======= REPLACE WITH"], ends):
        found = edits.find(f"{first}\na\n{middle}\nb\n{last}\nmore\n")
        assert found.edits == (Edit(search=("a",), replace=("b",)),)
        assert (found.open, found.fault, found.end) == (False, "", 5)


@pytest.mark.parametrize("code", [
    "k<<<1, 32>>>(x);", "// ======= rows =======", "/* ===== */", " * =======", "x = a >>>>>>> b;", ">>>>>>> b;",
    "static_assert(A<B<C<D<E<int>>>>>::v);", "<<<<<<< 3;", "// >>>>>>> REPLACE", "a = b >> 5; // >>>>>", "-------",
    "++++++", "======",
])  # fmt: skip
def test_code_is_no_mark(code: str) -> None:
    """Launches, shifts, closed templates and rules in comments stay lines of the edit that they are in."""
    for parts in (((code, "a"), ("b",)), (("a", code), ("b",)), (("a",), (code, "b")), (("a",), ("b", code))):
        search, replace = ("\n".join(part) for part in parts)
        text = f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"
        assert edits.find(text).edits == (Edit(search=parts[0], replace=parts[1]),)
    assert edits.find(f"{code}\n{code}\n") == edits.Found()


def test_the_source_says_which_of_equal_rules_parts_the_edit() -> None:
    """A rule in a comment as long as the mark is told from it by what was shown."""
    base = "/*\n=======\nrows\n*/\nint a;\n"
    text = "<<<<<<< SEARCH\n/*\n=======\nrows\n*/\nint a;\n=======\nint b;\n>>>>>>> REPLACE\n"
    assert edits.apply(base, edits.find(text, base).edits).source == "int b;\n"


def test_an_edit_without_its_last_mark_is_not_lost() -> None:
    """It ends where the next one begins, or with its block; talk between the two is no part of it."""
    one, two = Edit(search=("a",), replace=("b",)), Edit(search=("c",), replace=("d",))
    bare = "<<<<<<< SEARCH\na\n=======\nb\n<<<<<<< SEARCH\nc\n=======\nd\n>>>>>>> REPLACE\n"
    fenced = "```\n<<<<<<< SEARCH\na\n=======\nb\n```\nThen:\n```\n<<<<<<< SEARCH\nc\n=======\nd\n```\n"
    assert edits.find(bare).edits == (one, two)
    assert edits.find(fenced).edits == (one, two)
    assert not edits.find(fenced).open
    assert edits.find("<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>>").fault


def test_edits_are_of_the_source_as_it_was_shown() -> None:
    """What one edit writes is not found by the next one; only where that must be, it is."""
    base = "int a;\nint b;\nint c;\n"
    swap = (Edit(search=("int a;",), replace=("int b;", "int b;")), Edit(search=("int b;",), replace=("int x;",)))
    assert edits.apply(base, swap).source == "int b;\nint b;\nint x;\nint c;\n"
    chain = (Edit(search=("int a;",), replace=("int z;",)), Edit(search=("int z;",), replace=("int y;",)))
    assert edits.apply(base, chain).source == "int y;\nint b;\nint c;\n"


@pytest.mark.parametrize(("part", "at"), [
    ("int i", None), ("dx", None), ("idx", 1), ("= 0", None), ("idx == 0", 1), ("0.5f", 1), ("5f", None), ("0.5", None),
    ("+ 1", None), ("++n", 1), ("a + 1", None), ("p->x", 1), ("->x", 1), (">x", None), ("B<int>", 1), ("<", None),
])  # fmt: skip
def test_a_part_of_a_line_begins_and_ends_with_whole_tokens(part: str, at: int | None) -> None:
    """Neither a word, nor a number, nor an operator is changed in its middle."""
    base = "int idx; if (idx == 0) p->x = 0.5f * a++ + 1.f; A<B<int>> v; ++n << 1;\n".replace("int idx;", "int idy;")
    made = edits.apply(base, (Edit(search=(part,), replace=("@",)),))
    assert made.source == (base.replace(part, "@") if at else None)
    assert made.notes == (("edit 1 was made inside a line",) if at else ())


names = st.lists(st.sampled_from(["i", "idx", "int", "x", "x1", "1", "1x", "+", "++", "=", "==", "(", ")", ";", "."]),
                 min_size=1, max_size=12)  # fmt: skip


@given(names, st.data())
def test_what_is_not_in_the_part_stays(tokens: list[str], data: st.DataObject) -> None:
    """Whatever piece of a line is replaced: what is before and behind it is there as it was, cut in no token."""
    line = " ".join(tokens)
    start = data.draw(st.integers(0, len(line) - 1))
    end = data.draw(st.integers(start + 1, len(line)))
    part = line[start:end].strip()
    made = edits.apply(line, (Edit(search=(part or "?",), replace=("@",)),))
    if made.source is not None:
        before, behind = made.source.split("@")
        assert before + part + behind == line or "".join(line.split()) == "".join(part.split())
        assert [t for t in (before + " @ " + behind).split() if t != "@"] == (before.split() + behind.split())
        assert all(t in tokens for t in before.split() + behind.split())


@given(st.lists(st.sampled_from(["a;", "  b;", "}", "", "// c", "-d;", "+e;"]), min_size=1, max_size=14), st.data())
def test_a_unified_diff_makes_what_it_says(old: list[str], data: st.DataObject) -> None:
    """A diff as `diff -u` writes it turns the old source into the new one, or fails, never into a third."""
    import difflib

    lines = [f"{line} {i}" if line.strip() else line for i, line in enumerate(old)]
    new = [f"{line}!" if data.draw(st.booleans()) and line.strip() else line for line in lines]
    text = "\n".join(difflib.unified_diff(lines, new, "a/k.cu", "b/k.cu", lineterm=""))
    made = edits.apply("\n".join(lines), diffs.find(text))
    assert made.source == "\n".join(new) if text else diffs.find(text) == ()


# ---- host code

HOST = ["void run(float* x) {\n    k<<<1, 32>>>(x);\n}\n", "int main() { return 0; }\n",
        "static void* room() { void* p; cudaMalloc(&p, 8); return p; }\n",
        "torch::Tensor go(torch::Tensor x) {\n    if (x.numel()) { k<<<1, 1>>>(x.data()); }\n    return x;\n}\n",
        "struct Runner {\n    void go() { k<<<2, 2>>>(nullptr); }\n};\n"]  # fmt: skip
DEVICE = ["__device__ float twice(float v) { return v + v; }\n", "constexpr int N = 4;\n",
          "struct Pair { float a, b; };\n",
          "template <int V> __device__ int f() { return V; }\n",
          "namespace own {\n__device__ int g() { return 1; }\n}\n",
          "// a comment { <<<\n", "#define TWO(x) { x, x }\n"]  # fmt: skip
LINES = ["//@launch k grid=1 block=32\n", "//@launch k2 grid=(1) block=64\n", "//@tune A 1 2\n",
         "//@workspace 64 zero\n"]


def kernel(name: str) -> str:
    """A kernel."""
    return f'extern "C" __global__ void {name}(FORGE_PARAMS) {{\n    if (threadIdx.x < 1) {{ out0[0] = x[0]; }}\n}}\n'


@given(st.permutations([*HOST[:3], *DEVICE[:4], *LINES, kernel("k"), kernel("k2")]), st.lists(st.sampled_from(
    [*HOST[3:], *DEVICE[4:], *LINES[:2]]), max_size=5), st.booleans())  # fmt: skip
def test_host_code_goes_and_all_else_stays(pieces: list[str], more: list[str], grouped: bool) -> None:
    """In any order, in `extern "C" { }` or not: every directive, kernel and helper is left, and no host code."""
    body = "".join([*pieces, *more])
    text = '#include "forge_target.h"\n' + (f'extern "C" {{\n{body}}}\n' if grouped else body)
    made, note = hostside.strip(text, "cuda")
    assert note.startswith("host code was left out: ")
    for piece in {*pieces, *more} - set(HOST):
        assert piece in made, piece
    code = codetext.hidden(made)
    assert "<<<" not in code
    assert "main" not in code
    assert "torch" not in code
    assert codetext.depth(made) == 0
    # directives keep their order, and no line of them is there more often than before
    assert set(codetext.directives(made)) == set(codetext.directives(text))
    assert all(made.count(line) <= text.count(line) for line in LINES)


def test_directives_in_and_above_host_code_are_the_kernels() -> None:
    """They stay in their order; one that is there already goes with the host code, and the rest is a valid source."""
    text = ('#include "forge_target.h"\n//@launch k grid=1 block=32\n' + kernel("k") + "// the launcher\n"
            "//@launch k grid=1  block=32\n//@launch k2 grid=1 block=64\nint main() {\n    //@tune A 1 2\n"
            "    k<<<1, 32>>>(0);\n}\n" + kernel("k2"))  # fmt: skip
    made, _ = hostside.strip(text, "cuda")
    assert made == ('#include "forge_target.h"\n//@launch k grid=1 block=32\n' + kernel("k") + "// the launcher\n"
                    "//@launch k2 grid=1 block=64\n//@tune A 1 2\n\n" + kernel("k2"))  # fmt: skip
    read = directives.parse(made)
    assert [launch.kernel for launch in read.launches] == ["k", "k2"]
    assert [tune.name for tune in read.tunes] == ["A"]


# ---- what is left out


@pytest.mark.parametrize("line", [
    "// rest unchanged", "// ... rest of the kernel unchanged ...", "// (same as before)...", "/* ... */", "// ...",
    "// ... existing code ...", "// The rest of the code remains the same.", "// remaining code as before", "...",
    "[...]",
    "# ... rest of the file", "// [rest of implementation omitted]", "// other functions unchanged from the original",
    "/* implementation omitted for brevity */", "// your code here", "// everything else stays the same",
    "// … unchanged",
    "// the rest is the same as in the original", "//... (previous code) ...", "// all other code is unchanged",
])  # fmt: skip
def test_a_line_that_stands_for_code_is_seen(line: str) -> None:
    """Whatever the words."""
    source = KERNEL.replace("{\n}", f"{{\n    float s = 0.0f;\n    {line}\n    out0[0] = s;\n}}")
    assert elision.find(source) == " ".join(line.split())
    found = parse_reply(f"```cuda\n{source}```", "cuda", "stop")
    assert found.failure.startswith("The reply leaves out parts of the source: `")


@pytest.mark.parametrize("line", [
    "// the rest of the row goes to the next warp", "// same as above, but for the odd lanes", "// 0, 1, ..., 31",
    "// remaining elements that do not fill a vector", "// unchanged", "// as before", "// ... then the tail",
    "// todo: tune",
    "// previous partial sums", "s += 1.0f;  // rest unchanged", "// existing values are overwritten", "//",
    "// omitted lanes hold 0",
    "// keeps the order of the original ... so that sums agree", "asm(\"...\");", "/* a ... z */ s += 1.0f;",
    "// the same thread writes what it read", "// other rows are for other blocks",
])  # fmt: skip
def test_an_ordinary_comment_leaves_out_nothing(line: str) -> None:
    """Words of the same kind in comments that stand beside their code."""
    source = KERNEL.replace("{\n}", f"{{\n    float s = 0.0f;\n    {line}\n    out0[0] = s;\n}}")
    assert elision.find(source) == ""
    assert parse_reply(f"```cuda\n{source}```", "cuda", "stop").source == source


def test_a_body_of_a_comment_alone_is_left_out_unless_it_was_shown_so() -> None:
    """`{ // as before }` is no function; the shown source's own comments are no fault of a reply."""
    source = "static float f(float v) {\n    // as before\n}\n" + KERNEL
    assert elision.find(source) == "// as before"
    assert elision.find(source, source) == ""
    assert elision.find("static float f(float v) { /* ... */ }\n") == "{ /* ... */ }"


# ---- reasoning


@pytest.mark.parametrize("mark", ["</think>", "</analysis>", "[/THINK]", "◁/think▷", "</reasoning>", "</thoughts>",
                                  "<|end_of_thought|>", "</seed:think>"])  # fmt: skip
def test_a_stray_end_of_thoughts_takes_nothing_away(mark: str) -> None:
    """Behind the answer it is stray; before another kernel all before it was thought."""
    draft = KERNEL.replace("{\n}", "{\n    // a draft\n}")
    assert parse_reply(f"```cuda\n{KERNEL}```\n{mark}\n", "cuda", "stop").source == KERNEL
    assert parse_reply(f"```cuda\n{KERNEL}```{mark}", "cuda", "stop").source == KERNEL
    assert parse_reply(f"```cuda\n{KERNEL}\n{mark}\nDone.", "cuda", "stop").source == KERNEL
    assert parse_reply(f"```cuda\n{draft}```\n{mark}\n```cuda\n{KERNEL}```\n", "cuda", "stop").source == KERNEL
    both = f"```cuda\n{draft}```\n{mark}\n```cuda\n{KERNEL}```\n{mark}\n"
    assert parse_reply(both, "cuda", "stop").source == KERNEL
    edit = f"```\n<<<<<<< SEARCH\n//@tune ROWS 4 1 16\n=======\n//@tune ROWS 8\n>>>>>>> REPLACE\n```\n{mark}"
    assert parse_reply(edit, "cpp", "stop", NORM).source == NORM.replace("ROWS 4 1 16", "ROWS 8")


@given(st.text(alphabet="ab\n`<>[]/", max_size=30), st.text(alphabet="ab\n`<>[]/", max_size=30))
def test_readings_hold_what_was_said(before: str, behind: str) -> None:
    """A closed thought is in no reading but the last, and what is around it in the one before."""
    found = list(thoughts.readings(f"{before}\n<think>hidden</think>\n{behind}"))
    said = [reading.text for reading in found if not reading.thoughts]
    assert not any("hidden" in text for text in said)
    assert f"{before}\n\n{behind}" in said
    assert "hidden" in found[-1].text


# ---- fields and notes


@pytest.mark.parametrize("text", [
    "family: Two Words", "**Family**: two words.", "- **family:** *two words*", "## Family: `two words`",
    "1. Family: two words",
    "| family | two words |", "Family \u2013 two words", "<family>two words</family>", "// family: two words",
    "> FAMILY: two words",
    "### Family\n\nTwo words\n", "**Family**\ntwo words", "* family\uff1a two words", "\"family\": \"two words\"",
    "__Family:__ two words",
    "hypothesis: x\nfamily: two words\nfamily: another",
])  # fmt: skip
def test_a_family_is_read_in_any_dress(text: str) -> None:
    """And always comes out in small letters, so that it is the same one."""
    assert fields.read(text)["family"] == "two words"


def test_what_was_changed_is_part_of_the_idea() -> None:
    """A node keeps the idea: the tree shows it, and the next prompt tells the model."""
    text = "hypothesis: fewer barriers\n```cuda\n" + KERNEL.replace('#include "forge_target.h"\n', "") + HOST[1] + "```"
    found = parse_reply(text, "cuda", "stop")
    assert found.notes == ("the include of forge_target.h was added", "host code was left out: main")
    assert found.hypothesis == f"fewer barriers [{'; '.join(found.notes)}]"
    assert found.fields["hypothesis"] == "fewer barriers"
    long = parse_reply(text.replace("fewer", "fewer " * 100), "cuda", "stop")
    assert len(long.hypothesis) <= 300
    assert long.hypothesis.endswith("host code was left out: main]")


def test_no_source_of_the_prompt_is_taken_for_the_answer() -> None:
    """Of a merge's two kernels, shown once more behind the answer, neither wins; alone it is what there is."""
    merge = next(task for task in trial.tasks("cpp") if task.edge is Edge.MERGE)
    answer = NORM.replace("ROWS 4 1 16", "ROWS 8")
    other = NORM.replace("mean_of", "average")
    made: Task = msgspec.structs.replace(merge, parent=_with(merge.parent, NORM), other=_with(merge.other, other))
    text = f"```cpp\n{answer}```\nwhich combines\n```cpp\n{NORM}```\nwith\n```cpp\n{re.sub('    ', '  ', other)}```\n"
    found = parse_reply(text, "cpp", "stop", prompt.base(made), prompt.shown(made))
    assert found.source == answer
    alone = parse_reply(f"```cpp\n{other}```", "cpp", "stop", prompt.base(made), prompt.shown(made))
    assert alone.source == other


def _with(node: Node | None, source: str) -> Node:
    assert node is not None
    return msgspec.structs.replace(node, source=source)


def test_edits_are_of_any_characters() -> None:
    """Marks and code that were escaped for HTML, and a source whose own comments have typographic signs."""
    line = 'if (a < b && c > "d"[0]) { // \u201crows\u201d \u2014 all'
    text = f"<<<<<<< SEARCH\n{line}\n=======\nif (a) {{\n>>>>>>> REPLACE\n"
    base = NORM.replace("    return 0;", f"    {line}\n    }}\n    return 0;")
    wanted = NORM.replace("    return 0;", "    if (a) {\n    }\n    return 0;")
    assert parse_reply(text, "cpp", "stop", base).source == wanted
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    assert parse_reply(escaped, "cpp", "stop", base).source == wanted


def test_an_imagined_header_is_not_put_into_the_source() -> None:
    """A block with a header of the model's own is left out, though it defines what the source uses."""
    imagined = "namespace forge { constexpr int n = 4; }\n#define FORGE_PARAMS const float* x, float* out0\n"
    text = f"```cpp\n// forge_target.h\n{imagined}```\n```cuda\n{KERNEL}```\n"
    assert parse_reply(text, "cuda", "stop").source == KERNEL
