"""Settings of the C library's memory allocator.

By default glibc returns every large block to the system as soon as it is freed, and the next one costs a page fault per
page. A process that moves megabytes all the time, as a broker and a bulk reader do, spends more on these faults than on
the copying. So such a process keeps freed memory, up to a bound.

glibc also gives each thread its own heap, and each heap keeps freed memory. A compaction runs in any thread of a
broker, and would leave its 10 MB in each of them. So all threads share one heap; the interpreter lock serializes them
anyway.

After a rare job that needs a lot of memory, `trim_heap` returns it to the system.
"""

import ctypes
from functools import cache
from typing import Final

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
LARGEST_KEPT_BYTES: Final = 32 * 1024 * 1024  # glibc refuses more

_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


@cache
def retain_freed_memory() -> bool:
    """Reuse large freed blocks, in all threads; false if the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES),
        (_M_TRIM_THRESHOLD, KEPT_BYTES_MAX),
    )
    return all(mallopt(*setting) for setting in settings)


def trim_heap() -> bool:
    """Return free pages to the system; false if there were none, or the C library cannot do it.

    It holds the lock of the heap for about a millisecond per 100 MB, so it is not for the event loop.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(trim(0))
