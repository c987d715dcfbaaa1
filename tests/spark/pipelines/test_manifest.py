import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import InvalidConfig
from goqueue.spark.pipelines import manifest as manifests
from goqueue.spark.pipelines.manifest import (
    WHOLE_EVERY,
    Archive,
    Commit,
    Manifest,
    OffsetsLost,
    PartitionSpan,
    ReadableOffsets,
    commit_path,
    load,
    looked_at,
    opened,
    plan,
)
from goqueue.spark.pipelines.store import ArchiveBusy, ArchiveDamaged, ForeignArchive, LocalStore, local_path
from tests.spark.archives import MortalStore, killed, read_offsets, write_offsets

TOPIC = {"topic": "orders", "topic_id": "id-1"}
END = 30


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "archive"))


def add(archive: Archive, start: int, end: int) -> Commit:
    """Archive offsets of one partition, in two files."""
    half = (start + end) // 2
    staged = [f"{archive.staging}/date=2026-11-1{day}/part-{day}-x.parquet" for day in (5, 6)]
    write_offsets(archive.store, staged[0], list(range(start, half)))  # type: ignore[arg-type]
    write_offsets(archive.store, staged[1], list(range(half, end)))  # type: ignore[arg-type]
    return archive.commit("archive", **TOPIC, now="now", staged=staged, archived=[PartitionSpan(0, start, end)])


def merge(archive: Archive) -> Commit:
    """Put all files of a day into one."""
    paths = [path for path in archive.manifest.files if path.startswith("date=2026-11-15")]
    rows = read_offsets(archive.store, paths)  # type: ignore[arg-type]
    staged = f"{archive.staging}/date=2026-11-15/part-0-y.parquet"
    write_offsets(archive.store, staged, rows)  # type: ignore[arg-type]
    return archive.commit("merge", **TOPIC, now="now", staged=[staged], removed=paths, record_count=len(rows))


def work(store: LocalStore) -> None:
    """A job as it is: looks how far the archive goes, and goes on."""
    with opened(store, **TOPIC, is_compacted=False) as archive:
        while (end := archive.manifest.archived.get(0, PartitionSpan(0, 0, 0)).end) < END:
            add(archive, end, end + 10)
            if sum(path.startswith("date=2026-11-15") for path in archive.manifest.files) > 1:
                merge(archive)


def offsets(store: LocalStore) -> list[int]:
    archive = looked_at(store)
    return sorted(read_offsets(store, [archive.place(path) for path in archive.manifest.files]))


def plain_files(store: LocalStore) -> list[str]:
    """What somebody sees who knows of no manifest."""
    return [path for path in store.files("") if not path.startswith("_")]


def test_what_is_committed_is_there(store: LocalStore) -> None:
    with opened(store, **TOPIC, is_compacted=False) as archive:
        commit = add(archive, 5, 15)

    found = looked_at(store).manifest
    assert found.archived == {0: PartitionSpan(0, 5, 15)}
    assert found.record_count == 10
    assert plain_files(store) == [file.path for file in commit.files] == list(found.files)
    assert plain_files(store)[0] == "date=2026-11-15/00000000000000000001-00000.parquet"
    assert offsets(store) == list(range(5, 15))


@pytest.mark.parametrize("is_after", [False, True])
def test_a_job_that_is_killed_anywhere_goes_on_and_loses_and_repeats_nothing(tmp_path: Path, is_after: bool) -> None:
    change = 0
    is_alive = False
    while not is_alive:
        change += 1
        directory = str(tmp_path / f"{change}")
        is_alive = not killed(lambda: work(MortalStore(directory, change=change, is_after=is_after)))  # noqa: B023

        store = LocalStore(directory)
        seen = [path for path in plain_files(store) if path in (looked_at(store).manifest.files if load(store) else ())]
        assert seen == plain_files(store) or is_old(store)
        if load(store):
            end = looked_at(store).manifest.archived[0].end
            assert offsets(store) == list(range(end))
        work(store)

        assert offsets(store) == list(range(END))
        assert plain_files(store) == sorted(looked_at(store).manifest.files)
        assert not store.exists(manifests.STAGING)
    assert change > 20


def is_old(store: LocalStore) -> bool:
    """Whether what is seen is what the commit before the last had: nothing of the last is in its place yet."""
    before = Manifest.of(load(store)[:-1])
    return set(plain_files(store)) <= set(before.files)


def test_killed_twice_in_a_row_is_no_worse(tmp_path: Path) -> None:
    for first in range(1, 12):
        for second in range(1, 4):
            directory = str(tmp_path / f"{first}-{second}")
            killed(lambda: work(MortalStore(directory, change=first, is_after=True)))  # noqa: B023
            killed(lambda: work(MortalStore(directory, change=second, is_after=False)))  # noqa: B023
            work(LocalStore(directory))
            assert offsets(LocalStore(directory)) == list(range(END))


def test_files_that_do_not_count_are_removed_and_those_of_others_left(store: LocalStore) -> None:
    work(store)
    write_offsets(store, "date=2026-11-15/00000000000000000009-00000.parquet", [1, 2, 3])
    write_offsets(store, "date=2026-11-15/mine.parquet", [4])

    with opened(store, **TOPIC, is_compacted=False):
        pass

    assert not store.exists("date=2026-11-15/00000000000000000009-00000.parquet")
    assert store.exists("date=2026-11-15/mine.parquet")
    assert offsets(store) == list(range(END))


def test_another_topic_is_refused(store: LocalStore) -> None:
    work(store)

    for topic, topic_id, is_compacted, reason in (
        ("payments", "id-1", False, "holds the archive of topic orders, not of payments"),
        ("orders", "id-2", False, "another topic of the name orders, deleted since"),
        ("orders", "id-1", True, "not compacted"),
    ):
        with (
            pytest.raises(ForeignArchive, match=reason),
            opened(store, topic=topic, topic_id=topic_id, is_compacted=is_compacted),
        ):
            pass


def test_a_directory_with_something_else_in_it_is_refused_and_left_alone(store: LocalStore, tmp_path: Path) -> None:
    write_offsets(store, "photos/cat.parquet", [1])

    with pytest.raises(ForeignArchive, match="not empty and holds no archive: there is photos/cat.parquet"):
        work(store)

    assert store.files("") == ["photos/cat.parquet"]
    with pytest.raises(ForeignArchive, match="holds no archive"):
        looked_at(LocalStore(str(tmp_path / "nothing")))


def test_two_jobs_do_not_write_at_once(store: LocalStore) -> None:
    with (
        opened(store, **TOPIC, is_compacted=False),
        pytest.raises(ArchiveBusy, match="another job"),
        opened(LocalStore(store.directory), **TOPIC, is_compacted=False),
    ):
        pass


def test_a_commit_never_takes_the_place_of_another(store: LocalStore) -> None:
    """Even where locks do not work, as on some file systems of a network."""
    with opened(store, **TOPIC, is_compacted=False) as archive:
        add(archive, 0, 10)
        other = Archive(store, load(store))
        add(archive, 10, 20)
        with pytest.raises(ArchiveBusy):
            other.commit("archive", **TOPIC, now="", staged=[], archived=[PartitionSpan(0, 10, 20)])

    assert offsets(store) == list(range(20))


def test_many_commits_become_one_that_says_all(store: LocalStore) -> None:
    with opened(store, **TOPIC, is_compacted=False) as archive:
        for number in range(WHOLE_EVERY + 3):
            archive.commit("archive", **TOPIC, now="", staged=[], archived=[PartitionSpan(0, number, number + 1)])
            if number == 5:
                add(archive, number + 1, number + 1)
                archive.commit(
                    "archive",
                    **TOPIC,
                    now="",
                    staged=[],
                    lost=[PartitionSpan(1, 0, 7)],
                    archived=[PartitionSpan(1, 7, 9)],
                )

    names = [path for path in store.files("_goqueue") if path.endswith(".json")]
    assert names[0] == commit_path(WHOLE_EVERY)
    assert len(names) == 6
    found = looked_at(store).manifest
    assert found.archived == {0: PartitionSpan(0, 0, WHOLE_EVERY + 3), 1: PartitionSpan(1, 7, 9)}
    assert found.lost == [PartitionSpan(1, 0, 7)]


def test_rows_that_vanish_on_the_way_are_noticed(store: LocalStore) -> None:
    with opened(store, **TOPIC, is_compacted=False) as archive:
        add(archive, 0, 10)
        staged = f"{archive.staging}/date=2026-11-15/part-0.parquet"
        write_offsets(store, staged, [1, 2])
        with pytest.raises(ArchiveDamaged, match="has 2 rows, and should have 3"):
            archive.commit("merge", **TOPIC, now="", staged=[staged], record_count=3)

    assert offsets(store) == list(range(10))


def test_files_without_rows_do_not_count(store: LocalStore) -> None:
    with opened(store, **TOPIC, is_compacted=False) as archive:
        commit = add(archive, 0, 1)

    assert len(commit.files) == 1
    assert len(plain_files(store)) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sequence": 3}, "the commit before it is 1"),
        ({"topic": "other"}, "is of topic other"),
        ({"archived": [PartitionSpan(0, 11, 12)]}, "starts at 11 of partition 0, and not at 10"),
        ({"archived": [PartitionSpan(0, 10, 9)]}, "starts at 10"),
        ({"removed": ["nothing"]}, "removes nothing, which does not exist"),
    ],
)
def test_commits_that_do_not_fit_together_are_damage(changes: dict[str, object], reason: str) -> None:
    first = Commit(1, "orders", "id-1", "archive", "", archived=[PartitionSpan(0, 0, 10)])
    second = Commit(2, "orders", "id-1", "archive", "")

    with pytest.raises(ArchiveDamaged, match=reason):
        Manifest.of([first, msgspec.structs.replace(second, **changes)])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"sequence": 1}', '{"sequence": "1"}', "newer", "renamed"])
def test_a_commit_that_cannot_be_read_is_damage(store: LocalStore, content: str) -> None:
    work(store)
    path = Path(store.directory, commit_path(2))
    data = json.loads(path.read_text())
    data |= {"newer": {"format": 2}, "renamed": {"sequence": 3}}.get(content, {})
    path.write_text(json.dumps(data) if content in ("newer", "renamed") else content)

    with pytest.raises(ArchiveDamaged, match="is not a commit of format 1"):
        looked_at(store)


def test_a_commit_that_is_gone_is_damage(store: LocalStore) -> None:
    work(store)
    store.remove(commit_path(2))

    with pytest.raises(ArchiveDamaged, match="the commit before it is 1"):
        looked_at(store)


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 50))),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6),
    st.integers(1, 100),
    st.booleans(),
)
def test_a_plan_goes_on_where_the_archive_ends_and_names_what_is_lost(
    archived: dict[int, tuple[int, int]], logs: list[tuple[int, int]], offsets_max: int, is_first: bool
) -> None:
    known = (
        {} if is_first else {number: PartitionSpan(number, min(pair), max(pair)) for number, pair in archived.items()}
    )
    bounds = [ReadableOffsets(number, min(pair), max(pair)) for number, pair in enumerate(logs)]

    made = plan(known, bounds, offsets_max=offsets_max, is_first=is_first)

    lost = {span.partition: span for span in made.lost}
    assert made.offset_count <= offsets_max + len(bounds)
    for bound in bounds:
        begins = known[bound.partition].end if bound.partition in known else bound.start if is_first else 0
        gap = lost.get(bound.partition)
        assert gap == (PartitionSpan(bound.partition, begins, bound.start) if begins < bound.start else None)
        waiting = bound.end - max(begins, bound.start)
        for span in made.spans:
            if span.partition == bound.partition:
                assert span.start == max(begins, bound.start)
                assert span.start <= span.end <= max(span.start, bound.end)
                assert span.end > span.start or waiting <= 0
                break
        else:
            assert waiting <= 0
            assert gap is None
    assert not is_first or len(made.spans) == len(bounds)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 15))
def test_plan_by_plan_everything_is_archived_once(ends: list[int], offsets_max: int) -> None:
    manifest = Manifest()
    bounds = [ReadableOffsets(number, 0, end) for number, end in enumerate(ends)]

    for sequence in range(1, 200):
        made = plan(manifest.archived, bounds, offsets_max=offsets_max, is_first=sequence == 1)
        if not made.spans:
            break
        manifest.apply(Commit(sequence, "t", "id", "archive", "", archived=made.spans))

    assert {number: span.end for number, span in manifest.archived.items()} == dict(enumerate(ends))


def test_what_is_lost_is_named_with_its_offsets() -> None:
    error = OffsetsLost("orders", [PartitionSpan(0, 5, 9), PartitionSpan(2, 0, 1)])

    assert "orders-0 [5, 9), orders-2 [0, 1)" in str(error)


def test_loss_that_was_accepted_is_kept_in_mind_and_the_archive_goes_on_behind_it() -> None:
    first = Commit(1, "orders", "id-1", "archive", "", archived=[PartitionSpan(0, 0, 10)])
    second = Commit(
        2, "orders", "id-1", "archive", "", lost=[PartitionSpan(0, 10, 15)], archived=[PartitionSpan(0, 15, 20)]
    )

    manifest = Manifest.of([first, second])

    assert (manifest.archived, manifest.lost) == ({0: PartitionSpan(0, 0, 20)}, [PartitionSpan(0, 10, 15)])


@pytest.mark.parametrize(
    ("given_", "path"), [("/a/b", "/a/b"), ("file:///a%20b", "/a b"), ("file:/a", "/a"), ("a", "a")]
)
def test_a_directory_may_be_a_url(given_: str, path: str) -> None:
    assert local_path(given_) == path


@pytest.mark.parametrize("directory", ["s3a://bucket/x", "hdfs://host/x", "/data/*", "/data/{a,b}"])
def test_a_place_that_is_no_directory_is_refused(directory: str) -> None:
    with pytest.raises(InvalidConfig, match="directory"):
        local_path(directory)
