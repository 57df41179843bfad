"""Room for the slots of one bank on a device: a run of addresses for all there may ever be, memory behind the first."""

from __future__ import annotations

from engine.device.driver import Driver, Range


class SlotArena:
    """Slots of `record_bytes` for one bank. Their addresses never change, so graphs that hold them survive a resize."""

    def __init__(self, driver: Driver, record_bytes: int, capacity: int) -> None:
        """`capacity`: the most slots there may ever be, 0 for a bank that is never cached. None is mapped yet."""
        assert record_bytes > 0, f"records of {record_bytes} bytes"
        assert capacity >= 0, f"{capacity} slots"
        self._range: Range | None = driver.reserve(capacity * record_bytes) if capacity else None
        self._stride = record_bytes
        self._capacity = capacity
        self._slots = 0

    @property
    def address(self) -> int:
        """Of slot 0; 0 where there may be none."""
        return self._range.address if self._range is not None else 0

    @property
    def stride(self) -> int:
        """Bytes from slot to slot."""
        return self._stride

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def slots(self) -> int:
        """Slots that may be used."""
        return self._slots

    @property
    def mapped(self) -> int:
        """Bytes of the device's memory that are behind them, in whole chunks of the device."""
        return self._range.mapped if self._range is not None else 0

    def map(self, slots: int) -> None:
        """Make exactly the first `slots` slots usable; contents of those below stay.

        Waits for work that is under way. Raises NoRoomError, and changes nothing, where the device has too little.
        """
        assert 0 <= slots <= self._capacity, f"{slots} slots of {self._capacity}"
        if self._range is not None:
            self._range.map(slots * self._stride)
        self._slots = slots

    def close(self) -> None:
        """Give back memory and addresses; a second time does nothing."""
        if self._range is not None:
            self._range.free()
        self._range = None
        self._slots = self._capacity = 0
