"""Models, files and options that try to break `forge-tui profile`: each ends in a right profile or a clear sentence."""

import json
import os
import sys
from pathlib import Path

import msgspec
import pytest
import store_fixture as fixture
import torch
from torch import nn

from forge_tui.cli import main
from forge_tui.cli.commands.run import check_numbers
from forge_tui.core.errors import EnvironmentFault, ForgeError, ModelError, UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Profile
from forge_tui.core.records import Ceilings, Device, ModelSpec, RunOptions
from forge_tui.engine import profiles
from forge_tui.models.faults import explain
from forge_tui.models.importing import module_name
from forge_tui.models.inputs import read_sets
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.phases import move
from forge_tui.models.resolve import caller
from forge_tui.models.sources import sources_of, unchanged
from forge_tui.models.spec import ModelRequest, hub_model, parse_model
from forge_tui.models.tensors import has_tensor
from forge_tui.models.trees import MAX_DEPTH, MAX_VALUES, NotEligible, leaves
from forge_tui.profiler import client
from forge_tui.profiler import targets as targets_module
from forge_tui.profiler.profile import profile_model
from forge_tui.profiler.worker import _readable

DEVICE = Device(name="cpu", model="test", arch="test",
                ceilings=Ceilings(copy_gbps=1e6, matmul_tflops={"float32": 1e3}, launch_us=1.0))  # fmt: skip
HEAD = "import sys\nimport torch\nfrom torch import nn\n"


def written(folder: Path, text: str, name: str = "net.py") -> Path:
    """A model file."""
    path = folder / name
    path.write_text(HEAD + text)
    return path


def profiled(folder: Path, text: str) -> tuple[LoadedModel, Profile]:
    """A model file's profile, tiny calls included."""
    loaded = load_model(parse_model(str(written(folder, text))), "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets_module, "MIN_SHARE", 0.0)
        return loaded, profile_model(loaded, DEVICE, folder, repeats=1, timing_passes=1)


def fault(folder: Path, text: str) -> str:
    """The sentence that a model file ends with."""
    with pytest.raises(ForgeError) as caught:
        profiled(folder, text)
    return caught.value.what


STRANGE = """
class Proxy:
    @property
    def __class__(self): raise RuntimeError('not bound')
    def __getattribute__(self, name): raise RuntimeError('not bound')
def circle(x, held): return x * 2
def many(x, held): return x * 3
def large(x, number): return x * 4
def text(x, words): return x * 5
def proxy(x, held): return x * 6
def plain(x, held): return x * 7
class Model(nn.Module):
    def forward(self, x):
        held = [1]
        held.append(held)
        x = proxy(text(large(many(circle(x, held), [0] * 5000), 10 ** 5000), '\\udc80'), Proxy())
        return plain(x, [[1, 2], {'a': (3.0, None)}])
def get_inputs(): return [torch.randn(4, 8)]
"""


def test_strange_arguments_are_reasons(tmp_path):
    """A circle, thousands of values, huge integers, broken text, raising proxies: each costs one target."""
    _, found = profiled(tmp_path, STRANGE)
    reasons = {spot.name: spot.reason for spot in found.hotspots if spot.kind == "function"}
    assert reasons == {
        "circle": f"the call is nested more than {MAX_DEPTH} deep",
        "many": f"the call holds more than {MAX_VALUES} values",
        "large": "number is an integer of more than 64 bits",
        "text": "words is a string that is no Unicode text",
        "proxy": "the call cannot be described: RuntimeError",
        "plain": "",
    }
    assert {t.name for t in found.targets} == {"Model", "plain"}


def test_results_that_hold_themselves_are_reasons(tmp_path):
    """The walk of a result ends as well."""
    _, found = profiled(tmp_path, """
def circle(x):
    held = [x * 2]
    held.append(held)
    return held
class Model(nn.Module):
    def forward(self, x): return circle(x)[0] + 1
def get_inputs(): return [torch.randn(4, 8)]
""")
    (spot,) = [spot for spot in found.hotspots if spot.kind == "function"]
    assert spot.reason == f"the result is nested more than {MAX_DEPTH} deep"


def test_leaves_are_in_order_and_limited():
    """Values come in the order in which they stand; other containers are values themselves."""
    odd = {1, 2}
    assert leaves(([1, (2, {"a": 3, "b": [4]})], odd), "it") == [1, 2, 3, 4, odd]
    assert leaves([0] * MAX_VALUES, "it") == [0] * MAX_VALUES
    with pytest.raises(NotEligible, match=f"^it holds more than {MAX_VALUES} values$"):
        leaves([0] * (MAX_VALUES + 1), "it")


def test_no_class_of_a_value_is_asked():
    """A lazy proxy that raises for its class is no tensor; a subclass of a container is looked into."""
    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("not bound")

    class Mine(list):
        pass

    assert not has_tensor([Proxy()])
    assert has_tensor(Mine([Proxy(), torch.ones(1)]))


HOOKED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.inner.register_forward_hook(lambda module, args, out: out * 2)
        self.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    def forward(self, x): return self.inner(x)
def get_inputs(): return [torch.randn(4, 8)]
"""


def test_a_module_with_hooks_is_replayed_below_them(tmp_path):
    """Hooks stay around a kernel, so the target is what runs between them: the product alone."""
    loaded, found = profiled(tmp_path, HOOKED)
    target = next(t for t in found.targets if t.name == "Linear")
    inner = loaded.module.model.inner
    given = {"input": torch.ones(4, 8), "weight": torch.eye(8), "bias": torch.zeros(8)}
    (out,) = caller(target, loaded)([given[item.path] for item in target.signature.inputs])
    assert torch.equal(out, torch.ones(4, 8))
    assert torch.equal(inner(torch.zeros(4, 8)), 2 * nn.functional.linear(torch.ones(4, 8), inner.weight, inner.bias))


def test_a_model_near_the_recursion_limit_has_room(tmp_path):
    """What runs without the profile runs under it: its own frames come on top, and the limit is put back."""
    before = sys.getrecursionlimit()
    levels = before // 2
    _, found = profiled(tmp_path, f"""
def deep(x, n): return x if n == 0 else deep(x, n - 1)
class Model(nn.Module):
    def forward(self, x): return deep(x, {levels}) * 2
def get_inputs(): return [torch.randn(2)]
""")
    assert sum(spot.calls for spot in found.hotspots if spot.name == "deep") == levels + 1
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize(("text", "sentence"), [
    ("raise GeneratorExit('no')\n", "Importing net.py failed (line 4 of net.py): GeneratorExit: no."),
    ("import pytest\npytest.skip('no', allow_module_level=True)\n",
     "Importing net.py failed (line 5 of net.py): Skipped: no."),
    ("def build(): raise GeneratorExit('no')\n", "build() failed (line 4 of net.py): GeneratorExit: no."),
    ("class Model(nn.Module):\n    def forward(self): raise BaseException('no')\ndef get_inputs(): return []\n",
     "The forward of Model failed (line 5 of net.py): BaseException: no."),
    ("raise ValueError('\\udc80')\n", r"Importing net.py failed (line 4 of net.py): ValueError: \udc80."),
    ("class E(Exception):\n    def __str__(self): raise KeyError\nraise E\n",
     "Importing net.py failed (line 6 of net.py): E: its text cannot be had (KeyError)."),
    ("x = '\0'\n", "Importing net.py failed: SyntaxError: source code string cannot contain null bytes."),
])  # fmt: skip
def test_whatever_a_model_raises_is_a_sentence(tmp_path, text, sentence):
    """Not only `Exception`: the sentence has the line, and can be written as JSON."""
    found = fault(tmp_path, text)
    assert found == sentence
    assert msgspec.json.encode(found)


def test_an_interrupt_stays_one():
    """Ctrl-C is no fault of the model."""
    with pytest.raises(KeyboardInterrupt):
        raise explain(KeyboardInterrupt(), ModelSpec(text="m.py", path="/m.py"), "It failed")


def test_inputs_that_hold_themselves_are_a_sentence(tmp_path):
    """A saved list may be its own item."""
    held: list = []
    held.append(held)
    torch.save(held, tmp_path / "x.pt")
    (given,) = read_sets(tmp_path / "x.pt")
    with pytest.raises(ModelError, match="nested too deeply, or a list among them holds itself"):
        move(given.args, torch.device("cpu"), None)


async def test_a_process_that_the_model_leaves_behind_does_not_hide_the_end(tmp_path):
    """A forked child has none of the worker's pipes: the worker's death is seen at once, not at the time limit."""
    path = written(tmp_path, """
import os, signal, time
class Model(nn.Module):
    def forward(self, x):
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.pause()
        open('CHILD', 'w').write(str(child))
        os._exit(7)
def get_inputs(): return [torch.randn(2)]
""".replace("CHILD", str(tmp_path / "child")))  # fmt: skip
    place = Workspace(tmp_path / "ws")
    place.prepare()
    try:
        with pytest.raises(EnvironmentFault, match="The worker ended with exit code 7"):
            await client.profile(parse_model(str(path)), "cpu", place, log=tmp_path / "log", timeout_s=60)
    finally:
        os.kill(int((tmp_path / "child").read_text()), 9)


def test_a_log_does_not_grow_without_end(tmp_path):
    """Models print; what earlier runs left is dropped when it is much."""
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100)
    client._shorten(log)
    assert log.stat().st_size == 100
    os.truncate(log, client._LOG_BYTES + 1)
    client._shorten(log)
    assert log.stat().st_size == 0
    client._shorten(tmp_path / "none")


def test_names_without_an_encoding_are_written_out(tmp_path):
    """A module may be named by a lone surrogate, a folder by bytes that are not UTF-8: JSON takes neither."""
    assert _readable({"a\udc80": ["\udc80", 1, None, {"ü": "\u2028"}]}) == {
        "a\\udc80": ["\\udc80", 1, None, {"ü": "\u2028"}]
    }
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    path = folder / "net.py"
    path.write_text("")
    assert module_name(path).startswith("forge_model_net_")
    states = sources_of({str(path)}, set())
    assert list(states) == [f"{tmp_path}/\\udcff/net.py"]
    assert not unchanged(states)  # never taken for an unchanged file


@pytest.mark.parametrize("damage", ["circle", "twice", "orphan", "deep"])
def test_a_damaged_profile_is_none(tmp_path, damage):
    """A saved tree that is no tree, or JSON without end, is measured again."""
    place = Workspace(tmp_path)
    options = RunOptions(model=ModelSpec(text="m.py", path="/m.py"), device="cpu", workspace=str(tmp_path))
    profiles.keep(fixture.whole_profile(), options, place)
    assert profiles.find(options, place) == fixture.whole_profile()
    (file,) = (place.artifacts / "profiles").glob("*.json")
    content = json.loads(file.read_text())
    spots = content["hotspots"]
    if damage == "circle":
        spots[0]["parent"] = spots[-1]["id"]
    elif damage == "twice":
        spots[-1]["id"] = spots[0]["id"]
    elif damage == "orphan":
        spots[-1]["parent"] = 10**6
    file.write_text("[" * 100_000 if damage == "deep" else json.dumps(content))
    assert profiles.find(options, place) is None


def test_odd_files_are_refused(tmp_path, monkeypatch):
    """A pipe in the place of a file would wait for ever; a name that is too long is a fault of the text."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("net.py")
    with pytest.raises(UsageError, match=r"^net\.py is a pipe, a socket or a device"):
        parse_model("net.py")
    for text in ("x" * 300 + ".py", "hf:" + "x" * 300):
        with pytest.raises(UsageError, match=r"^(hf:)?x+\.\.\. cannot be looked up: File name too long"):
            parse_model(text)
    with pytest.raises(UsageError, match="cannot be looked up"):
        hub_model("hf:" + "x" * 300)
    written(tmp_path, "", "good.py")
    with pytest.raises(UsageError, match="cannot be looked up"):
        parse_model("good.py", ModelRequest(inputs="x" * 300 + ".pt"))


def test_a_configuration_with_fewer_layers_than_none(tmp_path):
    """`transformers` takes -3 layers for none, and would be profiled without a word."""
    config = {"model_type": "llama", "num_hidden_layers": -3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="says num_hidden_layers: -3"):
        parse_model(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 0}))
    assert parse_model(f"hf:{tmp_path}").hf is not None


@pytest.mark.parametrize("command", ["profile", "run", "check"])
def test_numbers_that_no_machine_takes(command, tmp_path, monkeypatch, capsys):
    """So many threads end PyTorch; a seed has 64 bits."""
    monkeypatch.chdir(tmp_path)
    for option, said in ((("--threads", "100000"), "--threads 100000 is more than this machine can use"),
                         (("--seed", str(1 << 64)), "is too large")):  # fmt: skip
        assert main.main([command, "example:tiny-llm", *option]) == 2
        assert said in capsys.readouterr().err
    check_numbers(8, (1 << 64) - 1)
