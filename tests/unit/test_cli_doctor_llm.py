"""`doctor --llm` against a server on 127.0.0.1, through the real LiteLLM: what works, what does not, what it costs."""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Play, always, in_background, in_turn

from forge_tui.cli import main, output, settings
from forge_tui.core.paths import Workspace
from forge_tui.proposers import checkup

OPENAI, ANTHROPIC = "openai/gpt-4o", "anthropic/claude-sonnet-4-5"
KEY = "sk-test-0123456789abcdef"
WELL = Play(text="ready", uncached=10, cached=5, output=2)
CALLED = (("report", '{"ok": true}'),)
Captured = pytest.CaptureFixture[str]
BOTH = pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])


def well(_: int, body: dict[str, Any], play: Play = WELL) -> Play:
    """A model at which everything works."""
    return replace(play, tools=CALLED) if body.get("tools") else play


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """An empty workspace of the current folder, no settings, and two keys."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.setattr(checkup, "TIMEOUT_S", 5.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("NO_COLOR", "1")
    for name in [*os.environ]:
        if name.startswith("FORGE_") or name.endswith(("_API_KEY", "_AUTH_TOKEN", "_API_BASE", "_BASE_URL")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    found = Workspace(tmp_path / ".forge")
    for file in settings.files(found):
        file.parent.mkdir(parents=True)
    return found


@pytest.fixture(scope="module")
def running() -> Iterator[FaultServer]:
    """One server for all."""
    with in_background() as made:
        yield made
    # connections that LiteLLM lost hold of are closed here, rather than in the middle of whatever comes next
    gc.collect()


@pytest.fixture
def server(running: FaultServer) -> FaultServer:
    """A server at which everything works."""
    running.script = well
    running.requests.clear()
    return running


@pytest.fixture
def ask(server: FaultServer, capsys: Captured) -> Callable[..., dict[str, Any]]:
    """What is found out about one model at the server, and the exit code."""

    def made(model: str, *arguments: str) -> dict[str, Any]:
        output._written = False
        code = main.main(["doctor", "--llm", "--model", model, "--api-base", server.base_for(model), "--json",
                          *arguments])  # fmt: skip
        found = capsys.readouterr()
        assert KEY not in found.out + found.err
        (one,) = json.loads(found.out)["models"]
        assert code == (0 if one["ok"] else 4)
        assert one["ok"] is (one["faults"] == [])
        return dict(one, err=found.err)

    return made


@BOTH
def test_all_that_works_is_seen(server: FaultServer, ask, model: str) -> None:
    """A streamed word and a tool call: two small requests, each once, with their price."""
    found = ask(model)
    assert (found["ok"], found["answers"], found["stream"], found["tools"], found["caching"]) == (
        True, "yes", "yes", "yes", "skipped")  # fmt: skip
    assert 0 < found["first_s"] <= found["total_s"] < 5
    first, second = (request["body"] for request in server.requests)
    assert first["stream"]
    assert second["stream"]
    assert [tool.get("name") or tool["function"]["name"] for tool in second["tools"]] == ["report"]
    assert {first["max_tokens"], second["max_tokens"]} == ({64} if model == OPENAI else {512})
    # 10 plain, 5 cached, 2 out, twice, in dollars per million
    rates = (2.5, 1.25, 10) if model == OPENAI else (3, 0.3, 15)
    assert found["cost_usd"] == pytest.approx(2e-6 * (10 * rates[0] + 5 * rates[1] + 2 * rates[2]))
    assert found["calls"] == 2


def test_the_table_fits_80_columns(server: FaultServer, capsys: Captured) -> None:
    """Without colours and without what a terminal would obey; faults below it; what is asked is said before."""
    names = [OPENAI, "openai/" + "long" * 20, "openai/m\x1b[31m"]
    arguments = [part for name in names for part in ("--model", name)]
    assert main.main(["doctor", "--llm", "--api-base", f"{server.base}/v1", *arguments]) == 0
    found = capsys.readouterr()
    lines = found.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["model", "first", "total", "cost", "stream", "tools"]
    row = lines[2].split()
    assert (row[0], row[2], row[4], row[5:]) == (OPENAI, "s", "s", ["$0.000102", "yes", "yes"])
    assert lines[4].startswith("openai/m?[31m")
    assert lines[-1] == "Everything works."
    assert "\x1b" not in found.out + found.err
    assert found.err.splitlines()[0] == f"Asking {OPENAI} at 127.0.0.1 ..."


def test_a_missing_key_does_not_stop_the_others(server, capsys: Captured, monkeypatch, place: Workspace) -> None:
    """Its sentence says where to put it, and nothing is sent for it."""
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    settings.files(place)[0].write_text(f'[models."{OPENAI}"]\napi_base = "{server.base}/v1"\n')
    assert main.main(["doctor", "--llm", "--model", ANTHROPIC, "--model", OPENAI, "--allow-remote"]) == 4
    out = capsys.readouterr().out
    assert f"{ANTHROPIC} needs ANTHROPIC_API_KEY. Set it in the environment, in /" in out
    assert out.splitlines()[2].split()[:2] == [ANTHROPIC, "-"]
    assert out.splitlines()[2].split()[2] == "failed"
    assert out.splitlines()[3].split()[0] == OPENAI
    assert out.endswith("Without a fault: 1 of 2.\n")
    assert len(server.requests) == 2


def refuse_stream(_: int, body: dict[str, Any]) -> Play:
    """A server that answers plainly only."""
    return Play(kind="no-stream") if body.get("stream") else well(_, body)


@BOTH
def test_a_server_that_does_not_stream(server: FaultServer, ask, model: str) -> None:
    """It is asked plainly, and the rest is tried; the refusal is a fault."""
    server.script = refuse_stream
    found = ask(model, "--caching")
    assert (found["answers"], found["stream"], found["tools"], found["caching"]) == ("yes", "no", "yes", "yes")
    assert found["first_s"] is None
    (fault,) = found["faults"]
    assert fault.startswith(f"{model} does not stream: ")
    assert found["calls"] == 5


def test_a_stream_without_a_count_is_a_fault(server: FaultServer, ask) -> None:
    """Its price is not known either."""
    server.script = lambda number, body: well(number, body, Play(text="ready", usage=False))
    found = ask(OPENAI)
    assert (found["answers"], found["stream"], found["cost_usd"]) == ("yes", "uncounted", None)
    assert " ".join(found["faults"]) == (f"{OPENAI} streams without a count of tokens: its calls are booked at the "
                                         "most that they may cost.")  # fmt: skip


FAULTS = [
    (Play(kind="401", message="no {key}"), r"refused the key \(401\)"), (Play(kind="404"), "There is no model"),
    (Play(kind="429"), r"is rate limited \(429\)"), (Play(kind="529"), "overloaded"), (Play(kind="500"), r"failed \(5"),
    (Play(kind="quota"), "has no credit left"), (Play(kind="html"), "cannot be read|broke off"),
    (Play(kind="malformed"), "cannot be read|broke off"), (Play(kind="reset"), "broke off"),
    (Play(kind="drop"), "cannot be reached"), (Play(kind="empty"), "empty reply"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "play", "said"), [
    *((OPENAI, *fault) for fault in FAULTS),
    *((ANTHROPIC, *fault) for fault in FAULTS if fault[0].kind in ("401", "529", "malformed", "reset")),
])
def test_every_fault_is_its_sentence(server: FaultServer, ask, model: str, play: Play, said: str) -> None:
    """Asked once, not again; nothing else is tried with a model that does not answer."""
    server.script = always(play)
    found = ask(model, "--caching")
    (fault,) = found["faults"]
    assert re.search(said, fault)
    assert model in fault
    assert (found["answers"], found["tools"], found["caching"]) == ("no", "skipped", "skipped")
    assert len(server.requests) == 1


@BOTH
def test_a_redirect_is_not_followed(server: FaultServer, ask, model: str) -> None:
    """Neither prompt nor key go where nobody agreed to."""
    with in_background() as other:
        server.script = always(Play(kind="redirect", text=f"{other.base}/v1/messages"))
        (fault,) = ask(model)["faults"]
        assert "The server sends to another address (127.0.0.1), which is not followed." in fault
        assert len(server.requests) == 1
        server.script = always(Play(kind="redirect", text="http://[nowhere"))
        assert "which is not followed." in ask(model)["faults"][0]
        assert other.requests == []


@BOTH
def test_a_model_that_hangs_is_left_in_time(server: FaultServer, ask, model: str, monkeypatch) -> None:
    """The limit of a call is its whole time."""
    monkeypatch.setattr(checkup, "TIMEOUT_S", 0.2)
    for kind in ("slow", "stall"):
        server.script = always(Play(kind=kind))
        (fault,) = ask(model)["faults"]
        assert "within 0.2 s." in fault


def test_tools_that_are_not_called(server: FaultServer, ask) -> None:
    """A reply in words, another tool, and a refusal are faults; known not to have any, it is not tried."""
    for play, said in ((Play(text="ready"), "did not call the tool"),
                       (Play(text="x", tools=(("other", "{}"),)), "did not call the tool"),
                       (Play(text="x", tools=(("report", "{not json"),)), "did not call the tool"),
                       (Play(kind="400"), "does not accept the request (400)"),
                       (Play(kind="400", message="tools are not supported"), "does not take tools")):  # fmt: skip
        server.script = lambda _n, body, play=play: play if body.get("tools") else WELL
        found = ask(OPENAI)
        assert (found["answers"], found["tools"]) == ("yes", "no")
        assert said in found["faults"][0]
    assert ask(OPENAI, "--no-tools")["tools"] == "skipped"
    server.script = well
    assert ask("deepseek/deepseek-reasoner")["tools"] == "none"


@BOTH
def test_the_cache_is_tried_with_two_equal_prompts(server: FaultServer, ask, model: str) -> None:
    """What that costs is said first; the prompts are long enough, always new, and marked where marks are wanted."""
    server.script = in_turn(WELL, replace(WELL, tools=CALLED), Play(uncached=1300, cached=0, written=1),
                            Play(uncached=50, cached=1250))  # fmt: skip
    found = ask(model, "--caching")
    assert found["caching"] == "yes"
    assert found["ok"]
    assert f"Trying the cache of {model} takes two prompts, 2458 tokens or more together: at most $0.0" in found["err"]
    first, second = (request["body"] for request in server.requests[2:])
    assert first == second
    system = first["messages"][0]["content"] if model == OPENAI else first["system"][0]["text"]
    assert len(system.split()) > 1024
    if model == ANTHROPIC:
        assert first["system"][0]["cache_control"] == {"type": "ephemeral"}
    server.requests.clear()
    ask(model, "--caching")
    assert server.requests[2]["body"] != first


def test_a_cache_that_keeps_nothing_is_a_fault(server: FaultServer, ask) -> None:
    """Said with the size; where it is left to the provider, that too; where there is none, nothing is tried."""
    server.script = lambda number, body: well(number, body, Play(text="ready", uncached=1300, cached=0))
    found = ask(OPENAI, "--caching")
    assert found["caching"] == "no"
    assert " ".join(found["faults"]) == (
        f"{OPENAI} read none of 1300 tokens from its cache at the second of two equal prompts. Where providers keep "
        "prompts by themselves that is left to chance: try again.")  # fmt: skip
    assert not ask(ANTHROPIC, "--caching")["faults"][0].endswith("again.")
    assert ask("openai/gpt-4-turbo", "--caching")["caching"] == "none"


def test_models_and_options_of_the_settings_are_used(server, place, capsys: Captured, monkeypatch) -> None:
    """Names of the file or of FORGE_MODEL, addresses, prices and temperatures of single models."""
    settings.files(place)[0].write_text(
        f'model = ["templates", "openai/o3", "hosted_vllm/mine"]\napi_base = "{server.base}/v1"\n'
        '[models."hosted_vllm/mine"]\nprice = [1, 2]\ntemperature = 0.5\n[models."openai/o3"]\ntemperature = 0.5\n'
    )  # fmt: skip
    assert main.main(["doctor", "--llm", "--no-tools", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["models"]
    assert (first["model"], second["model"]) == ("openai/o3", "hosted_vllm/mine")
    assert second["cost_usd"] == pytest.approx(19e-6)
    bodies = [request["body"] for request in server.requests]
    assert [(body.get("temperature"), body.get("max_completion_tokens")) for body in bodies] == [
        (None, 512), (0.5, None)]  # fmt: skip
    monkeypatch.setenv("FORGE_MODEL", "openai/m")
    output._written = False
    assert main.main(["doctor", "--llm", "--no-tools", "--json"]) == 0
    assert [one["model"] for one in json.loads(capsys.readouterr().out)["models"]] == ["openai/m"]


@pytest.mark.parametrize(("arguments", "said"), [
    (["--llm"], "No model is named. Say --model NAME, set FORGE_MODEL, or put model = [...] into /"),
    (["--llm", "--model", "inbox"], "No model is named."),
    (["--llm", "--model", "opnai/gpt-4o"], "There is no model 'opnai/gpt-4o' that LiteLLM knows."),
    (["--llm", "--model", OPENAI], "has agreed to send it your key and a sentence or two of no content."),
    (["--llm", "--model", OPENAI, "--local-only"], "which is not this machine"),
    (["--llm", "--model", OPENAI, "--api-base", "here"], "--api-base is not an address."),
    (["--model", OPENAI], "options about LLMs go with --llm"), (["--caching"], "options about LLMs go with --llm"),
])  # fmt: skip
def test_a_wrong_command_line_is_one_sentence(arguments, said, capsys: Captured) -> None:
    """Before anything is imported or sent, with exit code 2."""
    assert main.main(["doctor", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
