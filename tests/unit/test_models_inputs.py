"""Input sets from files and functions become the calls of a model, or one clear sentence."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forge_tui.core.errors import ModelError, UsageError
from forge_tui.models.inputs import MAX_SETS, read_sets, set_of
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.spec import ModelRequest, parse_model

MODEL = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
    def forward(self, x, scale=None, *, more=None):
        y = self.linear(x)
        y = y if scale is None else y * scale
        return y if more is None else y + more["bias"]
def build():
    return Net(), (torch.ones(1, 4),), {}
def bare():
    return Net()
def phased():
    return {"module": Net(), "phases": {"a": {"args": (torch.ones(1, 4),)}}}
def sets():
    for n in (2, 5):
        yield (torch.ones(n, 4),)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model file."""
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


def load(model: Path, factory: str = "", **said) -> LoadedModel:
    """The model with what a command line says of it."""
    return load_model(parse_model(f"{model}:{factory}" if factory else str(model), ModelRequest(**said)), "cpu")


def saved(tmp_path: Path, value: object, name: str = "inputs.pt") -> str:
    """A file of inputs."""
    path = tmp_path / name
    save_file(value, path) if name.endswith(".safetensors") else torch.save(value, path)
    return str(path)


def shapes(loaded: LoadedModel) -> list[tuple]:
    """Name, weight and shape of the first output of each phase."""
    return [(p.name, p.weight, tuple(p.run(loaded.module).shape)) for p in loaded.phases]


X = torch.arange(12, dtype=torch.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("content", "args", "kwargs"),
    [
        (X, 1, []),
        ((X, torch.tensor(2.0)), 2, []),
        ([X, torch.tensor(2.0)], 2, []),
        ({"x": X}, 0, ["x"]),
        ({"arg0": X, "scale": torch.tensor(2.0)}, 1, ["scale"]),
        ({"arg1": torch.tensor(2.0), "arg0": X}, 2, []),
        (((X,), {"scale": 2.0}), 1, ["scale"]),
        (([], {"x": X, "more": {"bias": 1.0}}), 0, ["x", "more"]),
        ({"x": X, "more.bias": torch.ones(2)}, 0, ["x", "more"]),
        ({"x": X, "scale": None}, 0, ["x", "scale"]),
    ],
)
def test_one_set(tmp_path: Path, model: Path, content: object, args: int, kwargs: list[str]):
    """Every form of one set is one phase without a name, and gives what the call gives."""
    loaded = load(model, inputs=saved(tmp_path, content))
    (phase,) = loaded.phases
    assert (phase.name, phase.weight, len(phase.args), list(phase.kwargs)) == ("", 1.0, args, kwargs)
    wanted = loaded.module.linear(X)
    given = [*phase.args, *phase.kwargs.values()]
    if any((torch.is_tensor(v) and v.dim() == 0) or v == 2.0 for v in given[1:] if not isinstance(v, dict)):
        wanted = wanted * 2
    if "more" in kwargs:
        wanted = wanted + 1
    assert torch.equal(loaded.run(), wanted)


def test_several_sets(tmp_path: Path, model: Path):
    """A list of sets, or names of sets before a slash, are phases of weight 1 in their order."""
    wanted = [("set 1", 1.0, (3, 2)), ("set 2", 1.0, (7, 2)), ("set 3", 1.0, (1, 2))]
    sets = [torch.ones(n, 4) for n in (3, 7, 1)]
    assert shapes(load(model, inputs=saved(tmp_path, [{"x": t} for t in sets]))) == wanted
    assert shapes(load(model, inputs=saved(tmp_path, [(t,) for t in sets]))) == wanted
    assert shapes(load(model, inputs=saved(tmp_path, [((sets[0],), {}), {"x": sets[1]}, [sets[2]]]))) == wanted
    # numbers are ordered as numbers
    named = {"10/x": sets[2], "9/x": sets[1], "2/arg0": sets[0]}
    assert shapes(load(model, inputs=saved(tmp_path, named, "many.safetensors"))) == wanted
    weighted = load(model, inputs=saved(tmp_path, named, "many.safetensors"), phases=("set 2=5", "set 3=0"))
    assert [(p.name, p.weight) for p in weighted.phases] == [("set 1", 1.0), ("set 2", 5.0)]


def test_safetensors(tmp_path: Path, model: Path):
    """Tensors by name; those of the model's dtype when one is asked for."""
    loaded = load(model, inputs=saved(tmp_path, {"x": X, "scale": torch.tensor(3.0)}, "one.safetensors"), dtype="bf16")
    assert loaded.run().dtype == torch.bfloat16
    assert loaded.phases[0].kwargs["x"].dtype == torch.bfloat16


def test_strides_and_sharing_are_kept(tmp_path: Path, model: Path):
    """What torch.save keeps arrives: strides, and two arguments in one storage."""
    base = torch.arange(24.0).reshape(4, 6)
    loaded = load(model, inputs=saved(tmp_path, (base.T[:, :4], base[0, :2])))
    x, scale = loaded.phases[0].args
    assert x.stride() == (1, 6)
    assert x.untyped_storage().data_ptr() == scale.untyped_storage().data_ptr()


@pytest.mark.parametrize("factory", ["", "bare", "phased"])
def test_own_inputs_are_replaced(tmp_path: Path, model: Path, factory: str):
    """Whatever inputs the factory has, also none, the given ones are used."""
    assert shapes(load(model, factory, inputs=saved(tmp_path, X))) == [("", 1.0, (3, 2))]


def test_kernelbench_with_inputs(tmp_path: Path):
    """A file in KernelBench's form needs no get_inputs() where inputs are given."""
    path = tmp_path / "bench.py"
    path.write_text("import torch\nclass Model(torch.nn.Module):\n    def __init__(self, k):\n"
                    "        super().__init__()\n        self.k = k\n    def forward(self, x):\n"
                    "        return x * self.k\ndef get_init_inputs():\n    return [3]\n")  # fmt: skip
    assert torch.equal(load(path, inputs=saved(tmp_path, X)).run(), X * 3)
    with pytest.raises(ModelError, match="no get_inputs"):
        load(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"y": X}, r"do not fit Net\.forward: .*'x'\. It takes x, scale, more\."),
        ({"x": X, "mask": X}, r"unexpected keyword argument 'mask'\. It takes x, scale, more\."),
        ((X, X, X), r"do not fit Net\.forward: too many positional arguments"),
        ({"arg1": X}, r"has the positions \[1\]\. Count them from arg0"),
        ({"arg0": X, "x": X}, "multiple values for argument 'x'"),
        ({"0/x": X, "x": X}, r"has names of sets \(0/x\) and others \(x\)"),
        ({"0/x": X, "1/y": X}, "set 2, do not fit"),
        ({"a b": X}, "names an input 'a b', which no parameter can be called"),
        ({3: X}, "names an input 3"),
        ({"more": X, "more.bias": X}, "gives more both as a value and as a dictionary"),
        ("text", "holds str, which is no set of inputs"),
        (None, "holds NoneType, which is no set"),
        ([], "missing a required argument: 'x'"),
        ([(X,)] * (MAX_SETS + 1), f"more than {MAX_SETS} sets"),
    ],
)  # fmt: skip
def test_what_does_not_fit(tmp_path: Path, model: Path, content: object, text: str):
    """Names that the forward has not, and files of another form, are one sentence with the file's name."""
    file = saved(tmp_path, content)
    with pytest.raises(UsageError, match=text) as caught:
        load(model, inputs=file)
    assert file in caught.value.what


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (Path.write_text, (Path("pwned"), "x"))


def test_malicious_file(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that would run code is refused, and runs none."""
    monkeypatch.chdir(tmp_path)
    for name in ("evil.pt", "evil.pth"):
        torch.save({"x": X, "payload": Evil()}, name)
        with pytest.raises(UsageError, match=r"which could run code; it is not loaded\. Save it again"):
            load(model, inputs=name)
    with open("raw.pt", "wb") as file:
        pickle.dump(Evil(), file)
    with pytest.raises(UsageError, match=r"raw\.pt"):
        load(model, inputs="raw.pt")
    assert not Path("pwned").exists()


@pytest.mark.parametrize("name", ["broken.pt", "broken.safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x08" + b"\x00" * 7 + b"{}      ", b"x" * 200])
def test_broken_files(tmp_path: Path, name: str, content: bytes):
    """Truncated, empty and foreign files are one sentence."""
    path = tmp_path / name
    path.write_bytes(content)
    if name.endswith(".safetensors") and b"{}" in content:  # a file without tensors
        assert read_sets(path) == [set_of({}, "")]
        return
    with pytest.raises(UsageError, match=name) as caught:
        read_sets(path)
    assert "\n" not in str(caught.value)


def test_unreadable_file(tmp_path: Path, model: Path):
    """A file that went away between the command line and the worker is one sentence."""
    file = saved(tmp_path, X)
    spec = parse_model(str(model), ModelRequest(inputs=file))
    Path(file).unlink()
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_model(spec, "cpu")


def vary(tmp_path: Path, body: str, name: str = "varied.py") -> str:
    """A file with a function that yields sets."""
    (tmp_path / name).write_text(f"import torch\n{body}")
    return f"{tmp_path / name}:sets"


@pytest.mark.parametrize(
    "body",
    [
        "def sets():\n    for n in (2, 5):\n        yield (torch.ones(n, 4),)\n",
        "def sets():\n    return [torch.ones(2, 4), {'x': torch.ones(5, 4)}]\n",
        "def sets(device):\n    yield (), {'x': torch.ones(2, 4, device=device)}\n    yield [torch.ones(5, 4)], {}\n",
        "def sets():\n    return ([torch.ones(n, 4)] for n in (2, 5))\n",
    ],
)
def test_vary(tmp_path: Path, model: Path, body: str):
    """A function or generator gives one phase after another."""
    assert shapes(load(model, vary=vary(tmp_path, body))) == [("set 1", 1.0, (2, 2)), ("set 2", 1.0, (5, 2))]


def test_vary_in_the_model_file(model: Path):
    """The function may stand in the model's own file, which is not run twice for it."""
    model.write_text(MODEL + "\nimport builtins\nbuiltins.runs = getattr(builtins, 'runs', 0) + 1\n")
    loaded = load(model, vary=f"{model}:sets")
    assert [s[2] for s in shapes(loaded)] == [(2, 2), (5, 2)]
    import builtins

    assert builtins.runs == 1
    del builtins.runs


def test_vary_is_seeded(tmp_path: Path, model: Path):
    """Random sets are the same in every process for one seed."""
    where = vary(tmp_path, "def sets():\n    yield torch.randn(2, 4)\n")
    first, second = (load(model, vary=where).phases[0].args[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "has no function sets"),
        ("sets = 3\n", "has no function sets"),
        ("def sets():\n    return torch.ones(2, 4)\n", "returned Tensor, not sets of inputs"),
        ("def sets():\n    return None\n", "returned NoneType"),
        ("def sets():\n    return []\n", "gives no set of inputs"),
        ("def sets():\n    yield 3\n", r"set 1, holds int, which is no set"),
        ("def sets():\n    yield torch.ones(2, 4)\n    raise ValueError('no more')\n",
         r"sets\(\) failed \(line 4 of varied\.py\): ValueError: no more"),
        ("def sets():\n    while True:\n        yield torch.ones(2, 4)\n", f"more than {MAX_SETS} sets"),
        ("def sets():\n    x = torch.ones(2, 4)\n    for _ in range(2):\n        yield x\n        x.add_(1)\n",
         "writes into a tensor that it has yielded before"),
        ("def sets():\n    yield {'nonsense': torch.ones(2, 4)}\n", "do not fit Net.forward"),
        ("import nonesuch_module\n", "Importing varied.py failed"),
        ("def sets():\n    raise SystemExit(3)\n", r"sets\(\) failed"),
    ],
)  # fmt: skip
def test_what_vary_may_not_be(tmp_path: Path, model: Path, body: str, text: str):
    """Missing, endless, empty and failing functions are one sentence."""
    with pytest.raises(UsageError, match=text):
        load(model, vary=vary(tmp_path, body))


def test_inputs_of_a_vae_are_those_of_its_decoder(tmp_path: Path):
    """Given latents go to the autoencoder's decode, and are checked against it."""
    pytest.importorskip("diffusers")
    path = tmp_path / "vae.json"
    path.write_text('{"_class_name": "AutoencoderKL", "block_out_channels": [8], "norm_num_groups": 4}')

    def run(content, **said):
        request = ModelRequest(inputs=saved(tmp_path, content), **said)
        return load_model(parse_model(f"hf:{path}", request), "cpu")

    latents = torch.zeros(1, 4, 6, 6)
    loaded = run([{"z": latents}, {"z": torch.zeros(2, 4, 3, 3)}], dtype="bfloat16")
    assert [p.name for p in loaded.phases] == ["set 1", "set 2"]
    assert loaded.phases[0].run(loaded.module).sample.shape == (1, 3, 6, 6)
    assert loaded.phases[1].run(loaded.module).sample.dtype == torch.bfloat16
    with pytest.raises(UsageError, match=r"do not fit AutoencoderKL\.decode"):
        run({"sample": latents})
