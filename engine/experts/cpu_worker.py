"""The CPU's share of the experts of a device's step: the worker, and the mailbox through which the device asks it.

docs/design.md says what device and worker promise each other, native/hybrid/mailbox.h how the mailbox lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine import _native
from engine.base.errors import ON_THE_CPU, BusyError, FreetokenError, UnsupportedError
from engine.device.driver import Driver
from engine.experts.slot_products import Activation
from engine.files.ftw.opening import Bank

AGAIN = "Try again; if it happens again, something else takes the CPU or the disk: see `freetoken doctor`."


class CpuWorker:
    """A worker and its mailbox. The attributes are the device's addresses of the mailbox's parts.

    `activations` has one entry a MoE layer. An answer that takes longer than `patience` seconds fails the step.
    Raises UnsupportedError for experts that the CPU cannot run, CannotPinError for a mailbox too large to pin.
    """

    def __init__(
        self,
        driver: Driver,
        banks: Sequence[Bank],
        activations: Sequence[Activation],
        *,
        max_tokens: int,
        top_k: int,
        hidden: int,
        threads: int | None,
        isa: str,
        patience: float,
    ) -> None:
        layout = _native.mailbox_layout(max_tokens, top_k, hidden)
        self._patience = patience
        self._box = driver.host(layout["bytes"])
        try:
            self._worker = _native.ExpertWorker(
                banks,
                [(activation.name, activation.alpha, activation.limit) for activation in activations],
                box=self._box.array,
                max_tokens=max_tokens,
                top_k=top_k,
                hidden=hidden,
                patience=patience,
                threads=threads,
                isa=isa,
            )
        except ValueError as error:
            self._box.free()
            raise UnsupportedError(f"The CPU cannot run this model's experts: {error}.", ON_THE_CPU) from error
        except BaseException:
            self._box.free()
            raise
        base = self._box.address
        self.header = base
        self.request, self.done = base + layout["request"], base + layout["done"]
        self.ids, self.inputs, self.outputs = (base + layout[name] for name in ("ids", "inputs", "outputs"))
        self.row_stride = layout["row_stride"]  # values between inputs, and between outputs
        self.function = _native.ExpertWorker.function

    def argument(self, layer: int) -> int:
        """What `function` takes to request a layer and wait for the answer."""
        return self._worker.argument(layer)

    @property
    def threads(self) -> int:
        return self._worker.threads

    def begin_step(self) -> None:
        """BusyError, after `patience` seconds, while the worker is busy with a request that was given up on."""
        if not self._worker.wake():
            raise BusyError(
                f"The CPU is still busy with experts of a step that failed, more than {self._patience:g} s ago.", AGAIN
            )

    def end_step(self) -> None:
        """FreetokenError where the CPU's share of the step failed, with why."""
        self._worker.doze()
        if self._worker.failure:
            raise FreetokenError(self._worker.failure, AGAIN)

    def counters(self) -> Mapping[str, float]:
        """`requests` answered, of which `empty`; `experts` run, `bytes` of records read, `seconds` of computing."""
        return self._worker.counters()

    def close(self) -> None:
        """End the worker, after what it is computing, and free the mailbox; a second time does nothing."""
        self._worker.close()
        self._box.free()
