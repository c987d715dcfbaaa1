"""What this process asks of the C library about memory.

By itself glibc gives every large block back to the system as soon as it is freed, and gets new pages, one fault each,
for the next. Whoever moves megabytes all the time, as a broker and a bulk reader do, pays more for that than for the
copying. So such a process may keep what it frees, up to a bound.

It also gives each thread a heap of its own, and each of them keeps what it frees. A compaction, which runs in any of
the threads of a broker, would then leave its 10 MB in each of them. So all threads share one heap; they wait for one
another in Python anyway.

What a rare job has needed, and nobody else does, is given back when it is done (`give_back`).
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
def keep_what_is_freed() -> bool:
    """Have large blocks reused instead of given back, by all threads; false where the C library cannot be told so."""
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


def give_back() -> bool:
    """Give free pages back to the system; false where nothing was, or the C library cannot be told so.

    It takes the lock of the heap for about a millisecond per 100 MB, so it is for a thread that may take its time.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(trim(0))
