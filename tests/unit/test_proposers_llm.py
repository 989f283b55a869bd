"""Models through LiteLLM against a server on 127.0.0.1: replies, retries, faults, prices, secrets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from forge_tui.core.errors import UsageError
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, ModelSpec, Proposal, RunOptions
from forge_tui.proposers import faults, llm, pricing, registry
from forge_tui.search import simulate

KERNEL = '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n    return 0;\n}\n'
REPLY = f"family: one pass\nhypothesis: reads once\n```cpp\n{KERNEL}```\n"
OPENAI, ANTHROPIC = "openai/gpt-4o", "anthropic/claude-sonnet-4-5"
KEY = "sk-test-0123456789abcdef"

Answer = Callable[[web.Request, dict[str, Any]], Any]


@pytest.fixture(scope="module")
def litellm() -> Any:
    """LiteLLM, imported once."""
    return llm.load_litellm()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


class Server:
    """Both wire formats, with the answers of a script; the last one repeats."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.base = ""
        self.asked = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.json()
        self.requests.append({"path": request.path, "body": body, "headers": dict(request.headers)})
        self.asked.set()
        answer = self.script[min(len(self.requests), len(self.script)) - 1]
        made = answer(request, body)
        return await made if asyncio.iscoroutine(made) else made


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[Server]:
    """A running server."""
    made = Server()
    app = web.Application()
    app.router.add_post("/{tail:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    made.base = f"http://127.0.0.1:{port}"
    yield made
    await runner.cleanup()


def openai_ok(text: str | None = REPLY, finish: str = "stop", usage: bool = True, cached: int = 0) -> Answer:
    """A chat completion."""
    body: dict[str, Any] = {
        "id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}],
    }  # fmt: skip
    if usage:
        body["usage"] = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200,
                         "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip
    return lambda request, asked: web.json_response(body)


def anthropic_ok(text: str = REPLY, stop: str = "end_turn") -> Answer:
    """A message."""
    content = [{"type": "text", "text": text}] if text else []
    return lambda request, asked: web.json_response({
        "id": "1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": content,
        "stop_reason": stop, "stop_sequence": None,
        "usage": {"input_tokens": 300, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 100,
                  "output_tokens": 50},
    })  # fmt: skip


def status(code: int, message: str = "no", headers: dict[str, str] | None = None) -> Answer:
    """An error in a form that both formats read."""
    body = {"type": "error", "error": {"type": "x", "message": message, "code": None}}
    return lambda request, asked: web.json_response(body, status=code, headers=headers)


def raw(text: str, content_type: str = "application/json") -> Answer:
    """A body that is not what it should be."""
    return lambda request, asked: web.Response(text=text, content_type=content_type)


async def slow(request: web.Request, asked: dict[str, Any]) -> web.Response:
    """An answer that comes too late."""
    await asyncio.sleep(30)
    return web.Response(text="late")


def a_task(edge: Edge = Edge.DRAFT, seed: int = 1) -> Task:
    """A request for a CPU kernel."""
    return Task(target=simulate.target("t"), device=simulate.DEVICE, edge=edge, parent=None, failed=None, best=None,
                lineage=(), nodes=(), seed=seed)  # fmt: skip


class Asked:
    """A proposer with a clock of its own."""

    def __init__(self, server: Server, model: str, **options: Any) -> None:
        base = server.base if model.startswith("anthropic/") else f"{server.base}/v1"
        self.waits: list[float] = []
        self.proposer = llm.LlmProposer(model, api_base=base, sleep=self._sleep, **options)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def __call__(self, seed: int = 1) -> Proposal:
        """Ask once."""
        return await self.proposer.propose(a_task(seed=seed))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("litellm")
class TestCalls:
    """One call and what comes of it."""

    async def test_a_good_reply_becomes_a_source_with_its_price(self, server: Server) -> None:
        """Source, idea and family are read; prompt, reply, tokens, cached tokens and cost are written down."""
        server.script = [openai_ok(cached=600)]
        proposal = await Asked(server, OPENAI)()
        assert (proposal.source, proposal.family, proposal.idea) == (KERNEL, "one pass", "reads once")
        call = proposal.call
        assert call is not None
        assert (call.prompt_tokens, call.cached_tokens, call.completion_tokens) == (1000, 600, 200)
        # 400 x 2.5 + 600 x 1.25 + 200 x 10 dollars per million
        assert call.cost_usd == pytest.approx(0.00375)
        assert call.priced
        assert call.reply == REPLY
        assert "# Contract (CPU" in call.prompt
        assert len(server.requests) == 1
        body = server.requests[0]["body"]
        assert server.requests[0]["path"] == "/v1/chat/completions"
        assert body["max_tokens"] == 8192
        assert "temperature" not in body
        assert isinstance(body["messages"][0]["content"], str)

    async def test_anthropics_format_has_cache_marks_and_cached_prices(self, server: Server) -> None:
        """The stable parts are marked, and cache reads and writes are priced as such."""
        server.script = [anthropic_ok()]
        proposal = await Asked(server, ANTHROPIC)()
        assert proposal.source == KERNEL
        assert proposal.call is not None
        # 300 x 3 + 600 x 0.3 + 100 x 3.75 + 50 x 15 dollars per million
        assert proposal.call.cost_usd == pytest.approx(0.002205)
        assert (proposal.call.prompt_tokens, proposal.call.cached_tokens) == (1000, 600)
        body = server.requests[0]["body"]
        assert body["system"][0]["cache_control"] == {"type": "ephemeral"}
        assert body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}
        assert body["max_tokens"] == 8192

    async def test_an_unknown_price_is_said_and_never_zero(self, server: Server) -> None:
        """A model that is in no table, and a reply that does not count its tokens, have no cost."""
        server.script = [openai_ok(), openai_ok(usage=False)]
        for model in ("openai/my-own-model", OPENAI):
            proposal = await Asked(server, model)()
            assert proposal.source == KERNEL
            assert proposal.call is not None
            assert (proposal.call.cost_usd, proposal.call.priced) == (None, False)

    async def test_a_reply_without_a_kernel_is_an_attempt_that_was_paid(self, server: Server) -> None:
        """Talk, and a reply that hit its limit, are no faults of the provider."""
        server.script = [openai_ok("I cannot."), openai_ok(REPLY, finish="length"), openai_ok(REPLY, finish="length")]
        asked = Asked(server, OPENAI)
        talk, cut = await asked(), await asked()
        assert len(server.requests) == 3
        assert len(cut.earlier) == 1
        assert (talk.source, talk.infra, talk.failure) == (None, False, "The reply has no code block.")
        assert (cut.source, cut.infra, cut.failure) == (None, False, "truncated")
        assert talk.call is not None
        assert talk.call.priced
        assert talk.call.reply == "I cannot."
        assert cut.call is not None

    @pytest.mark.parametrize(("model", "answer"), [(OPENAI, openai_ok("")), (OPENAI, openai_ok(None)),
                                                   (ANTHROPIC, anthropic_ok(""))])  # fmt: skip
    async def test_an_empty_reply_is_a_paid_fault(self, server: Server, model: str, answer: Answer) -> None:
        """No text is the provider's fault; it is asked once, and what it cost is written down."""
        server.script = [answer]
        proposal = await Asked(server, model)()
        assert (proposal.infra, proposal.fatal) == (True, False)
        assert "empty reply" in proposal.failure
        assert len(server.requests) == 1
        assert proposal.call is not None
        assert proposal.call.cost_usd
        assert proposal.call.error == proposal.failure

    @pytest.mark.parametrize(("model", "good"), [(OPENAI, openai_ok()), (ANTHROPIC, anthropic_ok())])
    @pytest.mark.parametrize("first", [
        status(500), status(503), status(529, "overloaded"), status(408), raw("{not json"),
        raw("<html>hello</html>", "text/html"),
    ])  # fmt: skip
    async def test_passing_faults_are_tried_again(
        self, server: Server, model: str, good: Answer, first: Answer
    ) -> None:
        """Overload, server errors and broken bodies: one more request each, by us alone."""
        server.script = [first, good]
        asked = Asked(server, model)
        proposal = await asked()
        assert proposal.source == KERNEL
        assert len(server.requests) == 2
        assert len(asked.waits) == 1
        assert 0.5 <= asked.waits[0] <= 1.5

    async def test_no_choices_is_tried_again(self, server: Server) -> None:
        """A reply without choices, which is a bare IndexError in the library, is a broken body."""
        server.script = [raw(json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
                                         "choices": []})), openai_ok()]  # fmt: skip
        assert (await Asked(server, OPENAI)()).source == KERNEL
        assert len(server.requests) == 2

    @pytest.mark.parametrize(("model", "good"), [(OPENAI, openai_ok()), (ANTHROPIC, anthropic_ok())])
    async def test_retry_after_is_honoured(self, server: Server, model: str, good: Answer) -> None:
        """The provider's own number of seconds is waited, with a little jitter on top."""
        server.script = [status(429, headers={"Retry-After": "7"}), good]
        asked = Asked(server, model)
        assert (await asked()).source == KERNEL
        assert len(server.requests) == 2
        assert 7.0 < asked.waits[0] <= 8.0

    async def test_retries_end(self, server: Server) -> None:
        """After five tries the fault is the provider's; waits double, with a jitter that is the seed's."""
        server.script = [status(429)]
        one, again, other = Asked(server, OPENAI), Asked(server, OPENAI), Asked(server, OPENAI)
        proposal = await one()
        assert len(server.requests) == llm.MAX_TRIES
        assert (proposal.infra, proposal.fatal, proposal.source) == (True, False, None)
        assert "rate limited (429)" in proposal.failure
        assert proposal.call is None
        assert all(0.5 * 2**i <= wait <= 1.5 * 2**i for i, wait in enumerate(one.waits))
        await again()
        await other(seed=2)
        assert again.waits == one.waits != other.waits

    async def test_a_wait_beyond_the_limit_is_not_begun(self, server: Server) -> None:
        """A provider that wants an hour is given up at once."""
        server.script = [status(429, headers={"Retry-After": "3600"})]
        asked = Asked(server, OPENAI)
        proposal = await asked()
        assert (len(server.requests), asked.waits, proposal.infra) == (1, [], True)
        assert "3600 s" in proposal.failure

    @pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
    @pytest.mark.parametrize("code", [400, 401, 403, 404])
    async def test_faults_that_stay_are_not_tried_again(self, server: Server, model: str, code: int) -> None:
        """A wrong key, model or request ends the proposer after one request, with a sentence."""
        server.script = [status(code, f"bad thing with key {KEY} and Bearer {KEY}")]
        asked = Asked(server, model)
        proposal = await asked()
        assert (proposal.infra, proposal.fatal, proposal.call) == (True, True, None)
        assert str(code) in proposal.failure
        assert model in proposal.failure
        assert KEY not in proposal.failure
        assert len(server.requests) == 1
        assert not asked.proposer.can(a_task())

    async def test_no_credit_is_fatal_though_it_comes_as_a_rate_limit(self, server: Server) -> None:
        """Waiting does not fill an account."""
        server.script = [status(429, "You exceeded your current quota, please check your plan and billing details")]
        proposal = await Asked(server, OPENAI)()
        assert proposal.fatal
        assert "no credit left" in proposal.failure
        assert len(server.requests) == 1

    async def test_a_prompt_that_is_too_long_is_not_fatal(self, server: Server) -> None:
        """Another prompt may fit."""
        server.script = [status(400, "This model's maximum context length is 10 tokens")]
        proposal = await Asked(server, OPENAI)()
        assert (proposal.infra, proposal.fatal) == (True, False)
        assert "too long" in proposal.failure

    @pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
    async def test_a_slow_answer_is_given_up_in_time(self, server: Server, model: str) -> None:
        """The whole call ends within its limit, and may have been paid."""
        server.script = [slow]
        proposal = await Asked(server, model, attempt_s=30.0, total_s=0.5)()
        assert (proposal.infra, proposal.fatal) == (True, False)
        assert "0.5 s" in proposal.failure
        assert proposal.call is not None
        assert (proposal.call.priced, proposal.call.latency_s < 5) == (False, True)

    async def test_a_slow_try_is_followed_by_another(self, server: Server) -> None:
        """The limit of one try ends that try alone."""
        server.script = [slow, openai_ok()]
        assert (await Asked(server, OPENAI, attempt_s=0.3)()).source == KERNEL
        assert len(server.requests) == 2

    async def test_nobody_listening_is_said(self, server: Server) -> None:
        """A refused connection is tried again, costs nothing, and is told as such."""
        proposer = llm.LlmProposer(OPENAI, api_base="http://127.0.0.1:9/v1", sleep=Asked(server, OPENAI)._sleep)
        proposal = await proposer.propose(a_task())
        assert (proposal.infra, proposal.fatal, proposal.call) == (True, False, None)
        assert "cannot be reached" in proposal.failure

    async def test_cancelling_ends_at_once(self, server: Server) -> None:
        """A cancelled call is cancelled, not reported as a fault."""
        server.script = [slow]
        running = asyncio.create_task(Asked(server, OPENAI)())
        await server.asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    async def test_a_missing_key_is_said_before_any_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a key and without a server of one's own there is one sentence that names the variable."""
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        proposal = await llm.LlmProposer(ANTHROPIC).propose(a_task())
        assert (proposal.infra, proposal.fatal, proposal.call) == (True, True, None)
        assert proposal.failure == f"{ANTHROPIC} needs ANTHROPIC_API_KEY in the environment."

    async def test_ones_own_server_needs_no_key(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        """With an API base no key has to be set."""
        monkeypatch.delenv("OPENAI_API_KEY")
        server.script = [openai_ok()]
        assert (await Asked(server, "openai/local")()).source == KERNEL

    async def test_nothing_is_printed(self, server: Server, capfd: pytest.CaptureFixture[str]) -> None:
        """The library is silent on both streams, faults included."""
        server.script = [status(500), status(401)]
        asked = Asked(server, "openai/unknown-model")
        await asked()
        assert capfd.readouterr() == ("", "")

    async def test_closing_is_harmless_twice(self, server: Server) -> None:
        """A proposer can be closed before and after its first call."""
        server.script = [openai_ok()]
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
    assert made._api_base == "http://x"
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
