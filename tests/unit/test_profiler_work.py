"""What counts as read and as matrix work, and what a floor makes of it: never more than a kernel could save."""

from pathlib import Path

import pytest
import torch

from forge_tui.core.errors import ModelError, UsageError
from forge_tui.core.profiles import Profile
from forge_tui.core.records import Ceilings, Device
from forge_tui.models.load import load_model
from forge_tui.models.spec import ModelRequest, parse_model
from forge_tui.profiler import passes, targets
from forge_tui.profiler.ceilings import measure_ceilings
from forge_tui.profiler.floor import _rate
from forge_tui.profiler.profile import profile_model

DEVICE = Device(name="cpu", model="test", arch="test",
                ceilings=Ceilings(copy_gbps=1e6, matmul_tflops={"float32": 1e3}, launch_us=1.0))  # fmt: skip
HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def profiled(folder: Path, functions: str, call: str, inputs: str = "torch.randn(4, 8)") -> Profile:
    """The profile of a model that is one expression over functions of its file."""
    path = folder / "net.py"
    path.write_text(f"{HEAD}{functions}\nclass Net(nn.Module):\n    def forward(self, x):\n        return {call}\n"
                    f"def build():\n    return Net(), ({inputs},)\n")  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "MIN_SHARE", 0.0)
        return profile_model(load_model(parse_model(str(path)), "cpu"), DEVICE, folder, repeats=1, timing_passes=1)


def test_the_form_of_an_argument_is_not_its_values(tmp_path):
    """`zeros_like` and `new_ones` look at the form of a tensor; its bytes are not read."""
    functions = "def form(x):\n    return torch.zeros_like(x) + x.new_ones(8)\ndef values(x):\n    return x + 1\n"
    found = {t.name: t for t in profiled(tmp_path, functions, "form(x) + values(x)").targets}
    assert found["values"].bytes_moved == 2 * 4 * 8 * 4
    assert found["form"].bytes_moved == 4 * 8 * 4


def test_a_bag_reads_the_rows_that_are_asked_for(tmp_path):
    """Of a table of 100,000 rows an embedding bag reads four."""
    functions = "TABLE = torch.randn(100_000, 16)\ndef bag(ids, table):\n    return F.embedding_bag(ids, table)\n"
    (found,) = (t for t in profiled(tmp_path, functions, "bag(x, TABLE)", "torch.tensor([[1, 5], [7, 9]])").targets
                if t.name == "bag")  # fmt: skip
    assert found.bytes_moved < 2_000


def test_a_causal_mask_halves_the_work(tmp_path):
    """Scores above the diagonal need not be computed."""
    functions = ("def causal(x):\n    return F.scaled_dot_product_attention(x, x, x, is_causal=True)\n"
                 "def full(x):\n    return F.scaled_dot_product_attention(x, x, x)\n")  # fmt: skip
    profile = profiled(tmp_path, functions, "causal(x) + full(x)", "torch.randn(1, 2, 32, 16)")
    found = {t.name: t for t in profile.targets}
    assert found["full"].flops == 2 * 2 * 2 * 32 * 32 * 16
    assert found["causal"].flops == found["full"].flops // 2


def test_rates_are_never_below_what_a_kernel_reaches():
    """Float32 by three TF32 products; types of one byte at twice the fastest; what is unknown at the fastest."""
    rates = {"float32": 50.0, "tf32": 450.0, "bfloat16": 800.0}
    assert _rate("float32", rates) == 150.0
    assert _rate("tf32", rates) == 450.0
    assert _rate("float8_e4m3fn", rates) == 1600.0
    assert _rate("int8", rates) == 1600.0
    assert _rate("complex64", rates) == 800.0
    assert _rate("float32", {"float32": 50.0}) == 50.0
    assert _rate("float32", {}) == 0.0


def test_ceilings_do_not_depend_on_what_a_model_set():
    """A default dtype that a model file left behind changes no unit, and is there again afterwards."""
    torch.set_default_dtype(torch.float64)
    try:
        found = measure_ceilings(torch.device("cpu"))
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    plain = measure_ceilings(torch.device("cpu"))
    assert 0.3 < found.copy_gbps / plain.copy_gbps < 3


def test_a_model_that_swallows_exceptions_does_not_hide_too_many_calls(tmp_path, monkeypatch):
    """`except Exception` of the model's own does not end the count early: the profile says so in a sentence."""
    monkeypatch.setattr(passes, "MAX_CALLS", 50)
    functions = ("def loop(x):\n    try:\n        for _ in range(100):\n            x = x + 1\n"
                 "    except Exception:\n        pass\n    return x\n")  # fmt: skip
    with pytest.raises(ModelError, match="makes more than 50 calls"):
        profiled(tmp_path, functions, "loop(x)")


def test_a_weight_between_none_and_one(tmp_path):
    """Calls are whole: 0.5 of one is refused with what to write instead."""
    phases = "dict(one=dict(args=(torch.ones(3, 4),)))"
    (tmp_path / "net.py").write_text(
        f"{HEAD}def build():\n    return dict(module=nn.Linear(4, 2), phases={phases})\n"
    )
    with pytest.raises(UsageError, match="1 and 9 stand for"):
        load_model(parse_model(str(tmp_path / "net.py"), ModelRequest(phases=("one=0.5",))), "cpu")
