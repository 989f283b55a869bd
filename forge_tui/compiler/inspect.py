"""What a built file really contains, whatever its source looked like.

The lint explains; this holds: state, code at load, calls into the system. Raises `ContractError`, which the build
turns into the verdict `refused`.
"""

from __future__ import annotations

import io
import re
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from forge_tui.compiler import symbols
from forge_tui.contract import lint
from forge_tui.contract.source import Source
from forge_tui.core.errors import ContractError
from forge_tui.core.records import LaunchPlan

_STATE = "a kernel keeps no state between calls, so make it constant or use the workspace"
#: writable at load time only: relocated once, then read-only
_RELOCATED = (".dynamic", ".got", ".got.plt", ".data.rel.ro", ".data.rel.ro.local")
_CODE_AT_LOAD = (".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors", ".init", ".fini")
_DYNAMIC_AT_LOAD = ("DT_INIT", "DT_FINI", "DT_INIT_ARRAY", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY", "DT_RPATH",
                    "DT_RUNPATH", "DT_AUDIT", "DT_DEPAUDIT", "DT_FILTER", "DT_AUXILIARY", "DT_TEXTREL")  # fmt: skip
_IRELATIVE = {37, 1032}  # R_X86_64_IRELATIVE, R_AARCH64_IRELATIVE
_SYSTEM_CALL = re.compile(r"^\s*[0-9a-f]+:\s+(syscall|sysenter|int\s+\$0x80|svc\s)", re.MULTILINE)

_TOOLKIT_NAMESPACES = ("cuda", "cub", "thrust", "cooperative_groups", "nvcuda")
#: tables and strings that the compiler and its device library bring
_COMPILER_NAMES = re.compile(r"__cudart\w*|\$str(\$\d+)?|__unnamed_\d+|__const\w*|__internal\w*|__cccl\w*|\.nv\..*")
_DEVICE_CALLS = {
    "vprintf": "a kernel prints nothing", "malloc": "a kernel allocates nothing; ask for a `//@workspace`",
    "free": "a kernel allocates nothing; ask for a `//@workspace`", "__assertfail": "a kernel prints nothing",
}  # fmt: skip


def check_cpu(data: bytes) -> None:
    """Refuse a shared library that does more than arithmetic when called.

    Raises:
        ContractError: naming the symbol or section.
    """
    elf = _open(data)
    exported: set[str] = set()
    _check_sections(elf)
    for section in elf.iter_sections():
        if isinstance(section, SymbolTableSection):
            exported |= _check_symbols(section, dynamic=section.name == ".dynsym")
        if section["sh_type"] == "SHT_DYNAMIC":
            _check_dynamic(section)
        if section["sh_type"] in ("SHT_RELA", "SHT_REL"):
            for relocation in section.iter_relocations():
                if relocation["r_info_type"] in _IRELATIVE:
                    raise ContractError("The built kernel chooses a function when it is loaded; nothing may run then.")
    if "forge_launch" not in exported:
        raise ContractError('The source does not define `extern "C" int forge_launch(FORGE_PARAMS)`.')
    others = exported - {"forge_launch"}
    if others:
        raise ContractError(f"The built kernel exports `{min(others)}`; only forge_launch may be.")


def check_instructions(disassembly: str) -> None:
    """Refuse instructions that enter the operating system.

    Raises:
        ContractError: naming the instruction.
    """
    found = _SYSTEM_CALL.search(disassembly)
    if found:
        raise ContractError(f"The built kernel holds the instruction `{found[1].strip()}`, which calls the system.")


def check_cubin(data: bytes, plan: LaunchPlan, source: Source, header: str) -> None:
    """Refuse a cubin that keeps state, calls the device runtime, or lacks a launched kernel.

    Raises:
        ContractError: naming the symbol.
    """
    elf = _open(data)
    sections = {index: section.name for index, section in enumerate(elf.iter_sections())}
    table = elf.get_section_by_name(".symtab")
    found = list(table.iter_symbols()) if isinstance(table, SymbolTableSection) else []
    toolkit = lint.leaves_toolkit_alone(source)
    for symbol in found:
        if symbol["st_shndx"] == "SHN_UNDEF":
            _check_device_call(symbol)
        elif symbol["st_info"]["type"] == "STT_OBJECT":
            section = sections.get(symbol["st_shndx"], "")
            stored = section.startswith((".nv.global", ".data", ".bss"))
            if stored and not _harmless(symbol.name, source, header, toolkit=toolkit):
                raise ContractError(f"The global variable `{_plain(symbol.name)}` is not allowed: {_STATE}.")
    for launch in plan.launches:
        if f".text.{launch.kernel}" not in sections.values():
            raise ContractError(f"The built file holds no kernel `{launch.kernel}`.")


def _open(data: bytes) -> Any:
    try:
        return ELFFile(io.BytesIO(data))
    except (ELFError, ValueError) as error:
        raise ContractError(f"The built file cannot be read: {error}.") from error


def _check_sections(elf: Any) -> None:
    for section in elf.iter_sections():
        flags, size, name = section["sh_flags"], section["sh_size"], section.name
        if not size or not flags & 2:  # SHF_ALLOC
            continue
        if name.startswith(_CODE_AT_LOAD):
            raise ContractError(f"The built kernel runs code when it is loaded (section {name}); nothing may run then.")
        if flags & 0x400:  # SHF_TLS
            raise ContractError(f"{_variable(elf, section)} is kept by thread: {_STATE}.")
        if flags & 1 and flags & 4:  # SHF_WRITE, SHF_EXECINSTR
            raise ContractError(f"The section {name} of the built kernel can be written and executed.")
        if flags & 1 and name not in _RELOCATED:
            raise ContractError(f"{_variable(elf, section)} can be written: {_STATE}.")


def _variable(elf: Any, section: Any) -> str:
    """The first variable of a section by name, where the symbol table tells."""
    table = elf.get_section_by_name(".symtab")
    index = elf.get_section_index(section.name)
    for symbol in table.iter_symbols() if isinstance(table, SymbolTableSection) else ():
        if symbol["st_shndx"] == index and symbol["st_info"]["type"] in ("STT_OBJECT", "STT_TLS") and symbol["st_size"]:
            return f"The variable `{_plain(symbol.name)}`"
    return f"The section {section.name} of the built kernel"


def _check_symbols(table: SymbolTableSection, *, dynamic: bool) -> set[str]:
    exported: set[str] = set()
    for symbol in table.iter_symbols():
        name, binding = symbol.name, symbol["st_info"]["bind"]
        if symbol["st_info"]["type"] in ("STT_GNU_IFUNC", "STT_LOOS"):
            raise ContractError(f"`{name}` is chosen when the kernel is loaded; nothing may run then.")
        if not dynamic or not name or binding == "STB_LOCAL":
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            exported.add(name)
        elif not symbols.allowed(name):
            raise ContractError(f"The kernel calls `{_plain(name)}`, which is not allowed: {symbols.why_not(name)}.")
    return exported


def _check_dynamic(section: Any) -> None:
    for tag in section.iter_tags():
        kind = tag.entry.d_tag
        if kind in _DYNAMIC_AT_LOAD:
            raise ContractError(f"The built kernel has {kind}; nothing may run or be searched when it is loaded.")
        if kind == "DT_NEEDED" and tag.needed not in symbols.ALLOWED_LIBRARIES:
            raise ContractError(f"The built kernel needs the library {tag.needed}, which is not allowed.")


def _check_device_call(symbol: Any) -> None:
    name = symbol.name
    if not name or _COMPILER_NAMES.fullmatch(name) or symbol["st_info"]["type"] not in ("STT_FUNC", "STT_NOTYPE"):
        return
    why = _DEVICE_CALLS.get(name, "a kernel has nothing to call outside of its own source")
    raise ContractError(f"The kernel calls `{_plain(name)}`, which is not allowed: {why}.")


def _harmless(name: str, source: Source, header: str, *, toolkit: bool) -> bool:
    """Whether a device variable is a constant, or one of the toolkit's own that a kernel cannot reach for state."""
    parts = _components(name)
    last = parts[-1]
    if _COMPILER_NAMES.fullmatch(last):
        return all(token.text != last for token in source.tokens)
    if parts[0] in _TOOLKIT_NAMESPACES and len(parts) > 1:
        return toolkit
    if parts[0] == "forge" and re.search(rf"\bconstexpr [^;]*\b{re.escape(last)} = ", header):
        return True
    return lint.declares_constant(source, last)


def _components(name: str) -> list[str]:
    """The namespaces and the name in a mangled symbol, internal-linkage marks left out; the name itself if plain."""
    match = re.match(r"_Z(?:Z.*?E)?N?K?L?(?=\d)|_ZZ.*?E(?=\d|N)|_ZN(?=\d)", name)
    if match is None:
        return [name]
    at, parts = match.end(), []
    while (length := re.match(r"L?(\d+)", name[at:])) is not None:
        start = at + length.end()
        part = name[start : start + int(length[1])]
        at = start + int(length[1])
        if "_INTERNAL_" not in part and not part.startswith("_GLOBAL__N_"):
            parts.append(part)
    return parts or [name]


def _plain(name: str) -> str:
    """A symbol as its author would write it, as far as its names go."""
    return "::".join(_components(name))
