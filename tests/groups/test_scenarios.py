"""Golden transcripts: what is done to a group, and all that follows from it.

A transcript in tests/scenarios is a list of blocks; a block is some commands, a line of dashes, and what they lead to.
`#` opens a comment. Members go by their ids; everybody confirms revocations who says so.

    topic NAME COUNT                     make the topic, let it grow, or (0) delete it
    join MEMBER TOPICS... [SETTING...]   confirms, eager, shared, key-shared, range, roundrobin, session=MS
    heartbeat MEMBER [GENERATION]        as /heartbeat/cooperative
    use MEMBER GENERATION                a poll or commit that says its generation
    revoke MEMBER [PARTITIONS...]        confirm these, or all it is asked for
    leave MEMBER
    wait MS [MEMBERS...]                 time passes, second by second; these members poll meanwhile
    restart                              the coordinator is gone, and is restored from its snapshot
    show
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue.clock import MS
from goqueue.errors import GoQueueError
from goqueue.events import (
    GroupEvent,
    GroupStateChanged,
    HeartbeatLate,
    MemberJoined,
    MemberLeft,
    PartitionsAssigned,
    PartitionsRevoked,
    RebalanceEnded,
    RebalanceStarted,
)
from goqueue.groups.group import Group
from goqueue.names import TopicPartition
from goqueue.service.groups import Join

FOLDER = Path(__file__).parent.parent / "scenarios"
SCENARIOS = sorted((*FOLDER.glob("cooperative_*.txt"), *FOLDER.glob("eager_*.txt")))
WALL_NS = 1_700_000_000 * 10**9


def names(partitions: tuple[tuple[str, int], ...]) -> str:
    return " ".join(f"{topic}-{number}" for topic, number in partitions) or "nothing"


def partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def told(event: GroupEvent) -> str:
    match event:
        case MemberJoined(member_id=member_id):
            return f"{member_id} joined"
        case MemberLeft(member_id=member_id, reason=reason):
            return f"{member_id} left: {reason}"
        case GroupStateChanged(state=state):
            return f"group is {state}"
        case RebalanceStarted(trigger=trigger):
            return f"rebalance: {trigger}"
        case RebalanceEnded(kind=kind, duration_ns=duration_ns, failed=failed):
            return f"{kind} rebalance {'overtaken' if failed else 'done'} after {duration_ns // MS} ms"
        case PartitionsRevoked(member_id=member_id, partitions=partitions, timed_out=timed_out):
            return f"{member_id} -> {names(partitions)}{' (too slow)' if timed_out else ''}"
        case PartitionsAssigned(member_id=member_id, partitions=partitions):
            return f"{member_id} <- {names(partitions)}"
        case HeartbeatLate(member_id=member_id):
            return f"{member_id} is late"
    return ""


class Stage:
    """One group, its topics, and a clock in milliseconds."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.topics: dict[str, int] = {}
        self.group = Group("billing", wall_ns=WALL_NS)

    @property
    def wall_ns(self) -> int:
        return WALL_NS + self.now_ns

    def run(self, line: str) -> Iterator[str]:
        """What the command leads to, line by line."""
        generation = self.group.generation
        asked = {member.id: member.to_revoke for member in self.group.members.values()}
        command, *arguments = line.split()
        try:
            yield from getattr(self, f"do_{command}")(*arguments) or ()
        except GoQueueError as error:
            yield f"refused: {error.code}: {error}"
        yield from filter(None, map(told, self.group.take_events()))
        for member in self.group.members.values():
            if member.to_revoke and member.to_revoke != asked.get(member.id, ()):
                yield f"{member.id} is asked for {names(member.to_revoke)}"
        if self.group.generation != generation:
            yield f"generation {self.group.generation}"

    def do_topic(self, name: str, count: str) -> None:
        self.topics = {topic: count for topic, count in {**self.topics, name: int(count)}.items() if count}
        self.group.topics_changed(self.topics, now_ns=self.now_ns)

    def do_join(self, member_id: str, *words: str) -> None:
        settings: dict[str, object] = {}
        topics = []
        for word in words:
            match word.split("="):
                case ["confirms"]:
                    settings["confirms_revocations"] = True
                case ["eager"]:
                    settings["protocol"] = word
                case ["shared" | "key-shared"]:
                    settings["mode"] = word
                case ["range" | "roundrobin"]:
                    settings["assignor"] = word
                case ["session", value]:
                    settings["session_timeout_ms"] = int(value)
                case _:
                    topics.append(word)
        asked = Join("app", tuple(topics), member_id)._replace(**settings)
        self.group.join(asked, suffix="", partition_counts=self.topics, now_ns=self.now_ns, wall_ns=self.wall_ns)

    def do_heartbeat(self, member_id: str, generation: str | None = None) -> Iterator[str]:
        answer = self.group.cooperative_heartbeat(
            member_id, int(generation) if generation else None, now_ns=self.now_ns, wall_ns=self.wall_ns
        )
        yield f"{member_id}: {answer.state}, generation {answer.generation}, has {names(answer.partitions_assigned)}"
        if answer.revocation_deadline_ns is not None:
            left_ms = (answer.revocation_deadline_ns - self.wall_ns) // MS
            yield f"{member_id}: to revoke {names(answer.partitions_to_revoke)} within {left_ms} ms"

    def do_use(self, member_id: str, generation: str) -> Iterator[str]:
        member = self.group.check(member_id, int(generation))
        yield f"{member_id}: may use {names(member.assigned)}"

    def do_revoke(self, member_id: str, *partitions: str) -> Iterator[str]:
        given = list(map(partition, partitions)) or None
        answer = self.group.revoke(member_id, None, given, now_ns=self.now_ns)
        yield f"{member_id}: {answer.rebalance_state}, {answer.pending_count} pending"

    def do_leave(self, member_id: str) -> None:
        self.group.leave(member_id, now_ns=self.now_ns)

    def do_wait(self, duration_ms: str, *members: str) -> None:
        end_ns = self.now_ns + int(duration_ms) * MS
        while self.now_ns < end_ns:
            self.now_ns = min(end_ns, self.now_ns + 1_000 * MS)
            for member_id in members:
                self.group.touch(member_id, now_ns=self.now_ns, wall_ns=self.wall_ns)
            self.group.tick(now_ns=self.now_ns)

    def do_restart(self) -> None:
        self.group = Group.restore(self.group.snapshot(), now_ns=self.now_ns, wall_ns=self.wall_ns)
        self.group.take_events()

    def do_show(self) -> Iterator[str]:
        yield f"{self.group.state}, generation {self.group.generation}, leader {self.group.leader_id}"
        for member in self.group.members.values():
            yield f"{member.id} has {names(member.assigned)}"


def blocks(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Every block as it stands there: comments, commands and what they lead to."""
    for block in text.strip().split("\n\n"):
        above, _, below = block.partition("---")
        comments = [line for line in above.splitlines() if line.startswith("#")]
        commands = [line for line in above.splitlines() if line and not line.startswith("#")]
        yield "\n".join(comments), commands, below.strip().splitlines()


def played(text: str) -> str:
    """The transcript, with what really happens in the place of what should."""
    stage = Stage()
    done = []
    for comments, commands, _ in blocks(text):
        lines = [line for command in commands for line in stage.run(command)]
        done.append("\n".join(filter(None, [comments, *commands, "---" if commands else "", *lines])))
    return "\n\n".join(done) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_group_does_what_the_transcript_says(path: Path) -> None:
    text = path.read_text()

    assert played(text) == text


def test_there_are_transcripts_of_both_protocols() -> None:
    assert {path.stem.partition("_")[0] for path in SCENARIOS} >= {"cooperative", "eager"}
