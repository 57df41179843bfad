"""`freetoken launch`."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.base.config import check_device
from engine.base.errors import NotFoundError
from freetoken_cli import options
from freetoken_cli.agents import AGENTS, NO_KEY, Server
from freetoken_cli.helppage import did_you_mean
from freetoken_cli.options import ApiKey, Context, Device, Experts, Json, Kv, NoColor, Threads, Yes
from freetoken_cli.output import Output

_NAMES = [agent.name for agent in AGENTS]
_DRY_ADDRESS = "http://127.0.0.1:8642"

EXAMPLES = (
    ("freetoken launch claude glm-5.2", "Claude Code, with a model of yours"),
    ("freetoken launch codex glm-5.2 -- exec 'Fix the tests'", "with arguments for the agent"),
    ("freetoken launch opencode demo --dry-run", "what it would be started with"),
)

AgentName = Annotated[
    str,
    typer.Argument(metavar="AGENT", help=f"One of {', '.join(_NAMES)}.", autocompletion=lambda: _NAMES),
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGUMENT...]", help="For the agent itself.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")]
Quiet = Annotated[bool, options.quiet("Print nothing but what the agent prints.")]


def command(
    agent: AgentName,
    model: options.Model,
    arguments: Arguments = None,
    dry_run: DryRun = False,
    context: Context = None,
    kv: Kv = None,
    experts: Experts = None,
    device: Device = None,
    threads: Threads = None,
    api_key: ApiKey = None,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Start an agent that asks a model of yours.

    The agent is told by its environment and its arguments; none of its files are changed. Keys of accounts elsewhere
    are taken out of its environment. A server that is started for it is for this machine alone, and leaves with it.
    """
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    paths = options.paths()
    found = next((each for each in AGENTS if each.name == agent), None)
    if found is None:
        raise NotFoundError(
            f"There is no agent {agent!r}.{did_you_mean(agent, _NAMES)}", f"There are {', '.join(_NAMES)}."
        )
    flags = {"context": context, "kv": kv, "experts": experts, "device": device, "threads": threads}
    config = options.settings(paths, **flags, api_key=api_key)
    check_device(config.device)
    if dry_run:
        from freetoken_cli.launching import dry_run as show
        from freetoken_cli.launching import served_at

        server = Server(served_at(paths) or _DRY_ADDRESS, model, config.api_key or NO_KEY, config.context or 0)
        show(found, server, arguments or (), output)
        return
    from freetoken_cli.launching import launch
    from freetoken_cli.models import ensure_model

    name = ensure_model(paths, model, output, yes)
    raise typer.Exit(launch(paths, found, name, config, arguments or (), output))
