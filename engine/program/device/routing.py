"""What routers of a step chose is kept on the device, or replaced by what is given."""

from __future__ import annotations

import numpy as np

from engine.device.driver import Driver, Memory
from engine.program.device.step_data import StepMode
from engine.program.executor import Ints
from engine.program.ir import Program, routes_experts


class DeviceRouting:
    """Fulfils what `engine.program.executor.RoutedExecutor` says; MoE layers are counted by their routers."""

    def __init__(self, driver: Driver, program: Program, max_tokens: int) -> None:
        routes = [op for op in program.ops if routes_experts(op)]
        top_k = {program.buffers[op.writes[0]].width for op in routes}
        self._driver = driver
        self._max_tokens = max_tokens
        self._experts = tuple(program.buffers[op.reads[0]].width for op in routes)
        self._top_k = top_k.pop() if len(top_k) == 1 else 0
        self._record: Memory | None = None
        self._recorded = -1  # tokens of the last step, where it was recorded
        self.forced: Ints | None = None
        """[MoE layers, T, top_k] ids that the next steps run."""

    @property
    def shape(self) -> tuple[int, int]:
        """MoE layers, and the experts of a token in each; 0 where these differ and nothing can be forced."""
        return len(self._experts), self._top_k

    @property
    def mode(self) -> StepMode:
        """That of the next step."""
        return StepMode(
            is_forced=self.forced is not None,
            record=self._record.address if self._record is not None else 0,
            layer_bytes=self._layer_bytes,
        )

    @property
    def _layer_bytes(self) -> int:
        return 4 * self._max_tokens * self._top_k

    def record(self, on: bool) -> None:
        """ValueError for a model that has no routing of one shape; NoRoomError."""
        if on:
            self._check_shape()
        self._recorded = -1
        if on == (self._record is not None):
            return
        if self._record is not None:
            self._record.free()
        self._record = self._driver.allocate(len(self._experts) * self._layer_bytes) if on else None

    def force(self, ids: Ints | None) -> None:
        """ValueError, and no change, for ids that a step cannot run."""
        if ids is None:
            self.forced = None
            return
        self._check_shape()
        layers, top_k = self.shape
        if ids.ndim != 3 or (ids.shape[0], ids.shape[2]) != (layers, top_k) or ids.dtype != np.int32:
            raise ValueError(f"a routing of {layers} layers and {top_k} experts a token is wanted, not {ids.shape}")
        if not 0 < ids.shape[1] <= self._max_tokens:
            raise ValueError(f"a routing of {ids.shape[1]} tokens; a step has 1 to {self._max_tokens}")
        if ids.min() < 0 or (ids >= np.asarray(self._experts)[:, None, None]).any():
            raise ValueError("a routing to an expert that there is not")
        ranked = np.sort(ids, axis=-1)
        if (ranked[..., 1:] == ranked[..., :-1]).any():
            raise ValueError("a token that has an expert twice")
        self.forced = ids.copy()

    def begin(self, tokens: int) -> None:
        """Before a step of so many tokens. ValueError for another number than is forced."""
        if self.forced is not None and self.forced.shape[1] != tokens:
            raise ValueError(f"a step of {tokens} tokens under a routing of {self.forced.shape[1]}")
        self._recorded = -1

    def done(self, tokens: int) -> None:
        """After a step that went well."""
        self._recorded = tokens if self._record is not None else -1

    def recorded(self) -> Ints:
        """[MoE layers, T, top_k] of the last step. ValueError unless it was recorded."""
        if self._record is None or self._recorded < 0:
            raise ValueError("the last step was not recorded")
        layers, top_k = self.shape
        ids = np.empty((layers, self._max_tokens, top_k), np.int32)
        self._driver.download(self._record.address, ids)
        return ids[:, : self._recorded].copy()

    def free(self) -> None:
        """Give the memory back."""
        self.record(False)

    def _check_shape(self) -> None:
        if not self._experts:
            raise ValueError("a model without experts has no routing")
        if not self._top_k:
            raise ValueError("the layers of this model use different numbers of experts")
