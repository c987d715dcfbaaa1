import subprocess
import sys

LOOP = """
import resource
from goqueue.runtime.memory import retain_freed_memory
assert {told} is None or retain_freed_memory() is True
for _ in range(3):
    [bytearray(8 << 20) for _ in range(5)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    [bytearray(8 << 20) for _ in range(5)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, is_told: bool) -> int:
    """How many pages a process is given while it takes and frees 40 MiB, 10,240 pages, twenty times."""
    program = LOOP.format(told=True if is_told else None)
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout)


def test_what_was_freed_is_not_fetched_anew() -> None:
    assert faults(is_told=True) < 10_240
    assert faults(is_told=False) > 10 * 10_240


THREADS = """
import threading
from pathlib import Path
from goqueue.runtime.memory import retain_freed_memory
assert {told} is None or retain_freed_memory() is True
def work():
    [bytearray(b"x") * (100 << 10) for _ in range(100)]
    done.release()
    end.wait()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
done, end = threading.Semaphore(0), threading.Event()
for _ in range(4):
    threading.Thread(target=work).start()
    done.acquire()
print(resident() - before)
end.set()
"""


def test_what_one_thread_has_freed_another_one_uses() -> None:
    """Each of four threads takes and frees 10 MB, one after the other, and lives on."""
    program = THREADS.format(told=True)
    grown = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout)

    assert grown < 15_000_000


TABLE = """
from pathlib import Path
from goqueue.runtime.memory import trim_heap, retain_freed_memory
retain_freed_memory()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
{b"key-%d" % number: number for number in range(200_000)}
freed = resident()
trim_heap()
print(freed - before, resident() - before)
"""


def test_what_a_large_table_has_needed_is_given_back() -> None:
    printed = subprocess.run([sys.executable, "-c", TABLE], capture_output=True, check=True, text=True).stdout
    kept, left = map(int, printed.split())

    assert kept > 8_000_000
    assert left < 3_000_000
