"""Lists of models, asked of a server on 127.0.0.1 in both formats: what it has, and every way in which it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fault_server import FaultServer, Play, always, in_turn, serving

from forge_tui.core.errors import ConfigError, EnvironmentFault, ForgeError
from forge_tui.proposers import keys as keyfile
from forge_tui.proposers import live
from forge_tui.proposers.catalogue import Served

KEY = "sk-test-0123456789abcdef"
BOTH = pytest.mark.parametrize("provider", ["openai", "anthropic"])

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Made-up keys in the environment, and no file of keys."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[FaultServer]:
    """A running server."""
    async with serving() as made:
        yield made


def base(server: FaultServer, provider: str) -> str:
    """The address in the form that a provider's models want."""
    return server.base_for(f"{provider}/m")


async def fault(server: FaultServer, provider: str, play: Play, timeout_s: float = 5.0) -> ForgeError:
    """What is said of a server that plays like this."""
    server.script = always(play)
    with pytest.raises(ForgeError) as caught:
        await live.models(provider, base(server, provider), timeout_s=timeout_s)
    return caught.value


async def test_models_of_a_server_in_openais_format(server: FaultServer) -> None:
    """Sorted, once each, with what vLLM, OpenRouter and Groq say of their size; a base without /v1 is the same."""
    server.models = [{"id": "z", "max_model_len": 4096}, {"id": "org/a:free", "context_length": 8192}, {"id": "z"},
                     {"id": "g", "context_window": 7, "max_completion_tokens": 5}]  # fmt: skip
    for address in (f"{server.base}/v1", server.base, f"{server.base}/v1/"):
        found = await live.models("openai", address)
        assert found.models == (Served(id="g", context=7, most_output=5), Served(id="org/a:free", context=8192),
                                Served(id="z"))  # fmt: skip
        assert found.address == f"{server.base}/v1/models"
        assert not found.more


async def test_a_key_is_shown_only_where_it_is_asked_for(server: FaultServer) -> None:
    """A server of one's own gets none, unless it refuses to answer without."""
    await live.models("openai", server.base)
    assert "Authorization" not in server.requests[0]["headers"]
    server.script = in_turn(Play(), Play(kind="401"), Play())
    await live.models("openai", server.base)
    assert [request["headers"].get("Authorization") for request in server.requests[1:]] == [None, f"Bearer {KEY}"]


async def test_anthropics_pages_are_put_together(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package asks page after page, with the key or the token of the environment."""
    server.models = [{"id": f"claude-{n}", "type": "model", "max_input_tokens": 1000 + n, "max_tokens": 10 + n}
                     for n in range(5)]  # fmt: skip
    server.page = 2
    found = await live.models("anthropic", f"{server.base}/v1/messages")
    assert [model.id for model in found.models] == [f"claude-{n}" for n in range(5)]
    assert found.models[3] == Served(id="claude-3", context=1003, most_output=13)
    assert len(server.requests) == 3
    assert all(r["path"] == "/v1/models" and any(KEY in text for text in r["headers"].values())
               for r in server.requests)  # fmt: skip
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "a-token")
    await live.models("anthropic", server.base)
    assert server.requests[-1]["headers"]["Authorization"] == "Bearer a-token"


@BOTH
@pytest.mark.parametrize(("play", "said", "kind"), [
    (Play(kind="401", message="bad key {key}"), "refused the key (401)", ConfigError),
    (Play(kind="403"), "The key may not use", ConfigError),
    (Play(kind="404"), "has no list of models (404).", EnvironmentFault),
    (Play(kind="429-after", retry_after="7"), "is rate limited (429)", EnvironmentFault),
    (Play(kind="500"), "failed (500)", EnvironmentFault),
    (Play(kind="html"), "sent something that is no list of models", EnvironmentFault),
    (Play(kind="malformed"), "sent something that is no list of models", EnvironmentFault),
    (Play(kind="drop"), "cannot be reached", EnvironmentFault),
    (Play(kind="redirect", text="http://localhost:9/"), "sends to another address (307)", EnvironmentFault),
    (Play(kind="flood"), "it sent more than 8 MiB", EnvironmentFault),
])  # fmt: skip
async def test_every_fault_is_one_sentence(server: FaultServer, provider, play, said, kind) -> None:
    """It names the server, ends with a full stop, and holds no key."""
    error = await fault(server, provider, play)
    assert said in error.what
    assert "The server at 127.0.0.1:" in error.what
    assert type(error) is kind
    assert error.what.endswith(".")
    assert KEY not in str(error)
    assert "\n" not in error.what
    assert not (provider == "anthropic" and play.kind == "redirect" and len(server.requests) > 1)


@BOTH
@pytest.mark.parametrize("kind", ["slow", "drip"])
async def test_a_server_that_hangs_is_left_in_time(server: FaultServer, provider: str, kind: str) -> None:
    """Neither silence nor a byte now and then holds it longer than the limit."""
    began = time.monotonic()
    error = await fault(server, provider, Play(kind=kind), timeout_s=0.3)
    assert "did not answer in time." in error.what
    assert time.monotonic() - began < 2.5


async def test_nobody_there_is_a_sentence() -> None:
    """A port that nobody listens at, and a name that nobody knows."""
    for address in ("http://127.0.0.1:9/v1", "http://no-such-host.invalid/v1"):
        for provider in ("openai", "anthropic"):
            with pytest.raises(EnvironmentFault, match=r"^The server at .* cannot be reached: .*(onnect|[Nn]ame)"):
                await live.models(provider, address)


async def test_a_key_that_cannot_be_used_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent: where to put one that is missing, and what is wrong with one that is none."""
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ConfigError, match=r"^anthropic needs ANTHROPIC_API_KEY\. Set it in the environment, in /"):
        await live.models("anthropic")
    for value in ("sk-\u2026abcdefgh", "sk-abcdefgh\n", " sk-abcdefgh"):
        monkeypatch.setenv("OPENAI_API_KEY", value)
        with pytest.raises(ConfigError, match=r"^OPENAI_API_KEY holds a blank, a line break or a letter") as caught:
            await live.models("openai")
        assert "abcdefgh" not in str(caught.value)
    with pytest.raises(EnvironmentFault, match="It is not known where azure lists its models"):
        await live.models("azure")


async def test_a_keyring_that_hangs_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a person to unlock it."""
    monkeypatch.delenv("OPENAI_API_KEY")
    unlocked = threading.Event()
    monkeypatch.setattr(keyfile, "_from_keyring", lambda _name: unlocked.wait(20) and "")
    with pytest.raises(ConfigError, match=r"^The system's keyring does not answer\. Unlock it"):
        await live.models("openai", timeout_s=0.1)
    unlocked.set()


@BOTH
async def test_odd_lists_are_bounded_and_cleared(server: FaultServer, provider: str) -> None:
    """Names that could drive a terminal are left out, other letters stay, and a list ends at a bound."""
    server.models = [{"id": "\x1b[31mred"}, {"id": ""}, {"id": "x" * 300}, {"id": "modèle 模型:1"}, {"id": 7}, {}]
    server.page = len(server.models)
    assert [m.id for m in (await live.models(provider, base(server, provider))).models] == ["modèle 模型:1"]
    server.models = [{"id": f"m{n:06}"} for n in range(12_000)]
    server.page = 1000
    found = await live.models(provider, base(server, provider))
    assert len(found.models) == live.MAX_MODELS
    assert found.more


@pytest.mark.parametrize("data", [[], {}, {"data": {}}, {"data": None}])
async def test_other_json_is_no_list(server: FaultServer, data, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list is one, other JSON is not."""
    from aiohttp import web

    async def answer(_request, _play):
        return web.json_response(data)

    monkeypatch.setattr(server, "_fact", answer)
    with pytest.raises(EnvironmentFault, match="sent something that is no list of models"):
        await live.models("openai", server.base)
