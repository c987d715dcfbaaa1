"""The sessions of followers: who is told what, and when."""

from goqueue.broker.partition.commit_gate import InSync
from goqueue.broker.partition.fetching import Records
from goqueue.broker.partition.followers import FETCH_BYTES, Followers
from goqueue.cluster.fetch_messages import (
    AnsweredReplica,
    AskedReplica,
    FetchRequest,
    ReplicaKey,
    answer_of,
    asked_replica,
)
from goqueue.cluster.fetch_sessions import ANSWER_BYTES_MAX, FetchSession, FetchSessions
from goqueue.testing import ManualClock
from tests.broker.partition.replicated import Member

EPOCH = 3


def key_of(partition: int) -> ReplicaKey:
    return ("t1", partition)


class Pair:
    """Node 1 with partitions that it leads, and node 2, which follows all of them in one session."""

    def __init__(self, partitions: int = 1, *, leads: bool = True) -> None:
        clock = ManualClock()
        self.leaders = {key_of(number): Member(1, clock) for number in range(partitions)}
        self.followers = {key: Member(2, clock) for key in self.leaders}
        self.sessions = FetchSessions()
        self.looked_at: list[ReplicaKey] = []
        self.wakes = 0
        for follower in self.followers.values():
            follower.follow(EPOCH)
        if leads:
            for key in self.leaders:
                self.lead(key)
        self.session = self.begin("s1", list(self.leaders))

    def lead(self, key: ReplicaKey) -> None:
        leader = self.leaders[key].lead(EPOCH, InSync(frozenset([1, 2])))
        leader.tell_followers(lambda: self.sessions.has_news(key))

    def find(self, key: ReplicaKey) -> Followers | None:
        self.looked_at.append(key)
        return self.leaders[key].replica.followers

    def begin(self, session: str, keys: list[ReplicaKey]) -> FetchSession:
        begun = self.ask(*keys, session=session, is_first=True)
        assert begun is not None
        begun.wake = self.woken
        self.session = begun
        return begun

    def woken(self) -> None:
        self.wakes += 1

    def ask(
        self, *keys: ReplicaKey, session: str = "s1", is_first: bool = False, dropped: tuple[ReplicaKey, ...] = ()
    ) -> FetchSession | None:
        """Node 2 says where it is on these partitions."""
        asked = tuple(self.position(key) for key in keys)
        return self.sessions.take(FetchRequest(2, 5, "d", session, is_first, asked, dropped))

    def position(self, key: ReplicaKey) -> AskedReplica:
        fetch = self.followers[key].fetch
        assert fetch is not None
        return asked_replica(key, fetch)

    def answers(self) -> list[AnsweredReplica]:
        """What node 2 is told; it does not do anything about it yet."""
        return self.session.answers(self.find)

    def told(self) -> list[ReplicaKey]:
        """The partitions that node 2 is told about."""
        return [(one.topic_id, one.partition) for one in self.answers()]

    def take(self, answers: list[AnsweredReplica]) -> None:
        """Node 2 does what it was told, and makes it durable."""
        for one in answers:
            follower = self.followers[one.topic_id, one.partition]
            follower.take(answer_of(one))
            follower.settle()

    def catch_up(self) -> None:
        """Until there is no news."""
        while found := self.answers():
            self.take(found)
            self.ask(*((one.topic_id, one.partition) for one in found))

    def send(self, key: ReplicaKey, *values: bytes) -> None:
        self.leaders[key].send(None, *values, early=True)
        self.leaders[key].settle()


FIRST, SECOND = key_of(0), key_of(1)


# What is told


def test_a_follower_gets_what_is_new_since_it_asked() -> None:
    pair = Pair()
    assert pair.answers() == []

    pair.send(FIRST, b"a", b"b")
    [answered] = pair.answers()

    assert (answered.topic_id, answered.partition, answered.epoch) == ("t1", 0, EPOCH)
    log = answer_of(answered).log
    assert log is not None
    assert isinstance(log.found, Records)
    assert (log.asked.offset, log.found.next_offset) == (0, 2)


def test_a_follower_gets_at_once_what_it_lacks_when_it_begins() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")

    pair.begin("s2", [FIRST])

    assert pair.told() == [FIRST]


def test_what_was_answered_is_not_sent_again_before_the_follower_says_where_it_is() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")

    assert pair.told() == [FIRST]
    assert pair.told() == []
    pair.sessions.has_news(FIRST)
    assert pair.told() == []


def test_what_the_follower_did_not_store_is_sent_again_once_it_says_so() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")
    first = pair.answers()

    pair.ask(FIRST)

    assert pair.answers() == first


def test_news_that_come_while_an_answer_is_on_its_way_are_told_after_the_next_position() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")
    answers = pair.answers()

    pair.send(FIRST, b"b")
    assert pair.told() == []
    pair.take(answers)
    pair.ask(FIRST)
    [answered] = pair.answers()

    assert (answered.log.asked.offset, answered.log.next_offset) == (1, 2)


def test_a_higher_high_watermark_alone_is_news() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")
    pair.take(pair.answers())
    assert pair.leaders[FIRST].replica.high_watermark == 0

    pair.ask(FIRST)  # which makes it rise
    [answered] = pair.answers()

    log = answer_of(answered).log
    assert log is not None
    assert (log.found, log.high_watermark) == (None, 1)


def test_a_fact_in_the_ledger_alone_is_news() -> None:
    pair = Pair()

    pair.leaders[FIRST].replica.leading.ledger.write([(b"n", b"fact")])
    [answered] = pair.answers()

    log, ledger = answer_of(answered)[2:4]
    assert log is not None
    assert log.found is None
    assert ledger is not None
    assert isinstance(ledger.found, Records)


def test_a_follower_that_has_everything_is_told_nothing() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")
    pair.catch_up()

    pair.sessions.has_news(FIRST)

    assert pair.told() == []
    assert pair.followers[FIRST].replica.high_watermark == 1


def test_only_partitions_with_news_are_answered() -> None:
    pair = Pair(3)

    pair.send(SECOND, b"a")

    assert pair.told() == [SECOND]


# What is looked at


def test_a_quiet_partition_is_not_looked_at() -> None:
    pair = Pair(3)
    pair.answers()
    pair.looked_at.clear()

    for _ in range(3):
        assert pair.told() == []
    assert pair.looked_at == []
    pair.send(SECOND, b"a")
    assert pair.told() == [SECOND]

    assert pair.looked_at == [SECOND]


def test_a_partition_that_waits_for_its_follower_is_not_looked_at() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")
    pair.answers()
    pair.looked_at.clear()

    pair.send(FIRST, b"b")
    pair.answers()

    assert pair.looked_at == []


def test_news_of_a_partition_that_the_node_does_not_follow_are_nothing_to_it() -> None:
    pair = Pair(2)
    pair.begin("s2", [SECOND])
    assert pair.told() == []
    pair.looked_at.clear()
    before = pair.wakes

    pair.send(FIRST, b"a")

    assert (pair.told(), pair.looked_at, pair.wakes) == ([], [], before)


def test_a_large_answer_leaves_the_other_partitions_for_the_next_one() -> None:
    pair = Pair(11)
    large = bytes(FETCH_BYTES * 9 // 10)
    for key in pair.leaders:
        pair.send(key, large)

    first = pair.answers()
    sizes = [len(one.log.records) for one in first]
    second = pair.told()

    assert sum(sizes[:-1]) < ANSWER_BYTES_MAX <= sum(sizes)
    assert second
    assert [(one.topic_id, one.partition) for one in first] + second == list(pair.leaders)
    assert pair.told() == []


# Waking


def test_a_session_is_woken_once_by_all_that_happens_on_a_partition() -> None:
    pair = Pair()
    pair.answers()

    pair.send(FIRST, b"a")
    pair.send(FIRST, b"b")

    assert pair.wakes == 1


def test_a_session_is_woken_again_after_the_news_were_looked_at() -> None:
    pair = Pair()
    pair.answers()
    pair.send(FIRST, b"a")
    pair.catch_up()
    before = pair.wakes

    pair.send(FIRST, b"b")

    assert pair.wakes == before + 1


def test_a_session_is_not_woken_by_news_for_a_follower_that_has_an_answer_to_work_on() -> None:
    pair = Pair()
    pair.answers()
    pair.send(FIRST, b"a")
    pair.answers()
    before = pair.wakes

    pair.send(FIRST, b"b")

    assert pair.wakes == before


# Who leads


def test_a_partition_is_not_answered_until_this_node_leads_it() -> None:
    pair = Pair(leads=False)
    assert pair.told() == []

    pair.lead(FIRST)
    pair.sessions.has_news(FIRST)
    assert pair.wakes == 1
    pair.send(FIRST, b"a")

    assert pair.told() == [FIRST]


def test_a_follower_that_has_heard_of_a_later_leader_waits_for_this_node_to_hear_of_it() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")
    pair.followers[FIRST].follow(EPOCH + 1)
    pair.ask(FIRST)
    assert pair.told() == []

    pair.leaders[FIRST].lead(EPOCH + 1, InSync(frozenset([1, 2])))
    pair.sessions.has_news(FIRST)

    assert pair.told() == [FIRST]


def test_a_leader_that_has_ended_is_no_hindrance_for_the_others() -> None:
    pair = Pair(2)
    ended = pair.leaders[FIRST].replica.followers
    pair.send(FIRST, b"a")
    pair.send(SECOND, b"a")
    pair.leaders[FIRST].resign()

    answers = pair.session.answers(lambda key: ended if key == FIRST else pair.find(key))

    assert [(one.topic_id, one.partition) for one in answers] == [SECOND]


# Sessions


def test_a_dropped_partition_is_forgotten() -> None:
    pair = Pair(2)
    pair.answers()
    pair.send(FIRST, b"a")

    pair.ask(dropped=(FIRST,))
    assert pair.told() == []
    pair.looked_at.clear()
    before = pair.wakes
    pair.send(FIRST, b"b")

    assert (pair.told(), pair.looked_at, pair.wakes) == ([], [], before)


def test_a_partition_that_was_dropped_can_be_asked_for_again() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")
    pair.answers()
    pair.ask(dropped=(FIRST,))

    pair.ask(FIRST)

    assert pair.told() == [FIRST]


def test_to_drop_what_was_never_asked_for_is_nothing() -> None:
    pair = Pair()

    assert pair.ask(dropped=(("t9", 9),)) is pair.session


def test_a_session_that_is_not_known_is_begun_by_a_first_request_only() -> None:
    pair = Pair()
    pair.send(FIRST, b"a")

    assert pair.ask(FIRST, session="s2") is None
    begun = pair.ask(FIRST, session="s2", is_first=True)

    assert begun is not None
    assert pair.ask(session="s2") is begun
    assert pair.ask(FIRST, session="s1") is None


def test_a_second_session_of_a_node_replaces_the_first_and_wakes_it() -> None:
    pair = Pair()
    first = pair.session
    assert pair.sessions.is_current(first)

    second = pair.ask(session="s2", is_first=True)

    assert second is not None
    assert pair.wakes == 1
    assert pair.sessions.is_current(second)
    assert not pair.sessions.is_current(first)


def test_a_new_session_knows_nothing_of_the_one_before() -> None:
    pair = Pair(2)
    pair.send(FIRST, b"a")
    pair.send(SECOND, b"a")
    assert pair.told() == [FIRST, SECOND]

    pair.begin("s2", [SECOND])

    assert pair.told() == [SECOND]


def test_the_sessions_of_two_nodes_do_not_touch_each_other() -> None:
    pair = Pair()
    asked = (pair.position(FIRST),)
    other = pair.sessions.take(FetchRequest(3, 6, "d3", "s1", True, asked))
    assert other is not None
    pair.send(FIRST, b"a")

    assert pair.told() == [FIRST]
    assert [one.log.next_offset for one in other.answers(pair.find)] == [1]
    assert pair.sessions.is_current(other)
    assert pair.sessions.is_current(pair.session)


def test_the_session_of_a_node_that_is_removed_is_forgotten() -> None:
    pair = Pair()

    pair.sessions.keep([1, 3])
    pair.sessions.keep([1, 3])

    assert not pair.sessions.is_current(pair.session)
    assert pair.ask(FIRST) is None
