"""`forge_target.h`: the task as the compiler and the author see it, and the same names for directives."""

from __future__ import annotations

import math
import struct
from functools import cache
from pathlib import Path

from forge_tui.contract import dims, facts
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Device, Language, Target, TensorSpec

_TYPES: dict[Language, dict[str, str]] = {
    "cuda": {"float16": "__half", "bfloat16": "__nv_bfloat16"},
    "cpp": {"float16": "forge::half", "bfloat16": "forge::bfloat16"},
}
_COMMON = {
    "float64": "double", "float32": "float", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t",
    "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip

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


def names(
    target: Target, device: Device, tunables: dict[str, int], sibling: Target | None = None
) -> dict[str, int]:
    """What an expression may use: shapes, strides, integer scalars, fields of ForgeDims, device facts, tunables.

    The numbers are the target's own, or those of one of its siblings.

    Raises:
        ContractError: a tunable has the name of something else.
    """
    signature = (sibling or target).signature
    found = dict(facts.integers(signature))
    found |= _device_facts(device)
    for name, value in facts.scalars(signature):
        if isinstance(value, int):
            found[name] = int(value)
    found |= zip((field.name for field in dims.fields(target)), dims.values(target, sibling), strict=True)
    taken = found.keys() | {name for name, _, _ in facts.parameters(target.signature)}
    taken |= {name for name, _ in facts.scalars(target.signature)}
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
    tensors = facts.parameters(target.signature)
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
    fields = dims.fields(target)
    varying = {place: field.name for field in fields for place in field.places}
    lines += ["", "namespace forge {"]
    for name, spec, is_output in tensors:
        lines.append(_tensor_line(name, spec, varying, is_output=is_output))
        prefix = f"{name}_"
        mine = [(n, v) for n, v in facts.integers(target.signature) if _belongs(n, prefix) and n not in varying]
        lines.append("constexpr int64_t " + ", ".join(f"{n} = {_integer(v)}" for n, v in mine) + ";")
    lines += ["// scalars of the call; cast the doubles, float(forge::eps), where the arithmetic is float"]
    lines += [_constant(n, value, language) for n, value in facts.scalars(target.signature) if n not in varying]
    lines += ["// the device"]
    lines += [f"constexpr int64_t {name} = {value};" for name, value in _device_facts(device).items()]
    lines += ["}  // namespace forge", "", *_dims_struct(fields), ""]
    lines += [f"#define FORGE_PARAMS {_parameter_list(tensors, language)}"]
    if language == "cpp":
        lines += ["", _cpu_support().rstrip()]
    return "\n".join(lines) + "\n"


def _tensor_line(name: str, spec: TensorSpec, varying: dict[str, str], *, is_output: bool) -> str:
    """A comment on one tensor; what varies stands there as the field of ForgeDims that has it."""
    numbers = [
        ", ".join(f"dims.{varying[key]}" if (key := f"{name}_{what}_{i}") in varying else str(value)
                  for i, value in enumerate(values))
        for what, values in (("shape", spec.shape), ("stride", spec.strides))
    ]  # fmt: skip
    kind = "output" if is_output else "input"
    return f"// {kind} {name}: {spec.dtype}[{numbers[0]}], strides [{numbers[1]}] in elements"


def _dims_struct(fields: tuple[dims.Field, ...]) -> list[str]:
    if not fields:
        return ["struct ForgeDims { int64_t reserved; };  // nothing varies at run time"]
    lines = ["// what varies at run time; a kernel reads it as dims.NAME, a directive as NAME or by any name behind it"]
    lines += ["struct ForgeDims {"]
    for field in fields:
        sizes = f"{min(field.values)} to {max(field.values)}"
        lines.append(f"    int64_t {field.name};  // {sizes}: {', '.join(field.places)}")
    return [*lines, "};"]


def empty_candidate(target: Target, device: Device) -> str:
    """A source that compiles and writes nothing, to be filled by its author."""
    first = target.signature.outputs[0].name if target.signature.outputs else ""
    count = f"{first}_numel" if first else "1"
    field = next((field.name for field in dims.fields(target) if count in field.places), "")
    inside = f"dims.{field}" if field else f"forge::{count}" if first else "1"
    if device.language == "cuda":
        return f"""\
//@tune BLOCK 256 128 512
//@launch candidate grid=ceil_div({count}, BLOCK) block=BLOCK
#include "forge_target.h"

extern "C" __global__ void candidate(FORGE_PARAMS) {{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= {inside}) return;
    // write {f"{first}[i]" if first else "the outputs"} here
}}
"""
    return f"""\
#include "forge_target.h"

extern "C" int forge_launch(FORGE_PARAMS) {{
#pragma omp parallel for
    for (int64_t i = 0; i < {inside}; ++i) {{
        // write {f"{first}[i]" if first else "the outputs"} here
    }}
    return 0;
}}
"""


def _device_facts(device: Device) -> dict[str, int]:
    facts = {"sms": device.sms, "smem_optin": device.smem_optin, "l2_bytes": device.l2_bytes}
    return facts | {"cores": device.cores, "threads": device.threads or device.cores}


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
    if value == -facts.INT64:
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
