"""Model files of every form load, the same in every process; bad ones say what is wrong."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from forge_tui.core.errors import EnvironmentFault, ExitCode, ModelError, UsageError
from forge_tui.models.devices import resolve_device
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.spec import ModelRequest, parse_model

FIXTURES = Path(__file__).parent.parent / "fixtures" / "models"
HEAD = "import torch\nfrom torch import nn\n"
GOOD = HEAD + "def build():\n    return nn.Linear(4, 2), (torch.ones(3, 4),), {}\n"


def load(tmp_path: Path, text: str, name: str = "net.py", factory: str = "", dtype: str | None = None) -> LoadedModel:
    """Load a model file with this text."""
    path = tmp_path / name
    path.write_text(text)
    return load_model(parse_model(f"{path}:{factory}" if factory else str(path), ModelRequest(dtype=dtype)), "cpu")


def test_build(tmp_path: Path):
    """`build()` gives the module in eval mode, without gradients."""
    loaded = load(tmp_path, GOOD)
    assert not loaded.module.training
    out = loaded.run()
    assert out.shape == (3, 2)
    assert not out.requires_grad
    assert torch.equal(out, torch.nn.functional.linear(torch.ones(3, 4), loaded.module.weight, loaded.module.bias))


@pytest.mark.parametrize(
    ("returned", "args", "kwargs", "workload"),
    [
        ("m, (x,)", 1, 0, False),
        ("m, [x]", 1, 0, False),
        ("m, x", 1, 0, False),
        ("m, {'input': x}", 0, 1, False),
        ("m, (), {'input': x}", 0, 1, False),
        ("m, (lambda module: module(x) + module(x))", 0, 0, True),
        ("m, (x,), {}, (lambda module: module(x) + module(x))", 1, 0, True),
    ],
)
def test_return_forms(tmp_path: Path, returned: str, args: int, kwargs: int, workload: bool):
    """Every documented return form is taken apart, and runs."""
    text = f"def build():\n    m, x = nn.Linear(4, 2), torch.ones(3, 4)\n    return {returned}\n"
    loaded = load(tmp_path, HEAD + text)
    (phase,) = loaded.phases
    assert (len(phase.args), len(phase.kwargs), phase.workload is not None) == (args, kwargs, workload)
    once = loaded.module(torch.ones(3, 4))
    assert torch.allclose(loaded.run(), once * (2 if workload else 1))


def test_bare_module_with_get_inputs(tmp_path: Path):
    """A factory may return the module alone if the file has `get_inputs`."""
    text = HEAD + "def make():\n    return nn.Linear(4, 2)\ndef get_inputs():\n    return [torch.ones(5, 4)]\n"
    assert load(tmp_path, text, factory="make").run().shape == (5, 2)


def test_factory_gets_device_and_dtype(tmp_path: Path):
    """A factory with `device` and `dtype` parameters is given them; without a chosen dtype its default stands."""
    text = HEAD + (
        "def build(device, dtype=torch.float64):\n"
        "    assert device == 'cpu'\n"
        "    return nn.Linear(4, 2, dtype=dtype), (torch.ones(3, 4, dtype=dtype),)\n"
    )
    assert load(tmp_path, text).run().dtype == torch.float64
    assert load(tmp_path, text, dtype="float32").run().dtype == torch.float32


def test_dtype_moves_floating_tensors_only(tmp_path: Path):
    """Weights and floating inputs take the spec's dtype; integer inputs stay."""
    text = HEAD + (
        "class M(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.w = nn.Parameter(torch.ones(4))\n"
        "    def forward(self, x, ids):\n        return x * self.w, ids\n"
        "def build():\n    return M(), (torch.ones(4), torch.arange(3))\n"
    )
    out, ids = load(tmp_path, text, dtype="bfloat16").run()
    assert (out.dtype, ids.dtype) == (torch.bfloat16, torch.int64)


def test_kernelbench_forms():
    """A KernelBench file loads as it is: init inputs with or without keywords, inputs that are no tensors."""
    plain = load_model(parse_model(str(FIXTURES / "kernelbench_plain.py")), "cpu")
    x, power = plain.phases[0].args
    assert power == 1.5
    want = torch.nn.functional.softplus(plain.module.model.linear(x)) * 1.5
    assert torch.equal(plain.run(), want)
    assert plain.run().shape == (4, 8)
    keywords = load_model(parse_model(str(FIXTURES / "kernelbench_keywords.py")), "cpu")
    assert keywords.module.model.norm.eps == 1e-3
    assert keywords.run().shape == (3, 24)


def test_sources_and_siblings(tmp_path: Path):
    """The file's classes have their source, and files beside it can be imported, also late."""
    (tmp_path / "forge_sibling_a.py").write_text("VALUE = 3\n")
    (tmp_path / "forge_sibling_b.py").write_text("VALUE = 4\n")
    text = HEAD + (
        "from forge_sibling_a import VALUE\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n        import forge_sibling_b\n        return x * VALUE * forge_sibling_b.VALUE\n"
        "def build():\n    return Net(), (torch.ones(2),)\n"
    )
    loaded = load(tmp_path, text)
    assert "forge_sibling_b" in inspect.getsource(type(loaded.module))
    assert loaded.run().tolist() == [12.0, 12.0]
    assert "forge_sibling_a" in loaded.own_modules
    assert "torch.nn.modules.linear" not in loaded.own_modules


def test_relative_import_in_a_package(tmp_path: Path):
    """A file inside a package may use relative imports."""
    package = tmp_path / "forge_test_pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "layers.py").write_text(HEAD + "def double(x):\n    return x * 2\n")
    (package / "net.py").write_text(
        HEAD + "from .layers import double\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return double(x)\n"
        "def build():\n    return Net(), (torch.ones(2),)\n"
    )
    loaded = load_model(parse_model(str(package / "net.py")), "cpu")
    assert loaded.run().tolist() == [2.0, 2.0]
    assert "forge_test_pack.layers" in loaded.own_modules


def test_same_weights_in_two_processes():
    """The same seed gives equal weights, inputs and outputs in every process; another seed gives others."""
    code = (
        "import sys, json, hashlib, torch\n"
        "from forge_tui.models.spec import ModelRequest, parse_model\n"
        "from forge_tui.models.load import load_model\n"
        "torch.set_num_threads(1)\n"
        "out = []\n"
        "for seed in (0, 0, 1):\n"
        f"    m = load_model(parse_model({str(FIXTURES / 'kernelbench_plain.py')!r}), 'cpu', seed)\n"
        "    tensors = [*m.module.state_dict().values(), m.phases[0].args[0], m.run()]\n"
        "    out.append(hashlib.sha256(b''.join(t.detach().numpy().tobytes() for t in tensors)).hexdigest())\n"
        "print(json.dumps(out))\n"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    first, second = (json.loads(run.stdout) for run in runs)
    assert first == second
    assert first[0] == first[1] != first[2]


BAD = {
    "nothing in it": ("X = 1\n", "has no model: neither a build() function nor a class Model"),
    "import raises": ("import torch\n\nraise KeyError('lost')\n",
                      "Importing net.py failed (line 3 of net.py): KeyError: 'lost'."),
    "missing package": ("import forge_no_such\n",
                        "failed (line 1 of net.py): ModuleNotFoundError: No module named 'forge_no_such'."),
    "syntax": ("def build(:\n", "Importing net.py failed (line 1 of net.py): SyntaxError: invalid syntax."),
    "exits": ("import sys\nsys.exit(3)\n", "Importing net.py failed (line 2 of net.py): SystemExit: 3."),
    "build raises": ("def build():\n    x = 1\n    return x / 0\n",
                     "build() failed (line 3 of net.py): ZeroDivisionError: division by zero."),
    "returns None": ("def build():\n    pass\n",
                     "build() in {path} returned None. It must return (module, args, kwargs)"),
    "returns a tensor": ("import torch\ndef build():\n    return torch.ones(1)\n", "returned Tensor."),
    "wrong parts": (HEAD + "def build():\n    return nn.ReLU(), 3, 'x'\n", "returned (ReLU, int, str)."),
    "kwargs not by name": (HEAD + "def build():\n    return nn.ReLU(), (), {1: 2}\n", "returned (ReLU, tuple, dict)."),
    "no inputs": (HEAD + "def build():\n    return nn.ReLU()\n", "returned a module without inputs."),
    "no get_inputs": (HEAD + "class Model(nn.Module):\n    pass\n", "has a class Model but no get_inputs()"),
    "bad init inputs": (HEAD + "class Model(nn.Module):\n    pass\ndef get_inputs():\n    return []\n"
                        "def get_init_inputs():\n    return 3\n",
                        "get_init_inputs() in {path} returned int, not a list."),
    "Model raises": (HEAD + "class Model(nn.Module):\n    def __init__(self):\n"
                     "        raise ValueError('two\\nlines')\ndef get_inputs():\n    return []\n",
                     "Model() failed (line 5 of net.py): ValueError: two lines."),
    "out of memory": ("def build():\n    raise MemoryError\n", "build() failed: out of memory (line 2 of net.py)."),
    "build is no function": ("build = 3\n", "build in {path} is not a function."),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path: Path, case: str):
    """A file that gives no model gives one sentence, with the line where there is one, and exit code 2."""
    text, said = BAD[case]
    with pytest.raises(ModelError) as caught:
        load(tmp_path, text)
    whole = str(caught.value)
    assert said.format(path=tmp_path / "net.py") in whole
    assert "Traceback" not in whole
    assert "\n" not in whole
    assert caught.value.exit_code == ExitCode.USAGE


def test_named_factory_missing(tmp_path: Path):
    """A factory that the file lacks is named, with what the file has."""
    with pytest.raises(ModelError, match=r"has no other\. It has build\.$"):
        load(tmp_path, GOOD, factory="other")


def test_devices():
    """Device names are cpu, cuda and cuda:N; what is malformed and what is absent are two faults."""
    assert resolve_device("cpu") == torch.device("cpu")
    for name in ("gpu", "cuda:", "cuda:x", "CPU", "cuda:-1", ""):
        with pytest.raises(UsageError, match="is not a device"):
            resolve_device(name)
    if not torch.cuda.is_available():
        with pytest.raises(EnvironmentFault, match="There is no CUDA device here") as caught:
            resolve_device("cuda:3")
        assert caught.value.exit_code == ExitCode.ENVIRONMENT


PHASED = """
def build():
    m = nn.Linear(4, 2)
    return {"module": m, "phases": {
        "prefill": {"args": (torch.ones(8, 4),)},
        "decode": {"workload": lambda module: module(torch.ones(1, 4)), "weight": 128},
    }}
"""


def test_phases_of_a_factory(tmp_path: Path):
    """A factory that describes phases gives each its calls and weight; other weights can be asked for, 0 leaves out."""
    path = tmp_path / "phased.py"
    path.write_text(HEAD + PHASED)
    loaded = load_model(parse_model(str(path)), "cpu")
    assert [(p.name, p.weight) for p in loaded.phases] == [("prefill", 1.0), ("decode", 128.0)]
    assert {name: tuple(out.shape) for name, out in loaded.run().items()} == {"prefill": (8, 2), "decode": (1, 2)}
    spec = msgspec.structs.replace(parse_model(str(path)), phases={"decode": 7.0, "prefill": 0.0})
    alone = load_model(spec, "cpu")
    assert [(p.name, p.weight) for p in alone.phases] == [("decode", 7.0)]
    assert tuple(alone.run().shape) == (1, 2)


@pytest.mark.parametrize(
    ("weights", "what"),
    [({"decoding": 1.0}, "no phase 'decoding'"), ({"prefill": 0.0, "decode": 0.0}, "Every phase")],
)
def test_weights_that_fit_no_phase(tmp_path: Path, weights: dict[str, float], what: str):
    """A weight for an unknown phase, or no weight at all, is one sentence."""
    path = tmp_path / "phased.py"
    path.write_text(HEAD + PHASED)
    with pytest.raises(UsageError, match=what):
        load_model(msgspec.structs.replace(parse_model(str(path)), phases=weights), "cpu")


@pytest.mark.parametrize(
    "phase", ["{'input': 3}", "{'args': 3}", "{'args': (), 'weight': -1}", "{'args': (), 'weight': True}", "3"]
)
def test_phases_of_another_form(tmp_path: Path, phase: str):
    """A phase that is described in another way is refused with the form that is known."""
    with pytest.raises(ModelError, match="phase 'one'"):
        load(tmp_path, HEAD + f"def build():\n    return dict(module=nn.Linear(4, 2), phases=dict(one={phase}))\n")


def test_lazy_layers_get_their_shapes(tmp_path: Path):
    """A layer that takes its shape from the first call has it after loading, with the same weights in every process."""
    text = HEAD + "def build():\n    return nn.Sequential(nn.LazyLinear(2), nn.ReLU()), (torch.ones(3, 4),)\n"
    first, second = load(tmp_path, text), load(tmp_path, text)
    assert tuple(first.module[0].weight.shape) == (2, 4)
    assert not first.module[0].weight.requires_grad
    assert torch.equal(first.run(), second.run())


def test_lazy_layers_whose_first_call_fails(tmp_path: Path):
    """What the first call raises is one sentence."""
    text = HEAD + "def build():\n    return nn.LazyConv2d(2, 3), (torch.ones(3, 4),)\n"
    with pytest.raises(ModelError, match="The first call, which gives lazy layers their shapes, failed"):
        load(tmp_path, text)
