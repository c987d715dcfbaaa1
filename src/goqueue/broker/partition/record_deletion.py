"""Deletes all records of a partition below an offset, in four steps. What blocks runs in a worker.

    1. sync log and ledger with a snapshot of the producers: the log no longer tells what deleted batches told
    2. delete whole segments, which makes room on a full disk for the next step
    3. store the new start of the log
    4. forget what memory has about the deleted records

A crash after step 2 leaves fewer records deleted than requested, and the request was not answered. After step 3 the
deletion is durable.
"""

from collections.abc import Callable
from contextlib import suppress

from goqueue.broker.partition.leader import PartitionLeader
from goqueue.clock import Clock
from goqueue.errors import Conflict, GoQueueError, InvalidRequest, OffsetOutOfRange, StorageFull
from goqueue.service.pending import Pending
from goqueue.storage.log import Log

LATEST = -1
"""Stands for the last stable offset, as in Kafka's DeleteRecords."""


def delete_records(leader: PartitionLeader, before_offset: int, *, clock: Clock) -> Pending[int]:
    """Delete the records below the offset; the new start of the log, once it is durable."""
    end = leader.last_stable_offset
    if before_offset < LATEST:
        raise InvalidRequest(f"before_offset must be -1 (all) or more, not {before_offset}", path="before_offset")
    if before_offset > end:
        raise OffsetOutOfRange(before_offset, leader.log.start_offset, end)
    if leader.log.config.compacts:
        reason = (
            f"topic {leader.origin.topic} is compacted; publish tombstones to delete keys, or set cleanup to delete"
        )
        raise Conflict(reason)
    if leader.has_owed_markers:
        raise Conflict("a transaction is being completed in this partition; try again")
    deletion = _RecordDeletion(leader, end if before_offset == LATEST else before_offset, clock)
    deletion.begin()
    return deletion.done


class _RecordDeletion:
    """One deletion, while it is under way."""

    def __init__(self, leader: PartitionLeader, before_offset: int, clock: Clock) -> None:
        self._leader = leader
        self._log = leader.log
        self._before_offset = before_offset
        self._clock = clock
        self.done: Pending[int] = Pending()

    def begin(self) -> None:
        if self._before_offset <= self._log.start_offset:
            self.done.resolve(self._log.start_offset)
        else:
            self._sync(self._log, self._leader.flushed, self._sync_ledger)

    def _sync_ledger(self) -> None:
        self._leader.write_down()
        ledger = self._leader.ledger
        self._sync(ledger.log, ledger.flushed, self._delete_segments)

    def _delete_segments(self) -> None:
        committed = self._leader.high_watermark
        job = self._log.expire(now_ns=self._clock.wall_ns(), deleted_below=self._before_offset, to_offset=committed)
        self._leader.drop_deleted()
        if job:
            self._leader.run(self._log, job, self._step(self._store_start))
        else:
            self._store_start()

    def _store_start(self) -> None:
        job = self._log.begin_delete_records(self._before_offset)
        if job:
            self._leader.run(self._log, job, self._step(self._finish))
        else:  # whole segments ended there, or another request deleted more meanwhile
            self._finish()

    def _finish(self) -> None:
        if self._log.failure:
            raise self._log.failure
        if self._log.start_offset < self._before_offset:
            raise StorageFull(self._log.directory, "no room to store the new start of the log")
        self._leader.drop_deleted()
        self.done.resolve(self._log.start_offset)

    def _sync(self, log: Log, flushed: Callable[[], None], then: Callable[[], None]) -> None:
        """Make the log durable, then go on."""

        def both() -> None:
            flushed()
            self._step(then)()

        if log.durable_offset == log.next_offset:
            self._step(then)()
        elif job := log.begin_seal():
            self._leader.run(log, job, both)
        else:  # a flush is running, which may not cover the newest records
            with suppress(GoQueueError):  # the next step finds the log failed
                log.flush()
            both()

    def _step(self, step: Callable[[], None]) -> Callable[[], None]:
        """The step, whose error fails the request."""

        def run() -> None:
            try:
                if self._leader.ended is not None:
                    raise self._leader.ended
                step()
            except Exception as error:
                self.done.fail(error)

        return run
