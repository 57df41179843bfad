"""GET /metrics: the loaded models' counters in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine import __version__
from engine.front.workers.loaded import Loaded
from engine.front.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from prometheus_client.core import Metric


@dataclass(frozen=True)
class Series:
    """One number of every model: its name without prefix, what it means, and whether it only rises."""

    name: str
    source: str  # in the worker's counters, or in its count of experts
    help: str
    total: bool = False


OF_WORKER = (
    Series("requests", "requests", "Requests that were accepted.", total=True),
    Series("prompt_tokens", "prompt_tokens", "Tokens of prompts, those found in context memory too.", total=True),
    Series("cached_tokens", "cached_tokens", "Tokens of prompts that were found in context memory.", total=True),
    Series("generated_tokens", "generated_tokens", "Tokens that were generated.", total=True),
    Series("steps", "steps", "Steps of the model.", total=True),
    Series("step_seconds", "step_seconds", "Seconds that steps took.", total=True),
    Series("preemptions", "preemptions", "Requests that were put back for lack of context memory.", total=True),
    Series("active_requests", "active", "Requests that have context memory."),
    Series("waiting_requests", "waiting", "Requests that wait for it."),
    Series("kv_tokens", "kv_tokens", "Tokens that context memory can hold."),
    Series("kv_tokens_held", "kv_tokens_held", "Tokens of context memory that live requests hold."),
    Series("kv_bytes", "kv_bytes", "Bytes of context memory."),
    Series("window_pages", "windows", "Pages of 16 tokens for layers that look back only so far."),
    Series("window_pages_held", "windows_held", "Those that live requests hold."),
    Series("states", "states", "Recurrent states that context memory can hold, each of all layers."),
    Series("states_held", "states_held", "Those that live requests hold."),
    Series("checkpoints", "checkpoints", "Positions at which computed conversations can be taken up again."),
    Series("context_tokens", "context", "The longest conversation."),
    Series("expert_slots", "expert_slots", "Experts that the device has room for."),
    Series("expert_bytes", "expert_bytes", "Bytes of the device for experts."),
    Series("expert_share", "expert_share", "Share of all experts that the device has room for."),
    Series("expert_hit_rate", "hit_rate", "Share of routed experts found on the device lately."),
    Series("expert_misses_per_layer", "misses_per_layer", "m: experts of a layer and step that were not there."),
    Series("expert_fills_per_layer", "fills_per_layer", "q: of these, how many were copied to the device."),
    Series("expert_cpu_share", "cpu_share", "Share of routed experts that the CPU computed."),
)
OF_EXPERTS = (
    Series("expert_hits", "hits", "Routed experts found on the device.", total=True),
    Series("expert_misses", "misses", "Routed experts not found there.", total=True),
    Series("expert_fills", "fills", "Missed experts copied to the device.", total=True),
    Series("expert_cpu", "cpu_experts", "Missed experts computed by the CPU.", total=True),
    Series("expert_layer_steps", "plans", "Layers of steps in which experts were divided.", total=True),
)
OF_BRANCHES = (
    Series("link_bytes", "link_bytes", "Bytes copied to the device, on the clock of the label.", total=True),
    Series("link_seconds", "link_seconds", "Seconds of it.", total=True),
    Series("host_bytes", "host_bytes", "Bytes of experts the CPU computed, on the clock of the label.", total=True),
    Series("host_seconds", "host_seconds", "Seconds of it.", total=True),
)
"""Their label `clock` is `measured`, or the name of the virtual machine whose seconds a simulated device has."""


def metrics_route(supervisor: Supervisor) -> Route:
    """The route over one supervisor. Counters are those of the moment of the request."""

    async def metrics(request: Request) -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST

        return Response(exposition(await supervisor.refresh_all()), media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", metrics, methods=["GET"])


def exposition(models: Sequence[Loaded]) -> bytes:
    """The text for these models, as their workers were heard last."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(models))
    return generate_latest(registry)


class _Collected:
    """A prometheus_client collector over counters that others have counted."""

    def __init__(self, models: Sequence[Loaded]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        info = GaugeMetricFamily("freetoken_info", "The release of the server.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        loaded = GaugeMetricFamily("freetoken_model_bytes", "Bytes of weights.", labels=["model", "device"])
        for model in self._models:
            loaded.add_metric([model.name, model.ready.device], model.ready.model_bytes)
        yield loaded
        yield from self._families(OF_WORKER, [({"model": m.name}, m.stats.values) for m in self._models])
        experts = [(model, model.stats.experts) for model in self._models]
        counted = [(model, work) for model, work in experts if work is not None]
        yield from self._families(OF_EXPERTS, [({"model": model.name}, work.counts) for model, work in counted])
        clocked = [({"model": model.name, "clock": work.clock or "measured"}, work.counts) for model, work in counted]
        yield from self._families(OF_BRANCHES, clocked)
        fraction = GaugeMetricFamily("freetoken_split_fraction", "f: share of misses to copy.", labels=["model"])
        for model, work in counted:
            fraction.add_metric([model.name], work.fraction)
        yield fraction

    @staticmethod
    def _families(
        table: Sequence[Series], models: Iterable[tuple[Mapping[str, str], Mapping[str, float]]]
    ) -> Iterator[Metric]:
        """A family a series, with the models that have it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        rows = list(models)
        for series in table:
            kind = CounterMetricFamily if series.total else GaugeMetricFamily
            labels = list(rows[0][0]) if rows else ["model"]
            family = kind(f"freetoken_{series.name}", series.help, labels=labels)
            for row, values in rows:
                if series.source in values:
                    family.add_metric(list(row.values()), values[series.source])
            yield family
