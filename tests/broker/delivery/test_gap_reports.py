"""Damage that a cursor has passed: each member is told once, and again if its answer was lost."""

from pyroaring import BitMap64

from goqueue.broker.delivery.gap_reports import GapReports
from goqueue.broker.partition.record_fetcher import KnownDamage
from goqueue.record.header import RecordFault
from goqueue.storage.walk import Damage


def known(*ranges: tuple[int, int]) -> KnownDamage:
    damage = KnownDamage()
    damage.add([Damage("orders-0", 0, 1, first, end, RecordFault.MAGIC) for first, end in ranges])
    return damage


def passed(*ranges: tuple[int, int]) -> GapReports:
    reports = GapReports()
    for first, end in ranges:
        reports.add(BitMap64(range(first, end)))
    return reports


def taken(reports: GapReports, damage: KnownDamage, most: int = 10, *, number: int = 0) -> list[tuple[int, int]]:
    gaps = reports.take(damage, most, member="anna", number=number)
    return [(gap.first_offset, gap.next_offset) for gap in gaps]


def test_a_gap_is_reported_once() -> None:
    damage, reports = known((1, 3), (5, 6)), passed((1, 3), (5, 6))

    assert bool(reports)
    assert taken(reports, damage) == [(1, 3), (5, 6)]
    assert not reports
    assert taken(reports, damage) == []


def test_what_does_not_fit_is_reported_later() -> None:
    damage, reports = known((1, 3), (5, 6)), passed((1, 3), (5, 6))

    assert [taken(reports, damage, 1) for _ in range(3)] == [[(1, 3)], [(5, 6)], []]


def test_a_lost_report_is_made_again() -> None:
    damage, reports = known((1, 3), (5, 6)), passed((1, 3), (5, 6))
    taken(reports, damage, 1, number=7)

    assert reports.has_reported("anna", 7)
    assert not reports.has_reported("anna", 6)
    reports.report_again("anna", 6)
    assert taken(reports, damage, 1) == [(5, 6)]
    reports.report_again("anna", 7)
    assert taken(reports, damage) == [(1, 3)]


def test_a_member_that_is_gone_is_forgotten() -> None:
    damage, reports = known((1, 3)), passed((1, 3))
    taken(reports, damage, number=7)

    reports.forget("anna")
    reports.forget("ben")

    assert not reports.has_reported("anna", 7)
