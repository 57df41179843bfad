"""Counts and times of a request, and the statistics made of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from engine.front.jobs import Job
from engine.front.reuse import sentence
from engine.memory.lookup import Reuse
from engine.worker.protocol import ExpertWork


@dataclass
class Tally:
    """Counts and times of one request, over all its choices. Times in seconds."""

    began: float = field(default_factory=time.monotonic)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    reasoned: int = 0  # of the generated tokens, those of reasoning
    first_token: float | None = None
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_bytes: int = 0  # weights read in decode_seconds
    decoded: int = 0  # tokens after the first of each choice, which decode_seconds is the time of
    experts: ExpertWork | None = None  # of a device
    reuse: Reuse | None = None  # of the prompt of which most had to be computed
    reuse_prompt: int = 0  # its tokens

    def add(self, job: Job, cached: int, generated: int, prompt_seconds: float, decode_seconds: float) -> None:
        """Count a finished choice. Choices of one prompt share it, so it counts for the first of them alone."""
        if job.sampling.choice == 0:
            self.prompt_tokens += len(job.prompt)
            self.cached_tokens += cached
        self.generated += generated
        self.prompt_seconds += prompt_seconds
        self.decode_seconds += decode_seconds
        self.decoded += generated - 1

    def add_experts(self, work: ExpertWork | None) -> None:
        """Count what happened while a choice was decoded, what it shared with other choices too."""
        if work is not None:
            self.experts = work if self.experts is None else self.experts.plus(work)

    def add_reuse(self, job: Job, reuse: Reuse | None) -> None:
        """Note what was reused of a prompt, and why no more."""
        if reuse is None or job.sampling.choice:
            return
        if self.reuse is None or len(job.prompt) - reuse.position > self.reuse_prompt - self.reuse.position:
            self.reuse, self.reuse_prompt = reuse, len(job.prompt)

    def usage(self) -> dict[str, object]:
        """The OpenAI interface's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt_tokens + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoned},
        }

    def statistics(self) -> dict[str, float | int | str]:
        """Ours beside it, in seconds, tokens a second and GB/s of weights; what is not known is absent."""
        known: dict[str, float | int | str | None] = {
            "prompt_tokens": self.prompt_tokens,
            "prompt_rate": _rate(self.prompt_tokens - self.cached_tokens, self.prompt_seconds),
            "reused_tokens": self.cached_tokens,
            **self._reuse_statistics(),
            "generated_tokens": self.generated,
            "generated_rate": _rate(self.decoded, self.decode_seconds),
            "first_token": self.first_token,
            "memory": self.decode_bytes / self.decode_seconds / 1e9 if self.decode_bytes else None,
            **self._expert_statistics(),
        }
        return {name: value for name, value in known.items() if value is not None}

    def _expert_statistics(self) -> dict[str, float | int | str | None]:
        """Of the experts on a device while the answer was decoded; nothing without one."""
        work = self.experts
        if work is None or not work.counts["plans"]:
            return {}
        counts = work.counts
        routed = counts["hits"] + counts["misses"]
        return {
            "hit_rate": _share(counts["hits"], routed),
            "misses_per_layer": _share(counts["misses"], counts["plans"]),
            "misses_filled": round(counts["fills"]),
            "misses_computed": round(counts["cpu_experts"]),
            "cpu_share": _share(counts["cpu_experts"], routed),
            "link": _share(counts["link_bytes"] / 1e9, counts["link_seconds"]),
            "host": _share(counts["host_bytes"] / 1e9, counts["host_seconds"]),
            "fraction": work.fraction,
            "why": work.why,
            "clock": work.clock or None,
        }

    def _reuse_statistics(self) -> dict[str, float | int | str | None]:
        if self.reuse is None:
            return {}
        text = sentence(self.reuse, self.reuse_prompt)
        return {"known_tokens": self.reuse.known, "reuse_why": self.reuse.why, "reuse": text}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None
