"""What running a model takes here: bytes, memory, expected speed and whether it fits; nothing is loaded for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.base.config import Config, hidden_settings
from engine.base.errors import DoesNotFitError, FreetokenError, NotFoundError, UsageError
from engine.base.hardware import read_memory
from engine.base.paths import Paths, typed_path
from engine.base.profile import Rate, load_profile
from engine.base.units import format_size, format_tokens
from engine.files.conversion.plan import BankPlan, Plan
from engine.files.ftw.manifest import BankInfo
from engine.files.ftw.opening import open_model
from engine.files.pulling.target import looks_like_path
from engine.files.store import Store
from engine.front.workers.attach import pick_device
from engine.memory.budget import plan_context
from engine.program.ir import KV_VALUE_BYTES
from engine.program.lowering.lower import lower
from engine.program.step_bytes import StepBytes, WeightBytes, step_bytes
from engine.spec.schema import Spec
from engine.worker.loading import RESERVED_BYTES, context_needs, free_memory, sim_memory
from engine.worker.machine import this_machine
from freetoken_cli.folders import model_folder
from freetoken_cli.forecast import MORE_DISK, Forecast
from freetoken_cli.models import require_known, require_no_path
from freetoken_cli.output import Output
from freetoken_cli.video_memory import VideoMemory, plan_video_memory


@dataclass(frozen=True)
class Subject:
    """The model that an estimate is about, here or only planned. `codecs` are those of its experts' matrices.

    `forecast` is what pulling it takes; None for one that is here.
    """

    name: str
    spec: Spec
    weights: WeightBytes
    banks: tuple[BankInfo | BankPlan, ...]
    codecs: frozenset[str]
    forecast: Forecast | None = None

    @staticmethod
    def stored(folder: Path) -> Subject:
        """A model of the store. Raises as `open_model` does."""
        manifest = open_model(folder).manifest
        spec = Spec.from_json(manifest.spec)
        return Subject(folder.name, spec, WeightBytes.of(manifest), manifest.banks, _codecs(manifest.banks))

    @staticmethod
    def planned(name: str, spec: Spec, plan: Plan, forecast: Forecast) -> Subject:
        """A model that is not here yet."""
        banks = tuple(plan.banks)
        return Subject(name, spec, WeightBytes.of(plan), banks, _codecs(banks), forecast)


def _codecs(banks: Iterable[BankInfo | BankPlan]) -> frozenset[str]:
    return frozenset(field.shape.codec for bank in banks for field in bank.fields if not field.shape.vector)


@dataclass(frozen=True)
class Speed:
    """Decoded tokens a second that the measured bandwidths allow: at their medians, and over their ranges."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """What running a model takes. Sizes in bytes, `kv_tokens` and `context` in tokens.

    `weights` are mapped from the file on the CPU, where they share memory with the page cache; `private` is what no
    other program can have meanwhile. `vram` is what a device holds, and `vram_parts` its parts; 0 and None on the CPU.
    `token_bytes` is read for every generated token. `speed` is None without a profile, and `speed_note` says why.
    `problem` is empty when it fits. `fetch` and `disk` are what a model that is not here yet takes first, and
    `disk_free` is what there is for it; all 0 for one that is here.
    """

    model: str
    device: str
    fetch: int
    disk: int
    disk_free: int
    weights: int
    kv_bytes: int
    kv_tokens: int
    context: int
    private: int
    vram: int
    vram_parts: VideoMemory | None
    memory_total: int
    memory_available: int
    token_bytes: int
    speed: Speed | None
    speed_note: str
    problem: str
    remedy: str

    @property
    def fits(self) -> bool:
        """Whether it can be loaded now."""
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--estimate --json`."""
        return {**asdict(self), "fits": self.fits}

    def rows(self) -> list[tuple[str, str]]:
        """Label and value for people."""
        context = f"{format_size(self.kv_bytes)} for {format_tokens(self.kv_tokens)} tokens, context {self.context}"
        speed = self.speed_note
        if self.speed is not None:
            speed = f"about {self.speed.expected:.0f} tokens/s ({self.speed.low:.0f} to {self.speed.high:.0f})"
        if self.weights > self.memory_total:
            speed = f"bounded by the disk: the weights exceed memory by {format_size(self.weights - self.memory_total)}"
        on_cpu = self.device == "cpu"
        where = "mapped from the file" if on_cpu else "experts in memory, the others on the device"
        beside = " beside the weights" if on_cpu else ""
        vram = [("VRAM", "none: it runs on the CPU")] if self.vram_parts is None else self.vram_parts.rows()
        disk = f"{format_size(self.disk)} on disk ({format_size(self.disk_free)} free)"
        first = [("not here yet", f"{format_size(self.fetch)} to fetch, {disk}")]
        rows = [
            ("model", self.model),
            ("device", self.device),
            *(first if self.disk else []),
            ("weights", f"{format_size(self.weights)}, {where}"),
            ("kv", context),
            ("RAM", f"{format_size(self.private)}{beside}, {format_size(self.memory_available)} free"),
            *(vram if on_cpu or self.vram_parts else []),
            ("a token", f"reads {format_size(self.token_bytes)}"),
            ("speed", speed),
            ("fits", "yes" if self.fits else f"no: {self.problem}"),
        ]
        # Where memory does not suffice its parts were not planned, so there are no sizes to tell.
        return rows if self.context else [row for row in rows if row[0] not in ("kv", "RAM")]


def estimate(subject: Subject, profile: Path, config: Config, card_memory: int = 0) -> Estimate:
    """Look at a model and at this machine, whose profile is in the file `profile`. Nothing is loaded.

    `card_memory` are the bytes of a simulated device; 0: as many as it has where nobody says.
    """
    spec, weights = subject.spec, subject.weights
    program = lower(spec)
    sizes = step_bytes(program, weights, KV_VALUE_BYTES)
    total, available = read_memory()
    kv_bytes = kv_tokens = context = 0
    problem = remedy = ""
    device, parts = pick_device(config.device), None
    try:
        if device == "cpu":
            plan = plan_context(
                context_needs(program),
                model_context=spec.context_length,
                available=free_memory(),
                context=config.context,
                kv=config.kv,
            )
        else:
            card = card_memory or sim_memory()
            parts, plan = plan_video_memory(program, weights, subject.banks, spec.context_length, card, config)
        kv_bytes, kv_tokens, context = plan.kv_bytes, plan.kv_tokens, plan.context
    except DoesNotFitError as error:
        problem, remedy = error.message, error.remedy
    forecast = subject.forecast
    if not problem and forecast is not None and forecast.short:
        problem, remedy = (
            f"{format_size(forecast.room)} of disk are needed to pull it: {forecast.shortage()}.",
            MORE_DISK,
        )
    speed, note = None, "unknown: a simulated device says nothing of speed"
    if device == "cpu":
        speed, note = _expected_speed(profile, subject.codecs, sizes, config.threads)
    held = kv_bytes if parts is None else weights.experts + parts.total  # the card is simulated in memory
    return Estimate(
        model=subject.name,
        device=device,
        fetch=forecast.fetch if forecast else 0,
        disk=forecast.disk if forecast else 0,
        disk_free=forecast.disk_free if forecast else 0,
        weights=weights.total,
        kv_bytes=kv_bytes,
        kv_tokens=kv_tokens,
        context=context,
        private=held + RESERVED_BYTES,
        vram=0 if parts is None else parts.used,
        vram_parts=parts,
        memory_total=total,
        memory_available=available,
        token_bytes=sizes.total(0),
        speed=speed,
        speed_note=note,
        problem=problem,
        remedy=remedy,
    )


def _expected_speed(
    path: Path, codecs: frozenset[str], sizes: StepBytes, threads: int | None
) -> tuple[Speed | None, str]:
    """From the profile of this machine: seconds for the bytes of a token, at the rate of each kind of them."""
    try:
        profile = load_profile(path, this_machine())
    except FreetokenError as error:
        return None, f"unknown: {error.message} {error.remedy}"
    fitting = [entry for entry in profile.reads if threads is None or entry.threads <= threads]
    read = max(fitting or profile.reads[:1], key=lambda entry: entry.threads).rate
    measured = [entry.rate for entry in profile.experts if entry.codec in codecs]

    def tokens_a_second(of: Callable[[Rate], float]) -> float:
        """Dense weights and states at the read rate; experts at that of their codec, or that if none was measured."""
        experts = min(of(rate) for rate in (*measured, read))
        return 1e9 / ((sizes.dense + sizes.states) / of(read) + sizes.experts / experts)

    figures = (lambda rate: rate.median, lambda rate: rate.low, lambda rate: rate.high)
    return Speed(*map(tokens_a_second, figures)), ""


def print_estimate(paths: Paths, what: str, config: Config, output: Output) -> None:
    """Print the estimate for a model of the store, or for one that could be pulled.

    Raises DoesNotFitError when it does not fit, after printing; NotFoundError, and what opening its source raises.
    """
    card = hidden_settings(os.environ)["sim_memory"]
    found = estimate(_subject(paths, what, output), paths.profile, config, card)
    output.facts(found.to_json(), found.rows(), name=found.model)
    if not found.fits:
        output.stdout.flush()
        raise DoesNotFitError(found.problem, found.remedy)


def _subject(paths: Paths, what: str, output: Output) -> Subject:
    store = Store(paths.store)
    try:
        return Subject.stored(model_folder(store, what))
    except UsageError as error:
        require_no_path(what, paths, error)
    except NotFoundError as missing:
        if not (looks_like_path(what) and typed_path(what).exists()):
            require_known(what, store, missing)
    from freetoken_cli.planned import planned_subject

    return planned_subject(what, store, output)
