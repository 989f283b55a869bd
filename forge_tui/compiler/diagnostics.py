"""What compilers print, taken apart: the first real error, and what ptxas says of each kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forge_tui.core.records import Record

MAX_LOG_BYTES = 12_000

_GNU = re.compile(r"^(?P<file>[\w./+-]+):(?P<line>\d+)(?::\d+)?: (?P<kind>fatal error|error): (?P<text>.*)$")
_EDG = re.compile(
    r"^(?P<file>[\w./+-]+)\((?P<line>\d+)\): (?P<kind>catastrophic error|internal error|error)(?: #[\w-]+)?: "
    r"(?P<text>.*)$"
)
_PTXAS_LINE = re.compile(r"^ptxas (?:[\w./+-]+), line (?P<line>\d+); (?P<kind>error|fatal)\s*: (?P<text>.*)$")
_PTXAS = re.compile(r"^ptxas (?P<kind>error|fatal)\s*: (?P<text>.*)$")
_OTHER = re.compile(
    r"^(?:[\w./+-]*(?:ld|collect2|cc1plus|g\+\+[\w.-]*|nvcc|nvlink|cicc|nvrtc)[\w.-]*(?: (?:error|fatal)\s*)?: )"
    r"(?:(?:fatal )?error: |internal compiler error: )?(?P<text>.*\S)$"
)

_KERNEL = re.compile(r"(?:Compiling entry function|Function properties for) '?([\w$.]+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_ENTRY = re.compile(r"Compiling entry function '([\w$.]+)'")

# anchored at the line's beginning: a source that is quoted in a message stands behind blanks or a line number
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_NO_MEMORY = re.compile(
    r"^\S.*(?:virtual memory exhausted|out of memory|annot allocate memory|std::bad_alloc|memory exhausted"
    r"|Killed signal terminated program|died due to signal 9)|^virtual memory exhausted",
    re.MULTILINE,
)
_FILE_LIMIT = re.compile(r"^\S.*(?:File size limit exceeded|File too large)", re.MULTILINE)
_CPU_LIMIT = re.compile(r"^\S.*(?:CPU time limit exceeded|died due to signal 24)", re.MULTILINE)
_BAD_ARCH = re.compile(
    r"^nvcc fatal\s*: (?:Unsupported gpu architecture|Value '[\w.]+' is not defined)"
    r"|^nvrtc: error: invalid value for --gpu-architecture",
    re.MULTILINE,
)
_NO_HOST = re.compile(
    r"^nvcc (?:fatal|error)\s*: (?:Cannot find compiler|Failed to preprocess host compiler)|^sh: .*gcc: not found",
    re.MULTILINE,
)
_NO_CUDA_HEADER = re.compile(
    r'^\S+(?:\(\d+\): catastrophic error: cannot open source file "|:\d+:\d+: fatal error: )'
    r"(cuda_\w+\.h|nv/target|cuda/std/\w+)\b",
    re.MULTILINE,
)


class Located(Record, frozen=True):
    """One error. `line` is 0 where the compiler names none of the source."""

    file: str
    line: int
    message: str

    @property
    def sentence(self) -> str:
        """The error as a reason: `line 12: ...`; the file is named where it is not the source."""
        if not self.line:
            return self.message
        where = f"line {self.line}" if self.file.startswith("candidate.") else f"{self.file}, line {self.line}"
        return f"{where}: {self.message}"


def errors(log: str) -> Iterator[Located]:
    """The errors of a log in their order."""
    for line in log.split("\n"):
        for pattern in (_GNU, _EDG):
            match = pattern.match(line)
            if match:
                yield Located(file=match["file"], line=int(match["line"]), message=match["text"].strip())
                break
        else:
            match = _PTXAS_LINE.match(line) or _PTXAS.match(line)
            if match:
                yield Located(file="", line=0, message=f"ptxas: {match['text'].strip()}")


def reason(log: str) -> str:
    """The first real error as one line; the last line of the log where nothing looks like an error."""
    found = next(errors(log), None)
    if found is not None:
        return found.sentence
    lines = [line.strip() for line in log.split("\n") if line.strip()]
    for line in lines:
        undefined = re.search(r"undefined reference to [`'](.+)'", line)
        if undefined:
            return f"undefined reference to `{undefined[1]}`"
        match = _OTHER.match(line)
        if match:
            return match["text"]
    return lines[-1][:300] if lines else "The compiler failed without a message."


def clean(log: str, folder: str) -> str:
    """A log without the private folder's path and nvcc's scratch names, cut to a size that fits a prompt."""
    text = log.replace(f"{folder}/", "").replace(folder, ".")
    text = re.sub(r"tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_", "", text)
    raw = text.strip().encode()
    if len(raw) <= MAX_LOG_BYTES:
        return text.strip()
    kept = raw[:MAX_LOG_BYTES].decode(errors="ignore")
    return f"{kept}\n[... {len(raw) - MAX_LOG_BYTES} bytes more]"


def resources(log: str) -> dict[str, dict[str, int]]:
    """What `ptxas -v` says, by kernel: registers, spills, static shared memory and stack in bytes."""
    found: dict[str, dict[str, int]] = {}
    entry = current = ""
    for line in log.split("\n"):
        match = _ENTRY.search(line)
        if match:
            entry = current = match[1]
            found[entry] = {}
            continue
        match = _KERNEL.search(line)
        if match:
            current = match[1]  # a function that was not inlined has properties of its own
            continue
        if current != entry or entry not in found:
            continue
        stack = _STACK.search(line)
        if stack:
            frame, stores, loads = (int(text) for text in stack.groups())
            found[entry] |= {
                "spill_bytes": stores + loads, "spill_store_bytes": stores, "spill_load_bytes": loads,
                "stack_bytes": frame,
            }  # fmt: skip
        used = _USED.search(line)
        if used:
            smem = _SMEM.search(line)
            found[entry] |= {"registers": int(used[1]), "smem_bytes": int(smem[1]) if smem else 0}
    return found


def says_disk_full(log: str) -> bool:
    """Whether a message has the words of a full disk; a source can print them too."""
    return _NO_SPACE.search(log) is not None


def exceeded(log: str) -> str:
    """Which limit the compiler says it ran into: `memory`, `file`, `time`, or nothing."""
    for name, pattern in (("memory", _NO_MEMORY), ("file", _FILE_LIMIT), ("time", _CPU_LIMIT)):
        if pattern.search(log):
            return name
    return ""


def environment_fault(log: str, arch: str) -> tuple[str, str] | None:
    """What is wrong with the machine rather than with the source, as sentence and hint."""
    if _BAD_ARCH.search(log):
        return (f"The CUDA compiler does not know the architecture {arch}.", "Install a newer CUDA toolkit or NVRTC.")
    if _NO_HOST.search(log):
        return (
            "nvcc needs a C++ compiler: install g++ (Debian and Ubuntu: apt-get install g++).",
            "Or install NVRTC with `pip install nvidia-cuda-nvrtc`.",
        )
    header = _NO_CUDA_HEADER.search(log)
    if header:
        return (
            f"The CUDA header {header[1]} was not found.",
            "Install the CUDA toolkit, or `pip install nvidia-cuda-runtime nvidia-cuda-cccl`.",
        )
    return None
