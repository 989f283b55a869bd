"""The stable facts of a prompt: the device, and the target with its source, header, tensors and times."""

from __future__ import annotations

from forge_tui.contract import dims, header
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Device, Node, Target
from forge_tui.proposers.words import cap, microseconds

CAP_PYTHON, CAP_HEADER, CAP_TENSORS = 6000, 5000, 3000
TOLERANCE = """\
Tolerance: that of the outputs' dtype against a float64 run of the original, or a little more than the original's own \
error where that is larger."""

_SIZES = """\
Sizes vary at run time: one source, compiled once, must be right at every size. What varies is no constant of the \
header but a field of `dims` (`dims.NAME` in a kernel, `NAME` in a directive). The tensors below show one size, which \
is the one that is timed; it is also verified at {sizes}."""

#: where the header's support functions begin, which the contract describes
_SUPPORT = "// ---- forge::"


def device_sheet(device: Device) -> str:
    """What this device was measured to do."""
    lines = [f"# Device\n- {device.model}, {device.arch}"]
    if device.kind == "cuda":
        lines.append(f"- {device.sms} SMs, {device.smem_optin} bytes of shared memory per block at most")
    else:
        lines.append(f"- {device.cores} cores, {device.threads or device.cores} threads")
    if device.l2_bytes:
        lines.append(f"- L2 cache {device.l2_bytes / 2**20:.1f} MiB")
    if device.runtime_version:
        lines.append(f"- compiler: {'CUDA' if device.kind == 'cuda' else 'g++'} {device.runtime_version}")
    if device.ceilings is not None:
        rates = ", ".join(f"{name} {rate:.3g}" for name, rate in sorted(device.ceilings.matmul_tflops.items()))
        lines.append(f"- measured: copies {device.ceilings.copy_gbps:.4g} GB/s (read plus written), smallest "
                     f"operator {device.ceilings.launch_us:.3g} us")  # fmt: skip
        if rates:
            lines.append(f"- measured matrix rates in TFLOP/s: {rates}")
    return "\n".join(lines) + "\n"


def target_card(target: Target, device: Device, nodes: tuple[Node, ...] = ()) -> str:
    """What is to be replaced: Python source, header, tensors, times."""
    signature = target.signature
    tensors = [
        f"- {'input' if not out else 'output'} {name}: {spec.dtype}, shape {list(spec.shape)}, strides "
        f"{list(spec.strides)}{'' if spec.contiguous else ' (not row-major)'}"
        for out, items in ((False, signature.inputs), (True, signature.outputs))
        for name, spec in ((item.name, item.spec) for item in items)
    ]
    scalars = [f"- constant {s.name} = {s.value!r}" for s in signature.scalars]
    baseline = _baseline(nodes)
    use = f"{target.calls} calls per model call, {target.share:.1%} of the model's time"
    work = f"{target.bytes_moved} bytes, {target.flops} floating-point operations"
    where = " (the original, timed beside the candidates)" if baseline else ""
    times = [
        f"- original: {microseconds(target.time_us)} per call in the profile, {use}",
        f"- floor of this device: {microseconds(target.floor_us)}, {target.bound}-bound ({work})",
        f"- to beat: {microseconds(baseline or target.time_us)}{where}",
    ]
    parts = [f"# Target: {target.name} ({target.qualname})"]
    if target.source:
        parts.append(f"The original:\n```python\n{cap(target.source.strip(), CAP_PYTHON)}\n```")
    if target.siblings:
        parts.append(_SIZES.format(sizes="; ".join(dims.words(target, s) for s in target.siblings)))
    parts += [
        cap("Tensors:\n" + "\n".join(tensors + scalars), CAP_TENSORS),
        f"forge_target.h:\n```cpp\n{_header(target, device)}\n```",
        "Times:\n" + "\n".join(times),
        TOLERANCE,
    ]
    return "\n".join(parts) + "\n"


def _header(target: Target, device: Device) -> str:
    """The generated header without its support functions, which the contract describes."""
    try:
        text = header.render(target, device)
    except ContractError as error:
        return f"// not available: {error.what}"
    return cap(text.split(_SUPPORT, 1)[0].strip(), CAP_HEADER)


def _baseline(nodes: tuple[Node, ...]) -> float | None:
    """The original's time beside the oldest right kernel."""
    return next((n.evaluation.baseline_us for n in nodes if n.evaluation and n.evaluation.baseline_us), None)
