"""A whole cluster in one thread: real nodes on simulated machines, from one seed.

    with SimulatedCluster(seed=41, nodes=3) as cluster:
        cluster.run(steps=100)

`run` lets chance have its way (`simulated_chaos.py`), then heals everything and checks that the cluster recovers. Tests
of one fault call the methods of `simulated_nodes.py` instead. What does not hold ends a run as `SimulationFailed`, with
the transcript of what happened and the command that repeats it. The same seed gives the same run, to the byte.
"""

from typing import Self

from goqueue.testing.simulated_chaos import SimulatedChaos
from goqueue.testing.simulated_nodes import SimulatedNodes
from goqueue.testing.simulation_transcript import SimulationFailed

__all__ = ["SimulatedCluster", "SimulationFailed"]


class SimulatedCluster(SimulatedNodes):
    """Nodes 1 to `nodes`. `start` starts them all; `run` does that and all the rest."""

    def run(self, steps: int = 120) -> Self:
        """Let chance have its way for so many steps, then recover."""
        self.steps = steps
        self.start()
        chaos = SimulatedChaos(self)
        for _ in range(steps):
            chaos.step()
        chaos.end()
        self.recover()
        return self
