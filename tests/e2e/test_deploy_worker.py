"""Deployment with real kernels from g++ in a real worker: the good stays; the wrong, the slow and the deadly do not."""

import re
import shutil
import textwrap
from pathlib import Path

import pytest
from deploy_fakes import make_target

from forge_tui.compiler.build import CommandCompiler
from forge_tui.core.errors import ModelError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Built, Device, Winner
from forge_tui.deploy.client import deploy
from forge_tui.models.load import load_model
from forge_tui.models.spec import parse_model

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

MODEL = textwrap.dedent("""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Norm(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(size))
            self.eps = 1e-6

        def forward(self, x):
            for _ in range(20):  # many passes over memory, where a kernel needs one
                x = x * 2.0
            x = x * 2.0**-20
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

    def wrong(x):
        return x * 1.5

    def deadly(x):
        return x * 2.0

    def wasteful(x):
        return x + 0.125

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(Norm(1024) for _ in range(4))

        def forward(self, x):
            for norm in self.norms:
                x = norm(x)
            return F.silu(wasteful(deadly(wrong(x[:64]))))

    def build():
        torch.manual_seed(0)
        return Model(), (torch.randn(256, 1024),), {}
""")

NORM = textwrap.dedent("""
    #include "forge_target.h"
    #include <cmath>
    extern "C" int forge_launch(FORGE_PARAMS) {
        const int64_t rows = forge::x_shape_0, n = forge::x_shape_1;
        #pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < rows; ++r) {
            const float* in = x + r * n;
            float* out = out0 + r * n;
            float sum = 0.0f;
            #pragma omp simd reduction(+:sum)
            for (int64_t i = 0; i < n; ++i) sum += in[i] * in[i];
            const float scale = 1.0f / std::sqrt(sum / float(n) + float(forge::eps));
            for (int64_t i = 0; i < n; ++i) out[i] = weight[i] * (in[i] * scale);
        }
        return 0;
    }
""")

POINTWISE = textwrap.dedent("""
    #include "forge_target.h"
    extern "C" int forge_launch(FORGE_PARAMS) {
        const int64_t n = forge::x_shape_0 * forge::x_shape_1;
        for (int64_t i = 0; i < n; ++i) out0[i] = EXPRESSION;
        return 0;
    }
""")
WRONG = POINTWISE.replace("EXPRESSION", "x[i] * 1.51f")
# writes far outside of its output: the process ends with a signal
DEADLY = POINTWISE.replace("EXPRESSION", "x[i] * 2.0f").replace("out0[i]", "out0[i + (int64_t(1) << 40)]")
WASTEFUL = POINTWISE.replace("EXPRESSION", "x[i] + 0.125f").replace(
    "return 0;", "volatile float sink = 0; for (int64_t i = 0; i < 20000000; ++i) sink = sink + 1.0f; return 0;"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A workspace with the model file."""
    root = tmp_path_factory.mktemp("deploy")
    (root / "model.py").write_text(MODEL)
    workspace = Workspace(root / ".forge")
    workspace.prepare()
    return workspace


@pytest.fixture(scope="module")
def spec(place):
    """The model's spec."""
    return parse_model(str(place.root.parent / "model.py"))


CPU = Device(name="cpu", model="test", arch="test", cores=2, threads=2)


@pytest.fixture(scope="module")
def targets(spec):
    """The targets as a profile would find them."""
    loaded = load_model(spec, "cpu")
    module, (x,), source = loaded.module, loaded.phases[0].args, loaded.source
    paths = [f"norms.{i}" for i in range(4)]
    norm = module.norms[0]
    found = {"norm": make_target(norm.forward, (x,), module=norm, instances=paths, name="Norm")}
    for name in ("wrong", "deadly", "wasteful"):
        fn = getattr(source, name)
        found[name] = make_target(fn, (x[:64],), kind="function", qualname=f"{source.__name__}:{name}", name=name)
    return found


async def build(place, target, source, node):
    """The winner with this source."""
    compiler = CommandCompiler(CPU, place.builds, timeout_s=60)
    built = await compiler.build(target, source, {})
    assert isinstance(built, Built), built
    return Winner(target=target, node_id=node, built=built)


async def test_the_good_stays_and_the_rest_is_out_with_reasons(place, spec, targets):
    """Four winners of which one deserves it; the process that dies is replaced; a compile that hangs is a reason."""
    winners = [
        await build(place, targets["deadly"], DEADLY, 1),
        await build(place, targets["norm"], NORM, 2),
        await build(place, targets["wrong"], WRONG, 3),
        await build(place, targets["wasteful"], WASTEFUL, 4),
    ]
    said = []
    deployment = await deploy(
        spec, CPU, place, winners, threads=1, seed=0, log=place.logs / "deploy.log", timeout_s=200,
        compile_baseline=True, compile_timeout_s=0.5, on_progress=lambda text, decision: said.append((text, decision)),
    )  # fmt: skip
    deadly, norm, wrong, wasteful = deployment.decisions
    assert [d.node_id for d in deployment.decisions] == [1, 2, 3, 4]
    assert norm.deployed, norm.why_not
    assert (norm.calls, norm.fallbacks) == (4, 0)
    assert norm.alone_ci[0] > 1.0
    assert 0 < norm.host_us < norm.host_us_original
    assert deadly.why_not.startswith("inside the model it ended the process: the worker ended with signal SIG")
    assert wrong.why_not.startswith("with this kernel alone output differs by up to")
    assert re.match(r"inside the model it (is slower|costs time): 0\.", wasteful.why_not)  # alone, or beside the other
    assert [d.deployed for d in (deadly, wrong, wasteful)] == [False] * 3
    assert deployment.speedup > 1.5
    assert deployment.speedup_ci[0] > 1.0
    assert deployment.baseline_ms > deployment.deployed_ms > 0
    assert deployment.within_tolerance
    assert 0 < deployment.max_abs_error < 1e-4
    assert "higher precision" in deployment.tolerance
    assert len(deployment.samples) >= 8
    assert deployment.baselines_ms == {}
    assert "0.5 s" in deployment.baseline_failures["compile"]
    assert [d.node_id for _, d in said if d is not None] == [1, 3, 4, 2]


async def test_a_kernel_that_is_not_the_verified_file_is_refused(place, spec, targets):
    """Its hash is looked at before it is loaded; nothing else is deployed, and the original is measured."""
    winner = await build(place, targets["norm"], NORM, 2)
    copy = Path(winner.built.path).with_name("other.so")
    copy.write_bytes(Path(winner.built.path).read_bytes() + b"x")
    changed = Winner(target=winner.target, node_id=2,
                     built=Built(**{f: getattr(winner.built, f) for f in winner.built.__struct_fields__}
                                 | {"path": str(copy)}))  # fmt: skip
    deployment = await deploy(spec, CPU, place, [changed], threads=1, log=place.logs / "deploy.log", timeout_s=120,
                              compile_baseline=False)  # fmt: skip
    assert "is not the one that was built" in deployment.decisions[0].why_not
    assert deployment.max_abs_error == 0.0
    assert deployment.speedup == pytest.approx(1.0, abs=0.3)
    assert deployment.baseline_failures == {}


async def test_a_model_that_cannot_be_built_is_one_sentence(place):
    """The fault of the model's file reaches the engine as it is."""
    path = place.root.parent / "broken.py"
    path.write_text("def build():\n    raise RuntimeError('no weights here')\n")
    with pytest.raises(ModelError, match="no weights here"):
        await deploy(parse_model(str(path)), CPU, place, [], log=place.logs / "broken.log", timeout_s=60)
