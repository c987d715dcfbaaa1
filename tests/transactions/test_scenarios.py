"""Golden transcripts: what producers ask for, and all that follows from it.

A transcript in tests/scenarios is a list of blocks, as those of groups are. An instance is a process that holds a
transactional id: `a` holds the id a, and so do `a-old` and `a-new`. There are three partitions, 0 to 2.

    init INSTANCE [timeout=MS]
    begin INSTANCE [marker=TEXT]
    publish INSTANCE PARTITION VALUE
    position INSTANCE GROUP OFFSET
    ack INSTANCE GROUP OFFSETS...
    commit INSTANCE [OTHERS...] [marker=TEXT] [after=COUNT]    after so many effects it stands still
    abort INSTANCE
    admin INSTANCE                                             an operator aborts it
    heartbeat INSTANCE
    go                                                         whatever stands still goes on, to its end
    wait MS                                                    time passes at once
    crash [keep]                                               what was not synced is gone, or kept; then recovery
    read                                                       what readers see, and what groups have done
    show                                                       what is open, and how many ids are in which state
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue.errors import GoQueueError
from goqueue.events import AbortCompleted, CommitCompleted, TransactionEvent, TransactionStarted
from goqueue.wire import transaction_reports as reports
from tests.transactions.world import Call, Crashed, World

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("transaction_*.txt"))


def told(event: TransactionEvent) -> str:
    match event:
        case TransactionStarted(open_count=count):
            return f"begun, {count} open"
        case CommitCompleted(open_count=count, duration_ns=duration_ns):
            return f"committed after {duration_ns // 10**6} ms, {count} open"
        case AbortCompleted(open_count=count, reason=reason):
            return f"aborted: {reason}, {count} open"
    raise AssertionError(event)


def shown(answer: object) -> str:
    match answer:
        case GoQueueError():
            return f"refused: {answer.code}: {answer}"
        case reports.ProducerSession(producer_id, epoch):
            return f"producer {producer_id}, epoch {epoch}"
        case reports.BegunTransaction(already_committed=True):
            return "already committed"
        case reports.BegunTransaction(transaction_id=transaction_id):
            return transaction_id
        case reports.TransactionOutcome(status=status, already=already):
            return f"{status}, already" if already else status
    return "ok"


class Stage:
    """A world, and who is in it."""

    def __init__(self) -> None:
        self.world = World(started_at_ns=0)
        self.sessions: dict[str, reports.ProducerSession] = {}
        self.begun: dict[str, reports.BegunTransaction] = {}

    def run(self, line: str) -> Iterator[str]:
        """What the command leads to, line by line."""
        command, *words = line.split()
        options = dict(word.split("=") for word in words if "=" in word)
        yield from getattr(self, f"do_{command}")(*(word for word in words if "=" not in word), **options)
        yield from map(told, self.world.core.take_events())

    def answered(self, name: str, call: Call) -> Iterator[str]:
        try:
            self.world.finish(call)
        except GoQueueError:
            pass
        yield f"{name}: {shown(call.answer)}"

    def do_init(self, name: str, timeout: str = "1000") -> Iterator[str]:
        call = self.world.init(name.partition("-")[0], timeout_ms=int(timeout))
        yield from self.answered(name, call)
        if isinstance(call.answer, reports.ProducerSession):
            self.sessions[name] = call.answer

    def do_begin(self, name: str, marker: str | None = None) -> Iterator[str]:
        call = self.world.begin(name.partition("-")[0], self.sessions[name], marker=marker)
        yield from self.answered(name, call)
        if isinstance(call.answer, reports.BegunTransaction):
            self.begun[name] = call.answer

    def do_publish(self, name: str, partition: str, value: str) -> Iterator[str]:
        yield from self.answered(name, self.world.publish(self.begun[name], int(partition), value))

    def do_position(self, name: str, group: str, offset: str) -> Iterator[str]:
        yield from self.answered(name, self.world.add_position(self.begun[name], group, int(offset)))

    def do_ack(self, name: str, group: str, *offsets: str) -> Iterator[str]:
        yield from self.answered(name, self.world.add_acks(self.begun[name], group, list(map(int, offsets))))

    def owner(self, name: str) -> reports.TransactionOwner:
        session = self.sessions[name]
        return reports.TransactionOwner(name.partition("-")[0], session.producer_id, session.epoch)

    def do_commit(self, name: str, *others: str, marker: str | None = None, after: str | None = None) -> Iterator[str]:
        call = self.world.commit(self.owner(name), list(map(self.owner, others)), marker=marker)
        if after is None:
            yield from self.answered(name, call)
            return
        for _ in range(int(after)):
            self.world.step(call)
        yield f"{name}: no answer yet"

    def do_abort(self, name: str) -> Iterator[str]:
        yield from self.answered(name, self.world.abort(self.owner(name)))

    def do_admin(self, name: str) -> Iterator[str]:
        yield from self.answered("admin", self.world.abort_by_id(self.begun[name].transaction_id))

    def do_heartbeat(self, name: str) -> Iterator[str]:
        session = self.sessions[name]
        try:
            self.world.core.heartbeat(session.producer_id, session.epoch, wall_ns=self.world.wall_ns)
            yield f"{name}: ok"
        except GoQueueError as error:
            yield f"{name}: {shown(error)}"

    def do_go(self) -> Iterator[str]:
        calls = list(self.world.calls)
        self.world.settle()
        yield from (f"told: {shown(call.answer)}" for call in calls if call.answer is not None)

    def do_wait(self, duration_ms: str) -> Iterator[str]:
        waiting = list(self.world.calls)
        self.world.tick(int(duration_ms))
        for call in self.world.calls:
            if call not in waiting:
                self.world.finish(call)
        yield from ()

    def do_crash(self, keep: str = "") -> Iterator[str]:
        world = self.world
        factor = 1 if keep else 0
        tails = tuple(factor * partition.tail_count for partition in world.partitions)
        world.crash(Crashed(factor * world.journal.tail_count, tails, factor * world.ledger.tail_count))
        for _ in world.recover():
            pass
        yield from ()

    def do_read(self) -> Iterator[str]:
        for number in range(len(self.world.partitions)):
            yield f"partition {number}: {' '.join(map(str, self.world.visible(number))) or 'nothing'}"
        for group, offset in self.world.positions().items():
            yield f"{group} is at {offset}"
        for group, offset in sorted(map(tuple, self.world.acked())):  # type: ignore[arg-type]
            yield f"{group} is done with {offset}"

    def do_show(self) -> Iterator[str]:
        for one in self.world.core.list():
            names = " ".join(map(str, one.partitions)) or "nothing"
            groups = f" for {' '.join(one.groups)}" if one.groups else ""
            yield f"{one.transaction_id} is {one.state}: {names}{groups}"
        stats = self.world.core.stats()
        yield ", ".join(f"{count} {state}" for state, count in stats.by_state.items() if count)


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """The comments and the commands of every block."""
    for block in text.strip().split("\n\n"):
        above = block.partition("---")[0].splitlines()
        comments = [line for line in above if line.startswith("#")]
        yield "\n".join(comments), [line for line in above if line and not line.startswith("#")]


def played(text: str) -> str:
    """The transcript, with what really happens in the place of what should."""
    stage = Stage()
    done = []
    for comments, commands in blocks(text):
        lines = [line for command in commands for line in stage.run(command)]
        done.append("\n".join(filter(None, [comments, *commands, "---" if commands else "", *lines])))
    return "\n\n".join(done) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_coordinator_does_what_the_transcript_says(path: Path) -> None:
    text = path.read_text()

    assert played(text) == text


def test_there_are_transcripts() -> None:
    assert len(SCENARIOS) >= 6
