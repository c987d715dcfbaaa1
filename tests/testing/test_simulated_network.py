"""The simulated network loses, delays, doubles and cuts as it is told, and otherwise does what links over TCP do."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from goqueue.cluster.link import CallingNode, PeerRefused, PeerUnreachable
from goqueue.errors import Conflict, RequestTimeout
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing.simulated_network import SimulatedNetwork, SimulatedPeers
from goqueue.testing.simulated_process import ProcessLoop, SimulatedProcess
from goqueue.testing.simulated_time import SimulatedTime
from tests.testing.in_virtual_time import after, in_virtual_time

PORT = 7001


async def echo(caller: CallingNode, request: bytes) -> bytes:
    return b"%d: %b" % (caller.node, request)


class Machine:
    """A process that answers and calls."""

    def __init__(
        self,
        network: SimulatedNetwork,
        node: int,
        answer: Callable[[CallingNode, bytes], Awaitable[bytes]] = echo,
        rate: float = 1.0,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        caller = CallingNode(node, f"incarnation-{node}")
        self.lost: list[tuple[int, bool]] = []
        self.received: list[bytes] = []
        self.network = network
        self.process = SimulatedProcess(loop, f"node {node}")
        self._answer = answer
        network.listen((f"host-{node}", PORT), caller, self.process, self.answered)
        self.peers: SimulatedPeers = network.connect(
            f"host-{node}", caller, self.process, SimulatedTime(loop, rate=rate), self.peer_lost
        )
        for peer in (1, 2, 3):
            self.peers.set_address(peer, f"host-{peer}", PORT)

    async def answered(self, caller: CallingNode, request: bytes) -> bytes:
        self.received.append(request)
        return await self._answer(caller, request)

    def peer_lost(self, node: int, was_refused: bool) -> None:
        self.lost.append((node, was_refused))

    async def call(self, node: int, request: bytes = b"hello", timeout_s: float = 0.5) -> bytes:
        return await self.process.spawn(self.peers.call(node, request, timeout_s=timeout_s))

    def kill(self) -> None:
        self.process.kill()


def network_of(seed: int = 1) -> SimulatedNetwork:
    return SimulatedNetwork(asyncio.get_running_loop(), SeededEntropy(seed))


@in_virtual_time
async def test_a_call_is_answered_by_the_node() -> None:
    network = network_of()
    one, _ = Machine(network, 1), Machine(network, 2)

    assert await one.call(2) == b"1: hello"


@in_virtual_time
async def test_an_error_of_the_node_reaches_the_caller() -> None:
    async def refuse(caller: CallingNode, request: bytes) -> bytes:
        raise Conflict("not now")

    network = network_of()
    one, _ = Machine(network, 1), Machine(network, 2, refuse)

    with pytest.raises(PeerRefused, match="not now"):
        await one.call(2)


@in_virtual_time
async def test_where_nothing_listens_a_connection_is_refused() -> None:
    one = Machine(network_of(), 1)

    with pytest.raises(PeerUnreachable) as refused:
        await one.call(2)

    assert refused.value.was_refused


@in_virtual_time
async def test_a_machine_without_power_neither_refuses_nor_answers() -> None:
    network = network_of()
    one = Machine(network, 1)
    network.switch_off("host-2")

    with pytest.raises(RequestTimeout):
        await one.call(2)
    with pytest.raises(PeerUnreachable) as silent:
        await one.call(2, timeout_s=3)
    assert not silent.value.was_refused


@in_virtual_time
async def test_the_death_of_a_process_is_known_in_milliseconds() -> None:
    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2)
    await one.call(2)

    two.kill()
    await after(0.02)

    assert one.lost == [(2, True)]


@in_virtual_time
async def test_a_call_that_is_under_way_when_the_process_dies_fails_at_once() -> None:
    async def never(caller: CallingNode, request: bytes) -> bytes:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2, never)
    call = one.process.spawn(one.peers.call(2, b"hello", timeout_s=10))
    await after(0.1)

    two.kill()

    with pytest.raises(PeerUnreachable):
        await call
    assert asyncio.get_running_loop().time() < 0.2


@in_virtual_time
async def test_the_loss_of_power_is_not_noticed() -> None:
    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2)
    await one.call(2)

    network.switch_off("host-2")
    two.kill()
    await after(60)

    assert one.lost == []


@in_virtual_time
async def test_a_machine_that_was_switched_on_again_does_not_know_the_connection() -> None:
    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2)
    await one.call(2)
    network.switch_off("host-2")
    two.kill()
    await after(10)
    network.switch_on("host-2")
    Machine(network, 2)

    with pytest.raises((PeerUnreachable, RequestTimeout)):
        await one.call(2)

    assert await one.call(2) == b"1: hello"
    assert one.lost == []


@in_virtual_time
async def test_a_reset_of_connections_to_a_node_that_lives_is_no_loss() -> None:
    network = network_of()
    one, _ = Machine(network, 1), Machine(network, 2)
    await one.call(2)

    network.reset(("host-2", PORT))
    await after(0.1)

    assert one.lost == []
    assert await one.call(2) == b"1: hello"


@in_virtual_time
async def test_a_cut_has_one_direction() -> None:
    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2)
    await one.call(2)
    await two.call(1)

    network.cut("host-2", "host-1")

    with pytest.raises(RequestTimeout):
        await one.call(2, b"its answer is lost")
    with pytest.raises(RequestTimeout):
        await two.call(1, b"the request is lost")
    assert b"its answer is lost" in two.received
    assert b"the request is lost" not in one.received
    network.heal()
    assert await one.call(2) == b"1: hello"


@in_virtual_time
async def test_what_was_sent_into_a_cut_may_arrive_long_after_its_sender_gave_up() -> None:
    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2)
    await one.call(2)
    network.cut("host-1", "host-2")
    for number in range(10):
        with pytest.raises(RequestTimeout):
            await one.call(2, b"%d" % number)

    network.heal()
    await after(0.1)

    assert 0 < len(two.received) - 1 < 10


@in_virtual_time
async def test_messages_are_lost_doubled_and_overtaken_by_chance() -> None:
    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2)
    await one.call(2, b"first")
    network.faults.loss, network.faults.duplicate, network.faults.late = 0.2, 0.2, 0.2

    calls = [one.process.spawn(one.peers.call(2, b"%d" % number, timeout_s=5)) for number in range(50)]
    await asyncio.wait(calls)
    await after(10)

    numbers = [int(request) for request in two.received[1:]]
    assert len(set(numbers)) < 50
    assert len(numbers) > len(set(numbers))
    assert numbers != sorted(numbers)
    lost = [call for call in calls if call.exception()]
    assert 50 - len(set(numbers)) < len(lost) < 50


@in_virtual_time
async def test_a_stopped_process_accepts_connections_and_answers_when_it_goes_on() -> None:
    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2)
    two.process.stop()

    with pytest.raises(RequestTimeout):
        await one.call(2, b"given up")
    late = one.process.spawn(one.peers.call(2, b"waits", timeout_s=60))
    await after(10)
    two.process.resume()

    assert await late == b"1: waits"
    assert two.received == [b"given up", b"waits"]


@in_virtual_time
async def test_a_slow_clock_waits_longer() -> None:
    network = network_of()
    one = Machine(network, 1, rate=0.5)
    network.switch_off("host-2")

    with pytest.raises(RequestTimeout):
        await one.call(2, timeout_s=1)

    assert asyncio.get_running_loop().time() == pytest.approx(2.0)


@in_virtual_time
async def test_a_node_at_the_address_of_another_one_is_told_so() -> None:
    network = network_of()
    one, _ = Machine(network, 1), Machine(network, 2)
    one.peers.set_address(3, "host-2", PORT)

    with pytest.raises(PeerRefused, match="this is node 2, not 3"):
        await one.call(3)


@in_virtual_time
async def test_a_node_that_is_no_member_any_more_is_not_called() -> None:
    network = network_of()
    one, two = Machine(network, 1), Machine(network, 2)
    await one.call(2)

    one.peers.forget(2)

    with pytest.raises(PeerUnreachable):
        await one.call(2)
    two.kill()
    await after(1)
    assert one.lost == []


def faulty_run(seed: int) -> list[bytes]:
    async def run() -> list[bytes]:
        network = network_of(seed)
        one, two = Machine(network, 1), Machine(network, 2)
        network.faults.loss = network.faults.duplicate = network.faults.late = 0.3
        calls = [one.process.spawn(one.peers.call(2, b"%d" % number, timeout_s=5)) for number in range(30)]
        await asyncio.wait(calls)
        await after(10)
        return two.received

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(run())


def test_a_seed_repeats_its_faults() -> None:
    assert faulty_run(5) == faulty_run(5) != faulty_run(6)
