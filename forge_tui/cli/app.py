"""What can be typed: commands and options. Nothing heavy is imported before a command is called."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forge_tui import __version__
from forge_tui.cli import asking
from forge_tui.core.errors import ExitCode, UsageError

#: a command that is ready to be made; it returns the exit code
Call = Callable[[], int]

app = typer.Typer(
    name="forge-tui", rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Makes a PyTorch model faster on the device it runs on: searches, verifies and deploys kernels. "
         "Without a command it opens the screen.",
)  # fmt: skip


def parse(arguments: list[str]) -> Call | int:
    """The command that was typed, or the exit code where there is nothing left to do (`--help`).

    Raises:
        UsageError: it is not a command of ours.
    """
    try:
        result = typer.main.get_command(app).main(list(arguments), prog_name="forge-tui", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if not isinstance(error, _click_exception()):
            raise
        message = " ".join(str(error.format_message()).split())  # type: ignore[attr-defined]
        raise UsageError(message if message.endswith((".", "?")) else f"{message}.", _help_hint(error)) from None
    if callable(result):
        call: Call = result
        return call
    if result == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else int(ExitCode.OK)


def _click_exception() -> type[Exception]:
    # newer releases of typer bring their own copy of click
    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _help_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"See {context.command_path if context else 'forge-tui'} --help."


def _number(value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise typer.BadParameter("it must be a number")
    return value


def _typed(context: typer.Context) -> frozenset[str]:
    """Names of the options on the command line; the model to make faster is no option."""
    named = {name for name in context.params
             if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}  # fmt: skip
    return frozenset("model" if name == "models" else name for name in named - {"model"})


class SourceSent(StrEnum):
    """How much of the model's Python source is shown to LLMs."""

    CALLABLE = "callable"
    MODULE = "module"


class ProfileSort(StrEnum):
    """What a profile's callables are ordered by."""

    TOTAL = "total"
    SELF = "self"
    HEADROOM = "headroom"
    CALLS = "calls"
    HOST = "host"


Model = Annotated[str, typer.Argument(metavar="MODEL", help="file.py, file.py:factory, example:NAME, hf:FOLDER or "
                                      "hf:org/name")]  # fmt: skip
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
RunDevice = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N, or sim:FILE, a recorded landscape")]
Workspace = Annotated[str | None, typer.Option(metavar="DIR", help="Folder of sessions; by default .forge/ beside the "
                                               "model file, else here")]  # fmt: skip
Threads = Annotated[int, typer.Option(min=0, help="CPU threads for PyTorch and kernels; 0 is all")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of inputs and search")]
Dtype = Annotated[str | None, typer.Option(help="Move the model and its inputs to this floating dtype")]
Inputs = Annotated[str | None, typer.Option(
    metavar="FILE", help="Inputs from a .safetensors or .pt file, one set or several")]  # fmt: skip
Vary = Annotated[str | None, typer.Option(
    metavar="FILE.py:NAME", help="Inputs from a function that yields one set after another")]  # fmt: skip
Phases = Annotated[list[str] | None, typer.Option(
    "--phase", metavar="NAME=WEIGHT", help="Calls of a phase that count as one of the model; may be repeated")]
Dynamic = Annotated[list[str] | None, typer.Option(
    "--dynamic", metavar="NAME", help="A dimension that varies at run time; may be repeated")]  # fmt: skip
Batch = Annotated[int | None, typer.Option(min=1, help="Of an hf: model, samples in a batch; by default 1")]
Length = Annotated[int | None, typer.Option(min=1, help="Of an hf: model, tokens of a text; by default 1024")]
Layers = Annotated[int | None, typer.Option(min=1, help="Of an hf: model, most layers of each stack")]
Attention = Annotated[str | None, typer.Option(help="Of an hf: model, eager or sdpa")]
RemoteCode = Annotated[bool, typer.Option(
    "--trust-remote-code", help="Of an hf: model, let Python files beside its configuration run")]  # fmt: skip
CaptureGb = Annotated[float, typer.Option(
    "--capture-gb", min=0, max=2**20, callback=_number, metavar="GIB",
    help="Most captured inputs of all targets together, in GiB")]  # fmt: skip
Price = Annotated[list[str] | None, typer.Option(
    "--price", metavar="[MODEL=]IN,OUT[,CACHED[,WRITES]]",
    help="What a model costs, in dollars per million tokens; may be repeated")]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, all else on stderr")]
Headless = Annotated[bool, typer.Option("--headless", help="Progress lines instead of the screen")]
Detach = Annotated[bool, typer.Option("--detach", help="Leave the search in the background")]
AllowRemote = Annotated[bool, typer.Option(
    "--allow-remote", help="Agree to what LLMs on other machines are sent, without being asked")]
LocalOnly = Annotated[bool, typer.Option("--local-only", help="Refuse LLMs on other machines")]


def _version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"forge-tui {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def screen(
    context: typer.Context,
    workspace: Workspace = None,
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Show the version",
                                          callback=lambda value: _version(asked=value))] = False,
) -> Call | None:  # fmt: skip
    """Makes a PyTorch model faster on the device it runs on: searches, verifies and deploys kernels.

    Without a command it opens the screen.
    """
    del version
    if context.invoked_subcommand is not None:
        if workspace is not None:
            raise typer.BadParameter("--workspace goes behind the command")
        return None
    usage = context.get_help()

    def call() -> int:
        from forge_tui.cli.commands import screen as command

        return command.screen(workspace=workspace, usage=usage)

    return call


@app.command()
def run(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(
        metavar="MODEL", help="file.py, file.py:factory, example:NAME, hf:FOLDER or hf:org/name; none with "
        "--device sim:FILE")] = None,
    device: RunDevice = "auto",
    workspace: Workspace = None,
    models: Annotated[list[str] | None, typer.Option(
        "--model", metavar="NAME", help="An LLM that writes kernels, by its LiteLLM name; inbox is you, "
        "replay:SESSION recorded replies; may be repeated")] = None,
    price: Price = None,
    templates: Annotated[bool, typer.Option(help="Let the built-in templates write kernels")] = True,
    under: Annotated[str, typer.Option(help="How the model will run: eager")] = "eager",
    evaluations: Annotated[int, typer.Option(min=1, help="Most candidates to evaluate")] = 60,
    minutes: Annotated[float, typer.Option(
        min=0, callback=_number, help="Most minutes of search, without profiling and waiting for a person")] = 60.0,
    usd: Annotated[float | None, typer.Option(
        min=0, callback=_number, help="Most dollars to spend on LLMs and, with --gpu-rate, on the machine")] = None,
    gpu_rate: Annotated[float, typer.Option(
        min=0, callback=_number, metavar="USD", help="What an hour of this machine costs, in dollars")] = 0.0,
    worth: Annotated[float, typer.Option(
        min=0.01, callback=_number, metavar="USD",
        help="What 1% of the model's time is worth: the search ends where the next dollar buys less")] = 5.0,
    transfer: Annotated[bool, typer.Option(
        help="Try kernels of earlier sessions here, and of the same callable at other sizes")] = True,
    targets: Annotated[int, typer.Option(min=1, help="Most targets to search")] = 12,
    target: Annotated[list[str] | None, typer.Option(
        "--target", metavar="NAME", help="Search only this target; may be repeated")] = None,
    start: Annotated[list[Path] | None, typer.Option(
        "--start", metavar="[TARGET=]FILE", help="Your own kernel to begin with; may be repeated")] = None,
    seed: Seed = 0,
    threads: Threads = 0,
    dtype: Dtype = None,
    inputs: Inputs = None,
    vary: Vary = None,
    phase: Phases = None,
    dynamic: Dynamic = None,
    batch: Batch = None,
    length: Length = None,
    layers: Layers = None,
    attention: Attention = None,
    trust_remote_code: RemoteCode = False,
    capture_gb: CaptureGb = 2.0,
    api_base: Annotated[str | None, typer.Option(metavar="URL", help="Endpoint of the LLMs")] = None,
    tools: Annotated[int, typer.Option(
        min=0, metavar="N", help="Let models compile, check and time kernels up to N times before they answer")] = 0,
    send_source: Annotated[SourceSent, typer.Option(
        help="What LLMs read of the Python source: the callable to replace, or its file too")] = SourceSent.CALLABLE,
    compile_baseline: Annotated[bool, typer.Option(help="Measure torch.compile beside eager")] = True,
    pace: Annotated[float, typer.Option(
        min=0, callback=_number, help="On sim:FILE, seconds that a recorded second takes; 0 does not wait")] = 0.0,
    allow_remote: AllowRemote = False,
    local_only: LocalOnly = False,
    headless: Headless = False,
    detach: Detach = False,
    as_json: Json = False,
) -> Call:  # fmt: skip
    """Take a model from slow to faster: profile, search, verify, time, deploy, report."""

    def call() -> int:
        from forge_tui.cli.commands import run as command
        from forge_tui.models.spec import ModelRequest

        given = _typed(context)
        request = ModelRequest(
            dtype=dtype, inputs=inputs, vary=vary, phases=tuple(phase or ()), dynamic=tuple(dynamic or ()),
            batch=batch, length=length, layers=layers, attention=attention, remote_code=trust_remote_code,
        )  # fmt: skip
        return command.run(
            model=model, device=device, workspace=workspace, models=models or [], templates=templates, under=under,
            evaluations=evaluations, minutes=minutes, usd=usd, gpu_rate=gpu_rate, worth=worth,
            transfer=transfer, targets=targets, target_names=target or [], start=start or [], seed=seed,
            threads=threads, request=request, capture_gb=capture_gb, api_base=api_base,
            compile_baseline=compile_baseline, pace=pace, headless=headless, as_json=as_json,
            detach=detach, prices=price or [], allow_remote=allow_remote, local_only=local_only,
            tools=tools, send_source=send_source.value, given=given,
        )  # fmt: skip

    return call


@app.command()
def resume(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="By default the last one")] = None,
    workspace: Workspace = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Another limit of candidates")] = None,
    minutes: Annotated[float | None, typer.Option(
        min=0, callback=_number, help="Another limit of minutes of search, earlier ones included")] = None,
    usd: Annotated[float | None, typer.Option(min=0, callback=_number, help="Another limit of dollars")] = None,
    price: Price = None,
    allow_remote: AllowRemote = False,
    local_only: LocalOnly = False,
    headless: Headless = False,
    detach: Detach = False,
    as_json: Json = False,
) -> Call:
    """Go on with a session where it was."""

    def call() -> int:
        from forge_tui.cli.commands import run as command

        return command.resume(session=session, workspace=workspace, evaluations=evaluations, minutes=minutes, usd=usd,
                              prices=price or [], headless=headless, as_json=as_json, detach=detach,
                              allow_remote=allow_remote, local_only=local_only)  # fmt: skip

    return call


@app.command()
def check(
    model: Model,
    kernel: Annotated[Path | None, typer.Argument(metavar="[KERNEL]", help="A .cu file; on the CPU .cpp")] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="By default the one with most headroom")] = None,
    device: Device = "auto",
    workspace: Workspace = None,
    threads: Threads = 0,
    seed: Seed = 0,
    dtype: Dtype = None,
    inputs: Inputs = None,
    vary: Vary = None,
    phase: Phases = None,
    dynamic: Dynamic = None,
    batch: Batch = None,
    length: Length = None,
    layers: Layers = None,
    attention: Attention = None,
    trust_remote_code: RemoteCode = False,
    capture_gb: CaptureGb = 2.0,
    tune: Annotated[list[str] | None, typer.Option(
        "--tune", metavar="NAME=INTEGER", help="Value of a //@tune macro; may be repeated")] = None,
    print_header: Annotated[bool, typer.Option(
        "--print-header", help="Print forge_target.h and an empty kernel to start from")] = False,
    confirm: Annotated[bool, typer.Option(
        help="Confirm a faster kernel in fresh processes and under a sanitizer, as a winner")] = True,
    ncu: Annotated[bool, typer.Option("--ncu", help="Read a right CUDA kernel's hardware counters")] = False,
    as_json: Json = False,
) -> Call:  # fmt: skip
    """Evaluate one kernel file on one target as the search would."""

    def call() -> int:
        from forge_tui.cli.commands import check as command
        from forge_tui.models.spec import ModelRequest

        request = ModelRequest(
            dtype=dtype, inputs=inputs, vary=vary, phases=tuple(phase or ()), dynamic=tuple(dynamic or ()),
            batch=batch, length=length, layers=layers, attention=attention, remote_code=trust_remote_code,
        )  # fmt: skip
        return command.check(
            model=model, kernel=kernel, target=target, device=device, workspace=workspace, threads=threads, seed=seed,
            request=request, capture_gb=capture_gb, tune=tune or [], print_header=print_header, as_json=as_json,
            confirm=confirm, ncu=ncu,
        )  # fmt: skip

    return call


@app.command()
def profile(
    model: Model,
    device: Device = "auto",
    workspace: Workspace = None,
    threads: Threads = 0,
    seed: Seed = 0,
    dtype: Dtype = None,
    inputs: Inputs = None,
    vary: Vary = None,
    phase: Phases = None,
    dynamic: Dynamic = None,
    batch: Batch = None,
    length: Length = None,
    layers: Layers = None,
    attention: Attention = None,
    trust_remote_code: RemoteCode = False,
    capture_gb: CaptureGb = 2.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, whatever is saved")] = False,
    baselines: Annotated[bool, typer.Option(
        "--baselines", help="Time model and targets under torch.compile, CUDA graphs and standard settings")] = False,
    what_if: Annotated[bool, typer.Option(
        "--what-if", help="Time the model with its top targets at their floor: what each could give at most")] = False,
    top: Annotated[int, typer.Option(min=1, help="Targets that --baselines and --what-if measure")] = 5,
    tf32: Annotated[bool, typer.Option("--tf32", help="Let baselines use TF32 for float32 matrices")] = False,
    as_table: Annotated[bool, typer.Option("--table", help="Tables for people; the default")] = False,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="One row a callable, RFC 4180")] = False,
    trace: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Write a trace for Perfetto or chrome://tracing as well")] = None,
    sort: Annotated[ProfileSort | None, typer.Option(help="What puts a callable first; by default total")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Most rows of each table; 0 is no limit")] = 0,
    everything: Annotated[bool, typer.Option("--all", help="Small callables too")] = False,
) -> Call:  # fmt: skip
    """Show where a model spends its time, and which targets a kernel could replace.

    A saved profile is used again while model, inputs, device and versions are the same.
    """
    if as_table + as_json + as_csv > 1:
        raise typer.BadParameter("--table, --json and --csv exclude each other")

    def call() -> int:
        from forge_tui.cli.commands import profile as command
        from forge_tui.cli.profile_view import Choice
        from forge_tui.models.spec import ModelRequest

        request = ModelRequest(
            dtype=dtype, inputs=inputs, vary=vary, phases=tuple(phase or ()), dynamic=tuple(dynamic or ()),
            batch=batch, length=length, layers=layers, attention=attention, remote_code=trust_remote_code,
        )  # fmt: skip
        choice = Choice(sort=(sort or ProfileSort.TOTAL).value, limit=limit, everything=everything)
        return command.profile(
            model=model, device=device, workspace=workspace, threads=threads, seed=seed, request=request,
            capture_gb=capture_gb,
            measured=command.Measured(fresh=fresh, baselines=baselines, what_if=what_if, top=top, allow_tf32=tf32),
            shown=command.Shown(form="json" if as_json else "csv" if as_csv else "table", choice=choice,
                                ranked=sort is not None, trace=trace),
        )  # fmt: skip

    return call


@app.command()
def record(
    model: Model,
    output_file: Annotated[Path, typer.Option("--output", metavar="FILE", help="The landscape; what is there is gone "
                                              "on with")],
    target: Annotated[list[str] | None, typer.Option(
        "--target", metavar="NAME", help="Record this target; may be repeated")] = None,
    device: Device = "auto",
    workspace: Workspace = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most new points")] = None,
    minutes: Annotated[float, typer.Option(min=0, callback=_number, help="Most minutes")] = 1e6,
    threads: Threads = 0,
    seed: Seed = 0,
    dtype: Dtype = None,
    inputs: Inputs = None,
    vary: Vary = None,
    phase: Phases = None,
    dynamic: Dynamic = None,
    batch: Batch = None,
    length: Length = None,
    layers: Layers = None,
    attention: Attention = None,
    trust_remote_code: RemoteCode = False,
    capture_gb: CaptureGb = 2.0,
    as_json: Json = False,
) -> Call:  # fmt: skip
    """Record a landscape for `run --device sim:FILE`: every kernel that the templates write, verified and timed.

    Without --target it is the target with most headroom that a template fits.
    """

    def call() -> int:
        from forge_tui.cli.commands import record as command
        from forge_tui.models.spec import ModelRequest

        request = ModelRequest(
            dtype=dtype, inputs=inputs, vary=vary, phases=tuple(phase or ()), dynamic=tuple(dynamic or ()),
            batch=batch, length=length, layers=layers, attention=attention, remote_code=trust_remote_code,
        )  # fmt: skip
        return command.record(
            model=model, output_file=output_file, targets=target or [], device=device, workspace=workspace, limit=limit,
            minutes=minutes, threads=threads, seed=seed, request=request, capture_gb=capture_gb, as_json=as_json,
        )  # fmt: skip

    return call


@app.command()
def sessions(workspace: Workspace = None, as_json: Json = False) -> Call:
    """List the sessions of a workspace."""

    def call() -> int:
        from forge_tui.cli.commands import sessions as command

        return command.sessions(workspace=workspace, as_json=as_json)

    return call


@app.command()
def report(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="By default the last one")] = None,
    workspace: Workspace = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown document")] = False,
    as_json: Json = False,
) -> Call:
    """Show what a session came to."""
    if markdown and as_json:
        raise typer.BadParameter("--json and --markdown exclude each other")

    def call() -> int:
        from forge_tui.cli.commands import report as command

        return command.report(session=session, workspace=workspace, markdown=markdown, as_json=as_json)

    return call


@app.command()
def cost(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="By default the last one")] = None,
    workspace: Workspace = None,
    as_json: Json = False,
) -> Call:
    """Show what a session's model calls cost: by model, by target, by purpose."""

    def call() -> int:
        from forge_tui.cli.commands import cost as command

        return command.cost(session=session, workspace=workspace, as_json=as_json)

    return call


@app.command()
def config(workspace: Workspace = None, as_json: Json = False) -> Call:
    """Show what holds for run here, and whether a variable, a file or nobody said so."""

    def call() -> int:
        from forge_tui.cli.commands import config as command

        return command.config(workspace=workspace, as_json=as_json)

    return call


@app.command()
def consent(
    workspace: Workspace = None,
    withdraw: Annotated[list[str] | None, typer.Option(
        "--withdraw", metavar="HOST", help="Send nothing there any more unasked; may be repeated")] = None,
    as_json: Json = False,
) -> Call:  # fmt: skip
    """Show to which hosts of LLMs the workspace's source may be sent, and take that back."""

    def call() -> int:
        from forge_tui.cli.commands import consent as command

        return command.consent(workspace=workspace, withdraw=withdraw or [], as_json=as_json)

    return call


@app.command()
def models(
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Words that names have in them")] = "",
    provider: Annotated[str, typer.Option(metavar="NAME", help="Only models of this provider")] = "",
    live: Annotated[bool, typer.Option(
        "--live", help="Ask the provider, or your servers, for their lists instead of LiteLLM's table")] = False,
    api_base: Annotated[str | None, typer.Option(metavar="URL", help="With --live, the server to ask")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Retired models too")] = False,
    limit: Annotated[int | None, typer.Option(
        min=0, help="Most rows of the table; 0 is no limit; by default 40 on a terminal")] = None,
    workspace: Workspace = None,
    allow_remote: AllowRemote = False,
    local_only: LocalOnly = False,
    as_json: Json = False,
) -> Call:  # fmt: skip
    """List models to choose from, with price, size, what they take, and whether a key is here."""

    def call() -> int:
        from forge_tui.cli.commands import models as command

        return command.models(text=text, provider=provider, live=live, api_base=api_base, everything=everything,
                              limit=limit, workspace=workspace, allow_remote=allow_remote, local_only=local_only,
                              as_json=as_json)  # fmt: skip

    return call


@app.command()
def doctor(
    workspace: Workspace = None,
    llm: Annotated[bool, typer.Option("--llm", help="Ask the LLMs a sentence each instead of looking at the machine; "
                                      "costs a little")] = False,
    models: Annotated[list[str] | None, typer.Option(
        "--model", metavar="NAME", help="With --llm, a model to ask; may be repeated; by default those of "
        "the settings")] = None,
    api_base: Annotated[str | None, typer.Option(metavar="URL", help="With --llm, endpoint of the LLMs")] = None,
    caching: Annotated[bool, typer.Option("--caching", help="With --llm, try the provider's cache with two long "
                                          "prompts; says first what that costs")] = False,
    tools: Annotated[bool, typer.Option(help="With --llm, try a tool call")] = True,
    allow_remote: AllowRemote = False,
    local_only: LocalOnly = False,
    as_json: Json = False,
) -> Call:  # fmt: skip
    """Say whether this machine can do the job, and what is missing; with --llm, whether the models answer."""
    if not llm and (models or api_base or caching or not tools or allow_remote or local_only):
        raise typer.BadParameter("options about LLMs go with --llm")

    def call() -> int:
        if llm:
            from forge_tui.cli.commands import doctor_llm

            return doctor_llm.doctor(models=models or [], api_base=api_base, workspace=workspace, caching=caching,
                                     tools=tools, allow_remote=allow_remote, local_only=local_only, as_json=as_json)
        from forge_tui.cli.commands import doctor as command

        return command.doctor(workspace=workspace, as_json=as_json)

    return call


app.add_typer(asking.inbox, name="inbox")
app.command()(asking.prompt)
app.command()(asking.replies)
