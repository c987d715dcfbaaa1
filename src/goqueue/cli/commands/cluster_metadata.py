"""`goqueue cluster move-metadata` and `recover`: what is done with a metadata log while all nodes are stopped."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goqueue.cli import confirmation
from goqueue.cli.commands.serve import load_or_exit
from goqueue.cli.confirmation import YesOption
from goqueue.cli.output import FormatOption, OutputFormat, facts, number, plain, show, table
from goqueue.errors import ClusterError, DirectoryLocked

if TYPE_CHECKING:
    from goqueue.cluster.log_moves import FoundCopy, LogMove, Recovery
    from goqueue.cluster.metadata import Metadata
    from goqueue.cluster.metadata_log import MetadataLog
    from goqueue.server.config import EtcdSettings
    from goqueue.server.settings import MetadataLocation

ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", envvar="GOQUEUE_CONFIG", help="The TOML file of a node: it says how to reach etcd."),
]
StoppedOption = Annotated[
    bool, typer.Option("--nodes-are-stopped", help="Do not look whether something listens where the nodes were.")
]


def move_metadata(
    source: Annotated[
        str, typer.Option("--from", metavar="LOCATION", help="Where it is: file:DIR, or etcd://HOST:PORT,.../PREFIX.")
    ],
    target: Annotated[str, typer.Option("--to", metavar="LOCATION", help="Where it goes on. Nothing may be there.")],
    config: ConfigOption = None,
    nodes_are_stopped: StoppedOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Move the metadata log to another place, while all nodes are stopped. Then start them with the new place.

    Topics, messages, offsets, groups and delays stay as they are. After a failure, run the command again.

    goqueue cluster move-metadata --from file:/srv/metadata --to etcd://etcd-1,etcd-2,etcd-3/goqueue
    """
    from goqueue.server.metadata_place import from_anywhere, may_be_same

    etcd = load_or_exit({}, config).etcd
    old, new = from_anywhere(_location("--from", source)), from_anywhere(_location("--to", target))
    if may_be_same(old, new):
        raise typer.BadParameter("the metadata log is there already", param_hint="--to")
    _check_is_there(old)
    done = asyncio.run(_move(old, new, etcd, nodes_are_stopped=nodes_are_stopped))
    index = done.metadata.position.index
    text = f"the metadata log {'was' if done.was_done else 'is'} moved, up to entry {index}; start the nodes with"
    data = {"from": str(old), "to": str(new), "index": index, "was_done": done.was_done}
    show(data, output, plain(f"{text} --metadata {new}"))


def recover(
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="DIR", help="The data directory of a node; give as many as there are."),
    ],
    metadata: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="The metadata log: file:DIR, or etcd://HOST:PORT,.../PREFIX; default: that of --config.",
        ),
    ] = None,
    config: ConfigOption = None,
    nodes_are_stopped: StoppedOption = False,
    yes: YesOption = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Rebuild a metadata log that lost entries from the copy of the most advanced node, while all nodes are stopped.

    For when nodes refuse to start because the metadata log went back, was emptied or is damaged. Give the data
    directories of as many nodes as can be had: decisions that none of them knows are lost.

    goqueue cluster recover --metadata file:/srv/metadata --data /srv/node-1 --data /srv/node-2
    """
    from goqueue.server.metadata_place import from_anywhere

    confirmation.check(yes, "replaces the metadata log")
    settings = load_or_exit({"metadata": metadata}, config)
    if settings.metadata is None:
        raise typer.BadParameter("say where the metadata log is", param_hint="--metadata")
    location = from_anywhere(settings.metadata)
    with _copies(data) as copies:
        done = asyncio.run(
            _recover(location, settings.etcd, copies, nodes_are_stopped=nodes_are_stopped, yes=yes, output=output)
        )
    show(_as_data(location, done), output, plain(f"recovered; start the nodes with --metadata {location}"))


async def _move(
    old: "MetadataLocation", new: "MetadataLocation", etcd: "EtcdSettings", *, nodes_are_stopped: bool
) -> "LogMove":
    from goqueue.cluster.log_moves import move_log, read_state
    from goqueue.runtime.entropy import SystemEntropy

    async with _opened(old, etcd) as source:
        if not nodes_are_stopped:
            await _check_stopped((await read_state(source)).metadata)
        async with _opened(new, etcd) as target:
            return await move_log(source, target, moved_to=str(new), entropy=SystemEntropy())


async def _recover(
    location: "MetadataLocation",
    etcd: "EtcdSettings",
    copies: "Sequence[FoundCopy]",
    *,
    nodes_are_stopped: bool,
    yes: bool,
    output: OutputFormat,
) -> "Recovery":
    from goqueue.cluster.log_moves import plan_recovery, recover_log
    from goqueue.runtime.entropy import SystemEntropy

    async with _opened(location, etcd, may_be_damaged=True) as log:
        plan = await plan_recovery(log, copies, entropy=SystemEntropy())
        if not nodes_are_stopped:
            await _check_stopped(plan.recovered)
        if output is OutputFormat.TABLE:
            _explain(location, plan)
        if not yes:
            confirmation.ask("Replace the metadata log?")
        await recover_log(log, plan)
        return plan


def _explain(location: "MetadataLocation", plan: "Recovery") -> None:
    best = plan.best.copy.metadata
    rows = (
        (
            found.copy.node,
            found.copy.floor.index,
            found.copy.metadata.epoch,
            found.copy.damage or ("most advanced" if found is plan.best else "-"),
            found.directory,
        )
        for found in plan.copies
    )
    known = {
        "cluster": best.cluster_id,
        "metadata log": f"{location}: {plan.log}",
        "it becomes": f"what node {plan.best.copy.node} had applied up to entry {best.position.index}, with "
        f"{number(len(best.brokers), 'node')}, {number(len(best.topics), 'topic')} and "
        f"{number(len(best.partitions), 'partition')}",
        "what is lost": "decisions that only other nodes know; a node that had applied more refuses to start",
        "then": f"no partition has a leader until its nodes are back; epochs go on above {plan.epoch_floor}",
    }
    copies = table(("node", "entry", "epoch", "copy", "directory"), rows, numbers=("node", "entry", "epoch"))
    show(None, OutputFormat.TABLE, copies, facts(known))


def _as_data(location: "MetadataLocation", done: "Recovery") -> dict[str, object]:
    return {
        "metadata": str(location),
        "was": done.log,
        "node": done.best.copy.node,
        "directory": done.best.directory,
        "index": done.best.copy.metadata.position.index,
        "generation": done.recovered.generation,
        "epoch_floor": done.epoch_floor,
    }


@contextmanager
def _copies(directories: Sequence[Path]) -> "Iterator[list[FoundCopy]]":
    """The copies in these data directories, which no node can open meanwhile."""
    from goqueue.cluster.local_copy import LocalCopy
    from goqueue.cluster.log_moves import FoundCopy
    from goqueue.storage.directory import METADATA
    from goqueue.storage.file import Lock, OsDisk

    disk = OsDisk()
    locks: list[Lock] = []
    try:
        found = []
        for directory in dict.fromkeys(str(each.absolute()) for each in directories):
            path = f"{directory}/{METADATA}"
            if not Path(path).is_dir():
                raise ClusterError(f"{directory} is not the data directory of a node that was in a cluster")
            try:
                locks.append(disk.lock(f"{directory}/lock"))
            except BlockingIOError:
                raise DirectoryLocked(directory, "a node has this data directory open; stop all nodes first") from None
            found.append(FoundCopy(directory, LocalCopy.find(disk, path)))
        yield found
    finally:
        for lock in locks:
            lock.release()


@asynccontextmanager
async def _opened(
    location: "MetadataLocation", etcd: "EtcdSettings", *, may_be_damaged: bool = False
) -> "AsyncIterator[MetadataLog]":
    from goqueue.runtime.entropy import SystemEntropy
    from goqueue.server.metadata_place import open_log

    log = await open_log(location, etcd, entropy=SystemEntropy(), may_be_damaged=may_be_damaged)
    try:
        yield log
    finally:
        await log.close()


async def _check_stopped(metadata: "Metadata") -> None:
    from goqueue.cluster.log_moves import running_nodes

    running = await running_nodes(metadata)
    if running:
        nodes = ", ".join(f"node {each.node} at {each.address}" for each in running)
        raise ClusterError(
            f"something listens where nodes are registered ({nodes}): stop all nodes first; if these are other "
            f"programs, pass --nodes-are-stopped"
        )


def _location(option: str, text: str) -> "MetadataLocation":
    from goqueue.server.settings import LogLocation

    location: MetadataLocation | None = None
    with suppress(ValueError):
        location = LogLocation().parse(text)
    if location is None:
        raise typer.BadParameter(f"{text!r} is none; it is file:DIR, or etcd://HOST:PORT,.../PREFIX", param_hint=option)
    return location


def _check_is_there(location: "MetadataLocation") -> None:
    """A directory that is missing would be made, and look like an empty log."""
    from goqueue.server.settings import FileLocation

    if isinstance(location, FileLocation) and not Path(location.directory).is_dir():
        raise ClusterError(f"there is no metadata log in {location.directory}")
