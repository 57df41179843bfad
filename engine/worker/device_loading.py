"""From a folder to something that takes steps on a device: experts in pinned host memory, and some of them in slots."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine import _native
from engine.device.driver import Driver
from engine.device.sim import SimDriver
from engine.experts.balance import Balancer
from engine.experts.bank import HostBank
from engine.experts.machines import machine_named
from engine.files.ftw.opening import Ftw, open_model
from engine.program.device.executor import DeviceExecutor
from engine.program.device.pinned import pinned_bytes
from engine.program.ir import KV_VALUE_BYTES, Program
from engine.program.lowering.lower import lower
from engine.program.step_bytes import WeightBytes, step_bytes
from engine.spec.schema import Spec
from engine.worker.device_needs import device_needs
from engine.worker.device_placing import Placing, Wishes
from engine.worker.device_planner import DevicePlanner, budget_of
from engine.worker.device_policy import device_policy
from engine.worker.device_watch import DeviceWatch
from engine.worker.experts import BranchClock, CachedExperts, StampClock, VirtualClock
from engine.worker.identity import identity_of
from engine.worker.loaded import LoadedModel
from engine.worker.loading import context_border, free_memory, model_bytes, sim_memory
from engine.worker.machine import this_machine
from engine.worker.protocol import WorkerConfig
from engine.worker.split_start import SplitStart, split_start
from engine.worker.watcher import memory_reader

SIM_MACHINE = "rtx4090-server"  # whose link and host memory the virtual clock of a simulated device has


def load_on_device(config: WorkerConfig) -> LoadedModel:
    """Open the model of `config` and divide the device's memory for it. Raises what is told to the user."""
    if config.device == "cuda":
        from engine.worker.cuda_device import cuda_executor, open_cuda, refuse_what_has_no_kernels

        gpu = open_cuda()
        return load_with(gpu, config, cuda_executor(gpu), refuse_what_has_no_kernels)
    return load_with(SimDriver(memory=config.sim_memory or sim_memory(), threads=_threads(config)), config)


def _runs_everything(program: Program) -> None:
    """A simulated device has the processor's mixers."""


def load_with(
    driver: Driver,
    config: WorkerConfig,
    make: Callable[..., DeviceExecutor] = DeviceExecutor,
    check: Callable[[Program], None] = _runs_everything,
) -> LoadedModel:
    """As `load_on_device`, on the device of `driver`; `make` builds its executor.

    `check` raises UnsupportedError for what it cannot run, before anything large is read.
    """
    began = time.monotonic()
    model = open_model(Path(config.model))
    spec = Spec.from_json(model.spec)
    weights = WeightBytes.of(model.manifest)
    wishes = Wishes.of(config)
    program, banks = lower(spec), model.manifest.banks
    check(program)
    is_virtual = driver.name == "sim"
    policy = device_policy(program, banks, driver.memory()[0], is_virtual)
    needs = device_needs(program, weights, banks, spec.context_length, tokens=policy.max_step_tokens)
    wishes.plan(needs, *driver.memory())  # what cannot fit is told before a pool is read
    spared = driver.host(pinned_bytes(program, policy.max_step_tokens))  # the bank would take all that can be pinned
    try:
        bank = HostBank.load(model, driver, free_memory())
    finally:
        spared.free()
    record_bytes = _record_bytes(model, config.sim_record_bytes)
    size = sum(record_bytes) / len(record_bytes) if record_bytes else 0.0
    start = split_start(config.profile, this_machine(), _expert_codecs(model), driver.uuid, size)
    try:
        placed = Placing(driver, model, spec, bank, wishes, start.split, config, make, policy.max_step_tokens).place()
    except BaseException:
        bank.close()
        raise
    executor, budget = placed.executor, budget_of(placed.plan)
    context_limit, border = config.context or spec.context_length, context_border(spec)
    planner = DevicePlanner(
        needs=placed.needs,
        context_limit=context_limit,
        context_border=border,
        device_total=driver.memory()[0],
        free=lambda: driver.memory()[1],
    )
    clock: BranchClock = (
        VirtualClock(machine_named(SIM_MACHINE), record_bytes) if is_virtual else StampClock(executor, record_bytes)
    )
    return LoadedModel(
        executor=executor,
        vocab_size=spec.vocab_size,
        context_limit=context_limit,
        context_border=border,
        budget=budget,
        planner=planner,
        device=driver.name,
        device_text=driver.description,
        isa=config.isa or _native.isas()[-1],
        threads=_threads(config),
        model_bytes=model_bytes(model),
        load_seconds=time.monotonic() - began,
        dense_step_bytes=step_bytes(placed.program, weights, KV_VALUE_BYTES).dense,
        experts=CachedExperts(executor, clock, _balancer(start, clock)) if model.banks else None,
        policy=policy,
        watch=DeviceWatch(planner, memory_reader(driver.uuid, driver.memory), budget),
        notes=(*bank.notes, *placed.notes, *placed.plan.notes, *(start.notes if model.banks else ())),
        tokenizer=Path(config.model) / "tokenizer.json",
        identity=identity_of(Path(config.model), placed.program, driver.name),
    )


def _balancer(start: SplitStart, clock: BranchClock) -> Balancer:
    """Begins with the branches as the profile has them, unless its clock is that of another machine."""
    return Balancer(start.split, None if clock.name else start.timing)


def _threads(config: WorkerConfig) -> int:
    """Those that were asked for, else as many as suit the machine."""
    return config.threads or int(_native.topology()["threads"])


def _expert_codecs(model: Ftw) -> frozenset[str]:
    return frozenset(field.shape.codec for bank in model.banks for field in bank.fields if not field.shape.vector)


def _record_bytes(model: Ftw, instead: int) -> list[int]:
    """Of each MoE layer; `instead` of what they are, unless 0."""
    sizes = {layer: instead or bank.record_bytes for bank in model.banks for layer in bank.layers}
    return [sizes[layer] for layer in sorted(sizes)]
