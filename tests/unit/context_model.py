"""What context memory should do, told plainly: sets of prefixes, lists in order of use, counts. It knows no blocks.

A prefix is a tuple of tokens that ends at a page border. Everything is found anew by looking at all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = 16
Prefix = tuple[int, ...]


@dataclass(eq=False)
class Holder:
    """A request: its tokens, the prefix of them that it shares with the tree, and what else it has."""

    tokens: list[int]
    shared: int = 0  # tokens
    own: int = 0  # pages
    seen: int = 0  # index of the first window page that it holds
    has_state: bool = False
    last: Prefix | None = None
    saves: list[tuple[int, bool]] = field(default_factory=list)
    grew: bool = False

    def prefix(self, end: int) -> Prefix:
        return tuple(self.tokens[:end])

    def path(self) -> list[Prefix]:
        return [self.prefix(end) for end in range(PAGE, self.shared + 1, PAGE)]


@dataclass(eq=False)
class Mark:
    kept: bool
    pins: int = 0


class PlainMemory:
    """The model. Counts are of blocks of each kind."""

    def __init__(self, pages: int, windows: int, states: int, reach: int, stateful: bool) -> None:
        self.capacity = {"page": pages, "window": windows if reach else 0, "state": states if stateful else 0}
        self.reach, self.stateful = reach, stateful
        self.holders: list[Holder] = []
        self.tree: dict[Prefix, int] = {}  # when it was last unpinned
        self.windows: set[Prefix] = set()
        self.loose: list[Prefix] = []  # windows that nobody needs, the longest loose first
        self.marks: dict[Prefix, Mark] = {}
        self.order: list[Prefix] = []  # marks without pins, the least recently used first
        self.opening: set[Prefix] = set()  # marks at opening edges
        self.clock = 0

    # What there is

    def first_seen(self, position: int) -> int:
        positions = [p for p in range(position) if p > position - self.reach]
        return min(positions, default=position) // PAGE if self.reach else 0

    def tail(self, prefix: Prefix) -> list[Prefix]:
        """Prefixes whose window pages a token after `prefix` sees."""
        if not self.reach:
            return []
        first = self.first_seen(len(prefix))
        return [prefix[:end] for end in range((first + 1) * PAGE, len(prefix) + 1, PAGE)]

    def pinned_pages(self) -> set[Prefix]:
        return {prefix for holder in self.holders for prefix in holder.path()}

    def pinned_windows(self) -> set[Prefix]:
        return {prefix for holder in self.holders for prefix in holder.path()[holder.seen :]} if self.reach else set()

    def available(self, kind: str) -> int:
        return self.capacity[kind] - self.held(kind)

    def held(self, kind: str) -> int:
        own = sum(holder.own for holder in self.holders)
        if kind == "page":
            return len(self.pinned_pages()) + own
        if kind == "window":
            return len(self.pinned_windows()) + (own if self.reach else 0)
        if not self.stateful:
            return 0
        saving = sum(len(holder.saves) for holder in self.holders)
        return sum(h.has_state for h in self.holders) + saving + sum(mark.pins > 0 for mark in self.marks.values())

    def free(self, kind: str) -> int:
        forgettable = {"page": len(set(self.tree) - self.pinned_pages()),
                       "window": len(self.windows - self.pinned_windows()),
                       "state": len(self.order) if self.stateful else 0}[kind]  # fmt: skip
        return self.available(kind) - forgettable

    def resumable(self, holder: Holder) -> tuple[int, int]:
        """Where the holder's tokens can be taken up, and how many of them are known in whole pages."""
        known = 0
        while known + PAGE < len(holder.tokens) and holder.prefix(known + PAGE) in self.tree:
            known += PAGE
        for end in range(known, 0, -PAGE):
            prefix = holder.prefix(end)
            if self.stateful and prefix not in self.marks:
                continue
            if all(needed in self.windows for needed in self.tail(prefix)):
                return end, known
        return 0, known

    # What happens

    def reuse(self, holder: Holder) -> None:
        end, _ = self.resumable(holder)
        if holder.own or end <= holder.shared:
            return
        holder.shared = end
        if self.reach:
            holder.seen = max(holder.seen, self.first_seen(end))
        self.settle()
        prefix = holder.prefix(end)
        if prefix not in self.marks:
            return
        first = next((p for p in holder.path() if p in self.marks and p in self.opening), None)
        for used in (first, prefix):
            if used is not None:
                self.touch(used)
        if self.stateful and not holder.has_state:
            self.pin(prefix)
            if self.available("state"):
                self.take_state()
                self.unpin(prefix)
            else:
                self.unpin(prefix)
                self.drop(prefix)
            holder.has_state = True

    def reserve(self, holder: Holder, tokens: int) -> bool:
        missing = max(0, -(-tokens // PAGE) - holder.shared // PAGE - holder.own)
        windows = missing if self.reach else 0
        state = self.stateful and not holder.has_state
        if missing > self.available("page") or windows > self.available("window") or state > self.available("state"):
            return False
        while self.free("page") < missing:
            self.evict_page()
        while windows and self.free("window") < windows:
            self.evict_window()
        if state:
            self.take_state()
            holder.has_state = True
        holder.own += missing
        return True

    def plan_saves(self, holder: Holder, start: int, end: int, wanted: list[int]) -> None:
        last = end // PAGE * PAGE
        if last > start and holder.last is not None:
            self.unpin(holder.last)
            holder.last = None
        borders = [border for border in sorted(set(wanted)) if start < border <= end]
        if self.stateful and last > start:
            borders = [last, *(border for border in borders if border < last)]
        for border in borders:
            if self.stateful:
                if not self.available("state"):
                    break
                self.take_state()
            holder.saves.append((border, border in wanted))

    def keep(self, holder: Holder, computed: int, opening: set[int]) -> None:
        holder.grew = True
        for end in range(holder.shared + PAGE, computed + 1, PAGE):
            prefix = holder.prefix(end)
            self.tree.setdefault(prefix, 0)
            holder.shared, holder.own = end, holder.own - 1
            if self.reach:
                self.windows.add(prefix)
        for border, kept in sorted(holder.saves):
            prefix = holder.prefix(border)
            self.place(prefix, kept)
            if border in opening and kept:
                self.opening.add(prefix)
            if self.stateful and border == holder.shared:
                self.pin(prefix)
                holder.last = prefix
        holder.saves = []
        if self.reach:
            holder.seen = max(holder.seen, self.first_seen(computed // PAGE * PAGE))
        self.settle()

    def close(self, holder: Holder) -> None:
        if holder.grew:
            prefix = holder.prefix(holder.shared)
            if holder.last is not None:
                self.marks[holder.last].kept = True
            elif self.reach and not self.stateful and prefix:
                self.place(prefix, True)
        self.release(holder)

    def release(self, holder: Holder) -> None:
        if holder.last is not None:
            self.unpin(holder.last)
        before = self.pinned_pages()
        self.holders.remove(holder)
        self.settle()
        self.clock += 1
        for prefix in before - self.pinned_pages():
            self.tree[prefix] = self.clock

    def discard(self, holder: Holder) -> None:
        path = holder.path()
        self.release(holder)
        for prefix in reversed(path):
            if prefix in self.pinned_pages() or any(other[:-PAGE] == prefix for other in self.tree):
                return
            self.forget(prefix)

    def resize(self, pages: int, windows: int, states: int) -> bool:
        """Whether that can be; nothing changes if not."""
        room = {"page": pages, "window": windows if self.reach else 0, "state": states if self.stateful else 0}
        lasts = {holder.last for holder in self.holders if holder.last is not None}
        for kind, count in room.items():
            if self.held(kind) - (len(lasts) if kind == "state" else 0) > count:
                return False
        if self.held("state") > room["state"]:
            for holder in [h for h in self.holders if h.last is not None]:
                assert holder.last is not None
                self.unpin(holder.last)
                holder.last = None
        smaller = {kind: min(count, self.capacity[kind]) for kind, count in room.items()}
        for kind, evict in (("state", self.evict_mark), ("window", self.evict_window), ("page", self.evict_page)):
            while self.capacity[kind] - self.free(kind) > smaller[kind]:
                evict()
        self.capacity = room
        return True

    # What makes way

    def settle(self) -> None:
        """Note which windows nobody needs any more; those that are new in it are the last to go."""
        needed = self.pinned_windows() | {prefix for mark in self.marks for prefix in self.tail(mark)}
        self.loose = [prefix for prefix in self.loose if prefix in self.windows - needed]
        self.loose += sorted(self.windows - needed - set(self.loose), key=len)

    def place(self, prefix: Prefix, kept: bool) -> None:
        mark = self.marks.get(prefix)
        if mark is None:
            self.marks[prefix] = Mark(kept)
            self.order.append(prefix)
            self.opening.discard(prefix)
        elif kept:
            mark.kept = True
            self.touch(prefix)

    def touch(self, prefix: Prefix) -> None:
        if prefix in self.order:
            self.order.remove(prefix)
            self.order.append(prefix)

    def pin(self, prefix: Prefix) -> None:
        self.marks[prefix].pins += 1
        if prefix in self.order:
            self.order.remove(prefix)

    def unpin(self, prefix: Prefix) -> None:
        mark = self.marks[prefix]
        mark.pins -= 1
        if mark.pins == 0:
            self.order.append(prefix)
            if not mark.kept:
                self.drop(prefix)

    def drop(self, prefix: Prefix) -> None:
        del self.marks[prefix]
        self.order.remove(prefix)
        self.settle()

    def take_state(self) -> None:
        if self.free("state") == 0:
            self.evict_mark()

    def evict_mark(self) -> None:
        self.drop(self.order[0])

    def evict_window(self) -> None:
        if self.loose:
            self.windows.remove(self.loose.pop(0))
        else:
            self.evict_mark()

    def evict_page(self) -> None:
        parents = {prefix[:-PAGE] for prefix in self.tree}
        candidates = set(self.tree) - self.pinned_pages() - parents
        self.forget(min(candidates, key=lambda prefix: self.tree[prefix]))

    def forget(self, prefix: Prefix) -> None:
        del self.tree[prefix]
        if prefix in self.marks:
            self.drop(prefix)
        self.windows.discard(prefix)
        self.settle()
