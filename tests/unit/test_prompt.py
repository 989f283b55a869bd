"""Prompts: deterministic bytes, hard caps, the facts that a model needs, nothing twice."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from forge_tui.contract import directives, header, lint
from forge_tui.core.ports import Task
from forge_tui.core.records import Ceilings, Device, Edge, Evaluation, InputStats, Node, Scalar, Target, Verdict
from forge_tui.core.timings import Ratio, SideTime, Timings
from forge_tui.proposers import book, prompt, strategies, words
from forge_tui.proposers.tokens import count
from forge_tui.search import simulate

GOLDEN = Path(__file__).parent / "golden"
CEILINGS = Ceilings(copy_gbps=4245.0, matmul_tflops={"float32": 51.5, "bfloat16": 730.25}, launch_us=2.125)
CPU = Device(name="cpu", model="Some CPU", arch="some-cpu", cores=8, threads=8, runtime_version="12.2.0",
             ceilings=CEILINGS)  # fmt: skip
CUDA = Device(name="cuda:0", model="Some GPU", arch="sm_90a", sms=132, smem_optin=232448, l2_bytes=50 * 2**20,
              runtime_version="13.0", ceilings=CEILINGS)  # fmt: skip
KERNEL = '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n  int y = zero;\n  return 0;\n}\n'


def target() -> Target:
    """A row operation with a constant."""
    base = simulate.target("RMSNorm", time_us=120.0, floor_us=30.0, share=0.25)
    eps = Scalar(name="eps", value=1e-6, source="attribute", path="eps")
    signature = msgspec.structs.replace(base.signature, scalars=(eps,))
    seen = {"x": InputStats(low=-3.5, high=4.0, mean=0.01, std=1.0, zeros=0.25)}
    return msgspec.structs.replace(base, signature=signature, source="def forward(self, x):\n    return x * 2\n",
                                   flops=123, calls=24, launches=7.0, statistics=seen)  # fmt: skip


def node(node_id: int, edge: Edge = Edge.DRAFT, parent: int | None = None, evaluation: Evaluation | None = None,
         **changes: object) -> Node:  # fmt: skip
    """A node of the target."""
    made = Node(id=node_id, target_id="RMSNorm", parent=parent, edge=edge, proposer="m", source=KERNEL, language="cpp",
                idea=f"idea {node_id}", family=f"family {node_id}", evaluation=evaluation)  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def right(speedup: float) -> Evaluation:
    """A right kernel."""
    return Evaluation(verdict=Verdict.FASTER, speedup=speedup, time_us=100 / speedup, baseline_us=100.0)


def broken(verdict: Verdict = Verdict.COMPILE_ERROR, reason: str = "", log: str = "") -> Evaluation:
    """A failed kernel."""
    return Evaluation(verdict=verdict, reason=reason, log=log)


def task(edge: Edge, nodes: tuple[Node, ...] = (), parent: Node | None = None, failed: Node | None = None,
         best: Node | None = None, seed: int = 1, device: Device = CPU) -> Task:  # fmt: skip
    """A request."""
    by_id = {n.id: n for n in nodes}
    lineage, here = [], parent
    while here is not None:
        lineage.append(here)
        here = by_id.get(here.parent) if here.parent is not None else None
    return Task(target=target(), device=device, edge=edge, parent=parent, failed=failed, best=best,
                lineage=tuple(lineage), nodes=nodes, seed=seed)  # fmt: skip


def improve_task(device: Device = CPU, seed: int = 1) -> Task:
    """A child with history, failures and a better cousin."""
    root = node(0, evaluation=right(1.1))
    child = node(1, Edge.IMPROVE, 0, right(1.3), tunables={"ROWS": 8})
    cousin = node(2, evaluation=right(1.6), source="// another\n" + KERNEL)
    failures = [node(3 + i, Edge.IMPROVE, 1, broken(reason=f"reason {i} " + "word " * 60)) for i in range(7)]
    return task(Edge.IMPROVE, (root, child, cousin, *failures), child, best=cousin, seed=seed, device=device)


def tasks() -> dict[str, Task]:
    """One of each edge."""
    log = ("k.cpp: In function 'int forge_launch(...)':\n"
           "k.cpp:3:11: error: 'zero' was not declared in this scope\n    3 |   int y = zero;\n"
           "k.cpp:3:11: error: 'zero' was not declared in this scope\n"
           "k.cpp:4:3: error: second\nk.cpp:1:1: fatal error: third\nk.cpp:2:1: error: fourth\n")  # fmt: skip
    failed = node(0, evaluation=broken(reason="g++ found errors.", log=log))
    moved = msgspec.structs.replace(failed, edge=Edge.TRANSFER, idea="found in RMSNorm at another size")
    return {
        "draft_cpp": task(Edge.DRAFT),
        "draft_cuda": task(Edge.DRAFT, device=CUDA),
        "improve_cpp": improve_task(),
        "repair_cpp": task(Edge.REPAIR, (failed,), failed=failed),
        "rewrite_cuda": msgspec.structs.replace(improve_task(CUDA), edge=Edge.REWRITE),
        "merge_cpp": msgspec.structs.replace(improve_task(), edge=Edge.MERGE, other=improve_task().best),
        "repair_moved_cpp": task(Edge.REPAIR, (moved,), failed=moved),
    }


@pytest.mark.parametrize("name", list(tasks()))
def test_the_bytes_are_the_golden_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of any prompt is a change of a golden file; the header room's text is held fixed here."""
    monkeypatch.setattr(header, "render", lambda target, device: f"// header of {target.name} on {device.name}\n")
    text = prompt.render(tasks()[name]).text
    path = GOLDEN / f"prompt_{name}.txt"
    assert text == path.read_text()
    assert prompt.render(tasks()[name]).text == text


def test_the_prefix_is_equal_for_all_calls_of_a_session() -> None:
    """What stands first is the same whatever the edge, so that providers can cache it; the card follows it."""
    made = [prompt.render(t) for name, t in tasks().items() if not name.endswith("cuda")]
    assert len({p.system for p in made}) == 1
    assert made[0].text.startswith(made[0].system)
    one, other = (prompt.render(improve_task(seed=s)) for s in (1, 2))
    assert one.card == other.card


def test_the_card_has_what_an_author_needs() -> None:
    """Source, shapes, strides, dtype, constants, header, floor, bound and the time to beat are all there."""
    text = prompt.render(improve_task()).card
    for fact in ("def forward(self, x):", "input x: float32, shape [64, 64], strides [64, 1]", "output out0",
                 "seen: -3.5 to 4, mean 0.01, std 1, 25% zeros", "runs as 7 device kernels",
                 "eps = 1e-06", "#define FORGE_PARAMS", "x_shape_0 = 64", "floor of this device: 30 us, memory-bound",
                 "to beat: 100 us", "original: 120 us", "24 calls", "25.0%", "Tolerance"):  # fmt: skip
        assert fact in text, fact
    assert "forge::detail" not in text
    assert count(text) < 1500


def test_baselines_come_from_the_oldest_timing() -> None:
    """Eager and compiled times stand in the card, the better one is to be beaten, and later noise changes nothing."""
    sides = tuple(SideTime(name=name, us=us) for name, us in (("candidate", 50.0), ("eager", 110.0), ("compile", 80.0)))
    ratio = Ratio(speedup=2.0, low=1.9, high=2.1)
    timings = Timings(decides="wall", sides=sides, vs_eager=ratio, vs_best=ratio, best="compile")
    first = node(0, evaluation=msgspec.structs.replace(right(1.2), timings=timings))
    later = node(1, evaluation=msgspec.structs.replace(right(1.3), timings=msgspec.structs.replace(
        timings, sides=(SideTime(name="eager", us=111.0),))))  # fmt: skip
    text = prompt.render(task(Edge.IMPROVE, (first,), first)).card
    assert "- the original: 110 us, timed" in text
    assert "- the original under torch.compile: 80 us, timed" in text
    assert "to beat: 80 us" in text
    assert prompt.render(task(Edge.IMPROVE, (first, later), later)).card == text


def test_the_device_sheet_says_what_was_measured() -> None:
    """Measured rates, not a data sheet's."""
    sheet = prompt.render(task(Edge.DRAFT, device=CUDA)).system.split("# Device")[1]
    for fact in ("Some GPU, sm_90a", "132 SMs", "65536 registers", "49152 bytes static, 232448", "50.0 MiB",
                 "4245 GB/s", "bfloat16 730, float32 51.5", "wgmma", "memcpy_async_tx", "cluster=n"):  # fmt: skip
        assert fact in sheet, fact


@pytest.mark.parametrize(("arch", "has", "lacks"), [
    ("sm_80", ["__pipeline_memcpy_async", "bfloat16, TF32"], ["cluster=n", "wgmma", "FP8"]),
    ("sm_89", ["FP8", "1536 threads"], ["cluster=n", "wgmma"]),
    ("sm_75", ["mma.h"], ["__pipeline_memcpy_async", "bfloat16, TF32"]),
    ("sm_100a", ["tcgen05", "cluster=n"], ["`wgmma.mma_async`"]),
    ("sm_120a", ["FP8"], ["cluster=n", "tcgen05"]),
    ("x86_64-avx512-0123", ["AVX-512: 16 floats"], ["AMX", "AVX2"]),
    ("x86_64-amx-0123", ["AVX-512: 16 floats", "leave them alone"], ["AVX2"]),
    ("x86_64-avx2-0123", ["AVX2 with FMA: 8 floats"], ["AVX-512"]),
    ("aarch64-asimd-0123", ["NEON: 4 floats"], ["AVX"]),
    ("some-cpu", [], ["AVX", "NEON"]),
])  # fmt: skip
def test_what_an_architecture_has_is_said_of_it_alone(arch: str, has: list[str], lacks: list[str]) -> None:
    """Each facility is named where it is, and nowhere else."""
    device = msgspec.structs.replace(CUDA if arch.startswith("sm_") else CPU, arch=arch)
    sheet = prompt.render(task(Edge.DRAFT, device=device)).system.split("# Device")[1]
    assert [fact for fact in has if fact not in sheet] == []
    assert [fact for fact in lacks if fact in sheet] == []


def test_history_is_short() -> None:
    """One line per ancestor with its effect, newest first, at most six failures of 25 words, the best one named."""
    text = prompt.render(improve_task()).request
    assert "- idea 1 -> 1.300x, 76.92 us\n- idea 0 -> 1.100x, 90.91 us" in text
    assert "best so far: idea 2 -> 1.600x" in text
    failures = [line for line in text.splitlines() if "compile error: reason" in line]
    assert len(failures) == 6
    assert all(len(line.split()) <= 27 for line in failures)
    assert "reason 6" in text
    assert "reason 0 " not in text
    assert "Measured with ROWS=8." in text


def test_failures_of_the_same_source_at_other_settings_are_told() -> None:
    """What was tried from a kernel counts for all its settings."""
    root = node(0, evaluation=right(1.1), source="// one\n" + KERNEL)
    tuned = node(1, Edge.TUNE, 0, right(1.2), source=root.source, tunables={"A": 1})
    failed = node(2, Edge.IMPROVE, 0, broken(reason="no luck"))
    assert "no luck" in prompt.render(task(Edge.IMPROVE, (root, tuned, failed), tuned)).request


def test_sources_appear_once() -> None:
    """The best kernel is shown beside the parent only where it is another one."""
    request = improve_task()
    assert prompt.render(request).request.count("```cpp") == 2
    same = msgspec.structs.replace(request, best=request.parent)
    assert prompt.render(same).request.count("```cpp") == 1


def test_a_repair_shows_three_errors_with_their_lines() -> None:
    """The reason, then the first three distinct errors, each with the source line; the failed source once."""
    text = prompt.render(tasks()["repair_cpp"]).request
    assert "It does not compile." in text
    assert "line 3: int y = zero;\n    error: 'zero' was not declared in this scope" in text
    assert "error: second" in text
    assert "error: third" in text
    assert "fourth" not in text
    assert text.count("not declared") == 1
    assert text.count("forge_launch(FORGE_PARAMS) {") == 1


def test_a_mismatch_shows_the_judges_words() -> None:
    """Without compiler errors the reason and the head of the log are shown."""
    failed = node(0, evaluation=broken(Verdict.REJECTED, "Wrong in 12% of the values.", "rows 60 to 63 differ"))
    text = prompt.render(task(Edge.REPAIR, (failed,), failed=failed)).request
    assert "It was rejected." in text
    assert "Wrong in 12% of the values.\nrows 60 to 63 differ" in text


def test_nvcc_errors_are_read_too() -> None:
    """The line numbers of nvcc stand in parentheses."""
    failed = node(0, evaluation=broken(log='candidate.cu(3): error: identifier "zero" is undefined\n'))
    assert prompt.errors(failed) == 'line 3: int y = zero;\n    error: identifier "zero" is undefined'


def test_every_section_is_capped() -> None:
    """Huge sources, logs, reasons and ideas do not make a huge prompt."""
    huge = "x" * 200 + "\n"
    request = improve_task()
    bloated = tuple(
        msgspec.structs.replace(n, source=huge * 2000, idea=huge * 50, family=huge,
                                evaluation=msgspec.structs.replace(n.evaluation, reason=huge * 99, log=huge * 99))
        for n in request.nodes if n.evaluation
    )  # fmt: skip
    big = msgspec.structs.replace(
        request, nodes=bloated, parent=bloated[1], best=msgspec.structs.replace(bloated[2], source=huge * 1999),
        lineage=(bloated[1], bloated[0]) * 50, target=msgspec.structs.replace(request.target, source=huge * 900),
    )  # fmt: skip
    most = sum(prompt.CAPS.values())
    made = prompt.render(big)
    assert count(made.card) <= prompt.CAPS["card"] + 1
    assert count(made.text) <= most
    repair = prompt.render(msgspec.structs.replace(big, edge=Edge.REPAIR, failed=bloated[4]))
    assert count(repair.text) <= most
    assert count(repair.request.split("# Task")[1]) < prompt.CAP_ERRORS + 120


def long_kernel(word: str, lines: int) -> str:
    """About 24 tokens to a line."""
    body = "\n".join(f"    {word}_{i % 7} = fmaf(a[{i}], b[{i}], {word}_{i % 5});" for i in range(lines))
    return f'#include "forge_target.h"\n{body}\n// END OF {word}\n'


@pytest.mark.parametrize(("first", "second"), [(20, 20), (300, 300), (300, 100), (100, 300), (2000, 2000), (250, 20)])
@pytest.mark.parametrize("edge", [Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.MERGE])
def test_no_section_is_cut_through_its_form(edge: Edge, first: int, second: int) -> None:
    """Long sources are cut in themselves: headings, fences, notes about kernels and the task stay, both ends too."""
    used = {f"kernel_{i}": {"registers": 255, "smem_bytes": 1000 + i, "spill_bytes": 64} for i in range(40)}
    settings = {f"TUNABLE_NUMBER_{i}": i for i in range(40)}
    one = node(0, source=long_kernel("one", first), tunables=settings, language="cuda",
               evaluation=msgspec.structs.replace(right(1.5), resources=used))  # fmt: skip
    two = msgspec.structs.replace(one, id=1, source=long_kernel("two", second))
    wrong = node(2, Edge.IMPROVE, 0, broken(reason="wrong " * 500, log="k.cu(3): error: no\n" * 900), source=one.source)
    made = task(edge, (one, two, wrong), parent=None if edge is Edge.DRAFT else one, best=two,
                failed=wrong if edge is Edge.REPAIR else None, device=CUDA)  # fmt: skip
    asked = prompt.render(msgspec.structs.replace(made, other=two))
    before, _, kernels = asked.request.partition("# The kernel")
    kernels, _, rest = kernels.partition("\n# Task\n")
    assert rest or edge is Edge.DRAFT
    assert count(f"# The kernel{kernels}") <= prompt.CAPS["kernels"]
    assert count(rest) <= prompt.CAPS["task"]
    assert "... cut ..." not in before
    assert asked.request.count("```") % 2 == 0
    sizes = {"one": count(one.source), "two": count(two.source)}
    for word in {Edge.DRAFT: [], Edge.MERGE: ["one", "two"]}.get(edge, ["one"]):
        source = {"one": one, "two": two}[word].source.strip()
        assert source[:100] in kernels
        assert source[-100:] in kernels
        most = prompt.CAP_SOURCE
        if edge is Edge.MERGE:
            most = prompt.CAP_PAIR // 2 if sum(sizes.values()) > prompt.CAP_PAIR else prompt.CAP_PAIR
        assert (source in kernels) == (sizes[word] <= most)


def test_a_rewrite_names_the_champions_family_and_the_usual_ones_first() -> None:
    """What is not to be done again: the best kernel's approach, then those taken often, then lately; eight in all."""
    nodes = [node(i, evaluation=right(1.0), family=name) for i, name in enumerate(
        ["a", "b", "c", "d", "e", "f", "g", "zigzag", "zigzag", "h", "i", "warp shuffles", "j"])]  # fmt: skip
    best = nodes[11]
    made = task(Edge.REWRITE, tuple(nodes), parent=best, best=best)
    assert "none of these: warp shuffles; zigzag; j; i; h; g; f; e." in prompt.render(made).request


def test_a_kernel_from_elsewhere_is_repaired_as_such() -> None:
    """Its author is told where it comes from, also when a repair of it has failed."""
    moved = tasks()["repair_moved_cpp"]
    assert "written for another target (found in RMSNorm at another size)" in prompt.render(moved).request
    failed = moved.failed
    assert failed is not None
    again = msgspec.structs.replace(failed, id=1, edge=Edge.REPAIR, repairs=0, idea="a repair")
    asked = prompt.render(task(Edge.REPAIR, (failed, again), failed=again)).request
    assert "written for another target (found in RMSNorm at another size)" in asked
    own = msgspec.structs.replace(failed, edge=Edge.DRAFT)
    assert "another target" not in prompt.render(task(Edge.REPAIR, (own,), failed=own)).request


def test_drafts_that_keep_failing_ask_for_a_plain_kernel() -> None:
    """After three failed drafts and no right kernel, simplicity is asked for."""
    failed = tuple(node(i, evaluation=broken(reason="no")) for i in range(3))
    assert "simplest kernel" in prompt.render(task(Edge.DRAFT, failed)).request
    assert "simplest kernel" not in prompt.render(task(Edge.DRAFT, failed[:2])).request
    assert "simplest kernel" not in prompt.render(task(Edge.DRAFT, (*failed, node(3, evaluation=right(1.0))))).request


def test_strategies_fit_the_bound_and_the_language() -> None:
    """A named move is drawn by the seed in six of ten cases, fits the bottleneck, and avoids what was tried."""
    drawn = [strategies.choose("launch", "cpp", seed) for seed in range(2000)]
    named = [s for s in drawn if s is not None]
    assert 0.55 < len(named) / 2000 < 0.65
    assert all("launch" in s.bounds and "cpp" in s.languages for s in named)
    fitting = {s.name for s in strategies.CATALOGUE if "launch" in s.bounds and "cpp" in s.languages}
    assert {s.name for s in named} == fitting
    avoid = tuple(sorted(fitting))[1:]
    left = {s.name for seed in range(200) if (s := strategies.choose("launch", "cpp", seed, avoid)) is not None}
    assert left == fitting - set(avoid)
    assert strategies.choose("launch", "cpp", 7) == strategies.choose("launch", "cpp", 7)


def test_every_strategy_is_reachable() -> None:
    """Names differ, and each bottleneck of each language has several moves."""
    names = [s.name for s in strategies.CATALOGUE]
    assert len(names) == len(set(names)) >= 14
    for language in ("cuda", "cpp"):
        for bound in ("memory", "compute", "launch"):
            assert sum(bound in s.bounds and language in s.languages for s in strategies.CATALOGUE) >= 4


def test_cache_marks_stand_on_the_stable_parts() -> None:
    """Anthropic's models get marks on prefix and card; others get plain text with the same words."""
    made = prompt.render(improve_task())
    system, user = made.messages(markers=True)
    assert system["content"][0]["cache_control"] == {"type": "ephemeral"}
    assert [("cache_control" in block) for block in user["content"]] == [True, False]
    plain = made.messages(markers=False)
    assert plain[0]["content"] == system["content"][0]["text"]
    assert plain[1]["content"] == "\n".join(block["text"] for block in user["content"])


@pytest.mark.parametrize("language", ["cuda", "cpp"])
def test_the_examples_keep_the_contract(language: str) -> None:
    """What a model is shown would be accepted."""
    system = prompt.render(task(Edge.DRAFT, device=CUDA if language == "cuda" else CPU)).system
    for name in prompt.EXAMPLES[language]:
        source = book.packaged().raw(name)
        lint.check(source, language)
        read = directives.parse(source)
        assert read.tunes
        assert bool(read.launches) == (language == "cuda")
        assert source in system


def test_odd_numbers_do_not_break_a_prompt() -> None:
    """Evaluations without times and speedups are told in words."""
    odd = node(0, evaluation=Evaluation(verdict=Verdict.INCONCLUSIVE))
    nan = node(1, Edge.IMPROVE, 0, Evaluation(verdict=Verdict.SLOWER, speedup=math.nan))
    text = prompt.render(task(Edge.IMPROVE, (odd, nan), nan)).request
    assert "idea 0 -> inconclusive" in text
    assert "idea 1 -> slower" in text


@pytest.mark.parametrize(("lines", "edge", "offered"), [
    (249, Edge.IMPROVE, False), (251, Edge.IMPROVE, True), (99, Edge.REPAIR, False), (101, Edge.REPAIR, True),
    (400, Edge.REWRITE, False), (400, Edge.MERGE, False),
])  # fmt: skip
def test_edits_are_offered_for_long_sources(lines: int, edge: Edge, offered: bool) -> None:
    """An improvement of 250 lines and a repair of 100 may be answered by edits; new kernels are written whole."""
    long = node(1, source="int a;\n" * lines, evaluation=broken(reason="no") if edge is Edge.REPAIR else right(1.5))
    made = task(edge, (long,), parent=None if edge is Edge.REPAIR else long, failed=long, best=long)
    made = msgspec.structs.replace(made, other=node(2, evaluation=right(1.2), source="// other\n" + KERNEL))
    asked = prompt.render(made).request
    assert ("SEARCH and REPLACE edits" in asked) == offered
    assert prompt.base(made) == long.source
    assert asked.count("int a;") >= lines, "what is edited is shown whole"


@pytest.mark.parametrize(("us", "text"), [
    (None, "unknown"), (0.8351, "0.8351 us"), (74.61, "74.61 us"), (999.94, "999.9 us"), (43660.4, "43660 us"),
])  # fmt: skip
def test_times_are_written_without_exponents(us, text):
    """Microseconds throughout, so that two times can be compared at a glance."""
    assert words.microseconds(us) == text
