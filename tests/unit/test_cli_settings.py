"""Flags over variables over the project's file over the person's own."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import msgspec
import pytest
from fault_server import FaultServer, serving
from test_proposers_llm import a_task

from forge_tui.cli import app, main, output, settings
from forge_tui.cli.commands import run as command
from forge_tui.core.errors import ConfigError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import ModelSpec, RunOptions
from forge_tui.proposers import registry

LOCAL = "http://127.0.0.1:9/v1"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """An empty workspace of the current folder, and an empty folder of the person's own."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for key in settings.RunSettings.__struct_fields__:
        monkeypatch.delenv(settings.variable(key), raising=False)
    found = Workspace(tmp_path / ".forge")
    for file in settings.files(found):
        file.parent.mkdir(parents=True)
    return found


def written(place: Workspace, project: str = "", own: str = "") -> None:
    """Both files."""
    for file, text in zip(settings.files(place), (project, own), strict=True):
        file.write_text(text)


def test_the_nearer_place_wins_key_by_key(place: Workspace) -> None:
    """Every value is that of the nearest place which has it, and names that place; tables of a model merge as well."""
    project, own = map(str, settings.files(place))
    written(place, 'usd = 2\nminutes = 5\n[models."a/b"]\nmax_tokens = 100\n',
            'usd = 1.5\nevaluations = 7\ntargets = 3\n[models."a/b"]\nmax_tokens = 9\nprice = [1, 2.5]\n')  # fmt: skip
    found = settings.load(place, {"targets": 4}, {"FORGE_MINUTES": "6.5", "FORGE_MODEL": "a/b c", "FORGE_USD": ""})
    assert found.run == settings.RunSettings(usd=2.0, minutes=6.5, evaluations=7, targets=4, model=("a/b", "c"))
    assert {key: source for key, source in found.sources.items() if source != settings.DEFAULT} == {
        "usd": project, "minutes": "FORGE_MINUTES", "evaluations": own, "targets": settings.FLAG,
        "model": "FORGE_MODEL",
    }  # fmt: skip
    assert found.models == {"a/b": settings.ModelSettings(max_tokens=100, price=(1.0, 2.5))}
    assert found.model_sources == {"a/b": {"max_tokens": project, "price": own}}


def test_defaults_are_those_of_the_command_line() -> None:
    """What nobody set is what the help of `run` says."""
    parameters = inspect.signature(app.run).parameters
    for key, value in msgspec.to_builtins(settings.RunSettings()).items():
        if key != "theme":
            default = parameters["models" if key == "model" else key].default
            assert (list(value) if isinstance(value, (list, tuple)) else value) == (
                [] if default is None and isinstance(value, (list, tuple)) else default), key  # fmt: skip


@pytest.mark.parametrize(("text", "said"), [
    ("usdd = 1", "has a key that is not known: usdd. Did you mean usd?"),
    ("model = 'a'", "model in {file} must be a list of texts."),
    ("evaluations = 2.5", "evaluations in {file} must be a whole number of at least 1."),
    ("evaluations = 0", "must be a whole number of at least 1."), ("minutes = true", "must be a number of at least 0."),
    ("minutes = nan", "must be a number of at least 0."), ("usd = inf", "must be a number of at least 0."),
    ("templates = 1", "must be true or false."),
    ("send_source = 'all'", "must be callable or module."), ("usd = [", "{file} is not TOML: "),
    ("models = ['a']", "models in {file} must be tables."),
    ('[models."a"]\ntemprature = 1', 'not known: models."a".temprature. Did you mean temperature?'),
    ('[models."a"]\ntemperature = 3', 'models."a".temperature in {file} must be a number from 0 to 2.'),
    ('[models."a"]\nprice = [1]', "must be a list of two to four numbers, dollars per million tokens."),
    ("api_base = 'localhost'", "api_base in {file} is not an address."),
    ("api_base = 'http://u:hunter2@h/'", "api_base in {file} holds a password or a key"),
    ('[models."a"]\napi_key = "hunter2"', 'not known: models."a".api_key. Set it in the environment, in '),
    ("threads = 'hunter2'", "must be a whole number of at least 0."),
    ("allow_remote = true", "allow_remote in {file} is not used: a project cannot agree for you."),
])  # fmt: skip
def test_a_wrong_file_is_a_sentence(place, text, said, capsys):
    """It names file and key and what was meant or wanted, never the value; the exit code is that of configuration."""
    written(place, text)
    assert main.main(["config"]) == 3
    err = capsys.readouterr().err
    file = settings.files(place)[0]
    assert said.format(file=file) in err
    assert str(file) in err
    assert "hunter2" not in err
    assert err.count("\n") == 1


def test_a_wrong_variable_is_a_sentence(place: Workspace) -> None:
    """It names the variable."""
    for name, text in (("FORGE_EVALUATIONS", "many"), ("FORGE_LOCAL_ONLY", "maybe"), ("FORGE_API_BASE", "here")):
        with pytest.raises(ConfigError, match=f"^{name} (must be|is not)"):
            settings.load(place, None, {name: text})


def test_the_nearer_rule_about_other_machines_holds(place: Workspace) -> None:
    """A flag takes the place of a file's rule, and the project's that of the person's own; in one place both stay."""
    def rule(flags: dict[str, bool], **environment: str) -> tuple[bool, bool]:
        found = settings.load(place, flags, environment).run
        return found.allow_remote, found.local_only

    written(place, "", "allow_remote = true")
    assert rule({}) == (True, False)
    assert rule({"local_only": True}) == (False, True)
    written(place, "local_only = true", "allow_remote = true")
    assert rule({}) == (False, True)
    assert rule({"allow_remote": True}) == (True, False)
    assert rule({}, FORGE_ALLOW_REMOTE="true", FORGE_LOCAL_ONLY="1") == (True, True)


def test_config_shows_values_and_sources(place: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """For people and as JSON; nothing that looks like a key is shown."""
    key = "sk-ant-REDACTED"
    written(place, f'minutes = 5\nmodel = ["openai/{key}"]\n[models."a/b"]\nmax_tokens = 100\n')
    assert main.main(["config"]) == 0
    out = capsys.readouterr().out
    project, own = map(str, settings.files(place))
    assert ["minutes", "5.0", project] in [line.split() for line in out.splitlines()]
    assert ["usd", "-", "default"] in [line.split() for line in out.splitlines()]
    assert ['models."a/b".max_tokens', "100", project] in [line.split() for line in out.splitlines()]
    assert main.main(["config", "--json"]) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert document["values"]["minutes"] == {"value": 5.0, "source": project}
    assert document["files"][1] == {"path": own, "exists": True}
    assert key not in out + text


def test_a_run_takes_what_is_set(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is asked for the file's values where the command line says nothing, of asked models only."""
    orders: list[RunOptions] = []

    def follow(_place, order, **_rest):
        orders.append(msgspec.convert(order["run"], RunOptions))
        return 0

    monkeypatch.setattr(command, "_follow", follow)
    Path("m.py").write_text("")
    written(place, 'evaluations = 7\nminutes = 5\nmodel = ["openai/x"]\ntemplates = false\n'
            f'[models."openai/x"]\napi_base = "{LOCAL}"\nmax_tokens = 9\nprice = [1, 2]\n'
            '[models."other/y"]\nprice = [3, 4]\n')  # fmt: skip
    assert main.main(["run", "m.py", "--device", "cpu", "--minutes", "6"]) == 0
    (found,) = orders
    assert (found.max_evaluations, found.max_minutes, found.proposers) == (7, 6.0, ("openai/x",))
    assert found.prices == {"openai/x": (1.0, 2.0)}
    assert (found.model_options["openai/x"].api_base, found.model_options["openai/x"].max_tokens) == (LOCAL, 9)
    monkeypatch.setenv("FORGE_PRICE", "openai/x=5,6 other/y=1,1")
    assert main.main(["run", "m.py", "--device", "cpu", "--templates"]) == 0
    assert orders[1].prices == {"openai/x": (5.0, 6.0)}
    assert orders[1].proposers == ("templates", "openai/x")


def test_a_models_own_address_is_what_is_agreed_to(place, monkeypatch, capsys):
    """An address elsewhere in a file needs consent, too; one of this machine needs none."""
    monkeypatch.setattr(command, "_follow", lambda *_a, **_k: 0)
    Path("m.py").write_text("")
    arguments = ["run", "m.py", "--device", "cpu", "--model", "openai/x", "--headless"]
    written(place, '[models."openai/x"]\napi_base = "http://203.0.113.7/v1"\n')
    assert main.main(arguments) == 2
    assert "openai/x is asked at 203.0.113.7, and nobody has agreed" in capsys.readouterr().err
    written(place, f'[models."openai/x"]\napi_base = "{LOCAL}"\n')
    assert main.main([*arguments, "--local-only"]) == 0


# a warning of the library's own, about pydantic
@pytest.mark.filterwarnings("ignore:Accessing the")
async def test_a_models_own_options_reach_the_wire(place: Workspace) -> None:
    """Address, length and temperature of one model's table are what its server sees."""
    async with serving() as server:
        assert isinstance(server, FaultServer)
        written(place, f'[models."openai/some-model"]\napi_base = "{server.base}/v1"\nmax_tokens = 77\n'
                'temperature = 0.25\n')  # fmt: skip
        chosen = settings.load(place, {})
        options = RunOptions(model=ModelSpec(text="m", path="m.py"), device="cpu", workspace=str(place.root),
                             api_base=LOCAL, model_options=chosen.options(["openai/some-model"]))  # fmt: skip
        proposer = registry.make("openai/some-model", options)
        proposal = await proposer.propose(a_task())
        await proposer.close()
        (request,) = server.requests
    assert proposal.source is not None
    assert (request["body"]["max_tokens"], request["body"]["temperature"]) == (77, 0.25)
