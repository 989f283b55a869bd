"""The same candidate built two ways: as a cubin for the driver API, and through PyTorch's inline C++ extension.

Usage: python tests/benchmarks/load_inline.py MODEL [--device cuda:0] [--target NAME] [--workspace DIR]

Takes the fastest kernel of the workspace's last session (run `forge-tui run MODEL` first), builds it both ways from
an empty cache, checks that both give the same output on a captured input, and prints seconds and their ratio, measured
in one run. Needs an NVIDIA GPU and nvcc.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import torch

from forge_tui.compiler.build import CommandCompiler
from forge_tui.contract import header
from forge_tui.core.paths import workspace_for
from forge_tui.core.records import Built, Device, Node, RunOptions, Target
from forge_tui.launch.kernel import allocate_outputs, load_kernel
from forge_tui.models import capture
from forge_tui.models.load import load_model
from forge_tui.store.reader import Reader

C_TYPES = {"float32": "float", "bfloat16": "__nv_bfloat16", "float16": "__half", "float64": "double",
           "int64": "int64_t", "int32": "int32_t", "bool": "bool", "uint8": "uint8_t"}  # fmt: skip


def wrapper(target: Target, built: Built) -> str:
    """A host function that launches the candidate as the plan says, for `load_inline`."""
    ins = [
        f"reinterpret_cast<const {C_TYPES[i.spec.dtype]}*>(ins[{n}].data_ptr())"
        for n, i in enumerate(target.signature.inputs)
    ]
    outs = [
        f"reinterpret_cast<{C_TYPES[o.spec.dtype]}*>(outs[{n}].data_ptr())"
        for n, o in enumerate(target.signature.outputs)
    ]
    arguments = ", ".join([*ins, *outs, "workspace.data_ptr()", "ForgeDims{}"])
    calls = "\n".join(
        f"  {launch.kernel}<<<dim3{launch.grid}, dim3{launch.block}, {launch.smem}, stream>>>({arguments});"
        for launch in built.plan.launches
    )
    return (
        "#include <torch/extension.h>\n#include <c10/cuda/CUDAStream.h>\n"
        "void forge_call(std::vector<torch::Tensor> ins, std::vector<torch::Tensor> outs, torch::Tensor workspace) {\n"
        f"  auto stream = c10::cuda::getCurrentCUDAStream();\n{calls}\n}}\n"
    )


def best(reader: Reader, name: str | None) -> tuple[Target, Node, Device, RunOptions]:
    """The fastest right node of the last session, of one target or of all, and what the session was asked."""
    session = reader.latest()
    profile = session and reader.profile(session.id)
    if session is None or profile is None:
        raise SystemExit("There is no profiled session here: run forge-tui run MODEL first.")
    targets = {t.id: t for t in profile.targets if name in (None, t.name)}
    nodes = [
        n for n in reader.nodes(session.id) if n.target_id in targets and n.evaluation and n.evaluation.verdict.right
    ]
    node = max(nodes, key=lambda n: n.evaluation.speedup or 0.0)
    return targets[node.target_id], reader.node(session.id, node.id), profile.device, session.options


def main() -> None:
    """Build, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--workspace", default=".forge")
    arguments = parser.parse_args()
    place = workspace_for(None, arguments.workspace)
    target, node, device, options = best(Reader.open(place), arguments.target)
    with tempfile.TemporaryDirectory() as folder:
        compiler = CommandCompiler(device, Path(folder) / "cache")
        started = time.perf_counter()
        built = asyncio.run(compiler.build(target, node.source, node.tunables))
        ours_s = time.perf_counter() - started
        assert isinstance(built, Built), built
        loaded = load_model(options.model, device.name, options.seed)
        inputs = capture.load(place.captures / Path(target.capture).name, 0, device.name, loaded)
        outputs, others = (allocate_outputs(target.signature, device.name) for _ in range(2))
        workspace = torch.zeros(max(1, built.plan.workspace_bytes), dtype=torch.uint8, device=device.name)
        load_kernel(built, target.signature, device.name).launch(inputs, outputs, workspace)
        (Path(folder) / "forge_target.h").write_text(header.render(target, device))
        from torch.utils.cpp_extension import load_inline

        defines = [f"-D{name}={value}" for name, value in settings(node).items()]
        started = time.perf_counter()
        module = load_inline(
            "forge_inline",
            cpp_sources="using V = std::vector<torch::Tensor>; void forge_call(V, V, torch::Tensor);",
            cuda_sources=node.source + "\n" + wrapper(target, built), functions=["forge_call"],
            extra_include_paths=[folder], extra_cuda_cflags=["-O3", *defines], build_directory=folder,
        )  # fmt: skip
        inline_s = time.perf_counter() - started
        module.forge_call(inputs, others, workspace)
        torch.cuda.synchronize()
        same = all(torch.equal(a, b) for a, b in zip(outputs, others, strict=True))
    print(f"{target.name} node {node.id}: cubin {ours_s:.2f} s, load_inline {inline_s:.2f} s, "
          f"{inline_s / ours_s:.1f} times; outputs {'equal' if same else 'DIFFER'}")  # fmt: skip


def settings(node: Node) -> dict[str, int]:
    """Every tunable of the node with its value."""
    from forge_tui.contract import tune

    return tune.defaults(node.source) | node.tunables


if __name__ == "__main__":
    main()
