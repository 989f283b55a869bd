"""Models through LiteLLM against a server on 127.0.0.1: replies, retries, faults, prices, secrets."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fault_server import KERNEL, REPLY, FaultServer, Play, always, in_turn, serving

from forge_tui.core.errors import UsageError
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, LlmCall, ModelSpec, Proposal, RunOptions
from forge_tui.proposers import calling, faults, llm, pricing, registry
from forge_tui.proposers.streaming import Patience
from forge_tui.search import simulate

OPENAI, ANTHROPIC = "openai/gpt-4o", "anthropic/claude-sonnet-4-5"
KEY = "sk-test-0123456789abcdef"


@pytest.fixture(scope="module")
def litellm() -> Any:
    """LiteLLM, imported once."""
    return calling.load_litellm()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[FaultServer]:
    """A running server."""
    async with serving() as made:
        yield made


def a_task(edge: Edge = Edge.DRAFT, seed: int = 1) -> Task:
    """A request for a CPU kernel."""
    return Task(target=simulate.target("t"), device=simulate.DEVICE, edge=edge, parent=None, failed=None, best=None,
                lineage=(), nodes=(), seed=seed)  # fmt: skip


class Ledger:
    """Books that refuse beyond a limit, and know what is open."""

    def __init__(self, limit_usd: float = 1e9) -> None:
        self.limit_usd = limit_usd
        self.calls: dict[int, LlmCall] = {}

    def open(self, task: Task, call: LlmCall) -> int | None:
        """A number, unless it is too dear."""
        assert call.state == "open"
        if sum(c.cost_usd or 0.0 for c in self.calls.values()) + (call.reserved_usd or 0.0) > self.limit_usd:
            return None
        self.calls[len(self.calls) + 1] = call
        return len(self.calls)

    def settle(self, number: int, call: LlmCall) -> None:
        """Once."""
        assert self.calls[number].state == "open"
        self.calls[number] = call

    def came(self, task: Task, model: str) -> list[tuple[int, LlmCall]]:
        """Nothing from before."""
        return []

    @property
    def states(self) -> list[str]:
        """In the order of the calls."""
        return [call.state for call in self.calls.values()]


class Asked:
    """A proposer with a clock of its own."""

    def __init__(self, server: FaultServer, model: str, *, stream: bool = True, **options: Any) -> None:
        self.waits: list[float] = []
        self.ledger = Ledger()
        self.proposer = llm.LlmProposer(model, api_base=server.base_for(model), sleep=self._sleep, **options)
        self.proposer.keep_books(self.ledger)
        self.proposer.caller.stream = stream

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def __call__(self, seed: int = 1) -> Proposal:
        """Ask once."""
        proposal = await self.proposer.propose(a_task(seed=seed))
        if proposal.booked:
            assert self.ledger.calls[proposal.booked] == proposal.call
        assert "open" not in self.ledger.states
        return proposal


QUICK = Patience(first_s=0.25, reasoning_first_s=0.25, stall_s=0.25)
BOTH = pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
WAYS = pytest.mark.parametrize(("model", "stream"), [(OPENAI, True), (OPENAI, False), (ANTHROPIC, True),
                                                     (ANTHROPIC, False)])  # fmt: skip


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("litellm")
# a warning of the library's own, about pydantic
@pytest.mark.filterwarnings("ignore:Accessing the")
class TestCalls:
    """One call and what comes of it."""

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_good_reply_becomes_a_source_with_its_price(self, server: FaultServer, stream: bool) -> None:
        """Source, idea and family are read; prompt, reply, all kinds of tokens and cost are written down."""
        server.script = always(Play(uncached=400, cached=600, output=200, reasoning=30))
        asked = Asked(server, OPENAI, stream=stream)
        proposal = await asked()
        assert (proposal.source, proposal.family, proposal.idea) == (KERNEL, "one pass", "reads once")
        (call,) = asked.ledger.calls.values()
        assert call == proposal.call
        assert (call.prompt_tokens, call.cached_tokens, call.completion_tokens, call.reasoning_tokens) == (
            1000, 600, 200, 30)  # fmt: skip
        # 400 x 2.5 + 600 x 1.25 + 200 x 10 dollars per million
        assert call.cost_usd == pytest.approx(0.00375)
        assert (call.priced, call.exact, call.state, call.attempt) == (True, True, "done", 1)
        assert call.price.startswith("$2.5 in, $10 out, $1.25 cached, $2.5 cache writes a million tokens (litellm 1.")
        assert call.reply == REPLY
        assert "# Contract (CPU" in call.prompt
        assert len(server.requests) == 1
        body = server.requests[0]["body"]
        assert server.requests[0]["path"] == "/v1/chat/completions"
        assert body["max_tokens"] == 8192
        assert "temperature" not in body
        assert isinstance(body["messages"][0]["content"], str)
        assert bool(body.get("stream")) is stream
        assert (body.get("stream_options") == {"include_usage": True}) is stream

    @pytest.mark.parametrize("stream", [True, False])
    async def test_anthropics_format_has_cache_marks_and_cached_prices(
        self, server: FaultServer, stream: bool
    ) -> None:
        """The stable parts are marked, and cache reads and writes are priced as such."""
        server.script = always(Play(uncached=300, cached=600, written=100, output=50))
        proposal = await Asked(server, ANTHROPIC, stream=stream)()
        assert proposal.source == KERNEL
        call = proposal.call
        assert call is not None
        # 300 x 3 + 600 x 0.3 + 100 x 3.75 + 50 x 15 dollars per million
        assert call.cost_usd == pytest.approx(0.002205)
        assert (call.prompt_tokens, call.cached_tokens, call.cache_write_tokens) == (1000, 600, 100)
        body = server.requests[0]["body"]
        assert body["system"][0]["cache_control"] == {"type": "ephemeral"}
        assert body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}
        assert body["max_tokens"] == 8192

    async def test_what_is_set_aside_covers_the_dearest_call(self, server: FaultServer) -> None:
        """Every byte a token, all of them written to the cache, and the longest reply."""
        server.script = always(Play())
        proposal = await Asked(server, ANTHROPIC)()
        call = proposal.call
        assert call is not None
        assert call.reserved_usd == pytest.approx(
            (len(call.prompt.encode()) + 63) * 3.75e-6 + 8192 * 15e-6, rel=1e-3)  # fmt: skip
        counted = await Asked(server, OPENAI)()
        assert counted.call is not None
        # where the encoding is known its count is taken: about a fourth
        assert 8192 * 10e-6 < (counted.call.reserved_usd or 0) < 8192 * 10e-6 + len(call.prompt) / 2.5 * 2.5e-6

    async def test_an_unknown_price_is_said_and_never_zero(self, server: FaultServer) -> None:
        """A model that is in no table has no cost, until a person gives its price."""
        server.script = always(Play(uncached=1000, cached=500, output=100))
        call = (await Asked(server, "openai/my-own-model")()).call
        assert call is not None
        assert (call.cost_usd, call.priced, call.reserved_usd, call.prompt_tokens) == (None, False, None, 1500)
        given = (await Asked(server, "openai/my-own-model", price=(2.0, 10.0, 0.2))()).call
        assert given is not None
        assert given.cost_usd == pytest.approx((1000 * 2 + 500 * 0.2 + 100 * 10) / 1e6)
        assert given.price.endswith("(given by --price)")

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_reply_that_counts_nothing_costs_what_was_set_aside(
        self, server: FaultServer, stream: bool
    ) -> None:
        """A price without a count of tokens is an upper bound, and marked as one."""
        server.script = always(Play(usage=False))
        proposal = await Asked(server, OPENAI, stream=stream)()
        assert proposal.source == KERNEL
        assert proposal.call is not None
        assert (proposal.call.cost_usd, proposal.call.exact) == (proposal.call.reserved_usd, False)

    async def test_a_reply_without_a_kernel_is_an_attempt_that_was_paid(self, server: FaultServer) -> None:
        """Talk, and a reply that hit its limit, are no faults of the provider."""
        server.script = in_turn(Play(text="I cannot."), Play(finish="length"))
        asked = Asked(server, OPENAI)
        talk, cut = await asked(), await asked()
        assert len(server.requests) == 3
        assert (talk.source, talk.infra, talk.failure) == (None, False, "The reply has no code block.")
        assert (cut.source, cut.infra, cut.failure) == (None, False, "truncated")
        assert talk.call is not None
        assert talk.call.priced
        assert talk.call.reply == "I cannot."
        assert asked.ledger.states == ["done", "done", "done"]

    @WAYS
    async def test_an_empty_reply_is_a_paid_fault(self, server: FaultServer, model: str, stream: bool) -> None:
        """No text is the provider's fault; it is asked once, and what it cost is written down."""
        server.script = always(Play("empty"))
        proposal = await Asked(server, model, stream=stream)()
        assert (proposal.infra, proposal.fatal) == (True, False)
        assert "empty reply" in proposal.failure
        assert len(server.requests) == 1
        call = proposal.call
        assert call is not None
        assert (call.state, call.exact, call.completion_tokens) == ("broken", True, 50)
        assert call.cost_usd
        assert call.error == proposal.failure

    @WAYS
    @pytest.mark.parametrize("kind", ["500", "503", "529", "408", "429", "malformed", "html", "drop", "reset", "cut"])
    async def test_passing_faults_are_tried_again(
        self, server: FaultServer, model: str, stream: bool, kind: str
    ) -> None:
        """Overload, server errors, broken connections and bodies: one more request each, by us alone, all booked."""
        server.script = in_turn(Play(kind), Play())
        asked = Asked(server, model, stream=stream)
        proposal = await asked()
        assert proposal.source == KERNEL
        assert len(server.requests) == 2
        assert len(asked.waits) == 1
        assert 0.5 <= asked.waits[0] <= 1.5
        first, second = asked.ledger.calls.values()
        assert (second.state, second.attempt, second.exact) == ("done", 2, True)
        assert first.error
        if kind in ("503", "529", "429"):
            assert (first.state, first.cost_usd) == ("failed", 0.0)
        else:
            assert (first.state, first.cost_usd, first.exact) == ("broken", first.reserved_usd, False)
            assert first.reserved_usd

    @pytest.mark.parametrize("stream", [True, False])
    async def test_no_choices_is_tried_again(self, server: FaultServer, stream: bool) -> None:
        """A reply without choices, which is a bare IndexError in the library, is a broken body."""
        server.script = in_turn(Play("no-choices", usage=False), Play())
        assert (await Asked(server, OPENAI, stream=stream)()).source == KERNEL
        assert len(server.requests) == 2

    @BOTH
    async def test_retry_after_is_honoured(self, server: FaultServer, model: str) -> None:
        """The provider's own number of seconds is waited, with a little jitter on top."""
        server.script = in_turn(Play("429-after", retry_after="7"), Play())
        asked = Asked(server, model)
        assert (await asked()).source == KERNEL
        assert len(server.requests) == 2
        assert 7.0 < asked.waits[0] <= 8.0

    async def test_retries_end(self, server: FaultServer) -> None:
        """After five tries the fault is the provider's; waits double, with a jitter that is the seed's."""
        server.script = always(Play("429"))
        one, again, other = Asked(server, OPENAI), Asked(server, OPENAI), Asked(server, OPENAI)
        proposal = await one()
        assert len(server.requests) == calling.MAX_TRIES
        assert (proposal.infra, proposal.fatal, proposal.source) == (True, False, None)
        assert "rate limited (429)" in proposal.failure
        assert one.ledger.states == ["failed"] * calling.MAX_TRIES
        assert [call.attempt for call in one.ledger.calls.values()] == [1, 2, 3, 4, 5]
        assert all(0.5 * 2**i <= wait <= 1.5 * 2**i for i, wait in enumerate(one.waits))
        await again()
        await other(seed=2)
        assert again.waits == one.waits != other.waits

    async def test_a_wait_beyond_the_limit_is_not_begun(self, server: FaultServer) -> None:
        """A provider that wants an hour is given up at once, with its hour."""
        server.script = always(Play("429-after", retry_after="3600"))
        asked = Asked(server, OPENAI)
        proposal = await asked()
        assert (len(server.requests), asked.waits, proposal.infra) == (1, [], True)
        assert "3600 s" in proposal.failure
        assert proposal.retry_after_s == 3600

    async def test_the_budget_ends_the_tries(self, server: FaultServer) -> None:
        """A try that the books refuse is not made."""
        server.script = always(Play("500"))
        asked = Asked(server, OPENAI)
        asked.ledger.limit_usd = 0.25
        proposal = await asked()
        assert (proposal.infra, proposal.call) == (True, None)
        assert proposal.failure == f"The budget does not allow another call of {OPENAI}."
        assert len(server.requests) == len(asked.ledger.calls) == 2
        assert sum(c.cost_usd or 0 for c in asked.ledger.calls.values()) <= 0.25

    @BOTH
    @pytest.mark.parametrize("kind", ["400", "401", "403", "404", "quota", "credit"])
    async def test_faults_that_stay_are_not_tried_again(self, server: FaultServer, model: str, kind: str) -> None:
        """A wrong key, model or request, an empty account: one request, a sentence without the key, until revived."""
        server.script = in_turn(Play(kind, message="bad thing with key {key}"), Play())
        asked = Asked(server, model)
        proposal = await asked()
        assert (proposal.infra, proposal.fatal) == (True, True)
        said = "no credit left" if kind in ("quota", "credit") else kind
        assert said in proposal.failure
        assert model in proposal.failure
        assert KEY not in proposal.failure
        assert len(server.requests) == 1
        (call,) = asked.ledger.calls.values()
        assert (call.state, call.cost_usd) == ("failed", 0.0)
        assert KEY not in call.error
        assert not asked.proposer.can(a_task())
        asked.proposer.revive()
        assert asked.proposer.can(a_task())
        assert (await asked()).source == KERNEL

    @BOTH
    @pytest.mark.parametrize(("kind", "said"), [("context", "too long"), ("filter", "refused the prompt"),
                                                ("finish-filter", "filter took the reply")])  # fmt: skip
    async def test_a_prompt_that_is_not_taken_is_not_sent_again(
        self, server: FaultServer, model: str, kind: str, said: str
    ) -> None:
        """Too long, or filtered: the model is well, and this prompt is not asked of it again."""
        server.script = always(Play(kind))
        asked = Asked(server, model)
        proposal = await asked()
        assert (proposal.infra, proposal.fatal, proposal.this_request) == (True, False, True)
        assert said in proposal.failure
        assert len(server.requests) == 1
        assert not asked.proposer.can(a_task())
        assert asked.proposer.can(a_task(Edge.IMPROVE))
        (call,) = asked.ledger.calls.values()
        assert (call.state, call.exact) == (("broken", True) if kind == "finish-filter" else ("failed", True))

    @BOTH
    async def test_a_server_that_does_not_stream_is_asked_plainly(self, server: FaultServer, model: str) -> None:
        """One that refuses to stream with a count is asked for the whole reply, now and later."""
        server.script = lambda number, body: Play("no-stream" if body.get("stream") else "ok")
        asked = Asked(server, model)
        assert (await asked()).source == KERNEL
        assert (await asked()).source == KERNEL
        assert len(server.requests) == 3

    @BOTH
    async def test_one_that_does_not_stream_may_be_asked_in_parallel(self, server: FaultServer, model: str) -> None:
        """Every call that was streaming is asked once more, however many were; the model stays in."""
        server.script = lambda number, body: Play("no-stream" if body.get("stream") else "ok")
        asked = Asked(server, model)
        found = await asyncio.gather(*(asked.proposer.propose(a_task(seed=seed)) for seed in range(4)))
        assert [proposal.source for proposal in found] == [KERNEL] * 4
        assert asked.ledger.states.count("done") == 4
        assert asked.proposer.can(a_task())
        assert not asked.proposer.caller.stream

    @BOTH
    async def test_a_word_about_streams_proves_nothing(self, server: FaultServer, model: str) -> None:
        """A 400 about an upstream says nothing of streams; one that does is believed once the plain request works."""
        server.script = always(Play("400", message="the upstream refused it"))
        asked = Asked(server, model)
        proposal = await asked()
        assert (proposal.fatal, len(server.requests)) == (True, 1)
        server.script = always(Play("400", message="stream and everything else is wrong"))
        before, other = len(server.requests), Asked(server, model)
        proposal = await other()
        assert (proposal.fatal, len(server.requests) - before) == (True, 2)
        assert other.proposer.caller.stream

    @BOTH
    @pytest.mark.parametrize("kind", ["slow", "stall"])
    async def test_silence_is_noticed(self, server: FaultServer, model: str, kind: str) -> None:
        """No first word, or none after the first ones: the try ends and is followed by another; it may be paid."""
        server.script = in_turn(Play(kind), Play())
        asked = Asked(server, model, patience=QUICK)
        began = time.monotonic()
        assert (await asked()).source == KERNEL
        assert time.monotonic() - began < 3
        assert asked.ledger.states == ["broken", "done"]
        said = "did not begin its reply" if kind == "slow" else "fell silent in the middle of its reply"
        assert said in asked.ledger.calls[1].error

    @WAYS
    async def test_a_slow_answer_is_given_up_in_time(self, server: FaultServer, model: str, stream: bool) -> None:
        """The whole proposal ends within its limit."""
        server.script = always(Play("slow"))
        proposal = await Asked(server, model, stream=stream, patience=Patience(total_s=0.5))()
        assert (proposal.infra, proposal.fatal) == (True, False)
        assert re.search(r"did not (begin|end) its reply within 0\.\d+ s", proposal.failure)
        assert proposal.call is not None
        assert proposal.call.state == "broken"
        assert proposal.call.latency_s < 3

    async def test_nobody_listening_is_said(self, server: FaultServer) -> None:
        """A refused connection is tried again, costs nothing, and is told as such."""
        for model in (OPENAI, ANTHROPIC):
            asked = Asked(server, model)
            asked.proposer.caller._api_base = "http://127.0.0.1:9/v1"
            proposal = await asked()
            assert (proposal.infra, proposal.fatal) == (True, False)
            assert "cannot be reached" in proposal.failure
            assert [c.cost_usd for c in asked.ledger.calls.values()] == [0.0] * calling.MAX_TRIES

    @WAYS
    @pytest.mark.parametrize("kind", ["slow", "stall"])
    async def test_cancelling_ends_at_once_and_is_booked(
        self, server: FaultServer, model: str, stream: bool, kind: str
    ) -> None:
        """A cancelled call ends within a second, is no fault, and is booked at what was set aside."""
        server.script = always(Play(kind))
        asked = Asked(server, model, stream=stream)
        running = asyncio.create_task(asked())
        await server.asked.wait()
        await asyncio.sleep(0.05)
        began = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert time.monotonic() - began < 1
        (call,) = asked.ledger.calls.values()
        assert (call.state, call.cost_usd, call.exact) == ("cancelled", call.reserved_usd, False)

    async def test_a_missing_key_is_said_before_any_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a key and without a server of one's own there is one sentence that names the variable."""
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        proposal = await llm.LlmProposer(ANTHROPIC).propose(a_task())
        assert (proposal.infra, proposal.fatal, proposal.call) == (True, True, None)
        assert proposal.failure.startswith(f"{ANTHROPIC} needs ANTHROPIC_API_KEY. Set it in the environment, in ")

    async def test_a_missing_key_is_known_beforehand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same sentence without a task; nothing is missing with a key, or with a server of one's own."""
        assert await llm.LlmProposer(ANTHROPIC).lacks() == ""
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        assert (await llm.LlmProposer(ANTHROPIC).lacks()).startswith(f"{ANTHROPIC} needs ANTHROPIC_API_KEY. Set it in")
        assert await llm.LlmProposer(ANTHROPIC, api_base="http://127.0.0.1:1").lacks() == ""

    async def test_ones_own_server_needs_no_key(self, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """With an API base no key has to be set."""
        monkeypatch.delenv("OPENAI_API_KEY")
        server.script = always(Play())
        assert (await Asked(server, "openai/local")()).source == KERNEL

    async def test_nothing_is_printed(self, server: FaultServer, capfd: pytest.CaptureFixture[str]) -> None:
        """The library is silent on both streams, faults included."""
        server.script = in_turn(Play("500"), Play("cut"), Play("401"))
        asked = Asked(server, "openai/unknown-model")
        await asked()
        assert len(server.requests) == 3
        assert capfd.readouterr() == ("", "")

    async def test_closing_is_harmless_twice(self, server: FaultServer) -> None:
        """A proposer can be closed before and after its first call."""
        server.script = always(Play())
        asked = Asked(server, OPENAI)
        await asked.proposer.close()
        await asked()
        await asked.proposer.close()


def test_can_follows_the_edge() -> None:
    """Settings are not a model's business."""
    proposer = llm.LlmProposer(OPENAI)
    assert [proposer.can(a_task(edge)) for edge in (Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.TUNE)] == [
        True, True, True, False,
    ]  # fmt: skip


def test_max_tokens_follow_the_table() -> None:
    """The default where nothing is known, room for hidden reasoning, never more than the model gives."""
    assert pricing.max_tokens({}, "x/y") == 8192
    assert pricing.max_tokens({"max_output_tokens": 4096}, "x/y") == 4096
    assert pricing.max_tokens({"max_output_tokens": 128000, "supports_reasoning": True}, "openai/gpt-5") == 32768
    assert pricing.max_tokens({"max_output_tokens": 64000, "supports_reasoning": True}, ANTHROPIC) == 8192


def test_keys_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of secret variables, and texts in the form of keys, never reach a message; messages are short."""
    monkeypatch.setenv("MY_SERVICE_TOKEN", "plainlookingvalue")
    text = faults.masked("a plainlookingvalue b sk-ant-REDACTED c Bearer abcdefgh d AIzaSyA1234567890\n e")
    assert text == "a [key] b [key] c [key] d [key] e"
    assert len(faults.masked("x" * 10_000)) <= faults.MAX_TEXT


def test_retry_after_dates() -> None:
    """A date is as good as a number; nonsense is ignored."""
    error = Exception()
    error.litellm_response_headers = {"Retry-After": "Thu, 01 Jan 1970 00:01:00 GMT"}  # type: ignore[attr-defined]
    assert faults.retry_after(error, 20.0) == 40.0
    assert faults.retry_after(error, 90.0) == 0.0
    error.litellm_response_headers = {"retry-after": "soon"}  # type: ignore[attr-defined]
    assert faults.retry_after(error, 0.0) is None
    assert faults.retry_after(Exception(), 0.0) is None


def options(**changes: Any) -> RunOptions:
    """Options of a session."""
    model = ModelSpec(text="example:x", path="", factory=None)
    return RunOptions(model=model, device="cpu", workspace="", **changes)


def test_the_registry_makes_models_with_the_sessions_base() -> None:
    """Any name but `templates` is a model."""
    made = registry.make("ollama/qwen", options(api_base="http://x"))
    assert isinstance(made, llm.LlmProposer)
    assert made.name == "ollama/qwen"
    assert made.caller._api_base == "http://x"
    assert registry.make("templates", options()).name == "templates"
    with pytest.raises(UsageError):
        registry.make(" ", options())


def test_importing_proposers_imports_no_heavy_library() -> None:
    """Neither LiteLLM nor torch nor asyncio-heavy clients come with the modules; a first call brings LiteLLM."""
    code = (
        "import sys\n"
        "from forge_tui.proposers import registry, llm, prompt, parse, pricing, faults, card, strategies\n"
        "llm.LlmProposer('openai/x')\n"
        "print([m for m in ('litellm', 'openai', 'anthropic', 'torch', 'aiohttp', 'httpx') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
