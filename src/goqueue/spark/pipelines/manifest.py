"""What an archive holds: a log of commits beside the Parquet files, and nothing counts that is not in it.

    <archive>/
      date=2026-11-15/00000000000000000007-00000.parquet    sequence of its commit, number within it
      _goqueue/lock                                         held by the process that changes the archive
      _goqueue/00000000000000000007.json                    one commit: what came, what went, which offsets are in
      _goqueue/staging/8/...                                what Spark is writing for the next one

A commit is one file that appears at once, or not at all, and never twice under one sequence. It says which offsets of
which partitions are now in the archive, so the manifest is also the checkpoint: the next run begins where it ends,
and there is no second place that could disagree.

    1. Spark writes files below staging/<sequence>.                          killed here: they are thrown away
    2. Their rows are counted, their bytes summed, and the commit written.   from here on they count
    3. What they replace is removed, and they are moved to their places.     killed here: the next job does it

So a directory that is read by something that knows of no manifest never shows a row twice, or one that does not count;
at worst it lacks those that are on their way. Every `WHOLE_EVERY` commits one says all that the archive holds, and
those before it are removed.

The checksum of a file is over its bytes: it says years later, when the topic has long forgotten the messages, whether
the archive is what was written.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, Self

import msgspec

from goqueue.spark.pipelines.store import ArchiveBusy, ArchiveDamaged, ArchiveError, ForeignArchive, Store

FORMAT = 1
OWN = "_goqueue"  # Spark, like Hive, passes over names that begin with an underscore
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
            f"retention removed these offsets before they were archived: {names}; --accept-loss goes on without them"
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
    headers: str = MAP  # the form of that column; files from before there was another do not say it


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of an archive, as it stands in its file."""

    sequence: int
    topic: str
    topic_id: str
    job: str  # archive, merge or compact
    committed_at: str
    archived: list[PartitionSpan] = []  # in order; each goes on where the one before it ended
    lost: list[PartitionSpan] = []  # by retention, with the user's consent
    files: list[ArchivedFile] = []  # that came
    removed: list[str] = []  # that went
    moves: dict[str, str] = {}  # from where Spark wrote it to its place
    is_whole: bool = False  # says all; what came before does not matter
    is_compacted: bool = False  # has only the last message of each key
    format: int = FORMAT


class Manifest:
    """All commits of an archive, taken together."""

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
        """What the commits, which are in their order, make together."""
        manifest = cls()
        for commit in commits:
            manifest.apply(commit)
        return manifest

    @property
    def record_count(self) -> int:
        """How many messages are in the archive."""
        return sum(file.record_count for file in self.files.values())

    @property
    def size_bytes(self) -> int:
        """How large its files are."""
        return sum(file.size_bytes for file in self.files.values())

    def apply(self, commit: Commit) -> None:
        """Take one more commit in. Raises `ArchiveDamaged` if it cannot be the next one."""
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
                raise ArchiveDamaged(name, f"begins at {span.start} of partition {span.partition}, and not at {begins}")
            start = span.start if before is None else before.start
            self.archived[span.partition] = PartitionSpan(span.partition, start, span.end)
        for path in commit.removed:
            if self.files.pop(path, None) is None:
                raise ArchiveDamaged(name, f"removes {path}, which is not there")
        for file in commit.files:
            if file.path in self.files:
                raise ArchiveDamaged(name, f"brings {file.path}, which is there")
            self.files[file.path] = file

    def onwards(self, spans: Sequence[PartitionSpan]) -> list[PartitionSpan]:
        """The part of the spans that is after what is archived."""
        found = []
        for span in spans:
            known = self.archived.get(span.partition)
            start = span.start if known is None else known.end
            found.append(PartitionSpan(span.partition, start, max(start, span.end)))
        return found

    def whole(self, commit: Commit) -> Commit:
        """That commit, which is taken in already, in the form that says all."""
        return msgspec.structs.replace(
            commit,
            archived=sorted(self.archived.values()),
            lost=self.lost,
            files=list(self.files.values()),
            removed=[],
            is_whole=True,
        )


class Archive:
    """A directory with a manifest. Made by `opened`, which holds it against others, or by `looked_at`."""

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
        """Make files that lie below `staging` count, and those that are `removed` not any more, in one step.

        Raises `ArchiveDamaged` if they do not have as many rows as they should, where that is known.
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
        """Bring the files to where the last commit has them; safe to do again."""
        if self._last is None:
            return
        for path in removed:
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
        """Finish what a killed job began, and remove its files that do not count; says which those were."""
        stray = [path for path in self.store.files("") if _DATA.fullmatch(path) and path not in self.manifest.files]
        self.settle(stray)
        self.store.remove(STAGING)
        return stray

    def urls(self, paths: Iterable[str] | None = None) -> list[str]:
        """The files that count, as Spark calls them, wherever they are on their way."""
        return [self.store.url(self.place(path)) for path in (self.manifest.files if paths is None else paths)]

    def place(self, path: str) -> str:
        """Where a file that counts is: not yet in its place, if a job was killed just after its commit."""
        staged = self._staged.get(path)
        return staged if staged is not None and self.store.exists(staged) else path


@contextmanager
def opened(store: Store, *, topic: str, topic_id: str, is_compacted: bool) -> Iterator[Archive]:
    """The archive of that topic, locked against other writers, and created if the directory is empty."""
    check_is_ours(store)
    with store.locked(LOCK):
        archive = Archive(store, load(store))
        known = archive.manifest
        if known.sequence and known.topic != topic:
            raise ForeignArchive(store.directory, f"holds the archive of topic {known.topic}, not of {topic}")
        if known.sequence and topic_id and known.topic_id != topic_id:
            reason = (
                f"holds the archive of another topic of the name {topic}, which was deleted since ({known.topic_id})"
            )
            raise ForeignArchive(store.directory, reason)
        if known.sequence and known.is_compacted != is_compacted:
            holds = "the last message of each key only" if known.is_compacted else "all messages, and is not compacted"
            raise ForeignArchive(store.directory, f"holds {holds}: choose another directory")
        archive.sweep()
        yield archive


def looked_at(store: Store) -> Archive:
    """The archive as it is, for readers; it takes no lock."""
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
        except FileNotFoundError:  # a whole one came meanwhile, and this is not needed any more
            return load(store)
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(store.url(path), f"is no commit of format {FORMAT}: {error}") from None
        if commit.format != FORMAT or commit_path(commit.sequence) != path:
            raise ArchiveDamaged(store.url(path), f"is no commit of format {FORMAT}")
        if commit.is_whole:
            commits.clear()
        commits.append(commit)
    return commits


def commit_path(sequence: int) -> str:
    """Where a commit stands."""
    return f"{OWN}/{sequence:020d}.json"


class ReadableOffsets(NamedTuple):
    """What of a partition can be read now: [start, end)."""

    partition: int
    start: int
    end: int


class ArchivePlan(NamedTuple):
    """The offsets to archive next, and those that are gone before they were."""

    spans: list[PartitionSpan]
    lost: list[PartitionSpan]

    @property
    def offset_count(self) -> int:
        """How many offsets that are."""
        return sum(span.end - span.start for span in self.spans)


def plan(
    archived: Mapping[int, PartitionSpan], bounds: Sequence[ReadableOffsets], *, offsets_max: int, is_first: bool
) -> ArchivePlan:
    """The next offsets of each partition, in proportion to what it has waiting, at most `offsets_max` or one of each.

    The first commit begins where the log begins. From then on what is not there any more is lost; and a partition that
    came later should be there from its first offset on.
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
