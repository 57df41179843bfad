"""The agents that `launch` starts, as data: how each is told where the server is, and which model to ask."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NO_KEY = "none"  # where a client insists on a key and the server wants none

# Whatever looks like the key of somebody's account: a program that talks to this machine needs none of them.
_PAID = re.compile(r"(API_?KEY|AUTH_TOKEN|ACCESS_TOKEN|OAUTH_TOKEN|SECRET_ACCESS_KEY|SESSION_TOKEN|CREDENTIALS)$")
_NAMES = re.compile(r"\{(root|url|model|key|context|answer)\}")
_REDIRECTING = re.compile(r"^(ANTHROPIC|OPENAI|CLAUDE_CODE_USE|AZURE_OPENAI|CODEX|OPENCODE)_")


@dataclass(frozen=True)
class Server:
    """Where the server is, as an agent is told. `root` has no `/v1` at its end; `context` is tokens, 0: not known."""

    root: str
    model: str
    key: str = NO_KEY
    context: int = 0

    @property
    def values(self) -> dict[str, str]:
        """What is filled in for names in braces. An agent may answer in a quarter of the context."""
        values = {"root": self.root, "url": f"{self.root}/v1", "model": self.model, "key": self.key}
        sizes = {"context": str(self.context), "answer": str(self.context // 4)}
        return {**values, **sizes} if self.context else values


@dataclass(frozen=True)
class Agent:
    """One agent. In all that it is told {root}, {url}, {model}, {key}, {context} and {answer} are filled in; a
    variable, a group of arguments or a member that needs what is not known is left out.

    `config` is the variable that holds a configuration as JSON, and what that is; `file` is the variable that names a
    file with one, which is there while the agent runs.
    """

    name: str
    program: str
    install: str
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[Sequence[str]] = ()
    config: tuple[str, Mapping[str, object]] | None = None
    file: tuple[str, Mapping[str, object]] | None = None


AGENTS = (
    Agent(
        name="claude",
        program="claude",
        install="npm install -g @anthropic-ai/claude-code",
        environment={
            "ANTHROPIC_BASE_URL": "{root}",
            "ANTHROPIC_AUTH_TOKEN": "{key}",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
            "CLAUDE_CODE_SUBAGENT_MODEL": "{model}",
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "{context}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    Agent(
        name="codex",
        program="codex",
        install="npm install -g @openai/codex",
        environment={"FREETOKEN_CLIENT_KEY": "{key}"},
        arguments=(
            ("-c", 'model="{model}"'),
            ("-c", "model_context_window={context}"),
            ("-c", 'model_provider="freetoken"'),
            ("-c", 'model_providers.freetoken.name="freetoken"'),
            ("-c", 'model_providers.freetoken.base_url="{url}"'),
            ("-c", 'model_providers.freetoken.wire_api="responses"'),
            ("-c", 'model_providers.freetoken.env_key="FREETOKEN_CLIENT_KEY"'),
        ),
    ),
    Agent(
        name="opencode",
        program="opencode",
        install="npm install -g opencode-ai",
        config=(
            "OPENCODE_CONFIG_CONTENT",
            {
                "model": "freetoken/{model}",
                "small_model": "freetoken/{model}",
                "provider": {
                    "freetoken": {
                        "npm": "@ai-sdk/openai-compatible",
                        "name": "freetoken",
                        "options": {"baseURL": "{url}", "apiKey": "{key}"},
                        "models": {
                            "{model}": {
                                "name": "{model}",
                                "tool_call": True,
                                "limit": {"context": "{context}", "output": "{answer}"},
                            }
                        },
                    }
                },
            },
        ),
    ),
    Agent(
        name="qwen",
        program="qwen",
        install="npm install -g @qwen-code/qwen-code",
        environment={"OPENAI_BASE_URL": "{url}", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}"},
    ),
    Agent(
        name="aider",
        program="aider",
        install="pip install aider-install && aider-install",
        environment={"OPENAI_API_BASE": "{url}", "OPENAI_API_KEY": "{key}"},
        arguments=(
            ("--model", "openai/{model}"),
            ("--no-show-model-warnings", "--no-show-release-notes", "--no-check-update"),
        ),
        file=(
            "AIDER_MODEL_METADATA_FILE",
            {
                "openai/{model}": {
                    "max_input_tokens": "{context}",
                    "max_output_tokens": "{answer}",
                    "litellm_provider": "openai",
                    "mode": "chat",
                }
            },
        ),
    ),
)


def command_of(agent: Agent, server: Server, arguments: Sequence[str]) -> list[str]:
    """The command line, with what the user adds to it."""
    groups = [[_filled(each, server) for each in group] for group in agent.arguments]
    told = [each for group in groups if None not in group for each in group if each is not None]
    return [agent.program, *told, *arguments]


def variables_of(agent: Agent, server: Server) -> dict[str, str]:
    """What of the environment is ours."""
    filled = {name: _filled(value, server) for name, value in agent.environment.items()}
    variables = {name: value for name, value in filled.items() if value is not None}
    if agent.config is not None:
        name, content = agent.config
        variables[name] = json.dumps(_filled_config(content, server))
    return variables


def file_of(agent: Agent, server: Server) -> tuple[str, str] | None:
    """The variable that names a file of ours, and what that holds; None where there is nothing to tell."""
    if agent.file is None or not server.context:
        return None
    name, content = agent.file
    return name, json.dumps(_filled_config(content, server))


def environment_of(agent: Agent, server: Server, inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment: what is inherited, without keys and without what sends the agent elsewhere, and ours."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not _PAID.search(name.upper()) and not _REDIRECTING.search(name.upper())
    }
    return {**kept, **variables_of(agent, server)}


def _filled(text: str, server: Server) -> str | None:
    """`text` with values for the names in braces; None if one of them is not known."""
    values = server.values
    if any(name not in values for name in _NAMES.findall(text)):
        return None
    return _NAMES.sub(lambda found: values[found[1]], text)


def _filled_config(content: object, server: Server) -> object:
    """`content` filled in, sizes as numbers; None for what is not known or has no members left."""
    if isinstance(content, Mapping):
        members = {_filled(name, server): _filled_config(value, server) for name, value in content.items()}
        return {name: value for name, value in members.items() if value is not None} or None
    if not isinstance(content, str):
        return content
    filled = _filled(content, server)
    return filled if filled is None or content not in ("{context}", "{answer}") else int(filled)
