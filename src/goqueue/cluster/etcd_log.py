"""The metadata log of several machines, in etcd.

    P/meta               what this is, its format, and a random id; created once
    P/tail               index 8 | id 16 of the last entry; absent while the log is empty
    P/log/<index %016x>  an entry, as `MetadataEntry.encode` writes it
    P/snapshot           the manifest: position, directory, chunks, length, crc
    P/snap/<dir>/<n>     chunks of a snapshot; each attempt to store one has a directory of its own

An append is one transaction: if the tail is what the author believes, and the log is the one that it has opened, put
the entry and the new tail. The tail is a key of its own because "create P/log/<index> if it is absent" is not enough:
a stale author could create an index again that was trimmed, or one too far ahead, and leave a hole.

An attempt that is not answered, or answered with any error but the few that say that nothing was written, may have
been carried out, or may still be. So it is repeated with the same bytes and the same id until the deadline: whichever
attempt wins, a later one is refused and finds its own id in the log. A proposal that a member has passed on to a leader
that is dead is never answered; hence attempts are short, and each goes to another member than the one that failed.

A watch reads by index until it has everything, and then streams from the revision of the last page. The stream is
broken when a second passes without an answer to a request for progress, when an index is missing, and on every error;
then the watch reads by index again, at another member. So it never depends on what etcd remembers of its history, and
compaction costs it nothing. Reads are linearizable, always: a member without a quorum answers others with old values.

The id in P/meta tells a log from another one at the same place. etcd itself does not: members whose disks were wiped
form an empty cluster, with the same cluster id. Every read and every append compares it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from struct import Struct
from typing import Final, NamedTuple, Self

import msgspec

from goqueue.cluster import etcd_messages as messages
from goqueue.cluster.etcd_client import (
    PUT,
    TXN,
    EtcdAnswerTooLarge,
    EtcdClient,
    EtcdFull,
    EtcdMember,
    EtcdOptions,
    EtcdStream,
    EtcdUnreachable,
)
from goqueue.cluster.etcd_messages import Message
from goqueue.cluster.metadata_log import (
    EMPTY,
    PAGE_BYTES_MAX,
    AppendOutcome,
    EntryAppended,
    EntryLost,
    EntryUnknown,
    MetadataEntry,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.errors import ClusterError, MetadataDamaged, MetadataTrimmed, MetadataUnavailable
from goqueue.record.kernel import crc32c
from goqueue.runtime.entropy import Entropy

DEADLINE_S: Final = 2.0
KEPT_ENTRIES: Final = 1_000
"""Entries that a trim leaves below the snapshot, for nodes that are a little late."""
ATTEMPT_S: Final = 0.25
_BULKY_ATTEMPT_S: Final = 1.0  # of a page or a chunk
_SILENCE_S: Final = 1.0
_CHUNK_BYTES: Final = 512 * 1024
_CHUNKS_AT_ONCE: Final = 8
_PAGE_ENTRIES: Final = 64  # at first: 8 MiB of batches of 128 KB
_PAGE_ENTRIES_MIN: Final = 8  # fit in an answer, however large they are
_PAGE_ENTRIES_MAX: Final = 1_000
_DIRECTORIES_MAX: Final = 64
"""Of old snapshots that one transaction deletes: etcd's limit is 128 operations."""

_FORMAT: Final = 1
_META: Final = "goqueue metadata log, format {format}, id {id}"
_TAIL: Final = Struct(">Q16s")
_EQUAL, _CREATE, _MOD, _VALUE = 0, 1, 2, 3
_NODELETE: Final = 1
_OLDEST: Final = (3, 4, 0)
_DIVERGING: Final = (((3, 4, 20), (3, 4, 21)), ((3, 5, 0), (3, 5, 5)))


class EtcdUnusable(ClusterError):
    """This etcd cannot hold the metadata log. The sentence says why, and what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Manifest(msgspec.Struct, frozen=True):
    """What is at P/snapshot."""

    index: int
    id: bytes
    directory: str
    chunk_count: int
    length: int
    crc: int

    @property
    def position(self) -> MetadataPosition:
        return MetadataPosition(self.index, self.id)


class _StoredManifest(NamedTuple):
    manifest: _Manifest | None
    revision: int  # of its last change; 0 if there is none

    @property
    def covered(self) -> int:
        """The index of the last entry that the snapshot covers."""
        return self.manifest.index if self.manifest else 0


class _Page(NamedTuple):
    entries: list[MetadataEntry]
    is_last: bool  # nothing came after it when it was read
    tail: MetadataPosition
    revision: int  # that it was read at


_encode_manifest = msgspec.msgpack.Encoder().encode
_decode_manifest = msgspec.msgpack.Decoder(_Manifest).decode


class EtcdMetadataLog:
    """A `MetadataLog` below a prefix of keys in etcd. `open` makes one."""

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        *,
        entropy: Entropy,
        deadline_s: float = DEADLINE_S,
        kept_entries: int = KEPT_ENTRIES,
    ) -> None:
        self._client = client
        self._entropy = entropy
        self._deadline_s = deadline_s
        self._kept_entries = kept_entries
        self._root = prefix.rstrip("/").encode() + b"/"
        self._meta_key = self._root + b"meta"
        self._tail_key = self._root + b"tail"
        self._log_key = self._root + b"log/"
        self._manifest_key = self._root + b"snapshot"
        self._chunks_key = self._root + b"snap/"
        self._meta = b""
        self._page_entries = _PAGE_ENTRIES

    @classmethod
    async def open(
        cls,
        options: EtcdOptions,
        prefix: str,
        *,
        entropy: Entropy,
        deadline_s: float = DEADLINE_S,
        kept_entries: int = KEPT_ENTRIES,
    ) -> Self:
        """The log below this prefix; an empty one if there is nothing.

        Raises `EtcdUnusable` if it cannot be there, and `MetadataUnavailable` if etcd does not answer.
        """
        client = EtcdClient(options, entropy=entropy)
        log = cls(client, prefix, entropy=entropy, deadline_s=deadline_s, kept_entries=kept_entries)
        try:
            await log._check_versions()
            await log._create()
        except BaseException:
            await client.close()
            raise
        return log

    async def append(self, entry: MetadataEntry) -> AppendOutcome:
        request = self._append_request(entry, entry.encode())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        is_in_doubt = False
        while (left := deadline - loop.time()) > 0:
            try:
                answer = await self._client.call(TXN, request, timeout_s=min(ATTEMPT_S, left))
            except (EtcdUnreachable, EtcdAnswerTooLarge):
                is_in_doubt = True
                await self._client.pause()
                continue
            except EtcdFull:
                # etcd checks its quota before and after it carries out a transaction. So look.
                outcome = await self._looked_up(entry)
                if outcome is not None:
                    return outcome
                if is_in_doubt:
                    break
                raise
            except MetadataUnavailable:  # refused for good, or closed
                if is_in_doubt:
                    break
                raise
            if answer.succeeded:
                return EntryAppended(entry.position)
            outcome = self._settled(entry, answer)
            assert outcome is not None, "refused, though nothing is in the way"
            return outcome
        return EntryUnknown(entry.position)

    async def tail(self) -> MetadataPosition:
        answer = await self._ask(_transaction(_get(self._tail_key), _get(self._meta_key)))
        self._check_meta(answer.responses[1])
        return _tail_in(answer.responses[0])

    async def read(self, first: int, limit: int) -> list[MetadataEntry]:
        entries: list[MetadataEntry] = []
        size = 0
        while len(entries) < limit:
            try:
                page = await self._page(first + len(entries), limit - len(entries))
            except (MetadataTrimmed, MetadataDamaged):
                if entries:
                    break
                raise
            for entry in page.entries:
                size += len(entry.batch)
                if size > PAGE_BYTES_MAX:
                    return entries
                entries.append(entry)
            if page.is_last:
                break
        return entries

    async def watch(self, first: int) -> AsyncIterator[MetadataEntry]:
        after = MetadataPosition(first - 1, b"")  # its id is known once something was read
        while self._client.is_open():
            try:
                page = await self._page(after.index + 1, _PAGE_ENTRIES_MAX)
            except MetadataUnavailable:
                await self._client.pause()
                continue
            _check_it_did_not_go_back(after, page)
            for entry in page.entries:
                yield entry
                if not self._client.is_open():
                    return
                after = entry.position
            if not page.is_last:
                continue
            async with aclosing(self._stream(after, page.revision + 1)) as stream:
                async for entry in stream:
                    yield entry
                    if not self._client.is_open():
                        return
                    after = entry.position

    async def load_snapshot(self) -> MetadataSnapshot | None:
        while True:
            stored = await self._manifest()
            if stored.manifest is None:
                return None
            state = await self._chunks(stored.manifest)
            if state is not None:
                return MetadataSnapshot(stored.manifest.position, state)
            if (await self._manifest()).revision == stored.revision:
                raise MetadataDamaged(f"the snapshot of entry {stored.covered} is not what was written")

    async def store_snapshot(self, snapshot: MetadataSnapshot) -> None:
        while True:
            # What is below P/snap/ now, and not of this manifest, is of older ones, or of attempts that will not
            # succeed once the manifest has changed. So the transaction that changes it may delete that.
            stored = await self._manifest()
            if stored.covered >= snapshot.position.index:
                return
            old = await self._directories()
            manifest = await self._store_chunks(snapshot)
            if stored.manifest is not None:
                old.discard(stored.manifest.directory)  # somebody may be reading it
            if await self._replace_manifest(stored, manifest, old):
                return
            await self._ask(_transaction(_delete(self._directory_key(manifest.directory))))

    async def trim(self, below: int) -> None:
        while True:
            stored = await self._manifest()
            first_kept = min(below, stored.covered + 1 - self._kept_entries, (await self.tail()).index)
            if first_kept <= 1:
                return
            delete = messages.DeleteRangeRequest(key=self._key_of(0), range_end=self._key_of(first_kept))
            answer = await self._ask(
                messages.TxnRequest(
                    compare=[_compare_revision(self._manifest_key, stored.revision)],
                    success=[messages.RequestOp(delete_range=delete)],
                )
            )
            if answer.succeeded:
                return

    async def replace(self, snapshot: MetadataSnapshot) -> None:
        assert snapshot.position.index > 0
        old = await self._directories()
        raw = _encode_manifest(await self._store_chunks(snapshot))
        # It is another log from now on: who has opened the old one can neither read nor append.
        meta = self._new_meta()
        answer = await self._ask(
            messages.TxnRequest(
                compare=[_compare_value(self._meta_key, self._meta)],
                success=[
                    _put(self._meta_key, meta),
                    _put(self._manifest_key, raw),
                    _put(self._tail_key, _TAIL.pack(snapshot.position.index, snapshot.position.id)),
                    _delete(self._log_key),
                    *(_delete(self._directory_key(name)) for name in sorted(old)[:_DIRECTORIES_MAX]),
                ],
                failure=[_get(self._manifest_key)],
            ),
            timeout_s=_BULKY_ATTEMPT_S,
        )
        # Refused and there: an attempt that was not answered has done it.
        if not answer.succeeded and _value_in(answer.responses[0]) != raw:
            raise MetadataUnavailable(
                "somebody else has replaced the log in etcd at the same time: look, and try again"
            )
        self._meta = meta

    async def close(self) -> None:
        await self._client.close()

    def restart_watches(self) -> None:
        """Break the streams of all watches: they read on by index, at another member.

        For a node that hears from others of entries that its watch has not brought.
        """
        self._client.end_streams()

    async def members(self) -> list[EtcdMember | MetadataUnavailable]:
        """What each member of etcd says of itself, or why it does not; for health checks."""
        return await self._client.statuses(timeout_s=_BULKY_ATTEMPT_S)

    # Opening

    async def _check_versions(self) -> None:
        """Raise if no member answers, or if one has a version that loses data."""
        found = await self.members()
        members = [each for each in found if isinstance(each, EtcdMember)]
        errors = [each for each in found if isinstance(each, MetadataUnavailable)]
        for member in members:
            refuse_version(member)
        if not members:
            raise errors[0]

    async def _create(self) -> None:
        """Find the log, or create it where there is nothing."""
        meta = self._new_meta()
        nothing_there = messages.Compare(
            result=_EQUAL, target=_CREATE, key=self._root, range_end=_end_of(self._root), create_revision=0
        )
        answer = await self._ask(
            messages.TxnRequest(
                compare=[nothing_there],
                success=[_put(self._meta_key, meta)],
                failure=[_get(self._meta_key)],
            )
        )
        if not answer.succeeded:
            meta = _value_in(answer.responses[0])
        prefix = self._root.decode()
        known, _, rest = _META.partition("{format}")
        if not meta.startswith(known.encode()):
            raise EtcdUnusable(f"etcd has something else than a metadata log below {prefix}: choose another prefix")
        format, _, _ = meta[len(known) :].decode(errors="replace").partition(rest[:1])
        if format != str(_FORMAT):
            raise EtcdUnusable(
                f"the metadata log in etcd below {prefix} has format {format};"
                f" this version reads {_FORMAT}: update GoQueue"
            )
        self._meta = meta

    def _new_meta(self) -> bytes:
        return _META.format(format=_FORMAT, id=self._entropy.bytes(16).hex()).encode()

    def _check_meta(self, response: Message) -> None:
        if _value_in(response) != self._meta:
            raise MetadataDamaged(
                f"what is in etcd below {self._root.decode()} is not the log that this node has opened:"
                " etcd was emptied, restored or replaced; if that was not intended, see `goqueue cluster recover`"
            )

    # Appending

    def _append_request(self, entry: MetadataEntry, raw: bytes) -> Message:
        key = self._key_of(entry.index)
        if entry.after == EMPTY:
            tail_is_after = messages.Compare(result=_EQUAL, target=_CREATE, key=self._tail_key, create_revision=0)
        else:
            tail_is_after = _compare_value(self._tail_key, _TAIL.pack(entry.index - 1, entry.previous_id))
        return messages.TxnRequest(
            compare=[
                _compare_value(self._meta_key, self._meta),
                tail_is_after,
                messages.Compare(result=_EQUAL, target=_CREATE, key=key, create_revision=0),
            ],
            success=[_put(key, raw), _put(self._tail_key, _TAIL.pack(entry.index, entry.id))],
            failure=self._look_up(entry),
        )

    def _look_up(self, entry: MetadataEntry) -> list[Message]:
        """What `_settled` needs."""
        return [_get(self._tail_key), _get(self._meta_key), _get(self._key_of(entry.index))]

    async def _looked_up(self, entry: MetadataEntry) -> AppendOutcome | None:
        """What has become of the entry; None if it is not there, and may still be appended."""
        try:
            return self._settled(entry, await self._ask(_transaction(*self._look_up(entry))))
        except MetadataUnavailable:
            return EntryUnknown(entry.position)

    def _settled(self, entry: MetadataEntry, answer: Message) -> AppendOutcome | None:
        """What has become of the entry, by the state of the log; None if it may still be appended."""
        tail_response, meta_response, entry_response = answer.responses
        self._check_meta(meta_response)
        tail = _tail_in(tail_response)
        if tail == entry.position:
            return EntryAppended(entry.position)
        raw = _value_in(entry_response)
        if tail.index < entry.index:
            if raw:
                raise MetadataDamaged(f"entry {entry.index} is in etcd, but the log ends at {tail.index}")
            # The log never ends at `entry.after` again once it has ended elsewhere.
            return None if tail == entry.after else EntryLost()
        if not raw:
            return EntryUnknown(entry.position)  # trimmed
        return EntryAppended(entry.position) if MetadataEntry.decode(raw).id == entry.id else EntryLost()

    # Reading

    async def _page(self, first: int, limit: int) -> _Page:
        """Entries from index `first`, in one answer, and where the log ended then."""
        while True:
            count = min(limit, self._page_entries)
            page = messages.RangeRequest(key=self._key_of(first), range_end=_end_of(self._log_key), limit=count)
            request = _transaction(
                messages.RequestOp(range=page),
                _get(self._tail_key),
                _get(self._meta_key),
            )
            try:
                answer = await self._ask(request, timeout_s=_BULKY_ATTEMPT_S)
            except EtcdAnswerTooLarge:
                assert self._page_entries > _PAGE_ENTRIES_MIN
                self._page_entries = max(_PAGE_ENTRIES_MIN, self._page_entries // 4)
                continue
            read = self._page_in(answer, first)
            if not read.entries and first <= read.tail.index:
                if (await self._manifest()).covered >= read.tail.index:  # the log was replaced by it
                    raise MetadataTrimmed(first, read.tail.index + 1)
                raise MetadataDamaged(f"entry {first} is missing in etcd, but the log ends at {read.tail.index}")
            if 4 * sum(len(entry.batch) for entry in read.entries) < PAGE_BYTES_MAX:
                self._page_entries = min(_PAGE_ENTRIES_MAX, 2 * self._page_entries)
            return read

    def _page_in(self, answer: Message, first: int) -> _Page:
        range_response, tail_response, meta_response = answer.responses
        self._check_meta(meta_response)
        tail = _tail_in(tail_response)
        entries: list[MetadataEntry] = []
        for pair in range_response.range.kvs:
            index = self._index_of(pair.key)
            if index != first + len(entries):
                if not entries:
                    raise MetadataTrimmed(first, index)
                return _Page(entries, False, tail, answer.header.revision)
            try:
                entries.append(MetadataEntry.decode(pair.value))
            except MetadataDamaged as error:
                if not entries:
                    raise MetadataDamaged(f"entry {index} in etcd: {error.reason}") from None
                return _Page(entries, False, tail, answer.header.revision)
        return _Page(entries, not range_response.range.more, tail, answer.header.revision)

    async def _stream(self, after: MetadataPosition, revision: int) -> AsyncGenerator[MetadataEntry, None]:
        """Entries as they come, until the stream breaks."""
        request = messages.WatchCreateRequest(
            key=self._log_key,
            range_end=_end_of(self._log_key),
            start_revision=revision,
            filters=[_NODELETE],
            fragment=True,
        )
        endpoint = self._client.endpoint
        try:
            stream = await self._client.watch(request, timeout_s=_SILENCE_S)
        except MetadataUnavailable:
            await self._move_on(endpoint)
            return
        try:
            while True:
                for raw in await self._events(stream, after):
                    try:
                        entry = MetadataEntry.decode(raw)
                    except MetadataDamaged:
                        return  # reading by index says more
                    if entry.after != after and after.id:
                        return
                    yield entry
                    after = entry.position
        except MetadataUnavailable:
            await self._move_on(endpoint)
        finally:
            stream.end()

    async def _events(self, stream: EtcdStream, after: MetadataPosition) -> list[bytes]:
        """The next entries after this position. Raises `EtcdUnreachable` if the stream is silent or has a gap."""
        is_asked = False
        while True:
            answer = await stream.read(timeout_s=_SILENCE_S)
            if answer is None:
                if is_asked:
                    raise EtcdUnreachable(f"etcd at {stream.endpoint} sends no progress of a watch")
                await stream.ask_progress(timeout_s=_SILENCE_S)
                is_asked = True
                continue
            is_asked = False
            found: list[bytes] = []
            for event in answer.events:
                index = self._index_of(event.kv.key)
                if index > after.index + len(found) + 1:
                    raise EtcdUnreachable(f"etcd at {stream.endpoint} has left out entries before {index}")
                if index == after.index + len(found) + 1:
                    found.append(event.kv.value)
            if found:
                return found

    async def _move_on(self, endpoint: str) -> None:
        """Go to another member than this one after the stream broke."""
        if self._client.is_open():
            self._client.rotate(endpoint)
            await self._client.pause()

    # Snapshots

    async def _manifest(self) -> _StoredManifest:
        answer = await self._ask(_transaction(_get(self._manifest_key), _get(self._meta_key)))
        self._check_meta(answer.responses[1])
        found = answer.responses[0].range.kvs
        if not found:
            return _StoredManifest(None, 0)
        try:
            return _StoredManifest(_decode_manifest(found[0].value), found[0].mod_revision)
        except msgspec.MsgspecError as error:
            raise MetadataDamaged(f"the manifest of the snapshot: {error}") from None

    async def _chunks(self, manifest: _Manifest) -> bytes | None:
        """The state; None if it is not there, because there is a newer one, or because it is damaged."""
        chunks: list[bytes] = []
        directory = self._directory_key(manifest.directory)
        while len(chunks) < manifest.chunk_count:
            page = messages.RangeRequest(
                key=_chunk_key(directory, len(chunks)), range_end=_end_of(directory), limit=_CHUNKS_AT_ONCE
            )
            answer = await self._ask(_transaction(messages.RequestOp(range=page)), timeout_s=_BULKY_ATTEMPT_S)
            found = [pair.value for pair in answer.responses[0].range.kvs]
            if not found:
                return None
            chunks += found
        state = b"".join(chunks)
        is_whole = len(state) == manifest.length and crc32c(state) == manifest.crc
        return state if is_whole else None

    async def _store_chunks(self, snapshot: MetadataSnapshot) -> _Manifest:
        position, state = snapshot
        name = self._entropy.bytes(8).hex()
        directory = self._directory_key(name)
        starts = range(0, len(state), _CHUNK_BYTES)
        for number, start in enumerate(starts):
            put = messages.PutRequest(key=_chunk_key(directory, number), value=state[start : start + _CHUNK_BYTES])
            await self._client.ask(PUT, put, timeout_s=_BULKY_ATTEMPT_S, deadline_s=self._deadline_s)
        return _Manifest(position.index, position.id, name, len(starts), len(state), crc32c(state))

    async def _directories(self) -> set[str]:
        """The directories that have chunks."""
        page = messages.RangeRequest(key=self._chunks_key, range_end=_end_of(self._chunks_key), keys_only=True)
        answer = await self._ask(_transaction(messages.RequestOp(range=page)), timeout_s=_BULKY_ATTEMPT_S)
        keys = (pair.key[len(self._chunks_key) :] for pair in answer.responses[0].range.kvs)
        return {key.partition(b"/")[0].decode() for key in keys}

    async def _replace_manifest(self, stored: _StoredManifest, manifest: _Manifest, old: set[str]) -> bool:
        """Make this the snapshot, unless there is another one than `stored` by now; delete the old directories."""
        raw = _encode_manifest(manifest)
        answer = await self._ask(
            messages.TxnRequest(
                compare=[
                    _compare_value(self._meta_key, self._meta),
                    _compare_revision(self._manifest_key, stored.revision),
                ],
                success=[
                    _put(self._manifest_key, raw),
                    *(_delete(self._directory_key(name)) for name in sorted(old)[:_DIRECTORIES_MAX]),
                ],
                failure=[_get(self._manifest_key)],
            )
        )
        # Refused and there: an attempt that was not answered has done it.
        return bool(answer.succeeded) or _value_in(answer.responses[0]) == raw

    # Requests and keys

    async def _ask(self, request: Message, *, timeout_s: float = ATTEMPT_S) -> Message:
        return await self._client.ask(TXN, request, timeout_s=timeout_s, deadline_s=self._deadline_s)

    def _key_of(self, index: int) -> bytes:
        return self._log_key + b"%016x" % index

    def _index_of(self, key: bytes) -> int:
        try:
            return int(key[len(self._log_key) :], 16)
        except ValueError:
            raise MetadataDamaged(f"etcd has the key {key!r}, which is not of GoQueue") from None

    def _directory_key(self, name: str) -> bytes:
        return self._chunks_key + name.encode() + b"/"


def refuse_version(member: EtcdMember) -> None:
    """Raise `EtcdUnusable` if the member has a version that loses data, or is too old."""
    number, _, _ = member.version.partition("-")
    try:
        version = tuple(int(part) for part in number.split("."))
    except ValueError:
        raise EtcdUnusable(f"etcd at {member.endpoint} has the version {member.version!r}, which is none") from None
    if version < _OLDEST:
        raise EtcdUnusable(f"etcd at {member.endpoint} has version {member.version}: update it to 3.6")
    if any(low <= version <= high for low, high in _DIVERGING):
        raise EtcdUnusable(
            f"etcd at {member.endpoint} has version {member.version}, which can lose data: update it to the newest 3.6"
        )


def _check_it_did_not_go_back(after: MetadataPosition, page: _Page) -> None:
    """Raise if the log does not go on from `after`, where it was before."""
    if not after.id:
        return
    goes_on = page.entries[0].after == after if page.entries else page.tail == after
    if not goes_on:
        raise MetadataDamaged(
            f"the log went back: entry {after.index} is not what it was (etcd was restored or re-created)"
        )


def _end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with this prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _chunk_key(directory: bytes, number: int) -> bytes:
    return directory + b"%08x" % number


def _get(key: bytes) -> Message:
    return messages.RequestOp(range=messages.RangeRequest(key=key))


def _put(key: bytes, value: bytes) -> Message:
    return messages.RequestOp(put=messages.PutRequest(key=key, value=value))


def _delete(prefix: bytes) -> Message:
    return messages.RequestOp(delete_range=messages.DeleteRangeRequest(key=prefix, range_end=_end_of(prefix)))


def _compare_value(key: bytes, value: bytes) -> Message:
    return messages.Compare(result=_EQUAL, target=_VALUE, key=key, value=value)


def _compare_revision(key: bytes, revision: int) -> Message:
    """That the key has not changed since; 0 if it was absent."""
    return messages.Compare(result=_EQUAL, target=_MOD, key=key, mod_revision=revision)


def _transaction(*operations: Message) -> Message:
    return messages.TxnRequest(success=operations)


def _value_in(response: Message) -> bytes:
    """The value of the key that was asked for; empty if it is absent."""
    found = response.range.kvs
    value: bytes = found[0].value if found else b""
    return value


def _tail_in(response: Message) -> MetadataPosition:
    raw = _value_in(response)
    if not raw:
        return EMPTY
    if len(raw) != _TAIL.size:
        raise MetadataDamaged(f"its end in etcd has {len(raw)} bytes instead of {_TAIL.size}")
    return MetadataPosition(*_TAIL.unpack(raw))
