"""What a crash may do to files and to names, by the letter of `goqueue.storage.file`.

A `FileNode` is a file without its name: the content that the program sees, and a journal of the changes
since the last sync, each with the bytes it replaced. So a write costs the write, a sync costs nothing,
and the durable content is found by walking the journal back. A `DirectoryNode` has the names that the
program sees, the names that are durable, and the journal of operations between the two.

A crash keeps the durable state and, of what came after it, as much as `Keep` says:

    nothing      nothing at all
    everything   all of it, as if the machine had synced just in time
    prefix       of each file the oldest changes, the last one torn at any byte
    pages        of each file every block as it was at a moment of its own, and the size at another: a
                 later block may be there while an earlier one is still old, or reads as zeros
    random       for each file one of the four

Of the operations on the names of a directory an ordered prefix survives in each of the last three. A
rename within a directory is one operation. Between directories it is two, and the old name is never
gone before the new one is there. A name that survives leads to whatever its file kept, be it nothing;
a file or directory whose name does not survive is lost with all that is in it, synced or not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, TypeAlias

Keep: TypeAlias = Literal["nothing", "everything", "prefix", "pages", "random"]

BLOCK_BYTES = (16, 512, 4096)
"""What "pages" tears by: a page, a sector, and a size that gets inside the small files of tests."""


class _Undo(NamedTuple):
    """One change: `length` bytes now stand at `position` in place of `old`. Length 0 is a cut of the end."""

    position: int
    old: bytes
    length: int


class _Redo(NamedTuple):
    """The same change forwards. No data is a cut."""

    position: int
    data: bytes | None

    def apply(self, state: bytearray) -> None:
        if len(state) < self.position:
            state.extend(bytes(self.position - len(state)))
        if self.data is None:
            del state[self.position :]
        else:
            state[self.position : self.position + len(self.data)] = self.data


class FileNode:
    """A file without its name. `names` and `handles` count what still leads to it."""

    __slots__ = ("_journal", "_medium", "content", "handles", "locked", "names")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.content = bytearray(content)
        self.names = 0
        self.handles = 0
        self.locked = False
        self._journal: list[_Undo] = []
        self._medium: bytearray | None = None  # only after a failed sync: the base that the journal builds on

    def write(self, position: int, data: bytes) -> None:
        """Put the data at `position`; a gap before it reads as zeros."""
        size = len(self.content)
        if position > size:
            data, position = bytes(position - size) + data, size
        if data:
            end = position + len(data)
            self._journal.append(_Undo(position, bytes(self.content[position:end]), len(data)))
            self.content[position:end] = data

    def resize(self, size: int) -> None:
        """Cut the end off, or extend it with zeros."""
        if size < len(self.content):
            self._journal.append(_Undo(size, bytes(self.content[size:]), 0))
            del self.content[size:]
        else:
            self.write(size, b"")

    def sync(self) -> None:
        """Make durable what was changed since the last sync, be it one that failed."""
        if self._medium is not None:
            self._medium = self.survivor("everything", Random(0))
        self._journal.clear()

    def lose_unsynced(self, keep: Keep, rng: Random) -> None:
        """Let a sync fail: the content still reads as it did, but what was not kept is never written again."""
        self._medium = self.survivor(keep, rng)
        self._journal.clear()

    def replace(self, content: bytes) -> None:
        """Make this the content, durably."""
        self.content[:] = content
        self._journal.clear()
        self._medium = None

    def flip_bit(self, position: int, bit: int) -> None:
        """Damage one bit, in the content and on the medium below it."""
        self.content[position] ^= 1 << bit
        if self._medium is not None and position < len(self._medium):
            self._medium[position] ^= 1 << bit

    def survivor(self, keep: Keep, rng: Random) -> bytearray:
        """The content that a crash leaves. The node itself stays as it is."""
        if keep == "random":
            keep = rng.choice(("nothing", "everything", "prefix", "pages"))
        state, changes = self._walk_back()
        if not changes or keep == "nothing":
            return state
        if keep == "pages":
            return _scattered(state, changes, rng)
        if keep == "prefix":
            whole = rng.randrange(len(changes))
            position, data = changes[whole]
            changes[whole:] = [] if data is None else [_Redo(position, data[: rng.randint(0, len(data))])]
        for change in changes:
            change.apply(state)
        return state

    def _walk_back(self) -> tuple[bytearray, list[_Redo]]:
        """The durable content, and the changes made since, oldest first."""
        state = bytearray(self.content)
        changes = []
        for position, old, length in reversed(self._journal):
            end = position + length
            changes.append(_Redo(position, bytes(state[position:end]) if length else None))
            state[position:end] = old
        changes.reverse()
        return (state if self._medium is None else bytearray(self._medium)), changes


def _scattered(state: bytearray, changes: list[_Redo], rng: Random) -> bytearray:
    """Every block as it was at a moment of its own, the size at yet another. Moment n is after n changes."""
    block = rng.choice(BLOCK_BYTES)
    latest = len(changes)
    latest_odds = rng.choice((0.1, 0.5, 0.9))
    kept_at: dict[int, int] = {}

    def moment() -> int:
        return latest if rng.random() < latest_odds else rng.randrange(latest)

    image = bytearray(state)
    sizes = [len(state)]
    for number, (position, data) in enumerate(changes, start=1):
        end = len(state) if data is None else position + len(data)
        changes[number - 1].apply(state)
        sizes.append(len(state))
        image.extend(bytes(max(0, len(state) - len(image))))
        for index in range(min(position, end) // block, -(-end // block)):
            if index not in kept_at:
                kept_at[index] = moment()
            if number <= kept_at[index]:
                start = index * block
                stop = min(start + block, len(image))
                image[start:stop] = state[start:stop].ljust(stop - start, b"\0")
    size = sizes[moment()]
    del image[size:]
    return image


@dataclass(slots=True, eq=False)
class NameOperation:
    """One operation on the names of a directory, all or nothing; `needs` must be durable before it is."""

    directory: "DirectoryNode"
    changes: "tuple[tuple[str, Node | None], ...]"
    needs: "NameOperation | None" = None

    def apply(self, names: "dict[str, Node]") -> None:
        for name, node in self.changes:
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node

    def collect(self, kept: "dict[NameOperation, None]") -> None:
        """Add this operation and all that are durable before it is, in order."""
        journal = self.directory.journal
        if self not in journal:
            return
        for operation in journal[: journal.index(self) + 1]:
            if operation not in kept:
                kept[operation] = None
                if operation.needs is not None:
                    operation.needs.collect(kept)


class DirectoryNode:
    """A directory without its name."""

    __slots__ = ("durable", "journal", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.journal: list[NameOperation] = []

    def change(self, *changes: "tuple[str, Node | None]", needs: NameOperation | None = None) -> NameOperation:
        """Give names to nodes, or take them away (None), in one operation."""
        operation = NameOperation(self, changes, needs)
        operation.apply(self.names)
        self.journal.append(operation)
        return operation

    def sync(self) -> None:
        """Make the names durable, and those elsewhere that they need."""
        if not self.journal:
            return
        kept: dict[NameOperation, None] = {}
        self.journal[-1].collect(kept)
        for operation in kept:
            operation.apply(operation.directory.durable)
        for directory in {operation.directory for operation in kept}:
            directory.journal = [operation for operation in directory.journal if operation not in kept]


Node: TypeAlias = FileNode | DirectoryNode


def survivor(root: DirectoryNode, keep: Keep, rng: Random) -> DirectoryNode:
    """The tree that a crash leaves, all of it durable. The old tree stays as it is."""
    kept: dict[NameOperation, None] = {}
    for directory in _directories(root):
        count = len(directory.journal)
        if keep == "nothing":
            count = 0
        elif keep != "everything":
            count = rng.randint(0, count)
        if count:
            directory.journal[count - 1].collect(kept)

    copies: dict[Node, Node] = {}

    def copy(node: Node) -> Node:
        if node in copies:
            return copies[node]
        if isinstance(node, FileNode):
            copies[node] = file = FileNode(node.survivor(keep, rng))
            return file
        copies[node] = new = DirectoryNode()
        names = dict(node.durable)
        for operation in node.journal:
            if operation in kept:
                operation.apply(names)
        for name, child in names.items():
            new.names[name] = found = copy(child)
            if isinstance(found, FileNode):
                found.names += 1
        new.durable = dict(new.names)
        return new

    tree = copy(root)
    assert isinstance(tree, DirectoryNode)
    return tree


def _directories(root: DirectoryNode) -> Iterator[DirectoryNode]:
    """Every directory that a crash could leave a name for."""
    seen = {root}
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        yield directory
        reachable = [*directory.durable.values()]
        for operation in directory.journal:
            reachable += [node for _, node in operation.changes if node is not None]
        for node in reachable:
            if isinstance(node, DirectoryNode) and node not in seen:
                seen.add(node)
                waiting.append(node)
