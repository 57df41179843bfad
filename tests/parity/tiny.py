"""Tiny random checkpoints by transformers, and what transformers computes with them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from .cases.case import COMMON, Case

Floats = NDArray[np.float32]
PROMPT_TOKENS = 45  # more than two cache pages, and more than every sliding window
GREEDY_TOKENS = 18
SEEING = ("mistral4",)  # decoders by themselves that transformers counts among models that see
COMPUTED = ("inv_freq", "slope_rate", "query_decay", "key_decay", "diagonal_decay")  # by model code, not learned


@dataclass(frozen=True)
class Truth:
    """What transformers says: the prompt, hidden states after each layer, logits of every row, greedy tokens."""

    prompt: tuple[int, ...]
    states: tuple[Floats, ...]
    logits: Floats
    greedy: tuple[int, ...]


def build(case: Case, folder: Path) -> Truth:
    """Make the case's model, save it to `folder` as a checkpoint, and run it."""
    return run(save(case, folder), case.seed)


def save(case: Case, folder: Path) -> torch.nn.Module:
    """Make the case's model and save it to `folder` as a checkpoint."""
    transformers.utils.logging.disable_progress_bar()
    model = auto_class(case).from_config(configuration(case), attn_implementation="eager").float().eval()
    randomise(model, case.seed)
    model.save_pretrained(folder)
    if case.fused:
        fuse_experts(folder / "model.safetensors")
    if case.apart:
        part_experts(folder / "model.safetensors")
    if case.renamed:
        rename(folder / "model.safetensors", case.renamed)
    if case.wrapped or case.prefix:
        wrap(folder, case.prefix)
    return model


def auto_class(case: Case) -> Any:
    """The class of transformers that makes the case's model."""
    sees = "text_config" in case.settings or case.family in SEEING
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def configuration(case: Case) -> transformers.PreTrainedConfig:
    """What transformers makes the case's model from; a decoder that is one part of several has a `text_config`."""
    if "text_config" not in case.settings:
        return AutoConfig.for_model(case.family, **{**COMMON, **case.settings})
    text = {**COMMON, **case.settings["text_config"]}
    return AutoConfig.for_model(case.family, **{**case.settings, "text_config": text})


def config_of(case: Case) -> dict[str, Any]:
    """The config.json that the case's model is saved with, what describes the decoder."""
    config = configuration(case)
    return json.loads((config.get_text_config() if "text_config" in case.settings else config).to_json_string())


def open_truth(folder: Path, seed: int = 0) -> Truth:
    """Run a checkpoint that is there already, in f32."""
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return run(model.eval(), seed)


def layers_of(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The decoder layers, whatever a model calls them; of a model that also sees, those of its part for text."""
    whole = next(model.children())
    text = dict(whole.named_children()).get("language_model", whole)
    return next(part for part in text.modules() if isinstance(part, torch.nn.ModuleList))


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights that keep activations near one, routers that decide clearly, and no norm, bias or sink left at rest."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # an embedding that is the head as well would say the last token again, if its rows were long
    long_rows = None if model.config.get_text_config().tie_word_embeddings else model.get_input_embeddings().weight
    for name, tensor in tensors.items():
        if name.endswith("tid2eid"):
            experts = model.config.n_routed_experts
            tensor.copy_(torch.rand(len(tensor), experts, generator=generator).argsort(1)[:, : tensor.shape[1]])
        if name.endswith(COMPUTED) or not tensor.is_floating_point() or tensor.ndim == 0:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if re.search(r"(norm[^.]*\.weight|\.(per_expert_)?scale|layer_scalar)$", name):
            tensor.copy_(float(tensor.any()) + 0.2 * noise)  # those at rest at zero are added to one
        elif tensor.ndim == 1 or name.endswith("proj_bias"):
            tensor.copy_(0.3 * noise)
        else:
            sharp = 2.0 if re.search(r"(gate|router|router\.layer|router\.proj)\.weight$", name) else 1.0
            tensor.copy_(noise if tensor is long_rows else sharp * noise * tensor.shape[-1] ** -0.5)


@torch.no_grad()
def run(model: torch.nn.Module, seed: int) -> Truth:
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(1000 + seed)
    prompt = torch.randint(3, vocabulary, (1, PROMPT_TOKENS), generator=generator)
    states: list[Floats] = []

    def keep(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        states.append(hidden[0].flatten(1).numpy().copy())  # type: ignore[index]

    hooks = [layer.register_forward_hook(keep) for layer in layers_of(model)]
    logits = model(input_ids=prompt, use_cache=False).logits[0].numpy()
    for hook in hooks:
        hook.remove()
    tokens = prompt
    for _ in range(GREEDY_TOKENS):
        best = model(input_ids=tokens, use_cache=False).logits[0, -1].argmax()
        tokens = torch.cat([tokens, best.reshape(1, 1)], 1)
    greedy = tuple(tokens[0, PROMPT_TOKENS:].tolist())
    return Truth(tuple(prompt[0].tolist()), tuple(states), logits, greedy)


def wrap(folder: Path, prefix: str = "") -> None:
    """Rewrite a checkpoint as part of a model that also sees and guesses a token ahead, as some are published.

    All of it lies under `prefix`; without one the decoder lies in `model.language_model`.
    """
    weights, config = folder / "model.safetensors", folder / "config.json"
    tensors = {
        prefix + name if prefix else name.replace("model.", "model.language_model.", 1): each
        for name, each in load_file(weights).items()
    }
    extra = torch.zeros(4, 4)
    save_file({**tensors, "model.visual.blocks.0.attn.qkv.weight": extra, "mtp.fc.weight": extra.clone()}, weights)
    text = json.loads(config.read_text())
    whole = {"model_type": text["model_type"].removesuffix("_text"), "text_config": text, "vision_config": {}}
    config.write_text(json.dumps(whole))


def fuse_experts(path: Path) -> None:
    """Rewrite a checkpoint with one tensor for all experts of a layer, gate above up, as some are published."""
    tensors = load_file(path)
    gathered: dict[str, dict[str, dict[int, torch.Tensor]]] = {}
    for name in list(tensors):
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if match:
            gathered.setdefault(match[1], {}).setdefault(match[3], {})[int(match[2])] = tensors.pop(name)
    for prefix, parts in gathered.items():
        stacked = {kind: torch.stack([part[i] for i in sorted(part)]) for kind, part in parts.items()}
        tensors[f"{prefix}.gate_up_proj"] = torch.cat([stacked["gate"], stacked["up"]], 1)
        tensors[f"{prefix}.down_proj"] = stacked["down"].contiguous()
    save_file(tensors, path)


def rename(path: Path, renamed: Sequence[tuple[str, str]]) -> None:
    """Rewrite a checkpoint under other names."""
    tensors = load_file(path)
    for old, new in renamed:
        tensors = {re.sub(old, new, name): tensor for name, tensor in tensors.items()}
    save_file(tensors, path)


def part_experts(path: Path) -> None:
    """Rewrite a checkpoint that has all experts of a layer in one tensor, turned over or not, as one that has not.

    Other gates that stand above ups are parted, too.
    """
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(".gate_up_proj.weight")]:
        for kind, matrix in zip(("gate", "up"), tensors.pop(name).chunk(2), strict=True):
            tensors[name.replace("gate_up", kind)] = matrix.contiguous()
    for name in [name for name in tensors if name.endswith(".experts.gate_up_proj")]:
        prefix = name.removesuffix("gate_up_proj")
        both, down = tensors.pop(name), tensors.pop(f"{prefix}down_proj")
        if both.shape[2] == 2 * down.shape[1]:  # [in, out]
            both, down = both.transpose(1, 2), down.transpose(1, 2)
        for kind, stacked in zip(("gate", "up", "down"), (*both.chunk(2, 1), down), strict=True):
            for expert, matrix in enumerate(stacked):
                tensors[f"{prefix}{expert}.{kind}_proj.weight"] = matrix.contiguous()
    save_file(tensors, path)
