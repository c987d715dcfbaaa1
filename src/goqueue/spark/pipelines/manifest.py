"""The manifest of an archive: a log of commits beside the Parquet files. A file that is in no commit does not count.

    <archive>/
      date=2026-11-15/00000000000000000007-00000.parquet    sequence of its commit, number within it
      _goqueue/lock                                         held by the process that changes the archive
      _goqueue/00000000000000000007.json                    one commit: what came, what went, which offsets are in
      _goqueue/staging/8/...                                what Spark is writing for the next one

A commit is one file that appears atomically, and never twice with one sequence. It names the offsets of each partition
that are now in the archive, so the manifest is also the checkpoint: the next run starts where the last commit ends, and
no second state can disagree with it.

    1. Spark writes files below staging/<sequence>.                            killed here: they are discarded
    2. Their rows are counted, their checksums computed, the commit written.   from here on they count
    3. Replaced files are removed, and new ones moved to their places.         killed here: the next job does it

So a reader of the directory that ignores the manifest never sees a row twice, or a row that does not count; at worst it
misses rows that are not moved yet. Every `WHOLE_EVERY` commits, one commit names all that the archive holds, and the
commits before it are removed.

The checksum of a file covers its bytes: years later, when the topic no longer has the messages, it shows whether the
file has changed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, Self

import msgspec

from goqueue.spark.pipelines.store import ArchiveBusy, ArchiveDamaged, ArchiveError, ForeignArchive, Store

FORMAT = 1
OWN = "_goqueue"  # Spark and Hive ignore names that start with an underscore
STAGING = f"{OWN}/staging"
LOCK = f"{OWN}/lock"
WHOLE_EVERY = 100
SUMMED_AT_ONCE = 2
COMPACT = "compact"
MAP = "map"
PAIRS = "array"
_COMMIT = re.compile(rf"{OWN}/(\d{{20}})\.json")
_DATA = re.compile(r"(?:[^/]+=[^/]*/)*\d{20}-\d{5,}\.parquet")


class OffsetsLost(ArchiveError):
    """Retention removed messages before they were archived."""

    code = "OFFSETS_LOST"

    def __init__(self, topic: str, lost: "Sequence[PartitionSpan]") -> None:
        names = ", ".join(f"{topic}-{one.partition} [{one.start}, {one.end})" for one in lost)
        super().__init__(
            f"retention removed these offsets before they were archived: {names}; --accept-loss continues without them"
        )
        self.topic = topic
        self.lost = [tuple(one) for one in lost]


class PartitionSpan(NamedTuple):
    """The offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int


class ArchivedFile(msgspec.Struct, frozen=True):
    """A Parquet file of the archive."""

    path: str
    record_count: int
    size_bytes: int
    crc32c: int
    headers: str = MAP  # the form of that column; files of earlier versions do not name it


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One commit of an archive, as stored."""

    sequence: int
    topic: str
    topic_id: str
    job: str  # archive, merge or compact
    committed_at: str
    archived: list[PartitionSpan] = []  # in order; each starts where the previous one of its partition ends
    lost: list[PartitionSpan] = []  # by retention, with the user's consent
    files: list[ArchivedFile] = []  # added
    removed: list[str] = []  # paths of files that do not count any more
    moves: dict[str, str] = {}  # from the path below staging to the final path
    is_whole: bool = False  # holds the whole state; earlier commits are not needed
    is_compacted: bool = False  # the archive holds only the last message of each key
    format: int = FORMAT


class Manifest:
    """The state of an archive: the sum of its commits."""

    def __init__(self) -> None:
        self.topic = ""
        self.topic_id = ""
        self.sequence = 0
        self.whole_sequence = 0
        self.is_compacted = False
        self.archived: dict[int, PartitionSpan] = {}
        self.lost: list[PartitionSpan] = []
        self.files: dict[str, ArchivedFile] = {}

    @classmethod
    def of(cls, commits: Iterable[Commit]) -> Self:
        """The state after the commits, which are in order."""
        manifest = cls()
        for commit in commits:
            manifest.apply(commit)
        return manifest

    @property
    def record_count(self) -> int:
        """The number of messages in the archive."""
        return sum(file.record_count for file in self.files.values())

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    def apply(self, commit: Commit) -> None:
        """Apply the next commit. Raises `ArchiveDamaged` if it cannot be the next one."""
        name = commit_path(commit.sequence)
        if commit.is_whole:
            self.archived, self.lost, self.files = {}, [], {}
            self.whole_sequence = commit.sequence
        elif commit.sequence != self.sequence + 1:
            raise ArchiveDamaged(name, f"the commit before it is {self.sequence}")
        if self.sequence and (commit.topic, commit.topic_id) != (self.topic, self.topic_id):
            raise ArchiveDamaged(name, f"is of topic {commit.topic} ({commit.topic_id}), not of {self.topic}")
        self.sequence, self.topic, self.topic_id = commit.sequence, commit.topic, commit.topic_id
        self.is_compacted = commit.is_compacted
        self.lost += commit.lost
        passed = {one.partition: one for one in commit.lost} if not commit.is_whole else {}
        for span in commit.archived:
            before = self.archived.get(span.partition)
            begins = span.start if before is None else before.end
            if span.partition in passed and passed[span.partition].start == begins:
                begins = passed[span.partition].end
            if span.start != begins or span.end < span.start:
                raise ArchiveDamaged(name, f"starts at {span.start} of partition {span.partition}, and not at {begins}")
            start = span.start if before is None else before.start
            self.archived[span.partition] = PartitionSpan(span.partition, start, span.end)
        for path in commit.removed:
            if self.files.pop(path, None) is None:
                raise ArchiveDamaged(name, f"removes {path}, which does not exist")
        for file in commit.files:
            if file.path in self.files:
                raise ArchiveDamaged(name, f"adds {file.path}, which exists")
            self.files[file.path] = file

    def onwards(self, spans: Sequence[PartitionSpan]) -> list[PartitionSpan]:
        """The parts of the spans after what is archived."""
        found = []
        for span in spans:
            known = self.archived.get(span.partition)
            start = span.start if known is None else known.end
            found.append(PartitionSpan(span.partition, start, max(start, span.end)))
        return found

    def whole(self, commit: Commit) -> Commit:
        """The last applied commit as one that holds the whole state."""
        return msgspec.structs.replace(
            commit,
            archived=sorted(self.archived.values()),
            lost=self.lost,
            files=list(self.files.values()),
            removed=[],
            is_whole=True,
        )


class Archive:
    """A directory with a manifest. Made by `opened`, which locks it, or by `looked_at`, for reading."""

    def __init__(self, store: Store, commits: Sequence[Commit]) -> None:
        self.store = store
        self.manifest = Manifest.of(commits)
        self._last: Commit | None = None
        self._staged: dict[str, str] = {}
        if commits:
            self._set_last(commits[-1])

    @property
    def staging(self) -> str:
        """Where the files of the next commit are written."""
        return f"{STAGING}/{self.manifest.sequence + 1}"

    def commit(
        self,
        job: str,
        *,
        topic: str,
        topic_id: str,
        now: str,
        staged: Sequence[str],
        archived: Sequence[PartitionSpan] = (),
        lost: Sequence[PartitionSpan] = (),
        removed: Sequence[str] = (),
        record_count: int | None = None,
        headers: str = PAIRS,
    ) -> Commit:
        """Add the files below `staging` to the archive and remove others from it, atomically.

        Raises `ArchiveDamaged` if the number of rows is not `record_count`, if that is given.
        """
        sequence = self.manifest.sequence + 1
        moves: dict[str, str] = {}
        files = []
        paths = sorted(staged)
        with ThreadPoolExecutor(SUMMED_AT_ONCE) as pool:
            sums = list(pool.map(self.store.summed, paths))
        for number, (path, (size_bytes, crc32c)) in enumerate(zip(paths, sums, strict=True)):
            folder = path.removeprefix(f"{self.staging}/").rpartition("/")[0]
            place = f"{folder}/{sequence:020d}-{number:05d}.parquet".removeprefix("/")
            files.append(ArchivedFile(place, self.store.row_count(path), size_bytes, crc32c, headers))
            moves[path] = place
        if record_count is not None and (found := sum(file.record_count for file in files)) != record_count:
            raise ArchiveDamaged(self.store.url(self.staging), f"has {found} rows, and should have {record_count}")
        commit = Commit(
            sequence,
            topic,
            topic_id,
            job,
            now,
            archived=list(archived),
            lost=list(lost),
            files=[file for file in files if file.record_count],
            removed=list(removed),
            moves={path: place for (path, place), file in zip(moves.items(), files, strict=True) if file.record_count},
            is_compacted=self.manifest.is_compacted or job == COMPACT,
        )
        self.manifest.apply(commit)
        if sequence - self.manifest.whole_sequence >= WHOLE_EVERY:
            written = self.manifest.whole(commit)
            self.manifest.whole_sequence = sequence
        else:
            written = commit
        try:
            self.store.publish(commit_path(sequence), msgspec.json.encode(written))
        except FileExistsError:
            raise ArchiveBusy(self.store.directory) from None
        self._set_last(written)
        self.settle(removed)
        return commit

    def _set_last(self, commit: Commit) -> None:
        self._last = commit
        self._staged = {place: path for path, place in commit.moves.items()}

    def settle(self, removed: Sequence[str] = ()) -> None:
        """Move the files of the last commit to their final paths; idempotent."""
        if self._last is None:
            return
        for path in removed:  # before the moves: a reader without the manifest must not see a row twice
            self.store.remove(path)
        for path, place in self._last.moves.items():
            if self.store.exists(path):
                self.store.move(path, place)
        self.store.remove(STAGING)
        if self._last.is_whole:
            for path in self.store.files(OWN):
                if (name := _COMMIT.fullmatch(path)) and int(name[1]) < self._last.sequence:
                    self.store.remove(path)

    def sweep(self) -> list[str]:
        """Finish the commit of a killed job, and remove files that do not count; returns their paths."""
        stray = [path for path in self.store.files("") if _DATA.fullmatch(path) and path not in self.manifest.files]
        self.settle(stray)
        self.store.remove(STAGING)
        return stray

    def urls(self, paths: Iterable[str] | None = None) -> list[str]:
        """The URLs of files that count, also of those that are not moved yet."""
        return [self.store.url(self.place(path)) for path in (self.manifest.files if paths is None else paths)]

    def place(self, path: str) -> str:
        """The path of a file that counts: still below staging if a job was killed just after its commit."""
        staged = self._staged.get(path)
        return staged if staged is not None and self.store.exists(staged) else path


@contextmanager
def opened(store: Store, *, topic: str, topic_id: str, is_compacted: bool) -> Iterator[Archive]:
    """The archive of the topic, locked against other writers; created if the directory is empty."""
    check_is_ours(store)
    with store.locked(LOCK):
        archive = Archive(store, load(store))
        known = archive.manifest
        if known.sequence and known.topic != topic:
            raise ForeignArchive(store.directory, f"holds the archive of topic {known.topic}, not of {topic}")
        if known.sequence and topic_id and known.topic_id != topic_id:
            reason = f"holds the archive of another topic of the name {topic}, deleted since ({known.topic_id})"
            raise ForeignArchive(store.directory, reason)
        if known.sequence and known.is_compacted != is_compacted:
            holds = "the last message of each key only" if known.is_compacted else "all messages, and is not compacted"
            raise ForeignArchive(store.directory, f"holds {holds}: choose another directory")
        archive.sweep()
        yield archive


def looked_at(store: Store) -> Archive:
    """The archive for readers, without a lock."""
    archive = Archive(store, load(store))
    if not archive.manifest.sequence:
        raise ForeignArchive(store.directory, "holds no archive")
    return archive


def check_is_ours(store: Store) -> None:
    """Refuse a directory that is neither empty nor an archive."""
    if not store.exists(OWN) and (strange := next(iter(store.files("")), None)) is not None:
        raise ForeignArchive(store.directory, f"is not empty and holds no archive: there is {strange}")


def load(store: Store) -> list[Commit]:
    """The commits that count, in order."""
    names = sorted(path for path in store.files(OWN) if _COMMIT.fullmatch(path))
    commits: list[Commit] = []
    for path in names:
        try:
            commit = msgspec.json.decode(store.read(path), type=Commit)
        except FileNotFoundError:  # a commit with the whole state has replaced this one meanwhile
            return load(store)
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(store.url(path), f"is not a commit of format {FORMAT}: {error}") from None
        if commit.format != FORMAT or commit_path(commit.sequence) != path:
            raise ArchiveDamaged(store.url(path), f"is not a commit of format {FORMAT}")
        if commit.is_whole:
            commits.clear()
        commits.append(commit)
    return commits


def commit_path(sequence: int) -> str:
    return f"{OWN}/{sequence:020d}.json"


class ReadableOffsets(NamedTuple):
    """The offsets [start, end) of a partition that can be read now."""

    partition: int
    start: int
    end: int


class ArchivePlan(NamedTuple):
    """The offsets to archive next, and those that were removed before they were archived."""

    spans: list[PartitionSpan]
    lost: list[PartitionSpan]

    @property
    def offset_count(self) -> int:
        """The number of offsets to archive."""
        return sum(span.end - span.start for span in self.spans)


def plan(
    archived: Mapping[int, PartitionSpan], bounds: Sequence[ReadableOffsets], *, offsets_max: int, is_first: bool
) -> ArchivePlan:
    """The next offsets of each partition, in proportion to its backlog, at most `offsets_max` or one of each.

    The first commit starts at the start of the log. From then on, offsets that are gone are lost; a partition that was
    added later must be there from offset 0 on.
    """
    lost, waiting = [], []
    for bound in bounds:
        known = archived.get(bound.partition)
        begins = known.end if known else bound.start if is_first else 0
        if begins < bound.start:
            lost.append(PartitionSpan(bound.partition, begins, bound.start))
        waiting.append(PartitionSpan(bound.partition, max(begins, bound.start), max(begins, bound.start, bound.end)))
    total = sum(span.end - span.start for span in waiting)
    spans = []
    for span in waiting:
        count = span.end - span.start
        share = count if total <= offsets_max else -(-count * offsets_max // total)
        if count or is_first or span.partition not in archived or any(one.partition == span.partition for one in lost):
            spans.append(PartitionSpan(span.partition, span.start, span.start + share))
    return ArchivePlan(spans, lost)
