"""A disk that fails, around one that works.

Faults come in two ways. By chance: each kind has a probability per call, and all draws come from one
seed, so that a run on one thread repeats exactly. On request: `fail_next` makes one coming call fail.

    short_write   append, pwrite: a part of the data is written, then EIO or ENOSPC
    write_error   append, pwrite, truncate: EIO, nothing written
    no_space      append, pwrite: ENOSPC, nothing written
    sync_error    sync, sync_directory: EIO
    read_error    pread, entries: EIO
    bit_flip      pread: one bit of the bytes returned is wrong; the disk below is not touched
    name_error    open, make_directory, rename, remove, remove_tree: EIO, nothing changed

After a failed sync Linux takes the dirty pages for clean: they can still be read, the next sync succeeds,
and yet they never reach the medium. Over a `MemoryDisk` that is what happens here. A sync that fails by
chance has written a random part of the data, one that fails on request nothing. A directory whose sync
failed has its names where they were, unsynced. Over any other disk a failed sync is simply not passed on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from errno import EIO, ENOSPC, ENOTSUP
from os import strerror
from random import Random
from threading import Lock as Mutex
from typing import Literal, NamedTuple, TypeAlias, get_args

from goqueue.record.header import Buffer
from goqueue.storage.file import Disk, Entry, File, Lock, Space
from goqueue.testing.memory_disk import MemoryFile

Operation: TypeAlias = Literal[
    "open", "entries", "make_directory", "rename", "remove", "remove_tree", "sync_directory", "lock",
    "size", "pread", "pwrite", "append", "truncate", "sync",
]  # fmt: skip
Chance: TypeAlias = Literal[
    "short_write", "write_error", "no_space", "sync_error", "read_error", "bit_flip", "name_error"
]  # fmt: skip

CHANCES: dict[Operation, tuple[Chance, ...]] = {
    "open": ("name_error",),
    "entries": ("read_error",),
    "make_directory": ("name_error",),
    "rename": ("name_error",),
    "remove": ("name_error",),
    "remove_tree": ("name_error",),
    "sync_directory": ("sync_error",),
    "pread": ("read_error", "bit_flip"),
    "pwrite": ("no_space", "write_error", "short_write"),
    "append": ("no_space", "write_error", "short_write"),
    "truncate": ("write_error",),
    "sync": ("sync_error",),
}
"""What chance can do to each operation. The first that is drawn wins."""


class InjectedFault(NamedTuple):
    """One fault that was injected."""

    operation: Operation
    path: str
    """The file or directory; of a rename the new name."""
    kind: Chance | Literal["requested"]
    errno: int
    """0 where the call succeeded, with wrong bytes."""
    written: int = 0
    """How many bytes a failed write did write."""
    drawn: int | None = None
    """Which bit of the bytes read was flipped, or the seed of what a failed sync wrote."""

    def error(self) -> OSError:
        return OSError(self.errno, strerror(self.errno), self.path)


@dataclass(slots=True)
class _Request:
    operation: Operation
    errno: int
    path_suffix: str
    skip: int
    written: int


class _Injector:
    """Decides which call fails, and keeps the journal of those that did."""

    def __init__(self, seed: int, rates: dict[Chance, float], only: Callable[[str], bool] | None) -> None:
        self.rates = rates
        self.only = only
        self.requests: list[_Request] = []
        self.injected: list[InjectedFault] = []
        self._rng = Random(seed)
        self._mutex = Mutex()

    def strike(self, operation: Operation, *paths: str, size: int = 0) -> InjectedFault | None:
        """The fault that this call over `size` bytes is to suffer, already in the journal."""
        with self._mutex:
            fault = self._requested(operation, paths, size) or self._by_chance(operation, paths, size)
            if fault is not None:
                self.injected.append(fault)
            return fault

    def strike_whole(self, operation: Operation, *paths: str) -> None:
        """The same for a call that fails as a whole."""
        if fault := self.strike(operation, *paths):
            raise fault.error()

    def _requested(self, operation: Operation, paths: tuple[str, ...], size: int) -> InjectedFault | None:
        due: _Request | None = None
        for request in self.requests:
            if request.operation == operation and any(path.endswith(request.path_suffix) for path in paths):
                if request.skip:
                    request.skip -= 1
                elif due is None:
                    due = request
        if due is None:
            return None
        self.requests.remove(due)
        return InjectedFault(operation, paths[-1], "requested", due.errno, written=min(due.written, size))

    def _by_chance(self, operation: Operation, paths: tuple[str, ...], size: int) -> InjectedFault | None:
        if self.only is not None and not any(map(self.only, paths)):
            return None
        for kind in CHANCES.get(operation, ()):
            if self.rates[kind] and self._rng.random() < self.rates[kind]:
                return self._fault(operation, paths[-1], kind, size)
        return None

    def _fault(self, operation: Operation, path: str, kind: Chance, size: int) -> InjectedFault | None:
        match kind:
            case "short_write":
                written = self._rng.randrange(size) if size else 0
                return InjectedFault(operation, path, kind, self._rng.choice((EIO, ENOSPC)), written=written)
            case "bit_flip":
                return InjectedFault(operation, path, kind, 0, drawn=self._rng.randrange(8 * size)) if size else None
            case "sync_error":
                return InjectedFault(operation, path, kind, EIO, drawn=self._rng.getrandbits(32))
            case "no_space":
                return InjectedFault(operation, path, kind, ENOSPC)
            case _:
                return InjectedFault(operation, path, kind, EIO)


class FaultyFile:
    """An open file of a `FaultyDisk`. It has no descriptor: reads around the faults would defeat them."""

    def __init__(self, inner: File, injector: _Injector) -> None:
        self._inner = inner
        self._injector = injector

    @property
    def path(self) -> str:
        return self._inner.path

    def size(self) -> int:
        self._injector.strike_whole("size", self.path)
        return self._inner.size()

    def pread(self, position: int, size: int) -> bytes:
        data = self._inner.pread(position, size)
        fault = self._injector.strike("pread", self.path, size=len(data))
        if fault is None:
            return data
        if fault.drawn is None:
            raise fault.error()
        damaged = bytearray(data)
        damaged[fault.drawn // 8] ^= 1 << fault.drawn % 8
        return bytes(damaged)

    def pwrite(self, position: int, data: Buffer) -> None:
        data = bytes(data)
        if fault := self._injector.strike("pwrite", self.path, size=len(data)):
            self._inner.pwrite(position, data[: fault.written])
            raise fault.error()
        self._inner.pwrite(position, data)

    def append(self, *chunks: Buffer) -> int:
        data = b"".join(chunks)
        if fault := self._injector.strike("append", self.path, size=len(data)):
            self._inner.append(data[: fault.written])
            raise fault.error()
        return self._inner.append(data)

    def truncate(self, size: int) -> None:
        self._injector.strike_whole("truncate", self.path)
        self._inner.truncate(size)

    def sync(self) -> None:
        fault = self._injector.strike("sync", self.path)
        if fault is None:
            self._inner.sync()
            return
        if isinstance(self._inner, MemoryFile):
            self._inner.lose_unsynced(keep="nothing" if fault.drawn is None else "random", seed=fault.drawn)
        raise fault.error()

    def fileno(self) -> int:
        raise OSError(ENOTSUP, strerror(ENOTSUP), self.path)

    def close(self) -> None:
        self._inner.close()


class FaultyDisk:
    """A `Disk` around another that fails with the given probabilities, on paths that `only` says yes to."""

    def __init__(
        self,
        inner: Disk,
        *,
        seed: int,
        short_write: float = 0.0,
        write_error: float = 0.0,
        no_space: float = 0.0,
        sync_error: float = 0.0,
        read_error: float = 0.0,
        bit_flip: float = 0.0,
        name_error: float = 0.0,
        only: Callable[[str], bool] | None = None,
    ) -> None:
        self.inner = inner
        rates: dict[Chance, float] = {
            "short_write": short_write,
            "write_error": write_error,
            "no_space": no_space,
            "sync_error": sync_error,
            "read_error": read_error,
            "bit_flip": bit_flip,
            "name_error": name_error,
        }
        self._injector = _Injector(seed, rates, only)

    @property
    def rates(self) -> dict[Chance, float]:
        """The probability of each kind of fault; set one to change it."""
        return self._injector.rates

    @property
    def injected(self) -> list[InjectedFault]:
        """Every fault so far, oldest first."""
        return self._injector.injected

    def fail_next(
        self, operation: Operation, errno: int = EIO, *, path_suffix: str = "", skip: int = 0, written: int = 0
    ) -> None:
        """Let the next such call on such a path fail, once, after `skip` of them have passed.

        A failing append or pwrite writes the first `written` bytes. Chance and `only` have no say in it.
        """
        if operation not in get_args(Operation):
            raise ValueError(f"{operation!r} is not one of {', '.join(get_args(Operation))}")
        self._injector.requests.append(_Request(operation, errno, path_suffix, skip, written))

    def heal(self) -> None:
        """From now on nothing fails: no chance, and no request that is still waiting."""
        self._injector.rates.update(dict.fromkeys(self._injector.rates, 0.0))
        self._injector.requests.clear()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> FaultyFile:
        self._injector.strike_whole("open", path)
        return FaultyFile(self.inner.open(path, create=create, write=write), self._injector)

    def entries(self, directory: str) -> list[Entry]:
        self._injector.strike_whole("entries", directory)
        return self.inner.entries(directory)

    def make_directory(self, path: str) -> None:
        self._injector.strike_whole("make_directory", path)
        self.inner.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._injector.strike_whole("rename", source, target)
        self.inner.rename(source, target)

    def remove(self, path: str) -> None:
        self._injector.strike_whole("remove", path)
        self.inner.remove(path)

    def remove_tree(self, path: str) -> None:
        self._injector.strike_whole("remove_tree", path)
        self.inner.remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self._injector.strike_whole("sync_directory", path)
        self.inner.sync_directory(path)

    def lock(self, path: str) -> Lock:
        self._injector.strike_whole("lock", path)
        return self.inner.lock(path)

    def space(self, path: str) -> Space:
        return self.inner.space(path)
