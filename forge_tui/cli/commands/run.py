"""`run` and `resume`: start an engine, follow it on the screen or as progress lines, report."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.cli import consent, model_names, output, settings
from forge_tui.cli.commands.sim import check_writers, device_of, locate_landscape
from forge_tui.cli.inbox_news import InboxNews
from forge_tui.cli.prices import of_models, parse_prices
from forge_tui.cli.progress import ProgressLines
from forge_tui.core.errors import ExitCode, ForgeError, UsageError
from forge_tui.core.files import UnreadableError, read_bytes
from forge_tui.core.landscapes import PREFIX
from forge_tui.core.paths import Workspace, workspace_for
from forge_tui.core.records import Language, ModelSpec, RunOptions, SendSource, StartKernel
from forge_tui.core.reports import RunReport
from forge_tui.engine.client import EngineProcess, start_engine
from forge_tui.models.download import fetch
from forge_tui.models.spec import ModelRequest, home_of, hub_model, is_example, parse_model
from forge_tui.proposers.desk import Desk
from forge_tui.report.build import run_report
from forge_tui.store.reader import Reader

POLL_S = 0.2
#: bytes of a kernel
_MOST_SOURCE = 1 << 20
#: threads that may be asked for on any machine; with far more, threads cannot be made, and PyTorch crashes
_MOST_THREADS = 64


def run(
    *, model: str | None, device: str, workspace: str | None, models: list[str], templates: bool, under: str,
    evaluations: int, minutes: float, usd: float | None, gpu_rate: float, worth: float, transfer: bool, targets: int,
    target_names: list[str], start: list[Path], seed: int, threads: int, request: ModelRequest, capture_gb: float,
    api_base: str | None, compile_baseline: bool, pace: float,
    headless: bool, as_json: bool, detach: bool, prices: Sequence[str] = (), allow_remote: bool = False,
    local_only: bool = False, tools: int = 0,
    send_source: SendSource = "callable", given: frozenset[str] | None = None,
) -> int:  # fmt: skip
    """Take a model from slow to faster; returns the exit code.

    What is not among the `given` names of options comes from variables and files where they say; None is all given.
    """
    if under != "eager":
        raise UsageError(f"--under {under} is not supported yet.", "Leave it out, or say --under eager.")
    check_numbers(threads, seed)
    check_address(api_base)
    model_names.check_form(models)
    model, device = device_of(model, device)
    on_sim = device.startswith(PREFIX)
    models = check_writers(models, starts=bool(start), on_sim=on_sim, pace=pace)
    if on_sim or model is None:
        spec, resolved, place = locate_landscape(model, device, request, workspace)
    else:
        spec, resolved, place = locate(model, device, request, workspace)
    typed: dict[str, Any] = {
        "model": models, "api_base": api_base, "price": list(prices), "templates": templates, "usd": usd,
        "minutes": minutes, "evaluations": evaluations, "targets": targets, "gpu_rate": gpu_rate, "worth": worth,
        "transfer": transfer, "threads": threads, "tools": tools, "allow_remote": allow_remote,
        "send_source": send_source,
        "local_only": local_only,
    }  # fmt: skip
    # recorded landscapes have writers of their own
    fixed = {"model"} if on_sim else set()
    chosen = settings.load(place, {key: typed[key] for key in typed if given is None or key in given | fixed})
    say, api_base = chosen.run, chosen.run.api_base
    check_numbers(say.threads, seed)
    model_names.check_form(say.model)
    models = [checked_replay(name, place) for name in check_writers(
        list(dict.fromkeys(say.model)), starts=bool(start), on_sim=on_sim, pace=pace)]  # fmt: skip
    own = chosen.options(models)
    model_names.check([name for name in models if name not in own or not own[name].api_base], api_base, output.note)
    # a price in a file or a variable may be of a model that is not asked this time
    wanted = say.price if chosen.sources["price"] == settings.FLAG else of_models(say.price, models)
    prices_given = parse_prices(wanted, models)
    consent.check(models, api_base, place, allow_remote=say.allow_remote, local_only=say.local_only,
                  ask=on_screen(headless=headless, as_json=as_json), own=own)
    options = RunOptions(
        model=spec, device=resolved, workspace=str(place.root),
        proposers=tuple(dict.fromkeys((*(("templates",) if say.templates else ()), *models))),
        max_evaluations=say.evaluations,
        max_minutes=say.minutes, max_usd=say.usd, gpu_usd_per_hour=say.gpu_rate, usd_per_percent=say.worth,
        transfer=say.transfer, max_targets=say.targets, seed=seed, threads=say.threads, tools=say.tools,
        send_source=say.send_source, model_options=own,
        target_names=tuple(target_names), start=tuple(read_start(p, resolved) for p in start), api_base=api_base,
        compile_baseline=compile_baseline, capture_bytes=gibibytes(capture_gb), pace=pace,
        prices=chosen.prices(models) | prices_given,
        attended=not detach and on_screen(headless=headless, as_json=as_json),
    )  # fmt: skip
    if not options.proposers and not options.start:
        raise UsageError("Nobody is left to write kernels.", "Leave out --no-templates, or name a --model.")
    settings.use_theme(chosen)
    order = {"run": msgspec.to_builtins(options)}
    return _follow(place, order, headless=headless, as_json=as_json, detach=detach)


def resume(
    *, session: str | None, workspace: str | None, evaluations: int | None, minutes: float | None, usd: float | None,
    headless: bool, as_json: bool, detach: bool, prices: Sequence[str] = (), allow_remote: bool = False,
    local_only: bool = False,
) -> int:  # fmt: skip
    """Go on with a session where it was; returns the exit code."""
    place = workspace_for(None, workspace)
    with contextlib.closing(Reader.open(place)) as reader:
        info = reader.latest() if session is None else reader.session(session)
    if info is None:
        raise UsageError(f"There is no session in {place.root}.", "Start one with forge-tui run MODEL.")
    models = [name for name in info.options.proposers if name != "templates"]
    prices_given = parse_prices(prices, models)
    typed = {"allow_remote": allow_remote, "local_only": local_only}
    chosen = settings.load(place, {key: True for key in typed if typed[key]})
    consent.check(models, info.options.api_base, place, allow_remote=chosen.run.allow_remote,
                  local_only=chosen.run.local_only, own=info.options.model_options,
                  ask=on_screen(headless=headless, as_json=as_json))
    settings.use_theme(chosen)
    request: dict[str, Any] = {
        "resume": info.id, "max_evaluations": evaluations, "max_minutes": minutes, "max_usd": usd,
        "prices": prices_given,
    }  # fmt: skip
    if not detach:
        # a screen that starts an engine in the background goes on watching it
        request["attended"] = on_screen(headless=headless, as_json=as_json)
    return _follow(place, request, headless=headless, as_json=as_json, detach=detach)


def locate(
    model: str, device: str, request: ModelRequest, workspace: str | None
) -> tuple[ModelSpec, str, Workspace]:  # fmt: skip
    """The model, the device and the workspace that a command line means; packaged examples are bfloat16 on CUDA.

    A model of the Hugging Face hub is downloaded into its cache, by a process that alone has the token.

    Raises:
        UsageError: there is no such model or device.
        EnvironmentFault: the hub cannot be reached.
    """
    resolved = resolve_device(device)
    hub = hub_model(model)
    downloaded = None
    if hub is not None:
        output.note(f"Looking for {hub.repository} on the Hugging Face hub ...")
        downloaded = fetch(hub, remote_code=request.remote_code)
    spec = parse_model(model, request, downloaded)
    place = workspace_for(home_of(spec), workspace)
    if is_example(spec) and request.dtype is None and resolved.startswith("cuda"):
        spec = msgspec.structs.replace(spec, dtype="bfloat16")
    return spec, resolved, place


def checked_replay(name: str, place: Workspace) -> str:
    """A model's name as it is; recorded replies by the whole path of their file.

    Raises:
        UsageError: there are none.
    """
    from forge_tui.engine import replays
    from forge_tui.proposers.replay import PREFIX as REPLAY

    if not name.startswith(REPLAY):
        return name
    replays.load(name, place)
    path = replays.file_of(name)
    return name if path is None else f"{REPLAY}{path.resolve()}"


def check_numbers(threads: int, seed: int) -> None:
    """Raise UsageError for more threads than any machine makes, or a seed that PyTorch does not take."""
    most = max(_MOST_THREADS, 4 * (os.cpu_count() or 1))
    if threads > most:
        raise UsageError(f"--threads {threads} is more than this machine can use.", f"Give at most {most}.")
    if seed >= 1 << 64:
        raise UsageError(f"--seed {seed} is too large.", "A seed has at most 64 bits.")


def check_address(api_base: str | None) -> None:
    """Raise UsageError for an address with a password or a key in it: addresses are kept in the session."""
    fault = settings.address_fault(api_base) if api_base is not None else ""
    if fault:
        hint = "Give one such as http://localhost:8000/v1." if "address" in fault else \
            "Give the bare address; keys go into the environment or the file of keys."  # fmt: skip
        raise UsageError(f"--api-base {fault}.", hint)


def gibibytes(count: float) -> int:
    """Bytes of so many GiB."""
    return round(count * 2**30)


def resolve_device(text: str) -> str:
    """`auto` becomes `cuda:0` where NVML sees a GPU that this process may use, else `cpu`.

    Raises:
        UsageError: not `auto`, `cpu`, `cuda` or `cuda:N`.
    """
    if text == "auto":
        return "cuda:0" if _gpu_visible() else "cpu"
    if text == "cuda":
        return "cuda:0"
    if text == "cpu" or (text.startswith("cuda:") and text[5:].isdecimal()):
        return text
    if text.startswith(PREFIX):
        raise UsageError(f"{text} is a recorded landscape, which can only be searched.",
                         "Say forge-tui run --device sim:FILE.")  # fmt: skip
    raise UsageError(f"There is no device {text!r}.", "Devices are auto, cpu, cuda and cuda:N.")


def _gpu_visible() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "none"):
        return False
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return False
    return bool(count)


def read_start(path: Path, device: str) -> StartKernel:
    """A person's own kernel, `FILE` or `TARGET=FILE`.

    Raises:
        UsageError: the file cannot be read, or is not of the device's language.
    """
    target, _, name = str(path).rpartition("=")
    file = Path(name)
    language: Language = "cuda" if device.startswith("cuda") else "cpp"
    if file.suffix not in ((".cu",) if language == "cuda" else (".cpp", ".cc", ".cxx")):
        raise UsageError(f"{file} is not a kernel for {device}.", "CUDA kernels end in .cu, CPU kernels in .cpp.")
    try:
        source = read_bytes(file, _MOST_SOURCE).decode()
    except UnreadableError as error:
        raise UsageError(f"{file} {error}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text.") from error
    return StartKernel(source=source, language=language, target=target or None, path=file.name)


def _follow(place: Workspace, request: dict[str, Any], *, headless: bool, as_json: bool, detach: bool) -> int:
    engine = start_engine(place, request)
    if detach:
        if as_json:
            output.document({"session": engine.session, "log": str(engine.log)})
        else:
            output.note(f"Session {engine.session} runs in the background; forge-tui shows it.")
        return int(ExitCode.OK)
    if not on_screen(headless=headless, as_json=as_json):
        return _follow_lines(place, engine, as_json=as_json)
    from forge_tui.tui.app import run_screen

    code = run_screen(place, engine.session)
    if engine.running:
        output.note(f"The search goes on in the background; forge-tui shows it, session {engine.session}.")
        return code
    report = _report(place, engine.session)
    output.text(_render(report))
    return code or _exit_code(report)


def on_screen(*, headless: bool, as_json: bool) -> bool:
    """Whether a person is at a terminal, to be shown the screen or asked."""
    return not (headless or as_json) and sys.stdout.isatty() and sys.stdin.isatty()


def _follow_lines(place: Workspace, engine: EngineProcess, *, as_json: bool) -> int:
    with contextlib.closing(Reader.open(place)) as reader:
        lines = ProgressLines(reader, engine.session, output.note)
        news = InboxNews(Desk(place.root), engine.session, output.note, _workspace_flag(place))
        try:
            for _ in _until_ended(engine):
                lines.poll()
                news.poll()
            lines.poll()
            engine.raise_for_end()
        except KeyboardInterrupt:
            output.note("Interrupted; ending the search so that it can go on later ...")
            with contextlib.suppress(KeyboardInterrupt):
                engine.stop()
            raise ForgeError(
                f"Interrupted. Everything evaluated so far is kept in session {engine.session}.",
                f"Go on with: forge-tui resume {engine.session}{_workspace_flag(place)}",
                exit_code=ExitCode.INTERRUPTED,
            ) from None  # fmt: skip
        report = run_report(reader, engine.session)
    if as_json:
        output.document(msgspec.to_builtins(report))
    else:
        output.text(_render(report))
    if report.state == "interrupted":
        output.note(f"Interrupted. Go on with: forge-tui resume {engine.session}{_workspace_flag(place)}")
        return int(ExitCode.INTERRUPTED)
    return _exit_code(report)


def _until_ended(engine: EngineProcess) -> Iterator[None]:
    while engine.running:
        yield
        time.sleep(POLL_S)


def _report(place: Workspace, session: str) -> RunReport:
    with contextlib.closing(Reader.open(place)) as reader:
        return run_report(reader, session)


def _render(report: RunReport) -> str:
    from forge_tui.report import text

    return text.render(report)


def _exit_code(report: RunReport) -> int:
    gained = any(target.deployed for target in report.targets)
    return int(ExitCode.OK if gained else ExitCode.NO_GAIN)


def _workspace_flag(place: Workspace) -> str:
    return "" if place.root == workspace_for(None, None).root else f" --workspace {place.root}"
