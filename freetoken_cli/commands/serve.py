"""`freetoken serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.base.config import check_device
from engine.base.errors import UsageError
from freetoken_cli import options
from freetoken_cli.options import (
    AllowedHosts,
    AllowedOrigins,
    ApiKey,
    Context,
    Device,
    Experts,
    Host,
    Json,
    KeepAlive,
    Kv,
    NoColor,
    Port,
    Threads,
    Yes,
)
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken serve demo", "http://127.0.0.1:8642/v1, for this machine alone"),
    ("freetoken serve demo --port 9000 --kv 64k", "room for several long conversations"),
    ("FREETOKEN_API_KEY=secret freetoken serve demo --host 0.0.0.0", "for others too, who need the key"),
)

ServedModels = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL...",
        help="Models to load now; others load when asked for.",
        show_default=False,
        autocompletion=options.complete_model,
    ),
]

Quiet = Annotated[bool, options.quiet("Print the address alone.")]


def command(
    models: ServedModels = None,
    host: Host = None,
    port: Port = None,
    api_key: ApiKey = None,
    allowed_hosts: AllowedHosts = None,
    allowed_origins: AllowedOrigins = None,
    context: Context = None,
    kv: Kv = None,
    experts: Experts = None,
    device: Device = None,
    threads: Threads = None,
    keep_alive: KeepAlive = None,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Serve models over HTTP, with OpenAI's, Anthropic's and ollama's APIs, until it is stopped.

    Prints the address and a request to try when everything is loaded. Models named here stay loaded unless
    --keep-alive says otherwise.
    """
    from engine.front.config import is_loopback
    from freetoken_cli.models import ensure_model
    from freetoken_cli.serving import serve

    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    paths = options.paths()
    config = options.settings(
        paths,
        host=host,
        port=port,
        api_key=api_key,
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
        context=context,
        kv=kv,
        experts=experts,
        device=device,
        threads=threads,
        keep_alive=keep_alive,
    )
    check_device(config.device)
    if not is_loopback(config.host):
        if config.api_key is None:
            raise UsageError(
                f"--host {config.host} lets other machines in, and there is no key to keep strangers out.",
                "Set one: FREETOKEN_API_KEY=secret (or --api-key), or listen on 127.0.0.1.",
            )
        output.warn(f"other machines can reach {config.host}; whoever has the key can use it, in clear text.")
    names = [ensure_model(paths, model, output, yes) for model in dict.fromkeys(models or ())]
    serve(paths, names, config, output)
