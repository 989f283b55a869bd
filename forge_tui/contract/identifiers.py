"""Names in a kernel: C identifiers, what is taken, and how a target's own names become such."""

from __future__ import annotations

import re
from collections.abc import Iterable


def word_set(text: str) -> frozenset[str]:
    """The words of a text, for tables that read better as words than as quoted strings."""
    return frozenset(text.split())


IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

KEYWORDS = word_set("""
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
    concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete
    do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq typeof restrict
""")

#: names that the header, the languages' own headers or the expressions give a meaning
RESERVED = word_set("""
    forge std cuda cub thrust nvcuda cooperative_groups FORGE_PARAMS ForgeDims forge_launch workspace dims main
    half bfloat16 exp log tanh sigmoid erf rsqrt ceil_div min max
    sms cores threads smem_optin l2_bytes
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t ptrdiff_t
    threadIdx blockIdx blockDim gridDim warpSize float2 float4 NULL INFINITY NAN M_PI assert offsetof errno linux unix
""")


def is_taken(name: str) -> bool:
    """Whether a name cannot be an author's: keyword, reserved, or in the compiler's own space."""
    return name in KEYWORDS or name in RESERVED or name.startswith("__") or bool(re.fullmatch(r"_[A-Z]\w*", name))


def clean(name: str) -> str:
    """A C identifier for any text: other characters become underscores; keywords and reserved names get one behind."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    text = re.sub(r"^_+", "", text) or "v"
    if text[0].isdigit():
        text = f"v{text}"
    return f"{text}_" if is_taken(text) else text


def unique(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Clean identifiers in the same order, each different from the others and from `taken`."""
    used = set(taken)
    found: list[str] = []
    for name in names:
        text = clean(name)
        while text in used:
            text += "_"
        used.add(text)
        found.append(text)
    return found
