"""One worker a model: started when somebody asks, shared, unloaded when idle, replaced when it dies."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.base.errors import BusyError, FreetokenError, NoRoomError, NotFoundError
from engine.base.profile import profile_of
from engine.base.units import KvBudget
from engine.files.store import Store
from engine.front.workers.attach import LoadFlags, Step, decide, pick_device
from engine.front.workers.client import WorkerClient
from engine.front.workers.defaults import read_defaults
from engine.front.workers.loaded import Loaded, edition_of
from engine.front.workers.process import spawn
from engine.text.text import Text
from engine.worker.protocol import Resized, Stats, WorkerConfig, experts_notes

CRASHES = 3  # so many within CRASH_SECONDS, and a model is not started again until the oldest is past
CRASH_SECONDS = 60.0
STATS_SECONDS = 1.5  # that a worker gets to answer between two steps; a prompt is read in steps of about one


@dataclass(frozen=True)
class Wish:
    """How somebody wants a model: `asked` and `keep_alive` must hold, the defaults serve a fresh load alone."""

    asked: LoadFlags = field(default_factory=LoadFlags)
    defaults: LoadFlags = field(default_factory=LoadFlags)
    keep_alive: float | None = None
    default_keep_alive: float | None = None


class Supervisor:
    """The loaded models of one front. All methods belong to the event loop's thread."""

    def __init__(
        self,
        store: Store,
        keep_alive: float,
        worker_command: Sequence[str],
        profile: Path | None,
    ) -> None:
        self.store = store
        self._profile = profile
        self._last_use = time.monotonic()
        self._acquiring: list[str] = []  # names of models that somebody waits for, each as often
        self._keep_alive = keep_alive
        self._command = worker_command
        self._loaded: dict[str, Loaded] = {}
        self._settings: dict[str, tuple[LoadFlags, float]] = {}  # what a model was last loaded with
        self._crashes: dict[str, deque[float]] = {}
        self._starting: set[WorkerClient] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._leaving: set[asyncio.Task[None]] = set()  # ends of workers, whose memory is not free yet
        self._closing = False

    @property
    def models(self) -> list[Loaded]:
        return list(self._loaded.values())

    @property
    def loading(self) -> list[str]:
        """Names of models that somebody waits for."""
        return sorted(set(self._acquiring) - self._loaded.keys())

    @property
    def idle_seconds(self) -> float:
        """Since when nothing has been loaded or asked for; 0 while something is."""
        return 0.0 if self._loaded or self._acquiring else time.monotonic() - self._last_use

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Loaded]:
        """The model, loaded if need be, which stays loaded at least until the block is left."""
        loaded, _, _ = await self._acquire(name, None)
        try:
            yield loaded
        finally:
            self._release(loaded)

    async def load(self, name: str, wish: Wish) -> tuple[Loaded, float | None, tuple[str, ...]]:
        """Load a model, or attach to it under the rule of `attach.decide`.

        Also the seconds that loading took (None: it was there) and what the user should be told.
        """
        pick_device(wish.asked.device)
        loaded, fresh, moved = await self._acquire(name, wish)
        self._release(loaded)
        notes = loaded.ready.notes if fresh else (*experts_notes(loaded.ready.device, wish.asked.experts), *moved)
        return loaded, loaded.ready.load_seconds if fresh else None, notes

    async def resize(
        self, name: str, kv: KvBudget | None, experts: str | None
    ) -> tuple[dict[str, Any], Loaded, Resized]:
        """Move memory of a loaded model: its state before, the model, and what the worker says.

        BusyError while somebody else is at it: who comes second must see the new sizes before asking for others.
        """
        self.find(name).check_still()
        async with self._lock(name):
            loaded = self.find(name)
            before = loaded.state()
            self._hold(loaded)
            try:
                return before, loaded, await self._resize(loaded, kv, experts)
            finally:
                self._release(loaded)

    async def refresh(self, loaded: Loaded) -> Stats:
        """The counters of a model's worker; those heard last if it is in the middle of a long step."""
        with suppress(TimeoutError, FreetokenError):
            loaded.stats = await asyncio.wait_for(loaded.client.stats(), STATS_SECONDS)
        return loaded.stats

    async def refresh_all(self) -> list[Loaded]:
        """The loaded models, each with the counters of now."""
        models = self.models
        await asyncio.gather(*(self.refresh(loaded) for loaded in models))
        return models

    async def stop(self, name: str) -> str:
        """Unload a model, whatever it is doing; its full name."""
        loaded = self.find(name)
        await self._unload(loaded)
        return loaded.name

    async def close(self) -> None:
        """Unload everything; no worker is left, and none can be started any more."""
        self._closing = True
        for client in self._starting:
            self._leave(client.abort())
        for loaded in self.models:
            self._unload(loaded)
        await self._wait_for_leavers()

    def find(self, name: str) -> Loaded:
        """A model that is loaded. NotFoundError for any other."""
        loaded = self._loaded.get(name)
        if loaded is None:
            self.store.get(name)  # a name that is not there at all gets a suggestion
            raise NotFoundError(f"{name} is not loaded.", "`freetoken ps` lists what is.")
        return loaded

    async def _acquire(self, name: str, wish: Wish | None) -> tuple[Loaded, bool, tuple[str, ...]]:
        """The loaded model with one more user, whether it was loaded just now, and what a resize of it has to say."""
        folder = self.store.get(name)
        self._acquiring.append(name)
        try:
            async with self._lock(name):
                return await self._acquire_locked(name, folder, wish)
        finally:
            self._acquiring.remove(name)
            self._last_use = time.monotonic()

    async def _acquire_locked(self, name: str, folder: Path, wish: Wish | None) -> tuple[Loaded, bool, tuple[str, ...]]:
        there = self._loaded.get(name)
        moved = None if there is None else await self._attach(there, folder, wish.asked if wish else LoadFlags())
        if there is not None and moved is not None:
            loaded = there
        else:
            flags, keep_alive = self._settings.get(name, (LoadFlags(), self._keep_alive))
            if wish is not None:
                flags = wish.asked.over(wish.defaults)
                keep_alive = keep_alive if wish.default_keep_alive is None else wish.default_keep_alive
            loaded = await self._start(name, folder, flags, keep_alive)
            self._hold(loaded)
        if wish is not None and wish.keep_alive is not None:
            loaded.keep_alive = wish.keep_alive
        self._settings[name] = (loaded.flags, loaded.keep_alive)
        return loaded, moved is None, moved or ()

    async def _attach(self, loaded: Loaded, folder: Path, asked: LoadFlags) -> tuple[str, ...] | None:
        """Become a user of a loaded model, make `asked` hold for it, and tell what is to be said of that.

        None: it is gone and must be started.

        One whose files were replaced goes when nobody uses it; until then it answers as it did, from the old ones.
        """
        if not loaded.client.alive:
            await loaded.client.wait_ended()
            return None
        if not loaded.users and loaded.edition != edition_of(folder):
            await self._unload(loaded)
            return None
        decision = decide(loaded.running, asked, busy=loaded.users > 0)
        if decision.step is Step.RESTART:
            await self._unload(loaded)
            return None
        if decision.step is Step.REFUSE:
            raise BusyError(
                f"{loaded.name} is answering and cannot be restarted for {', '.join(decision.mismatches)}.",
                "Leave the flag out, or try again when it is idle.",
            )
        self._hold(loaded)
        if decision.step is not Step.RESIZE:
            return ()
        try:
            resized = await self._resize(loaded, asked.kv, None if loaded.ready.cache is None else asked.experts)
        except BaseException:
            self._release(loaded)
            raise
        return resized.notes

    async def _resize(self, loaded: Loaded, kv: KvBudget | None, experts: str | None) -> Resized:
        loaded.check_still()
        loaded.resizing = True
        try:
            resized = await loaded.client.resize(kv, experts)
        finally:
            loaded.resizing = False
        loaded.moved(resized)
        # A restart on demand should come back with the new budget, and with the old context if that still fits.
        if kv is not None:
            limit = loaded.ready.context_limit
            context = limit if limit <= resized.kv_after else None
            loaded.flags = replace(loaded.flags, kv=KvBudget(tokens=resized.kv_after), context=context)
        if experts is not None and resized.cache_after is not None:
            loaded.experts = experts
            loaded.flags = replace(loaded.flags, experts=experts)
        self._settings[loaded.name] = (loaded.flags, loaded.keep_alive)
        return resized

    async def _start(self, name: str, folder: Path, flags: LoadFlags, keep_alive: float) -> Loaded:
        self._check_crashes(name)
        try:
            return await self._start_once(name, folder, flags, keep_alive)
        except NoRoomError:
            idle = [other for other in self.models if not other.users]
            if not idle:
                raise
            await asyncio.gather(*(self._unload(other) for other in idle))
            return await self._start_once(name, folder, flags, keep_alive)

    async def _start_once(self, name: str, folder: Path, flags: LoadFlags, keep_alive: float) -> Loaded:
        await self._wait_for_leavers()
        if self._closing:
            raise BusyError("The server is shutting down.", "Send the request again in a moment.")
        edition = edition_of(folder)
        process = spawn(worker_config(folder, flags, self._profile), self._command)
        client = await WorkerClient.connect(
            process,
            lambda client: self._ended(name, client),
            lambda client, resized: self._moved_by_itself(name, client, resized),
        )
        self._starting.add(client)
        try:
            # The tokenizer takes as long as the worker's start; both at once.
            text, defaults = await asyncio.gather(
                asyncio.to_thread(Text.load, folder), asyncio.to_thread(read_defaults, folder)
            )
            ready = await client.ready()
        except BaseException:
            await self._leave(client.abort())
            raise
        finally:
            self._starting.discard(client)
        loaded = Loaded(
            name,
            client,
            ready,
            text,
            defaults,
            flags,
            keep_alive,
            edition,
            used_at=time.monotonic(),
            experts=flags.experts,
        )
        self._loaded[name] = loaded
        return loaded

    @staticmethod
    def _hold(loaded: Loaded) -> None:
        """Count a user: until `_release` the model is not unloaded for being idle."""
        loaded.users += 1
        if loaded.timer is not None:
            loaded.timer.cancel()

    def _release(self, loaded: Loaded) -> None:
        loaded.users -= 1
        loaded.used_at = self._last_use = time.monotonic()
        if loaded.users == 0 and loaded.keep_alive != float("inf"):
            loop = asyncio.get_running_loop()
            loaded.timer = loop.call_later(loaded.keep_alive, self._unload_if_idle, loaded)

    def _unload_if_idle(self, loaded: Loaded) -> None:
        if loaded.users == 0:
            self._unload(loaded)

    def _unload(self, loaded: Loaded) -> Awaitable[None]:
        """Forget a model at once; what is returned is done when its worker is gone."""
        if self._loaded.get(loaded.name) is loaded:
            del self._loaded[loaded.name]
        if loaded.timer is not None:
            loaded.timer.cancel()
        return self._leave(loaded.client.stop())

    def _leave(self, ending: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Go through with the end of a worker, whoever still waits for it."""
        task = asyncio.get_running_loop().create_task(ending)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return asyncio.shield(task)

    async def _wait_for_leavers(self) -> None:
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _ended(self, name: str, client: WorkerClient) -> None:
        """A worker has gone by itself or was stopped."""
        loaded = self._loaded.get(name)
        if loaded is not None and loaded.client is client:
            del self._loaded[name]
        if client.crashed:
            self._crashes.setdefault(name, deque(maxlen=CRASHES)).append(time.monotonic())

    def _moved_by_itself(self, name: str, client: WorkerClient, resized: Resized) -> None:
        loaded = self._loaded.get(name)
        if loaded is not None and loaded.client is client:
            loaded.moved(resized)

    def _check_crashes(self, name: str) -> None:
        crashes = self._crashes.get(name, deque())
        if len(crashes) == CRASHES and (age := time.monotonic() - crashes[0]) < CRASH_SECONDS:
            raise BusyError(
                f"{name} has crashed {CRASHES} times within {CRASH_SECONDS:.0f} seconds.",
                f"Run `freetoken verify {name}`, or try again in {CRASH_SECONDS - age:.0f} seconds.",
            )

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


def worker_config(folder: Path, flags: LoadFlags, profile: Path | None) -> WorkerConfig:
    """What a worker is started with."""
    device = pick_device(flags.device)
    values: Mapping[str, Any] = {**vars(flags), "device": device}
    file = "" if profile is None else str(profile_of(profile, device))
    return WorkerConfig(model=str(folder), profile=file, **values)
