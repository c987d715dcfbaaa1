"""One partition: the log with its messages, and the ledger with what groups did with them.

The ledger is a second log, which is opened on first use: thousands of partitions that no group consumes cost one open
log each, not two.
"""

from collections.abc import Callable

from goqueue.errors import Conflict
from goqueue.storage.config import LogConfig
from goqueue.storage.delay_file import DelayFile
from goqueue.storage.log import Log


class Partition:
    """Partition `number` of a topic. Like its logs it has one owner, which makes all calls."""

    __slots__ = ("_has_ledger", "_ledger", "_ledger_config", "_open_ledger", "delay_file", "log", "number", "topic")

    def __init__(
        self,
        topic: str,
        number: int,
        log: Log,
        ledger_config: LogConfig,
        open_ledger: Callable[[LogConfig], Log],
        *,
        has_ledger: bool,
        delay_file: DelayFile,
    ) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self._ledger: Log | None = None
        self._ledger_config = ledger_config
        self._open_ledger = open_ledger
        self._has_ledger = has_ledger
        self.delay_file = delay_file

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def is_closed(self) -> bool:
        return self.log.is_closed

    @property
    def has_ledger(self) -> bool:
        """Whether there is a ledger on the disk, open or not."""
        return self._has_ledger or (self._ledger is not None and self._ledger.has_files)

    @property
    def ledger(self) -> Log:
        """The ledger, which is opened on first use."""
        if self._ledger is None:
            if self.is_closed:
                raise Conflict(f"the partition {self.name} is closed")
            self._ledger = self._open_ledger(self._ledger_config)
        return self._ledger

    @property
    def open_logs(self) -> tuple[Log, ...]:
        """The log, and the ledger if it is open: what may have something to flush."""
        return (self.log,) if self._ledger is None else (self.log, self._ledger)

    def configure(self, log_config: LogConfig, ledger_config: LogConfig) -> None:
        """Use these settings from now on."""
        self.log.config = log_config
        self._ledger_config = ledger_config
        if self._ledger is not None:
            self._ledger.config = ledger_config

    def abandon(self) -> None:
        """Release all files as they are: they are about to be deleted."""
        self.delay_file.close()
        for log in self.open_logs:
            log.abandon()
