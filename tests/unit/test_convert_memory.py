"""Conversion holds one expert and one row range of a dense tensor, whatever the model's size."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from engine.files.conversion.packing import CHUNK_BYTES
from engine.files.conversion.plan import plan_conversion
from engine.files.conversion.stream import Pace
from engine.files.safetensors_header import build_header
from engine.files.source_file import Bytes, LocalFile
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.opening import open_checkpoint
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors
from tests.unit.converting import run

Shapes = dict[str, tuple[int, ...]]

QWEN = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4,
    "num_experts_per_tok": 2, "vocab_size": 96, "sliding_window": 128, "max_position_embeddings": 512,
}  # fmt: skip
GRANITE = MIXTRAL | {"model_type": "granitemoe", "hidden_size": 512, "intermediate_size": 1024}
DEEPSEEK = {
    "model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 32,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 16, "v_head_dim": 128, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_shared_experts": 0, "vocab_size": 96, "max_position_embeddings": 512,
    "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False,
}  # fmt: skip


def outer(config: dict[str, Any]) -> Shapes:
    hidden = config["hidden_size"]
    return {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}


def attention(config: dict[str, Any], prefix: str) -> Shapes:
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return {
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
        f"{prefix}self_attn.q_proj.weight": (queries, hidden),
        f"{prefix}self_attn.k_proj.weight": (keys, hidden),
        f"{prefix}self_attn.v_proj.weight": (keys, hidden),
        f"{prefix}self_attn.o_proj.weight": (hidden, queries),
    }


def qwen(layers: int, experts: int, vocab: int, **sizes: int) -> tuple[dict[str, Any], Shapes]:
    """Three tensors an expert."""
    config = QWEN | {"num_hidden_layers": layers, "num_experts": experts, "vocab_size": vocab} | sizes
    shapes = outer(config)
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= attention(config, prefix) | {f"{prefix}mlp.gate.weight": (experts, hidden)}
        shapes |= {f"{prefix}self_attn.{name}_norm.weight": (config["head_dim"],) for name in "qk"}
        for expert in range(experts):
            name = f"{prefix}mlp.experts.{expert}."
            shapes |= {f"{name}gate_proj.weight": (width, hidden), f"{name}up_proj.weight": (width, hidden)}
            shapes[f"{name}down_proj.weight"] = (hidden, width)
    return config, shapes


def gpt_oss() -> tuple[dict[str, Any], Shapes]:
    """All experts of a layer in one tensor, transposed, gate and up in turn."""
    config = GPT_OSS
    shapes = outer(config) | {"lm_head.weight": (config["vocab_size"], config["hidden_size"])}
    hidden, width, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        parts = attention(config, prefix)
        biases = {name.replace(".weight", ".bias"): shape[:1] for name, shape in parts.items() if "self_attn" in name}
        shapes |= parts | biases | {
            f"{prefix}self_attn.sinks": (config["num_attention_heads"],),
            f"{prefix}mlp.router.weight": (experts, hidden),
            f"{prefix}mlp.router.bias": (experts,),
            f"{prefix}mlp.experts.gate_up_proj": (experts, hidden, 2 * width),
            f"{prefix}mlp.experts.gate_up_proj_bias": (experts, 2 * width),
            f"{prefix}mlp.experts.down_proj": (experts, width, hidden),
            f"{prefix}mlp.experts.down_proj_bias": (experts, hidden),
        }  # fmt: skip
    return config, shapes


def granite() -> tuple[dict[str, Any], Shapes]:
    """All experts of a layer in one tensor, gate above up."""
    config = GRANITE
    shapes = outer(config) | {"lm_head.weight": (config["vocab_size"], config["hidden_size"])}
    hidden, width, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        moe = f"{prefix}block_sparse_moe."
        shapes |= attention(config, prefix) | {
            f"{moe}router.layer.weight": (experts, hidden),
            f"{moe}input_linear.weight": (experts, 2 * width, hidden),
            f"{moe}output_linear.weight": (experts, hidden, width),
        }
    return config, shapes


def deepseek() -> tuple[dict[str, Any], Shapes]:
    """A dense tensor of 33 MB, half of which is transposed head by head."""
    config = DEEPSEEK
    shapes = outer(config) | {"lm_head.weight": (config["vocab_size"], config["hidden_size"])}
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    name = "model.layers.0."
    shapes |= {
        f"{name}input_layernorm.weight": (hidden,),
        f"{name}post_attention_layernorm.weight": (hidden,),
        f"{name}self_attn.q_a_proj.weight": (32, hidden),
        f"{name}self_attn.q_a_layernorm.weight": (32,),
        f"{name}self_attn.q_b_proj.weight": (heads * 144, 32),
        f"{name}self_attn.kv_a_proj_with_mqa.weight": (rank + 16, hidden),
        f"{name}self_attn.kv_a_layernorm.weight": (rank,),
        f"{name}self_attn.kv_b_proj.weight": (heads * 256, rank),
        f"{name}self_attn.o_proj.weight": (hidden, heads * 128),
        f"{name}mlp.gate.weight": (4, hidden),
    }
    for expert in range(4):
        shapes |= {f"{name}mlp.experts.{expert}.{part}_proj.weight": (32, hidden) for part in ("gate", "up")}
        shapes[f"{name}mlp.experts.{expert}.down_proj.weight"] = (hidden, 32)
    return config, shapes


def qwen_fp8() -> tuple[dict[str, Any], Shapes, dict[str, str]]:
    """Every matrix in fp8, a scale for 128 x 128 weights; experts of 3 MB."""
    config, shapes = qwen(1, 3, 96, hidden_size=1024, moe_intermediate_size=1024)
    matrices = [name for name in shapes if "_proj" in name]
    shapes |= {f"{name}_scale_inv": tuple(-(-size // 128) for size in shapes[name]) for name in matrices}
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    return config | {"quantization_config": quantization}, shapes, dict.fromkeys(matrices, "F8_E4M3")


def gpt_oss_mxfp4() -> tuple[dict[str, Any], Shapes, dict[str, str]]:
    """All experts of a layer in one tensor of blocks and one of scales; experts of 5 MB."""
    config, shapes = gpt_oss()
    config = config | {"hidden_size": 2048, "intermediate_size": 1536}
    sizes = {512: 2048, 768: 1536, 1536: 3072}
    shapes = {name: tuple(sizes.get(size, size) for size in shape) for name, shape in shapes.items()}
    types = {}
    for name in [name for name in shapes if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, cols, rows = shapes.pop(name)
        shapes |= {f"{name}_blocks": (experts, rows, cols // 32, 16), f"{name}_scales": (experts, rows, cols // 32)}
        types |= {f"{name}_blocks": "U8", f"{name}_scales": "U8"}
    return config | {"quantization_config": {"quant_method": "mxfp4"}}, shapes, types


def write_sparse_folder(
    folder: Path, config: dict[str, Any], shapes: Shapes, types: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """A checkpoint of zeros that takes no room on disk, in bf16 but for `types`."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header = build_header([(name, types.get(name, "BF16"), shape) for name, shape in shapes.items()], 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header)
        table = json.loads(header[8:])
        file.truncate(len(header) + max(entry["data_offsets"][1] for entry in table.values()))
    return folder


class Counted(LocalFile):
    """Counts the bytes that it has read and that somebody still holds."""

    held = 0
    most = 0

    def read(self, start: int, out: Bytes) -> None:
        super().read(start, out)
        owner = out if out.base is None else out.base
        Counted.held += out.nbytes
        Counted.most = max(Counted.most, Counted.held)
        weakref.finalize(owner, Counted._gone, out.nbytes)

    @staticmethod
    def _gone(count: int) -> None:
        Counted.held -= count


def expert_bytes(source: Path) -> int:
    """Bytes of the largest expert, packed: what it takes raw, and a little more."""
    checkpoint = open_checkpoint(source)
    checkpoint.close()
    _, plan = plan_conversion(checkpoint)
    return max(bank.record_bytes for bank in plan.banks)


def qwen_of_many_tensors() -> tuple[dict[str, Any], Shapes]:
    """More than ten thousand tensors, one of them of 8 MB."""
    return qwen(33, 100, 60_000)


@pytest.mark.parametrize("model", [qwen_of_many_tensors, qwen_fp8, gpt_oss, gpt_oss_mxfp4, granite, deepseek])
def test_one_expert_or_one_row_range_is_held(tmp_path: Path, monkeypatch: Any, model: Any) -> None:
    source = write_sparse_folder(tmp_path / "source", *model())
    expert = expert_bytes(source)
    monkeypatch.setattr("engine.files.sources.safetensors.folder.LocalFile", Counted)
    monkeypatch.setattr(Counted, "held", 0)
    monkeypatch.setattr(Counted, "most", 0)
    peaks = []

    def progress(done: int, total: int) -> None:
        if not peaks:  # headers are read, and all is planned
            tracemalloc.reset_peak()
            Counted.most = 0
        peaks.append(tracemalloc.get_traced_memory()[1])

    tracemalloc.start()
    try:
        run(source, tmp_path / "dest", progress=progress, pace=Pace())
    finally:
        tracemalloc.stop()
    assert CHUNK_BYTES // 2 < Counted.most <= expert + CHUNK_BYTES
    assert Counted.held == 0
    # what was read, the same transposed or put together, what it is packed into, and a line for every item
    assert peaks[-1] - peaks[0] < 4 * (expert + CHUNK_BYTES) + (1 << 20)


@pytest.mark.long
def test_planning_takes_time_in_proportion() -> None:
    def seconds(experts: int) -> float:
        config, shapes = qwen(100, experts, 96)
        tensors: dict[str, Any] = {name: Unread(shape) for name, shape in shapes.items()}
        start = time.process_time()
        _, plan = plan_conversion(Checkpoint("model", config, tensors, ()))
        assert len(plan.items) > 100 * experts
        return time.process_time() - start

    seconds(10)
    assert seconds(600) < 10 * seconds(120)  # five times as many; squared it would be 25 times as long


class Unread:
    """A bf16 tensor that lies nowhere."""

    form = "bf16"
    files = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def read(self, start: int, stop: int) -> Bytes:
        raise AssertionError("a plan reads nothing")


# Converts argv[1] into argv[2] under a limit of argv[3] on private memory; ends with the most anonymous memory that
# was resident, in KiB.
MODEST_CHILD = """
import re, resource, sys
from pathlib import Path
from engine.files.conversion.convert import convert
from engine.files.conversion.stream import Pace

most = 0

def progress(done, total):
    global most
    status = Path("/proc/self/status").read_text()
    most = max(most, int(re.search(r"RssAnon:\\s+(\\d+)", status)[1]))

limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
convert(
    Path(sys.argv[1]), Path(sys.argv[2]), write_tokenizer=lambda metadata, folder: None, progress=progress,
    pace=Pace(drop_cache=True),
)
print(most)
"""


def resident_kib(source: Path, dest: Path) -> int:
    """The most anonymous memory that a conversion has resident."""
    command = [sys.executable, "-c", MODEST_CHILD, str(source), str(dest), str(512 << 20)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.long
def test_memory_stays_small_whatever_the_size_of_a_matrix(tmp_path: Path) -> None:
    config = MIXTRAL | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1, "num_local_experts": 2,
        "vocab_size": 64000, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    }  # fmt: skip
    small = mixtral_tensors(MIXTRAL | {"num_hidden_layers": 1, "num_local_experts": 2})
    sizes = {64: 4096, 96: 14336, 32: 1024, 2: 2}
    shapes = {name: tuple(sizes[size] for size in values.shape) for name, values in small.items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        shapes[name] = (64000, 4096)
    source = write_sparse_folder(tmp_path / "source", config, shapes)
    total = (source / "model.safetensors").stat().st_size
    assert total > 1_700_000_000
    assert resident_kib(source, tmp_path / "dest") < 150 << 10
    assert sum(path.stat().st_size for path in (tmp_path / "dest").iterdir()) > total


@pytest.mark.long
def test_memory_stays_small_whatever_the_number_of_tensors(tmp_path: Path) -> None:
    few = resident_kib(write_sparse_folder(tmp_path / "few", *qwen(2, 100, 96)), tmp_path / "a")
    config, shapes = qwen(33, 110, 8_400_000)
    assert len(shapes) > 11_000
    source = write_sparse_folder(tmp_path / "many", config, shapes)
    assert (source / "model.safetensors").stat().st_size > 1 << 30
    assert resident_kib(source, tmp_path / "b") < few + (60 << 10)  # 5 KB a tensor, for its name, shape and plan
