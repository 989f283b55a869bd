"""`forge_target.h`: the task as the compiler and the author see it, and the same names for directives."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from forge_tui.contract.identifiers import unique
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Device, Language, Signature, Target, TensorSpec

#: alignment of outputs and workspace in bytes, which the harness sees to
ALLOCATION_ALIGN = 16

_TYPES: dict[Language, dict[str, str]] = {
    "cuda": {"float16": "__half", "bfloat16": "__nv_bfloat16"},
    "cpp": {"float16": "forge::half", "bfloat16": "forge::bfloat16"},
}
_COMMON = {
    "float64": "double", "float32": "float", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t",
    "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
_INT64 = 2**63

# NVRTC has no C library headers; where the toolkit's own <cuda/std/cstdint> is read later, the types are the same
_RTC_TYPES = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
"""


def c_type(dtype: str, language: Language) -> str:
    """The C type of a torch dtype.

    Raises:
        ContractError: the contract knows no such dtype.
    """
    name = _TYPES[language].get(dtype) or _COMMON.get(dtype)
    if name is None:
        raise ContractError(f"Kernels cannot take tensors of dtype {dtype}.")
    return name


def parameters(signature: Signature) -> list[tuple[str, TensorSpec, bool]]:
    """Kernel parameters in order, as (name, spec, is output); workspace and dims come behind them."""
    tensors = [(i.name, i.spec, False) for i in signature.inputs] + [(o.name, o.spec, True) for o in signature.outputs]
    outputs = [name for name, _, is_output in tensors if is_output]
    inputs = unique([name for name, _, is_output in tensors if not is_output], taken=outputs)
    return [(name, spec, is_output) for name, (_, spec, is_output) in zip(inputs + outputs, tensors, strict=True)]


def names(target: Target, device: Device, tunables: dict[str, int]) -> dict[str, int]:
    """What an expression may use: shapes, strides, integer scalars, device facts, tunables.

    Raises:
        ContractError: a tunable has the name of something else.
    """
    found = dict(_integers(target.signature))
    found |= _device_facts(device)
    for name, value in _scalars(target.signature):
        if isinstance(value, int):
            found[name] = int(value)
    taken = found.keys() | {name for name, _, _ in parameters(target.signature)}
    taken |= {name for name, _ in _scalars(target.signature)}
    for name, value in tunables.items():
        if name in taken:
            raise ContractError(f"The tunable `{name}` has the name of something in forge_target.h.")
        found[name] = value
    return found


def render(target: Target, device: Device) -> str:
    """The text of `forge_target.h` for a target on a device.

    Raises:
        ContractError: a dtype that kernels cannot take.
    """
    language = device.language
    tensors = parameters(target.signature)
    lines = [
        "// forge_target.h, generated: what the kernel computes on, as compile-time constants.",
        f"// Target: {_comment(target.name)}  {_comment(target.signature.describe())}",
        "#pragma once",
    ]
    dtypes = {spec.dtype for _, spec, _ in tensors}
    if language == "cuda":
        lines += [_RTC_TYPES.rstrip()]
        lines += ["#include <cuda_fp16.h>"] if "float16" in dtypes else []
        lines += ["#include <cuda_bf16.h>"] if "bfloat16" in dtypes else []
    else:
        lines += ["#include <stdint.h>", "#include <stddef.h>"]
    lines += ["", "namespace forge {"]
    for name, spec, is_output in tensors:
        what = "output" if is_output else "input"
        lines.append(f"// {what} {name}: {spec.dtype}{list(spec.shape)}, strides {list(spec.strides)} in elements")
        prefix = f"{name}_"
        mine = [(n, v) for n, v in _integers(target.signature) if _belongs(n, prefix)]
        lines.append("constexpr int64_t " + ", ".join(f"{n} = {_integer(v)}" for n, v in mine) + ";")
    lines += ["// scalars of the call; cast the doubles, float(forge::eps), where the arithmetic is float"]
    lines += [_constant(name, value, language) for name, value in _scalars(target.signature)]
    lines += ["// the device"]
    lines += [f"constexpr int64_t {name} = {value};" for name, value in _device_facts(device).items()]
    lines += ["}  // namespace forge", "", "struct ForgeDims { int64_t reserved; };  // nothing varies at run time", ""]
    lines += [f"#define FORGE_PARAMS {_parameter_list(tensors, language)}"]
    if language == "cpp":
        lines += ["", _cpu_support().rstrip()]
    return "\n".join(lines) + "\n"


def empty_candidate(target: Target, device: Device) -> str:
    """A source that compiles and writes nothing, to be filled by its author."""
    first = target.signature.outputs[0].name if target.signature.outputs else ""
    count = f"{first}_numel" if first else "1"
    if device.language == "cuda":
        return f"""\
//@tune BLOCK 256 128 512
//@launch candidate grid=ceil_div({count}, BLOCK) block=BLOCK
#include "forge_target.h"

extern "C" __global__ void candidate(FORGE_PARAMS) {{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= {f"forge::{count}" if first else "1"}) return;
    // write {f"{first}[i]" if first else "the outputs"} here
}}
"""
    return f"""\
#include "forge_target.h"

extern "C" int forge_launch(FORGE_PARAMS) {{
#pragma omp parallel for
    for (int64_t i = 0; i < {f"forge::{count}" if first else "1"}; ++i) {{
        // write {f"{first}[i]" if first else "the outputs"} here
    }}
    return 0;
}}
"""


def _integers(signature: Signature) -> Iterator[tuple[str, int]]:
    aligns = [i.align for i in signature.inputs] + [ALLOCATION_ALIGN] * len(signature.outputs)
    for (name, spec, _), align in zip(parameters(signature), aligns, strict=True):
        for dim, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
            yield f"{name}_shape_{dim}", size
            yield f"{name}_stride_{dim}", stride
        yield f"{name}_numel", spec.numel
        yield f"{name}_align", align


def _device_facts(device: Device) -> dict[str, int]:
    facts = {"sms": device.sms, "smem_optin": device.smem_optin, "l2_bytes": device.l2_bytes}
    return facts | {"cores": device.cores, "threads": device.threads or device.cores}


def _scalars(signature: Signature) -> list[tuple[str, bool | int | float]]:
    """Scalars under clean names, apart from integers that no 64 bits hold."""
    usable = [s for s in signature.scalars if isinstance(s.value, float) or -_INT64 <= s.value < _INT64]
    tensors = {name for name, _, _ in parameters(signature)}
    taken = tensors | {name for name, _ in _integers(signature)}
    return list(zip(unique([scalar.name for scalar in usable], taken), [s.value for s in usable], strict=True))


def _belongs(name: str, prefix: str) -> bool:
    rest = name.removeprefix(prefix)
    return rest != name and (rest in ("numel", "align") or rest.rpartition("_")[0] in ("shape", "stride"))


def _constant(name: str, value: bool | float, language: Language) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {'true' if value else 'false'};"
    if isinstance(value, int):
        return f"constexpr int64_t {name} = {_integer(value)};"
    if math.isfinite(value):
        text = repr(value)
    elif language == "cuda":
        # NVRTC knows neither __builtin_huge_val nor __builtin_nan
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        text = f"__builtin_bit_cast(double, {bits:#x}ULL)"
    elif math.isnan(value):
        text = '__builtin_nan("")'
    else:
        text = "__builtin_huge_val()" if value > 0 else "-__builtin_huge_val()"
    return f"constexpr double {name} = {text};"


def _integer(value: int) -> str:
    if value == -_INT64:
        return "-9223372036854775807LL - 1"
    return f"{value}LL" if abs(value) >= 2**31 else str(value)


def _parameter_list(tensors: list[tuple[str, TensorSpec, bool]], language: Language) -> str:
    parts = [
        f"{'' if is_output else 'const '}{c_type(spec.dtype, language)}* __restrict__ {name}"
        for name, spec, is_output in tensors
    ]
    return ", ".join([*parts, "void* __restrict__ workspace", "ForgeDims dims"])


def _comment(text: str) -> str:
    """Text that cannot end a line comment or continue it."""
    return " ".join(text.split()).replace("\\", "/")


@cache
def _cpu_support() -> str:
    return (Path(__file__).parent / "cpu_support.h").read_text()
