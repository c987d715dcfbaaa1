"""What this process costs."""

import os
import resource


def cpu_ns() -> int:
    """Processor time used so far, all threads, in user and kernel."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)


def rss_bytes() -> int:
    """Memory that is really there."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
