"""The native module, built from native/bindings."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

def isas() -> list[str]:
    """Instruction sets that this build and this machine have, slowest first: "scalar", "avx2", "avx512"."""

def codecs() -> list[str]:
    """Names of the codecs that matrices can be packed in."""

def packed_bytes(codec: str, rows: int, cols: int) -> int:
    """Bytes of a packed matrix."""

def pack_rows(form: str, raw: NDArray[np.uint8], cols: int, out: memoryview | NDArray[np.uint8], stride: int) -> None:
    """Pack raw rows [rows, bytes a row] of a form (a key of FORMS) into the form's codec.

    Tile i starts at byte `i * stride` of `out`. Raises ValueError for rows or an output of the wrong size, with row
    and block for a scale, a row factor or an 8-bit float that is no finite number and for a zero point above 16, and
    with the row for a plain weight that is no finite number.
    """

def encode_rows(form: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round values [rows, cols] to raw rows [rows, bytes a row] of q8_0, mxfp4 or nvfp4, as docs/numerics.md says.

    Raises ValueError for another form, for columns that the form cannot have, and with row and block for a value that
    is not finite or too large.
    """

def unpack(codec: str, rows: int, cols: int, packed: memoryview | NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values [rows, cols] of a packed matrix. Raises ValueError for a wrong size."""

def rope_angles(
    inv_freq: NDArray[np.float32],
    scale: float,
    growth: tuple[float, int, int],
    positions: NDArray[np.int32],
    cosine: NDArray[np.float32],
    sine: NDArray[np.float32],
) -> None:
    """Fill `cosine` and `sine` [positions, frequencies] with a step's rotations, as the executor computes them.

    `growth` is the rate, the step and the start of `engine.program.ir.RopeTable`. Raises ValueError for outputs of
    another shape, and for a step below one.
    """

def topology(root: str = "/", allowed: Sequence[int] | None = None) -> dict[str, Any]:
    """`cpus` that may be used, `physical_cores`, `quota` (CPUs, or None), `threads` that suit them, their `placement`.

    `root` holds sys/ and proc/; `allowed` replaces the affinity mask of this process.
    """

def placement(threads: int, root: str = "/", allowed: Sequence[int] | None = None) -> list[int]:
    """The CPU of each of `threads` threads; -1: not pinned."""

class Executor:
    """Runs an `engine.program.ir.Program`; borrows the memory of `dense` and `banks`.

    `dense` maps names to tensors and `banks` are banks as `engine.files.ftw` opens them. `threads` None: as many
    as suit the machine; `isa` "": the fastest. Raises ValueError that names what does not fit, MemoryError.
    """

    def __init__(
        self,
        program: object,
        dense: dict[str, Any],
        banks: Sequence[Any],
        *,
        threads: int | None = None,
        isa: str = "",
        kv_dtype: str = "f16",
        page_tokens: int = 16,
        pages: int = 0,
        windows: int = 0,
        states: int = 0,
        max_tokens: int = 512,
        serial_cost: int = ...,
    ) -> None: ...
    def step(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        seq_starts: NDArray[np.int32],
        page_tables: Sequence[NDArray[np.int32]],
        rows: NDArray[np.int32],
        first: int = 0,
        stop_after: int | None = None,
        *,
        window_tables: Sequence[NDArray[np.int32]] = (),
        states: NDArray[np.int32] | None = None,
        saves: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float32]:
        """Run the operations `first` to `stop_after` (None: all); logits [rows, vocab], zeros if stopped early.

        Raises ValueError for a batch that does not fit.
        """

    def buffer(self, name: str) -> NDArray[np.float32]:
        """A copy of a buffer as the last step left it, [tokens or rows, width]."""

    def write_buffer(self, name: str, rows: NDArray[np.float32]) -> None:
        """Put rows [n, width] into a buffer, for a step that begins with an operation that reads it.

        Integers come as floats of their value. Raises ValueError for an unknown buffer and rows that it does not hold.
        """

    def resize_context(self, pages: int, windows: int, states: int) -> None:
        """Kinds of blocks that the program does not use are taken for 0.

        Raises MemoryError and changes nothing when there is no room, ValueError for a negative number.
        """

    def copy_block(self, kind: str, source: int, target: int) -> None:
        """These three as in `engine.program.executor.Executor`. Raises IndexError, ValueError for an unknown kind."""

    def read_block(self, kind: str, block: int) -> NDArray[np.uint8]: ...
    def write_block(self, kind: str, block: int, data: NDArray[np.uint8]) -> None:
        """Raises ValueError, too, for data of another size."""

    def record_routing(self, on: bool) -> None:
        """These three as in `engine.program.executor.RoutedExecutor`. Raises ValueError, MemoryError."""

    def routing(self) -> NDArray[np.int32]: ...
    def force_routing(self, ids: NDArray[np.int32] | None) -> None: ...
    def counters(self) -> Mapping[str, float]:
        """As in `engine.program.executor`."""

    @property
    def room(self) -> tuple[int, int, int]:
        """Pages, window pages and states."""

    @property
    def page_tokens(self) -> int: ...
    @property
    def block_bytes(self) -> dict[str, int]:
        """Bytes of one block of each kind."""

    @property
    def threads(self) -> int: ...
    @property
    def operations(self) -> int:
        """Length of the program."""

    @property
    def isa(self) -> str: ...

class Probe:
    """Measures this machine with the executor's own pool and kernels."""

    def __init__(self, threads: int | None = None, isa: str = "") -> None: ...
    def read(self, data: memoryview | NDArray[np.uint8]) -> tuple[int, float]:
        """Read memory once with all threads, in units of 256 KiB: bytes read and seconds."""

    def experts(
        self,
        fields: Sequence[Any],
        record_bytes: int,
        records: memoryview | NDArray[np.uint8],
        order: NDArray[np.int32],
    ) -> tuple[int, float]:
        """Run experts `order` for one token each, straight from `records`: bytes read and seconds.

        `fields` describe a record as a bank's do.
        """

    def matmul(
        self, codec: str, packed: memoryview | NDArray[np.uint8], rows: int, cols: int, x: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """x [tokens, cols] times a packed matrix [rows, cols], as [tokens, rows]."""

# --- the worker beside a device (native/bindings/hybrid.cpp)

def mailbox_layout(max_tokens: int, top_k: int, hidden: int) -> dict[str, int]:
    """Offsets of `request`, `done`, `rows`, `top_k`, `ids`, `inputs` and `outputs` in a mailbox, its `bytes`, and the
    `row_stride`, in values, of inputs and outputs (native/hybrid/mailbox.h)."""

class ExpertWorker:
    """Computes what a device leaves to the CPU of its MoE layers; asked through a mailbox, or by its `function`."""

    function: ClassVar[int]
    """Address of a C function `void (*)(void*)`: requests a layer, given its `argument`, and waits for the answer."""

    def __init__(
        self,
        banks: Sequence[Any],
        activations: Sequence[tuple[str, float, float]],
        *,
        box: NDArray[np.uint8],
        max_tokens: int,
        top_k: int,
        hidden: int,
        patience: float,
        threads: int | None = None,
        isa: str = "",
    ) -> None:
        """Banks are those of `engine.files.ftw.opening`, activations (name, alpha, limit) of each MoE layer.

        `box` is the host's view of the mailbox; a request that takes longer than `patience` seconds fails. The worker
        is asleep. Raises ValueError for what does not fit together.
        """

    def wake(self) -> bool:
        """Begin a step: empty the mailbox and watch it. False if the worker is still busy with an older one."""

    def doze(self) -> None:
        """End a step: take no time of the CPU until the next one."""

    def close(self) -> None:
        """End the worker after what it is computing; what is pending is answered as failed."""

    def argument(self, layer: int) -> int: ...
    def counters(self) -> dict[str, float]:
        """`requests` answered, of which `empty`; `experts` run, `bytes` of records read, `seconds` of computing."""

    @property
    def failure(self) -> str:
        """Why the step under way, or the last one, failed; empty if it did not."""

    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...

# --- large reads (native/bindings/io.cpp)

def host_memory(size: int) -> NDArray[np.uint8]:
    """Zeroed memory [size] outside Python's heap, aligned to 2 MiB, in huge pages where the system has them.

    Costs nothing until it is written; freed with the last view. Raises MemoryError.
    """

def prefer_node(memory: memoryview | NDArray[np.uint8], node: int) -> bool:
    """Ask that memory not written yet comes from a NUMA node; False where the system cannot or has no such node."""

def read_files(
    parts: Sequence[tuple[str | bytes | PathLike[str], int, int]],
    out: memoryview | NDArray[np.uint8],
    progress: Callable[[int, int], object],
    *,
    threads: int = ...,
    chunk: int = ...,
    direct: bool = True,
) -> tuple[int, float]:
    """Read parts (file, offset, bytes) end to end into `out`, which they fill: bytes that passed the cache by, seconds.

    `threads` reads of `chunk` bytes are under way at once. `direct`: past the page cache, where the file system and the
    alignment (4096, in file and memory) allow it. `progress` gets bytes done and bytes in all ten times a second and at
    the end; what it or a signal handler raises ends the reading at once. Raises OSError with the file's name for one
    that is absent, short or cannot be read, ValueError for parts that do not fill `out`.
    """

class KernelError(AssertionError):
    """An emulated kernel, or the way it was launched, breaks a rule of the emulation (native/sim/block.h)."""

def sim_kernels() -> list[tuple[str, str, bool]]:
    """Name, letters of the parameters, and whether it is flat, of every emulated kernel; its place is its number."""

class Emulator:
    """Runs emulated kernels on `threads` threads, in orders that `seed` decides."""

    def __init__(self, threads: int = 1, seed: int = 0) -> None: ...
    def launch(
        self, kernel: int, grid: tuple[int, int, int], block: int, shared: int, slots: bytes
    ) -> tuple[int, int, int, int]:
        """Run a kernel to its end; `slots` has 8 bytes for each parameter. Raises KernelError.

        Returns how often a thread passed __syncthreads (the most of any block), warp collectives (one for each warp),
        and atomics on shared and on global memory of all threads.
        """

class AddressRange:
    """`size` addresses, the first `mapped` of which are memory; touching the others ends the process."""

    def __init__(self, size: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def mapped(self) -> int: ...
    def map(self, size: int) -> None:
        """Grow with zeros or shrink the memory. Raises MemoryError and changes nothing where the system has none."""
    def array(self) -> NDArray[np.uint8]:
        """The memory as it is mapped now; keeps the range alive."""

def copy_memory(target: int, source: int, size: int) -> None:
    """Copy bytes between addresses of this process."""

def store_word(address: int, value: int) -> None:
    """Store a uint32 with release."""

def wait_word(address: int, value: int, seconds: float) -> bool:
    """Whether the uint32 at an address became `value` within so many seconds; loads with acquire."""

def call_function(function: int, argument: int) -> None:
    """Call the C function `void function(void* argument)`."""
