"""`freetoken run`."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from engine.base.config import check_device
from engine.base.errors import UsageError
from freetoken_cli import options
from freetoken_cli.chat import Sampling
from freetoken_cli.conversation import Conversation
from freetoken_cli.model_chat import ModelChat
from freetoken_cli.models import ensure_model
from freetoken_cli.options import (
    Context,
    Device,
    Experts,
    Greedy,
    KeepAlive,
    Kv,
    MaxTokens,
    MinP,
    Model,
    NoColor,
    Seed,
    Temperature,
    ThinkingBudget,
    Threads,
    TopK,
    TopP,
    Verbose,
    Yes,
)
from freetoken_cli.output import Output
from freetoken_cli.prompt import as_text, read_prompt
from freetoken_cli.repl import TerminalReader, ask, run_repl
from freetoken_cli.sessions import SavedSession, names_in
from freetoken_cli.slash import Session

EXAMPLES = (
    ("freetoken run demo", "a conversation; /? lists its commands, Ctrl-D leaves"),
    ('freetoken run demo "Name three rivers."', "one answer"),
    ('git diff | freetoken run demo "Explain this."', "stdin goes before the prompt"),
    ("freetoken run demo - < question.txt", "stdin is the prompt"),
    ("freetoken run demo --session rivers", "goes on where the last one of that name ended"),
    ("freetoken run demo --estimate --context 32k", "what it takes and whether it fits, without loading"),
)

Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="What to ask; - reads stdin. Without one: a REPL.", show_default=False),
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.", show_default=False)]
SessionName = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="NAME",
        help="Go on with the session NAME, or begin it, and save it at the end.",
        show_default=False,
        autocompletion=options.complete_from(lambda: names_in(options.paths().sessions)),
    ),
]
Estimate = Annotated[bool, typer.Option("--estimate", help="State bytes, memory, speed and fit; load nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")]

Quiet = Annotated[bool, options.quiet("Print the answer alone.")]


def command(
    model: Model,
    prompt: Prompt = None,
    system: System = None,
    session: SessionName = None,
    greedy: Greedy = False,
    seed: Seed = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    max_tokens: MaxTokens = None,
    thinking_budget: ThinkingBudget = None,
    context: Context = None,
    kv: Kv = None,
    experts: Experts = None,
    device: Device = None,
    threads: Threads = None,
    keep_alive: KeepAlive = None,
    estimate: Estimate = False,
    json: Json = False,
    verbose: Verbose = False,
    yes: Yes = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Talk to a model on a terminal, or answer one prompt and leave.

    MODEL is a name of the store; one of the catalogue, or owner/name of the Hugging Face Hub, is pulled if it is not
    there.

    The answer goes to stdout as it is made; everything else goes to stderr.
    """
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    if greedy and temperature is not None:
        raise UsageError("--greedy and --temperature contradict each other.", "Give one of them.")
    if json and not estimate:
        raise UsageError("--json goes with --estimate: an answer is text.")
    paths = options.paths()
    config = options.settings(
        paths,
        device=device,
        experts=experts,
        context=context,
        kv=kv,
        threads=threads,
        max_tokens=max_tokens,
        keep_alive=keep_alive,
    )
    check_device(config.device)
    sampling = Sampling.from_flags(
        {
            "temperature": "0" if greedy else temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "seed": seed,
            "thinking_budget": thinking_budget,
        }
    )
    sampling = replace(sampling, max_tokens=config.max_tokens)
    if estimate:
        from freetoken_cli.estimate import print_estimate

        print_estimate(paths, model, config, output)
        return
    saved = None if session is None else SavedSession.named(paths.sessions, session)
    text = read_prompt(prompt, output)
    system = as_text(system or "", "--system")
    name = ensure_model(paths, model, output, yes)
    with ExitStack() as ends:
        if saved is not None:
            ends.enter_context(saved.held())
        chat = ends.enter_context(closing(ModelChat(paths, name, config)))
        conversation = _begin(saved, system)
        _attach(chat, output)
        if saved is not None and conversation.turns:
            output.note(f"The session {saved.name} has {len(conversation.turns)} messages.")
            for line in saved.load_context(chat):
                output.note(line)
        talk = Session(chat, output, conversation, sampling, paths.sessions, saved, verbose=verbose)
        try:
            code = _talk(talk, paths.history) if text is None else _answer(talk, text)
        finally:
            if saved is not None and (talk.conversation.turns or saved.conversation.exists()):
                for line in saved.save(talk.conversation, chat, talk.think):
                    output.note(line)
        raise typer.Exit(code)


def _begin(saved: SavedSession | None, system: str) -> Conversation:
    """The conversation so far. A system prompt that is given replaces a saved one."""
    if saved is None or not saved.conversation.exists():
        return Conversation(system)
    conversation = saved.load()
    conversation.system = system or conversation.system
    return conversation


def _attach(chat: ModelChat, output: Output) -> None:
    """Load the model, or find it loaded, and tell what is in force."""
    with output.waiting("Loading the model"):
        _, answer = chat.load()
    for note in answer["notes"]:
        output.warn(note)
    output.note(chat.describe())


def _answer(talk: Session, text: str) -> int:
    """One prompt and its answer; the exit code."""
    ask(talk, text)
    return 0


def _talk(talk: Session, history: Path) -> int:
    """The REPL; the exit code."""
    talk.output.note("/? lists the commands, Ctrl-D leaves.")
    return run_repl(talk, TerminalReader(history, talk.output.colour_err))
