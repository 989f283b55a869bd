"""The commands about what models are asked: `inbox`, `prompt`, `replies`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

Workspace = Annotated[str | None, typer.Option(metavar="DIR", help="Folder of sessions; by default .forge/ here")]
Session = Annotated[str | None, typer.Argument(metavar="[SESSION]", help="By default the last one")]
Number = Annotated[int, typer.Argument(metavar="NUMBER", help="As forge-tui inbox lists it")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, all else on stderr")]

inbox = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=False,
                    help="Prompts that wait for your reply (run --model inbox).")  # fmt: skip


@inbox.callback(invoke_without_command=True)
def listed(
    context: typer.Context,
    workspace: Workspace = None,
    everything: Annotated[bool, typer.Option("--all", help="Answered ones too")] = False,
    as_json: Json = False,
) -> Callable[[], int] | None:
    """Prompts that wait for your reply (run --model inbox). Without a command it lists them."""
    if context.invoked_subcommand is not None:
        if workspace is not None or everything or as_json:
            raise typer.BadParameter("options go behind the command")
        return None

    def call() -> int:
        from forge_tui.cli.commands import inbox as command

        return command.listed(workspace=workspace, everything=everything, as_json=as_json)

    return call


@inbox.command()
def show(
    number: Number,
    workspace: Workspace = None,
    to_clipboard: Annotated[bool, typer.Option("--copy", help="As inbox copy does")] = False,
) -> Callable[[], int]:
    """Print a prompt, to be given to a model."""

    def call() -> int:
        from forge_tui.cli.commands import inbox as command

        return command.show(number=number, workspace=workspace, copy=to_clipboard)

    return call


@inbox.command()
def copy(number: Number, workspace: Workspace = None) -> Callable[[], int]:
    """Put a prompt into the clipboard: through tmux where it runs, else by OSC 52, which passes through SSH."""

    def call() -> int:
        from forge_tui.cli.commands import inbox as command

        return command.show(number=number, workspace=workspace, copy=True)

    return call


@inbox.command()
def reply(
    number: Number,
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="The model's reply; - is stdin, none is "
                                               "$EDITOR")] = None,
    workspace: Workspace = None,
    force: Annotated[bool, typer.Option("--force", help="Hand it in even if it holds no kernel")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="In place of one that no search has read yet")] = False,
) -> Callable[[], int]:  # fmt: skip
    """Hand in a reply; the search goes on with it."""

    def call() -> int:
        from forge_tui.cli.commands import inbox as command

        return command.reply(number=number, file=file, workspace=workspace, force=force, replace=replace)

    return call


def prompt(
    session: Session = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="By default the one with most headroom")] = None,
    edge: Annotated[str | None, typer.Option(metavar="EDGE", help="draft, improve, repair, rewrite or merge")] = None,
    node: Annotated[int | None, typer.Option(metavar="NUMBER", help="The kernel to improve or repair")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the named move of an improvement")] = 0,
    workspace: Workspace = None,
    count: Annotated[bool, typer.Option("--count", help="Count its tokens for the session's models; Anthropic's are "
                                        "asked, for free")] = False,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="With --count, agree to that")] = False,
    local_only: Annotated[bool, typer.Option("--local-only", help="With --count, ask nobody elsewhere")] = False,
    as_json: Json = False,
) -> Callable[[], int]:  # fmt: skip
    """Print the exact prompt that a model would get about a target of a session."""

    def call() -> int:
        from forge_tui.cli.commands import prompt as command

        return command.prompt(session=session, target=target, edge=edge, node=node, seed=seed, workspace=workspace,
                              exact=count, allow_remote=allow_remote, local_only=local_only,
                              as_json=as_json)  # fmt: skip

    return call


def replies(
    session: Session = None,
    output_file: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="By default stdout")] = None,
    workspace: Workspace = None,
) -> Callable[[], int]:
    """Write the recorded replies of a session, for run --model replay:FILE."""

    def call() -> int:
        from forge_tui.cli.commands import prompt as command

        return command.replies(session=session, file=output_file, workspace=workspace)

    return call
