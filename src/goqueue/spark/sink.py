"""The sink: all rows of a write become readable together and exactly once, even if processes are killed.

    driver      task 0               task 1                  broker
      |           | stage q/0 m  --------------------------->  init fences the last stager of q/0; begin
      |           | rows .....................................  stored, hidden
      |           |                    | stage q/1 m  ------>
      |           | prepare            | ...................
      | <---------+--- owners ---------+
      | commit {q/0, q/1}, marker m  ------------------------>  all readable at once; m is remembered
      | Spark notes that the batch is done

Each task stages its rows in a transaction of its own and leaves it open (`client/staging.py`); the driver commits all
transactions in one step. `q` is the id of the streaming query, or the option `transactionalId`; `m` is the marker: the
query and the number of its batch, or the option `marker`.

Failures, and why no row is missing or written twice:

    a task dies            its next attempt stages under the same id, which aborts the old attempt, and fences it
    an old attempt lives   it is fenced: its requests are refused, and a commit that names it fails
    the driver dies        before the commit, the batch is staged again, which aborts all of the old one, even if it had
                           another number of tasks. After the commit, the batch is staged again, too, but the broker
                           knows the marker: tasks write nothing
    the answer is lost     the commit is repeated, and recognized by its marker
    the broker dies        what is not committed is aborted; the batch fails, and Spark repeats it

Staged rows that are not committed block read-committed readers, so they must not outlive their write by much. Their
timeout is short (`transactionTimeout`, 60 s) and starts again while a task of the write runs: each task keeps alive all
that the write has staged so far (`client/staging.py`). A task that has ended cannot do that itself, and Spark gives the
driver no Python process that lives as long as the write. A write may take hours. It fails only if no task of it runs
for that long, or if the driver takes that long from the last task to the commit. The driver's abort ends the whole run,
also tasks that never reported.

A broker remembers a marker for a week after its last use. The marker of a batch replaces that of the previous batch,
which Spark has recorded as done by then. If a query dies between the commit and Spark's record of it, and is started
again only after the broker has forgotten the marker, it writes that one batch again.

Batch writes work the same way. Without a `transactionalId` the broker cannot recognize a job that is run again, so a
job that failed after the commit and is repeated writes twice; a warning says so when the write is planned. With a
`transactionalId` and a `marker` it writes once.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from pyspark import TaskContext, __version__
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from goqueue.client.options import Compression
from goqueue.client.sync import Client
from goqueue.clock import MS
from goqueue.errors import GoQueueError, InvalidConfig, InvalidRequest, TransactionAborted
from goqueue.runtime.entropy import SystemEntropy
from goqueue.spark.link import Link, readable_errors
from goqueue.spark.sink_options import SinkOptions
from goqueue.spark.sink_rows import RowReader
from goqueue.times import format_duration
from goqueue.wire.transaction_reports import TransactionOwner

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties of a task with its query and batch. They are internal to Spark; a test guards them."""
ABORT_TIMEOUT: Final = "3s"
"""How long the stop of a query waits. The next run or the timeout aborts what is not aborted by then."""

logger = logging.getLogger("goqueue.spark")


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """The result of a task: the owner of its transaction, None if there is nothing to commit."""

    marker: str | None
    owner: TransactionOwner | None = None
    batch_id: int | None = None
    replaces: str | None = None  # a marker that the broker may forget
    run: str = ""


class _Writer:
    """The common part of both writers. Spark makes a new one for each batch, and pickles it for the tasks."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._link = Link(options.server, options.api_key)
        self._rows = RowReader.of(schema, topic=options.topic, is_json=options.is_json)
        self._run = SystemEntropy().bytes(8).hex()  # identifies this attempt at the write

    def _stage(
        self, batches: Iterator[Any], task: TaskContext, job: str, run: str, marker: str | None
    ) -> TransactionOwner | None:
        """Stage the rows of this task; returns the owner of their transaction, None if there are no rows or the marker
        is committed already.
        """
        options = self._options
        timeout_s = options.transaction_timeout_ms / 1_000
        filled = (batch for batch in batches if batch.num_rows)
        with self._link.client.keep_staged(job, run=run, timeout=timeout_s):  # the first row may take long
            first = next(filled, None)
        if first is None:
            return None
        if options.rate is not None and task.partitionId():
            reason = "the write has several tasks, which cannot share a rate: use .coalesce(1) before the write"
            raise InvalidConfig("rate", options.rate, reason)
        with self._link.client.stage(
            f"{job}/{task.partitionId()}",
            timeout=timeout_s,
            marker=marker,
            rate=options.rate,
            compression=cast("Compression | None", options.compression),
            job=job,
            run=run,
        ) as staging:
            if staging.already_committed:
                logger.info("marker=%s is committed already, nothing is written", marker)
                return None
            for batch in chain([first], filled):
                for rows in self._rows.messages(batch):
                    staging.add(
                        rows.topic,
                        rows.values,
                        keys=rows.keys,
                        headers=rows.headers,
                        priorities=rows.priorities,
                        deliver_at_ns=rows.deliver_at_ns,
                        created_at_ns=rows.created_at_ns,
                        partitions=rows.partitions,
                    )
            return staging.prepare()

    def _commit(self, staged: Sequence[Staged], job: str) -> None:
        """Commit all that the tasks have staged, in one step, and abort other attempts of the run, such as speculative
        ones that Spark did not wait for.
        """
        owners = [one.owner for one in staged if one.owner is not None]
        if not owners:
            return
        client = self._link.client
        try:
            client.commit_staged(owners, marker=staged[0].marker, replaces=staged[0].replaces)
        except TransactionAborted as error:
            if error.reason == "timeout":
                limit = format_duration(self._options.transaction_timeout_ms * MS)
                error.add_note(f"no task of the write ran for longer than transactionTimeout, which is {limit}")
            raise
        with suppress(GoQueueError):
            client.abort_staged_job(job, run=staged[0].run)

    def _abort(self, job: str, run: str | None) -> None:
        """Abort all that the run has staged, or all runs of the job, also tasks that did not report."""
        server, api_key = self._options.server, self._options.api_key
        with suppress(GoQueueError), Client(server, api_key=api_key, timeout=ABORT_TIMEOUT) as client:
            client.abort_staged_job(job, run=run)


class GoQueueStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes each batch of a streaming query exactly once."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        parsed = SinkOptions.parse(options)  # without a request to the broker: this happens twice per batch
        parsed.check_stream()
        super().__init__(parsed, schema)
        given = {name.lower(): value for name, value in options.items()}
        self._checkpoint = given.get("checkpointlocation")

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage the rows of one task."""
        task = _task()
        with readable_errors():
            query_id, batch_id = _property(task, QUERY_ID), _property(task, BATCH_ID)
            marker = f"spark/{query_id}/{batch_id}"
            run = f"{batch_id}-{self._run}"
            owner = self._stage(iterator, task, self._job(query_id), run, marker)
            replaces = f"spark/{query_id}/{int(batch_id) - 1}"
            return Staged(marker, owner, int(batch_id), replaces=replaces, run=run)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Commit the batch, once."""
        staged = _staged(messages)
        for one in staged:
            assert one.batch_id == batch_id, f"{BATCH_ID} is {one.batch_id}, but the batch is {batch_id}"
        with readable_errors():
            if staged:
                self._commit(staged, self._job(_query_of(staged[0])))

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Abort the batch. This writer is new and does not know its query. If no task has reported, the checkpoint has
        the query id; if that cannot be read, the timeout aborts what is staged.
        """
        staged = _staged(messages)
        query_id = _query_of(staged[0]) if staged else _query_id_of(self._checkpoint)
        if query_id is not None or self._options.transactional_id is not None:
            self._abort(self._job(query_id or ""), staged[0].run if staged else None)

    def _job(self, query_id: str) -> str:
        return self._options.transactional_id or f"spark/{query_id}"


class GoQueueWriter(_Writer, DataSourceArrowWriter):
    """Writes a data frame: all of it, or nothing; and once per marker, if it has one."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        parsed = SinkOptions.parse(options)
        parsed.check_batch()
        if overwrite:
            raise InvalidRequest('a topic cannot be overwritten: use mode("append")', path="mode")
        super().__init__(parsed, schema)
        if parsed.topic is not None:
            self._link.reach().describe_topic(parsed.topic)
        if parsed.transactional_id is not None:  # tasks abort what a killed run left only if they have rows
            self._link.reach().abort_staged_job(parsed.transactional_id)
        self._marker: str | None = None
        if parsed.transactional_id is None:
            self._transactional_id = f"spark/{SystemEntropy().bytes(8).hex()}"
            logger.warning("a write without transactionalId is at-least-once: a repeated job writes its rows again")
            return
        self._transactional_id = parsed.transactional_id
        if parsed.marker is None:
            logger.warning("a write without marker is once per run: if the job is repeated, its rows are written again")
        else:
            self._marker = f"spark/{parsed.transactional_id}/{parsed.marker}"

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage the rows of one task."""
        with readable_errors():
            owner = self._stage(iterator, _task(), self._transactional_id, self._run, self._marker)
            return Staged(self._marker, owner, run=self._run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows of all tasks."""
        with readable_errors():
            self._commit(_staged(messages), self._transactional_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort all that its tasks have staged."""
        self._abort(self._transactional_id, self._run)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """The results of the tasks that succeeded."""
    return [message for message in messages if isinstance(message, Staged)]


def _query_of(staged: Staged) -> str:
    """The query, as the marker names it."""
    assert staged.marker is not None
    return staged.marker.split("/")[1]


def _query_id_of(checkpoint: str | None) -> str | None:
    """The id of the query that has this checkpoint, if it is a directory that can be seen from here."""
    if checkpoint is None:
        return None
    place = urlsplit(checkpoint)
    if place.scheme not in ("", "file"):
        return None
    try:
        metadata = json.loads((Path(unquote(place.path) if place.scheme else checkpoint) / "metadata").read_text())
        return str(metadata["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def _property(task: TaskContext, name: str) -> str:
    found = task.getLocalProperty(name)
    if found is None:
        reason = f"it does not set the local property {name} of tasks, without which a write cannot be exactly-once"
        raise InvalidConfig("pyspark", __version__, reason)
    return found
