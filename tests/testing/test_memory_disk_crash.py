"""What `MemoryDisk.crash` keeps and what it may lose."""

import pytest

from goqueue.testing import MemoryDisk, PowerLoss
from goqueue.testing.inode import Keep

SEEDS = range(300)
KEEPS: tuple[Keep, ...] = ("nothing", "everything", "prefix", "pages", "random")


def outcomes(disk: MemoryDisk, path: str, keep: Keep = "random") -> set[bytes]:
    """What the file may hold after the crash."""
    return {disk.crash(seed, keep=keep).read(path) for seed in SEEDS}


def name_outcomes(disk: MemoryDisk) -> set[tuple[str, ...]]:
    """Which files may be there after the crash."""
    return {tuple(disk.crash(seed).paths()) for seed in SEEDS}


def test_bytes_that_were_not_synced_are_gone() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"")
    file = disk.open("/file")
    file.append(b"synced")
    file.sync()
    file.append(b"lost")

    assert disk.crash().read("/file") == b"synced"
    assert disk.crash(keep="everything").read("/file") == b"syncedlost"


def test_overwritten_and_truncated_bytes_come_back() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"0123456789")
    file = disk.open("/file")
    file.pwrite(2, b"ab")
    file.truncate(5)
    file.append(b"xyz")
    file.pwrite(7, b"far over the end")

    assert disk.crash().read("/file") == b"0123456789"


@pytest.mark.parametrize("keep", KEEPS)
def test_synced_file_survives_whatever_is_kept(keep: Keep) -> None:
    disk = MemoryDisk()
    file = disk.open("/file", create=True)
    disk.sync_directory("/")
    file.append(b"0123456789")
    file.pwrite(3, b"abc")
    file.truncate(8)
    file.sync()

    assert outcomes(disk, "/file", keep) == {b"012abc67"}


def test_prefix_tears_the_unsynced_tail_at_every_byte_and_nowhere_else() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"durable")
    file = disk.open("/file")
    file.append(b"abc")
    file.append(b"def", b"gh")

    whole = b"durableabcdefgh"
    assert outcomes(disk, "/file", "prefix") == {whole[:size] for size in range(7, 16)}


def test_prefix_keeps_a_truncate_whole_and_in_its_place() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"0123")
    file = disk.open("/file")
    file.truncate(1)
    file.append(b"ab")

    assert outcomes(disk, "/file", "prefix") == {b"0123", b"0", b"0a", b"0ab"}


def test_later_page_may_survive_an_earlier_one_that_reads_as_zeros() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"")
    file = disk.open("/file")
    for page in (b"1", b"2", b"3"):
        file.append(page * 4096)

    survived = outcomes(disk, "/file", "pages")

    assert b"1" * 4096 + bytes(4096) + b"3" * 4096 in survived
    assert {len(content) for content in survived} == {0, 4096, 8192, 12288}


def test_page_may_be_new_and_the_size_old_or_the_other_way_round() -> None:
    grown, cut, emptied = MemoryDisk(), MemoryDisk(), MemoryDisk()
    grown.write("/file", b"0123")
    grown.open("/file").append(b"45")
    cut.write("/file", b"0123456789")
    cut.open("/file").truncate(4)
    emptied.write("/file", b"0123")
    emptied.open("/file").truncate(0)

    assert outcomes(grown, "/file", "pages") == {b"0123", b"012345", b"0123\0\0"}
    assert outcomes(cut, "/file", "pages") == {b"0123456789", b"0123", b"0123" + bytes(6)}
    assert outcomes(emptied, "/file", "pages") == {b"0123", b"", bytes(4)}


def test_page_may_be_of_any_moment_in_between() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"0")
    file = disk.open("/file")
    file.pwrite(0, b"1")
    file.pwrite(0, b"2")

    assert outcomes(disk, "/file", "pages") == {b"0", b"1", b"2"}


def test_pages_leave_synced_bytes_in_the_same_block_alone() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"synced")
    file = disk.open("/file")
    file.append(b"x" * 100)
    file.append(b"y" * 100)

    assert all(content.startswith(b"synced") for content in outcomes(disk, "/file", "pages"))


def test_random_is_sometimes_all_and_sometimes_nothing_and_sometimes_torn() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"")
    disk.open("/file").append(b"0123456789")

    survived = outcomes(disk, "/file")

    assert {b"", b"0123456789", b"01234"} <= survived


def test_same_seed_gives_the_same_outcome() -> None:
    def accident() -> MemoryDisk:
        disk = MemoryDisk()
        disk.write("/a/first", b"")
        for name in ("first", "second", "third"):
            disk.open(f"/a/{name}", create=True).append(name.encode() * 1000)
        return disk

    for seed in range(20):
        one, two = accident().crash(seed), accident().crash(seed)
        assert one.paths() == two.paths()
        assert [one.read(path) for path in one.paths()] == [two.read(path) for path in two.paths()]


def test_random_outcomes_need_a_seed() -> None:
    with pytest.raises(ValueError, match="seed"):
        MemoryDisk().crash(keep="pages")


def test_crash_shows_outcomes_without_changing_what_was_written() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"")
    disk.open("/file").append(b"abc")

    disk.crash().write("/file", b"the outcome lives its own life")

    assert disk.read("/file") == b"abc"
    assert disk.crash(keep="everything").read("/file") == b"abc"


def test_crashed_disk_starts_with_power_and_full_of_durable_files() -> None:
    disk = MemoryDisk(power_off_after=9)
    file = disk.open("/file", create=True)
    disk.sync_directory("/")
    with pytest.raises(PowerLoss):
        file.append(b"0123456789")

    after = disk.crash(keep="everything")

    assert after.power_off_after is None
    assert after.steps == 0
    assert after.crash().read("/file") == b"0123456"


def test_crash_releases_locks_and_closes_files() -> None:
    disk = MemoryDisk()
    disk.write("/lock", b"")
    held = disk.lock("/lock")
    file = disk.open("/lock")

    after = disk.crash()

    assert after.open_files == 0
    fresh = after.lock("/lock")
    held.release()
    file.close()
    with pytest.raises(BlockingIOError):
        after.lock("/lock")
    fresh.release()


def test_synced_file_is_lost_with_a_name_that_was_not() -> None:
    disk = MemoryDisk()
    file = disk.open("/file", create=True)
    file.append(b"abc")
    file.sync()

    assert disk.crash().paths() == []
    assert name_outcomes(disk) == {(), ("/file",)}


def test_name_may_survive_without_the_bytes() -> None:
    disk = MemoryDisk()
    file = disk.open("/file", create=True)
    file.append(b"abc")
    disk.sync_directory("/")

    assert disk.crash().read("/file") == b""


def test_directory_is_lost_with_all_in_it_until_its_parent_is_synced() -> None:
    disk = MemoryDisk()
    disk.make_directory("/a/b")
    disk.open("/a/b/file", create=True)
    disk.sync_directory("/a/b")
    disk.sync_directory("/a")
    assert name_outcomes(disk) == {(), ("/a/b/file",)}

    disk = disk.crash(keep="everything")
    disk.sync_directory("/")
    assert disk.crash().paths() == ["/a/b/file"]


def test_names_survive_in_the_order_in_which_they_were_made() -> None:
    disk = MemoryDisk()
    for name in "abc":
        disk.open(f"/{name}", create=True)
    disk.remove("/a")

    assert name_outcomes(disk) == {(), ("/a",), ("/a", "/b"), ("/a", "/b", "/c"), ("/b", "/c")}


def test_removed_file_comes_back_with_its_content_until_the_directory_is_synced() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"abc")
    disk.remove("/file")

    assert disk.crash().read("/file") == b"abc"
    disk = disk.crash(keep="everything")
    assert disk.paths() == []


def test_rename_in_a_directory_is_all_or_nothing() -> None:
    disk = MemoryDisk()
    disk.write("/current", b"old")
    file = disk.open("/temporary", create=True)
    file.append(b"new")
    file.sync()
    disk.sync_directory("/")
    disk.rename("/temporary", "/current")

    found = {tuple((path, after.read(path)) for path in after.paths()) for after in map(disk.crash, SEEDS)}

    assert found == {(("/current", b"old"), ("/temporary", b"new")), (("/current", b"new"),)}


def test_rename_without_a_sync_of_the_file_may_leave_an_empty_one() -> None:
    disk = MemoryDisk()
    disk.write("/current", b"old")
    disk.open("/temporary", create=True).append(b"new")
    disk.rename("/temporary", "/current")
    disk.sync_directory("/")

    assert disk.crash().read("/current") == b""


def test_rename_between_directories_never_loses_the_file() -> None:
    disk = MemoryDisk()
    disk.write("/a/file", b"abc")
    disk.write("/b/other", b"")
    disk.open("/b/noise", create=True)
    disk.rename("/a/file", "/b/file")

    assert name_outcomes(disk) == {
        ("/a/file", "/b/other"),
        ("/a/file", "/b/noise", "/b/other"),
        ("/a/file", "/b/file", "/b/noise", "/b/other"),
        ("/b/file", "/b/noise", "/b/other"),
    }


def test_syncing_the_directory_that_a_file_left_makes_its_new_name_durable() -> None:
    disk = MemoryDisk()
    disk.write("/a/file", b"abc")
    disk.write("/b/other", b"")
    disk.rename("/a/file", "/b/file")
    disk.open("/b/later", create=True)

    disk.sync_directory("/a")

    assert disk.crash().paths() == ["/b/file", "/b/other"]
    assert disk.crash(keep="everything").paths() == ["/b/file", "/b/later", "/b/other"]


def test_renames_to_and_fro_end_where_the_last_one_went() -> None:
    disk = MemoryDisk()
    disk.write("/a/file", b"abc")
    disk.write("/b/other", b"")
    for source, target in [("a", "b"), ("b", "a"), ("a", "b")]:
        disk.rename(f"/{source}/file", f"/{target}/file")

    assert all(any(path.endswith("/file") for path in found) for found in name_outcomes(disk))
    disk = disk.crash(keep="everything")
    assert disk.paths() == ["/b/file", "/b/other"]


def test_file_with_two_names_after_a_crash_is_one_file() -> None:
    disk = MemoryDisk()
    disk.write("/a/file", b"abc")
    disk.write("/b/other", b"")
    disk.rename("/a/file", "/b/file")
    disk.sync_directory("/b")

    after = disk.crash()
    after.open("/a/file").append(b"def")

    assert after.read("/b/file") == b"abcdef"
    assert after.used_bytes == 6


def test_renamed_directory_takes_its_files_along() -> None:
    disk = MemoryDisk()
    disk.write("/topics/orders/log", b"abc")
    disk.rename("/topics/orders", "/topics/orders.deleted")

    assert disk.crash().paths() == ["/topics/orders/log"]
    disk = disk.crash(keep="everything")
    assert disk.paths() == ["/topics/orders.deleted/log"]


def test_removed_tree_comes_back_whole_or_in_part_until_the_directory_is_synced() -> None:
    disk = MemoryDisk()
    for path in ("/topics/orders/0/log", "/topics/orders/1/log", "/topics/orders/topic"):
        disk.write(path, b"abc")
    whole = disk.paths()
    begun = disk.steps

    disk.remove_tree("/topics/orders")

    assert disk.steps - begun == 6
    assert disk.crash().paths() == whole
    assert disk.crash(keep="everything").paths() == []
    partly = [disk.crash(seed=seed).paths() for seed in range(50)]
    assert any(0 < len(paths) < 3 for paths in partly)
    assert all(set(paths) <= set(whole) for paths in partly)


def test_tree_whose_removal_the_power_cut_short_is_gone_in_part() -> None:
    disk = MemoryDisk()
    for path in ("/tree/a", "/tree/b", "/tree/c"):
        disk.write(path, b"abc")
    disk.power_off_after = disk.steps + 2

    with pytest.raises(PowerLoss):
        disk.remove_tree("/tree")

    assert disk.crash(keep="everything").paths() == ["/tree/c"]


def test_removed_tree_stays_gone_once_its_parent_was_synced() -> None:
    disk = MemoryDisk()
    disk.write("/topics/orders/0/log", b"abc")

    disk.remove_tree("/topics/orders")
    disk.sync_directory("/topics")

    assert disk.crash().paths() == []


def test_after_a_failed_sync_later_syncs_do_not_cover_what_was_lost() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"abc")
    file = disk.open("/file")
    file.append(b"lost")

    file.lose_unsynced()
    assert file.pread(0, 100) == b"abclost"
    file.append(b"later")
    file.sync()

    assert disk.crash().read("/file") == b"abc\0\0\0\0later"
    assert disk.crash(keep="everything").read("/file") == b"abc\0\0\0\0later"


def test_after_a_failed_sync_writing_again_makes_the_bytes_durable() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"abc")
    file = disk.open("/file")
    file.append(b"lost")
    file.lose_unsynced()

    file.truncate(3)
    file.append(b"kept")
    file.sync()

    assert disk.crash().read("/file") == b"abckept"


def test_planting_a_file_and_flipping_a_bit_reach_the_medium_after_a_failed_sync() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"abc")
    disk.open("/file").append(b"lost")
    disk.open("/file").lose_unsynced()

    disk.flip_bit("/file", 0)
    disk.flip_bit("/file", 6)
    assert disk.crash().read("/file") == b"`bc"
    disk.write("/file", b"planted")
    assert disk.crash().read("/file") == b"planted"


def test_failed_sync_may_have_written_a_part() -> None:
    found = set()
    for seed in SEEDS:
        disk = MemoryDisk()
        disk.write("/file", b"abc")
        file = disk.open("/file")
        file.append(b"def")
        file.lose_unsynced(keep="random", seed=seed)
        found.add(disk.crash().read("/file"))

    assert found >= {b"abc", b"abcd", b"abcde", b"abcdef"}
