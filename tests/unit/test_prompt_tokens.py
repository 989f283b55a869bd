"""How long prompts are, counted with real tokenizers: few tokens, most of them a prefix that providers cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import util
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.core.ports import Task
from forge_tui.core.records import Ceilings, Device, Edge, Evaluation, InputStats, KernelInput, Node, Target, Verdict
from forge_tui.proposers import book, prompt
from forge_tui.proposers.tokens import cap, count
from forge_tui.search import simulate

CEILINGS = Ceilings(copy_gbps=4245.0, matmul_tflops={"float32": 51.5, "bfloat16": 730.25}, launch_us=2.125)
CPU = Device(name="cpu", model="Intel(R) Xeon(R) Platinum 8480", arch="x86_64-amx-0123456789", cores=56, threads=56,
             runtime_version="12.2.0", ceilings=CEILINGS)  # fmt: skip
CUDA = Device(name="cuda:0", model="NVIDIA H200", arch="sm_90a", sms=132, smem_optin=232448, l2_bytes=50 * 2**20,
              runtime_version="13.0", ceilings=CEILINGS)  # fmt: skip
ROOT = Path(__file__).parents[2]
PYTHON = '''\
def forward(self, hidden_states, residual):
    """The sum of two streams, normalised over the last dimension."""
    hidden_states = hidden_states + residual
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return self.weight * hidden_states.to(input_dtype)
'''


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Callable[[str], int]]:
    """Tokenizers that come with LiteLLM as files: none is downloaded."""
    spec = util.find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    try:
        import tiktoken
        from tokenizers import Tokenizer

        found: dict[str, Callable[[str], int]] = {}
        for name in ("cl100k_base", "o200k_base"):
            encoding = tiktoken.get_encoding(name)
            found[name] = lambda text, e=encoding: len(e.encode(text, disallowed_special=()))  # type: ignore[misc]
        for name in ("anthropic", "deepseek"):
            one = Tokenizer.from_file(str(folder / f"{name}_tokenizer.json"))
            found[name] = lambda text, t=one: len(t.encode(text, add_special_tokens=False).ids)  # type: ignore[misc]
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before
    return found


def kernel(language: str, number: int) -> str:
    """A kernel of usual length that differs from the others: about a thousand tokens."""
    body = book.packaged().raw("example_split.cu" if language == "cuda" else "example_split.cpp")
    return f"// kernel {number}\n{body}"


def target() -> Target:
    """Two inputs and a weight in half precision."""
    base = simulate.target("Norm", time_us=852.0, floor_us=62.0)
    spec = msgspec.structs.replace(base.signature.inputs[0].spec, dtype="bfloat16")
    inputs = tuple(KernelInput(name=name, spec=spec, source="arg", path=name)
                   for name in ("hidden_states", "residual", "weight"))  # fmt: skip
    seen = {item.name: InputStats(low=-4.53, high=4.61, mean=0.001, std=1.0, zeros=0.0) for item in inputs}
    signature = msgspec.structs.replace(base.signature, inputs=inputs)
    return msgspec.structs.replace(base, signature=signature, source=PYTHON, statistics=seen, launches=7.0)


def long_task(device: Device, edge: Edge = Edge.IMPROVE) -> Task:
    """Fifty steps that led here, three failures beside each."""
    nodes: list[Node] = []
    lineage: list[Node] = []
    for depth in range(50):
        good = Evaluation(verdict=Verdict.FASTER, speedup=1.0 + depth / 50, time_us=852 / (1 + depth / 50),
                          baseline_us=852.0, resources={"partial": {"registers": 40, "smem_bytes": 128}})
        parent = lineage[-1].id if lineage else None
        made = Node(
            id=len(nodes), target_id="Norm", parent=parent, edge=Edge.IMPROVE if lineage else Edge.DRAFT, proposer="m",
            source=kernel(device.language, depth), language=device.language, family=f"approach {depth}",
            idea=f"Step {depth} keeps the whole row in registers, so that each value is read from memory only once",
            evaluation=good, tunables={"THREADS": 256} if device.kind == "cuda" else {"ROWS": 8},
        )  # fmt: skip
        nodes.append(made)
        lineage.append(made)
        for _ in range(3):
            wrong = Evaluation(verdict=Verdict.REJECTED, reason="Wrong in 12% of the values: " + "rows differ, " * 20,
                               log="candidate.cu(3): error: identifier is undefined\n" * 200)  # fmt: skip
            nodes.append(msgspec.structs.replace(made, id=len(nodes), parent=made.id, evaluation=wrong))
    return Task(target=target(), device=device, edge=edge, parent=lineage[-1],
                failed=nodes[-1] if edge is Edge.REPAIR else None, best=lineage[-2], other=lineage[10],
                lineage=tuple(reversed(lineage)), nodes=tuple(nodes), seed=1)  # fmt: skip


@pytest.mark.parametrize("device", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("edge", [Edge.IMPROVE, Edge.REWRITE, Edge.REPAIR, Edge.MERGE])
def test_a_lineage_of_fifty_is_a_short_prompt(
    tokenizers: dict[str, Callable[[str], int]], device: Device, edge: Edge
) -> None:
    """At most 9,000 tokens by every tokenizer and by our own count, and at least 60% of them a stable prefix."""
    made = prompt.render(long_task(device, edge))
    for name, length in {**tokenizers, "our own": count}.items():
        whole, prefix = length(made.text), length(f"{made.system}\n{made.card}\n")
        assert whole <= 9000, name
        assert prefix >= 0.6 * whole, (name, prefix, whole)


def test_our_count_is_above_those_of_tokenizers(tokenizers: dict[str, Callable[[str], int]]) -> None:
    """For prompts, kernels, Python and Markdown of this project, and by not so much that prompts stay half empty."""
    texts = [prompt.render(long_task(device)).text for device in (CPU, CUDA)]
    texts += [path.read_text() for path in sorted((ROOT / "tests" / "exploits" / "zoo").rglob("*.cpp"))]
    texts += [path.read_text() for path in sorted((ROOT / "forge_tui" / "proposers").rglob("*.py"))]
    texts += [(ROOT / name).read_text() for name in ("README.md", "forge_tui/contract/cpu_support.h")]
    texts += ["größer, 測試, é" * 20, "0x1234abcd5678 " * 50, "1234567890" * 20, "a_b_c_d, " * 50 + "e", ""]
    for text in texts:
        ours = count(text)
        for name, length in tokenizers.items():
            assert ours >= length(text), (name, text[:80])
            assert len(text) < 2000 or ours < 1.6 * length(text), (name, text[:80])


@given(st.text(alphabet="ab xy\n{}_1é", max_size=400), st.integers(10, 100))
def test_a_cut_text_keeps_its_limit(text: str, limit: int) -> None:
    """What is short stays; what is long is cut in the middle and then within the limit."""
    made = cap(text, limit)
    assert count(made) <= limit
    assert made == text or count(text) > limit


def test_a_long_source_is_cut_between_lines() -> None:
    """The beginning and the end stay, whole lines each."""
    text = "".join(f"line {i} of the source;\n" for i in range(400))
    made = cap(text, 300)
    assert made.startswith("line 0 of the source;\nline 1 of")
    assert made.endswith("line 399 of the source;\n")
    assert "\n... cut ...\n" in made
    assert all(part in text or part == "... cut ..." for part in made.splitlines())
    assert count(made) > 200
