"""NVRTC in a process of its own: `python nvrtc.py LIBRARY SOURCE OUTPUT [OPTION...]`, or `--version LIBRARY`.

Writes a cubin; the compiler's messages go to standard error, as nvcc's do. Exit code 1 for an error of the source, 3
where the library itself fails. Only the standard library, so that it runs as a plain file.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_EXIT_SOURCE = 1
_EXIT_LIBRARY = 3
#: NVRTC_ERROR_COMPILATION of nvrtcResult
_COMPILATION = 6

_TYPES = """\
#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef unsigned long size_t; typedef long ptrdiff_t;
typedef unsigned long long uintptr_t; typedef long long intptr_t;
"""
_FLOAT = """\
#pragma once
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
"""
_LIMITS = """\
#pragma once
#define CHAR_BIT 8
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-LLONG_MAX - 1)
"""
_MATH = """\
#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif
"""
_ASSERT = "#pragma once\n#undef assert\n#define assert(condition) ((void)0)\n"


def _standard(name: str) -> str:
    """The toolkit's own form of a standard header, under the names of `std`."""
    return f"#pragma once\n#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"


#: NVRTC has no C and C++ library headers, and needs no CUDA ones: these take their place
HEADERS: dict[str, str] = {
    "stdint.h": _TYPES, "cstdint": _TYPES, "stddef.h": _TYPES, "cstddef": _TYPES, "float.h": _FLOAT, "cfloat": _FLOAT,
    "limits.h": _LIMITS, "climits": _LIMITS, "math.h": _MATH, "cmath": _MATH, "assert.h": _ASSERT, "cassert": _ASSERT,
    "string.h": _TYPES, "cstring": _TYPES, "cuda_runtime.h": "#pragma once\n", "device_launch_parameters.h": "\n",
    "device_functions.h": "\n", "type_traits": _standard("type_traits"), "limits": _standard("limits"),
    "utility": _standard("utility"),
}  # fmt: skip
#: before every source: what nvcc's own first include gives and NVRTC does not
_PRELUDE = "math.h"


class LibraryFault(Exception):
    """The library could not be loaded or refused what every version takes."""


class Nvrtc:
    """The few functions that a compile takes."""

    def __init__(self, path: str) -> None:
        try:
            # the library looks for its built-ins by name only; one that is loaded already is found
            for builtins in sorted(Path(path).resolve().parent.glob("libnvrtc-builtins.so*")):
                ctypes.CDLL(str(builtins))
            self._lib = ctypes.CDLL(path)
        except OSError as error:
            raise LibraryFault(f"{path} cannot be loaded: {error}") from error
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def _call(self, name: str, *args: object) -> int:
        return int(getattr(self._lib, name)(*args))

    def _must(self, name: str, *args: object) -> None:
        code = self._call(name, *args)
        if code:
            text = self._lib.nvrtcGetErrorString(code).decode(errors="replace")
            raise LibraryFault(f"{name} failed: {text}")

    def version(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._must("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(self, source: str, name: str, options: list[str]) -> tuple[bytes | None, str]:
        """A cubin, or None where the source has errors, and the messages."""
        headers = list(HEADERS.items())
        texts = (ctypes.c_char_p * len(headers))(*[text.encode() for _, text in headers])
        names = (ctypes.c_char_p * len(headers))(*[header.encode() for header, _ in headers])
        program = ctypes.c_void_p()
        self._must(
            "nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names
        )
        argv = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        code = self._call("nvrtcCompileProgram", program, len(options), argv)
        log = self._text("nvrtcGetProgramLog", program)
        if code == _COMPILATION:
            return None, log
        if code:
            reason = self._lib.nvrtcGetErrorString(code).decode(errors="replace")
            raise LibraryFault(f"nvrtcCompileProgram failed: {reason}\n{log}")
        return self._bytes("nvrtcGetCUBIN", program), log

    def _bytes(self, name: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._must(f"{name}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._must(name, program, buffer)
        return buffer.raw[: size.value]

    def _text(self, name: str, program: ctypes.c_void_p) -> str:
        return self._bytes(name, program).rstrip(b"\0").decode(errors="replace")


def main(argv: list[str]) -> int:
    """One compile, or the library's version."""
    try:
        if argv[1] == "--version":
            major, minor = Nvrtc(argv[2]).version()
            sys.stdout.write(f"{major}.{minor}\n")
            return 0
        library, source, output, *options = argv[1:]
        cubin, log = Nvrtc(library).compile(
            Path(source).read_text(), Path(source).name, [*options, f"--pre-include={_PRELUDE}"]
        )
    except LibraryFault as error:
        sys.stderr.write(f"nvrtc: {error}\n")
        return _EXIT_LIBRARY
    sys.stderr.write(log)
    if cubin is None:
        return _EXIT_SOURCE
    Path(output).write_bytes(cubin)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
