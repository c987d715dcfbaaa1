"""`goqueue cluster`: the nodes, their health, who leads what, and the decisions of an operator.

Any node answers. Only the controller knows which nodes are silent, so only its answer shows when they were seen.
"""

import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from goqueue.cli import confirmation
from goqueue.cli.broker import DECISION, DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.commands import cluster_metadata
from goqueue.cli.confirmation import YesOption
from goqueue.cli.interrupts import termination_raised
from goqueue.cli.output import (
    FormatOption,
    OutputFormat,
    console,
    facts,
    lasting,
    number,
    plain,
    say,
    show,
    size,
    table,
    when,
)
from goqueue.times import format_duration, format_time

if TYPE_CHECKING:
    from goqueue.wire.cluster_reports import ClusterHealth, ClusterNode, NodeDetails, NodeLiveness, PartitionPlacement

app = typer.Typer(help="Show the cluster, elect leaders and remove nodes.", no_args_is_help=True)
metadata_app = typer.Typer(help="Show what the nodes have agreed on.", no_args_is_help=True)
app.add_typer(metadata_app, name="metadata")

FAILED_EXIT_CODE = 1
NO_NODE = -1
LOOK_S = 1.0

NODE_COLUMNS = ("node", "status", "controller", "clients", "peers", "http", "rack")
PARTITION_COLUMNS = ("partition", "leader", "epoch", "replicas", "isr", "elr", "status")


@app.command()
def info(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """Show the cluster: its controller, its metadata log and its nodes."""
    with connected(server) as client:
        state = client.cluster.state()
        level = client.cluster.feature_level()
    log = state.metadata
    known = {
        "cluster": state.cluster_id or "none: the broker is alone",
        "controller": f"{_shown(state.controller_id)}, epoch {state.controller_epoch}",
        "metadata": f"{log.kind}, {'available' if log.available else 'not available'}, index {log.applied_index}",
        "endpoints": ", ".join(log.endpoints) or "-",
        "feature level": f"{level.level}; all nodes know {level.level_max}",
        "updated": when(state.updated_at_ns),
    }
    data = {
        "cluster_id": state.cluster_id,
        "version": state.version,
        "controller_id": state.controller_id,
        "controller_epoch": state.controller_epoch,
        "feature_level": level.level,
        "feature_level_max": level.level_max,
        "metadata": {
            "kind": log.kind,
            "applied_index": log.applied_index,
            "available": log.available,
            "endpoints": log.endpoints,
        },
        "nodes": [_node(node) for node in state.nodes],
        "updated_at": format_time(state.updated_at_ns),
    }
    show(data, output, facts(known), _node_table(state.nodes))


@app.command("start-local")
def start_local(
    count: Annotated[int, typer.Argument(min=1, max=64, help="How many nodes.")] = 3,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the nodes keep their data; without it they are deleted at the end."),
    ] = None,
    native: Annotated[
        int, typer.Option(metavar="PORT", help="Native port of the first node; the others count up. 0: free ones.")
    ] = 7000,
    http: Annotated[int, typer.Option(metavar="PORT", help="The same for HTTP.")] = 8080,
    peer: Annotated[int, typer.Option(metavar="PORT", help="The same for connections between the nodes.")] = 7100,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Lowest level to log: debug, info, warning or error.")
    ] = "warning",
) -> None:
    """Run a cluster on this machine, a process per node, until Ctrl-C. Nothing else has to be installed.

    It is also how one machine with many cores is used. The logs are in the data directory, a file per node.
    """
    from goqueue.cli.local_cluster import local_cluster, wait_for_end

    with termination_raised(), suppress(KeyboardInterrupt), ExitStack() as opened:
        directory = data or Path(opened.enter_context(TemporaryDirectory(prefix="goqueue-cluster-")))
        ports = {"native": native, "http": http, "peer": peer}
        nodes = opened.enter_context(local_cluster(directory.absolute(), count, **ports, log_level=log_level))
        rows = ((node.node, node.process.pid, node.native, node.http, node.peer) for node in nodes)
        console.print(table(("node", "pid", "clients", "http", "peers"), rows))
        say(f"export GOQUEUE_SERVER={','.join(node.native for node in nodes)}")
        say(f"data and logs in {directory}; Ctrl-C stops all nodes")
        for node in wait_for_end(nodes):
            say(f"node {node.node} has ended with exit code {node.process.returncode}")


@app.command()
def health(server: ServerOption = DEFAULT_SERVER, output: FormatOption = OutputFormat.TABLE) -> None:
    """Check the cluster: nodes that are not online, partitions without a leader or with replicas that are missing.

    Exit code 0 if the cluster is ok or degraded, 1 if a partition has no leader or no node is online.
    """
    with connected(server) as client:
        found = client.cluster.health()
    known = {
        "status": found.status,
        "nodes": f"{found.healthy} of {found.node_count} online",
        "controller": f"{_shown(found.controller_id)}, epoch {found.controller_epoch}",
        "metadata": "available" if found.metadata_available else "not available",
        "partitions": f"{found.partition_count:,}",
        "offline": f"{found.offline_partitions:,}",
        "under-replicated": f"{found.under_replicated_partitions:,}",
        "below min ISR": f"{found.under_min_isr_partitions:,}",
    }
    rows = ((node.id, node.status, when(node.last_seen_ns)) for node in found.nodes)
    show(_health(found), output, facts(known), table(("node", "status", "seen"), rows, whole=("status", "seen")))
    if found.status == "fail":
        raise typer.Exit(FAILED_EXIT_CODE)


@app.command()
def nodes(
    node: Annotated[int | None, typer.Argument(metavar="NODE", min=0, help="Only this node, in detail.")] = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the nodes, or show one. Only the node itself knows its disk and its uptime: ask it with --server."""
    with connected(server) as client:
        if node is None:
            listed = client.cluster.nodes()
            show([_node(one) for one in listed], output, _node_table(listed))
            return
        found = client.cluster.node(node)
    known = {
        "status": f"{found.status}{', controller' if found.is_controller else ''}{', leaving' * found.is_leaving}",
        "version": found.version,
        "leads": number(len(found.leaders), "partition"),
        "follows": number(len(found.followers), "partition"),
        "quarantined": "unknown" if found.quarantined is None else ", ".join(found.quarantined) or "-",
        "disk": _disk(found),
        "uptime": "unknown" if found.uptime_ns is None else lasting(found.uptime_ns),
    }
    show(_details(found), output, _node_table([found]), facts(known))


@app.command()
def partitions(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic; default: all.")] = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the leader and the replicas of each partition, internal topics included."""
    with connected(server) as client:
        found = client.cluster.partitions(topic)
    rows = (
        (
            f"{one.topic}-{one.partition}",
            _shown(one.leader),
            f"{one.leader_epoch}",
            _nodes(one.replicas),
            _nodes(one.isr),
            _nodes(one.elr),
            one.status,
        )
        for one in found
    )
    shown = (
        table(PARTITION_COLUMNS, rows, numbers=("leader", "epoch"), whole=("replicas", "isr", "elr", "status"))
        if found
        else plain("there are no topics")
    )
    show([_partition(one) for one in found], output, shown)


@metadata_app.command("dump")
def dump(server: ServerOption = DEFAULT_SERVER) -> None:
    """Print the metadata that a node has applied. Nodes at the same position print the same."""
    with connected(server) as client:
        for line in client.cluster.metadata().splitlines():
            say(line)


@app.command()
def elect(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic; default: all.")] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")
    ] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Let a replica lead that is not in sync, where there is no leader.")
    ] = False,
    replica: Annotated[
        int | None, typer.Option(metavar="NODE", min=0, help="With --unclean: this one; default: any that is online.")
    ] = None,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Let preferred replicas lead again. Exit code 1 if one of them cannot.

    With --unclean, records are lost that only replicas have which are not online. It is the last resort.

    goqueue cluster elect
    goqueue cluster elect orders --partition 3 --unclean --replica 2
    """
    if partition and topic is None:
        raise typer.BadParameter("name the topic of the partitions, too", param_hint="--partition")
    if replica is not None and not unclean:
        raise typer.BadParameter("only an unclean election names the replica", param_hint="--replica")
    if unclean:
        confirmation.check(yes, "may lose records")
    with connected(server, timeout=DECISION) as client:
        if unclean and not yes:
            confirmation.ask("Records that only other replicas have are lost. Elect?")
        found = client.cluster.elect_leaders(topic, partitions=partition or None, unclean=unclean, replica=replica)
    columns = ("partition", "leader", "changed", "error")
    rows = (
        (f"{one.topic}-{one.partition}", _shown(one.leader), "yes" if one.changed else "no", one.error or "-")
        for one in found
    )
    data = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "leader": one.leader,
            "changed": one.changed,
            "error": one.error,
        }
        for one in found
    ]
    shown = table(columns, rows, numbers=("leader",)) if found else plain("every partition has its preferred leader")
    show(data, output, shown)
    if any(one.error for one in found):
        raise typer.Exit(FAILED_EXIT_CODE)


@app.command()
def remove(
    node: Annotated[int, typer.Argument(metavar="NODE", min=0, help="The id of the node.")],
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Repeat it until the node is removed.")] = False,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Move all replicas away from a node, and remove it from the cluster.

    The node is removed by the call that finds no replica on it. Without --wait, run the command again.
    """
    confirmation.check(yes, f"removes node {node} from the cluster")
    with connected(server, timeout=DECISION) as client:
        if not yes:
            confirmation.ask(f"Remove node {node} from the cluster?")
        progress = client.cluster.remove_node(node)
        pause = threading.Event()
        while wait and progress.partitions_left:
            pause.wait(LOOK_S)
            progress = client.cluster.remove_node(node)
    left = progress.partitions_left
    text = f"node {node} is removed"
    if left:
        text = f"node {node} is leaving; {number(left, 'partition')} still to move"
    show({"node": node, "partitions_left": left, "removed": not left}, output, plain(text))


app.command("move-metadata")(cluster_metadata.move_metadata)
app.command("recover")(cluster_metadata.recover)


def _node_table(listed: "list[ClusterNode] | list[NodeDetails]") -> RenderableType:
    rows = (
        (
            node.id,
            f"{node.status}{', leaving' if node.is_leaving else ''}",
            "yes" if node.is_controller else "no",
            node.client_address or "-",
            node.peer_address or "-",
            node.http_address or "-",
            node.rack or "-",
        )
        for node in listed
    )
    return table(NODE_COLUMNS, rows, numbers=("node",), whole=("status", "clients", "peers", "http"))


def _shown(node: int) -> str:
    return "none" if node == NO_NODE else str(node)


def _nodes(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids)) or "-"


def _disk(node: "NodeDetails") -> str:
    if node.disk_free_bytes is None or node.disk_total_bytes is None:
        return "unknown"
    return f"{size(node.disk_free_bytes)} of {size(node.disk_total_bytes)} free"


def _node(node: "ClusterNode") -> dict[str, object]:
    """A node with the field names of the HTTP API."""
    return {
        "id": node.id,
        "client_address": node.client_address,
        "peer_address": node.peer_address,
        "http_address": node.http_address,
        "grpc_address": node.grpc_address,
        "rack": node.rack,
        "status": node.status,
        "is_controller": node.is_controller,
        "is_leaving": node.is_leaving,
        "broker_epoch": node.broker_epoch,
    }


def _details(node: "NodeDetails") -> dict[str, object]:
    return {
        **_node(node),
        "leaders": node.leaders,
        "followers": node.followers,
        "quarantined": node.quarantined,
        "disk": {"total_bytes": node.disk_total_bytes, "free_bytes": node.disk_free_bytes},
        "version": node.version,
        "uptime": None if node.uptime_ns is None else format_duration(node.uptime_ns),
    }


def _health(found: "ClusterHealth") -> dict[str, object]:
    return {
        "status": found.status,
        "node_count": found.node_count,
        "healthy": found.healthy,
        "unhealthy": found.unhealthy,
        "controller_id": found.controller_id,
        "controller_epoch": found.controller_epoch,
        "partition_count": found.partition_count,
        "offline_partitions": found.offline_partitions,
        "under_replicated_partitions": found.under_replicated_partitions,
        "under_min_isr_partitions": found.under_min_isr_partitions,
        "metadata_available": found.metadata_available,
        "nodes": [_liveness(node) for node in found.nodes],
    }


def _liveness(node: "NodeLiveness") -> dict[str, object]:
    seen = None if node.last_seen_ns is None else format_time(node.last_seen_ns)
    return {"id": node.id, "status": node.status, "last_seen": seen}


def _partition(one: "PartitionPlacement") -> dict[str, object]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "leader": one.leader,
        "leader_epoch": one.leader_epoch,
        "partition_epoch": one.partition_epoch,
        "replicas": list(one.replicas),
        "isr": list(one.isr),
        "elr": list(one.elr),
        "adding": list(one.adding),
        "removing": list(one.removing),
        "status": one.status,
    }
