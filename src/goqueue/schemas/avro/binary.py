"""Whether bytes are Avro's binary form of a type.

A type is compiled into a function that steps over one value and returns where the next one begins. No value is built,
so nothing is allocated that the bytes only claim, and each call takes at least one byte: parts that take none (null,
and what is made of nothing else) are left out, and a record of one part is that part. Time is therefore bounded by the
length of the payload, whatever the schema is.

    int, long    zigzag, 7 bits to a byte, the lowest first; the high bit says that there is more
    string       its length as a long, then UTF-8
    enum, union  an index as a long; for a union, the value follows
    array, map   blocks: a count, then so many; 0 ends. A negative count is followed by the size of the block in bytes

A record that contains itself may nest in a payload without end. `left` is how much deeper a payload may still go,
and it is paid for where a record is met again.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from goqueue.schemas.avro.types import Array, AvroRecord, Enum, Fixed, Map, Primitive, Type, Union
from goqueue.schemas.format import PayloadFault

Skip = Callable[[bytes, int, int], int]
"""Of (payload, position, depth left): the position after the value. Raises `Misfit`, or IndexError at the end."""
SkipMany = Callable[[bytes, int, int], int]
"""Of (payload, position, count): the position after so many values."""

NESTING_MAX: Final = 500
"""How deep a payload may go, in calls. The interpreter allows 1,000, and its caller needs some."""
EMPTY_ITEMS_MAX: Final = 65_536
"""In an array of items that take no bytes; a reader would have to make them all."""

PATH_MAX: Final = 1_000
"""Of characters, more or less, in what is said about a fault; the outer part of a longer path is left out."""

ENDS_EARLY = "ends too early"
_LONG_TOO_LONG = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]")
_INT_TOO_LONG = re.compile(rb"[\x80-\xff]{4}[\x10-\xff]")
_HIGH = bytes(range(128, 256))


class Misfit(Exception):
    """The bytes are no such value; the path grows on the way up."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def below(self, step: str) -> None:
        """Look at it from one level higher."""
        if len(self.path) < PATH_MAX:
            self.path = step + self.path


class Program(NamedTuple):
    """How to step over values of a type.

    `prefix` is the path of the only part, where a record was replaced by it; `many` is there if it is faster.
    """

    skip: Skip
    prefix: str = ""
    many: SkipMany | None = None
    is_empty: bool = False
    calls: int = 1


class BinaryValidator:
    """Holds payloads against one type."""

    __slots__ = ("_prefix", "_skip")

    def __init__(self, type: Type) -> None:
        program = _Compiler().program(type)
        self._skip = program.skip
        self._prefix = program.prefix

    def check(self, payload: bytes) -> PayloadFault | None:
        """What is wrong with the payload."""
        try:
            end = self._skip(payload, 0, NESTING_MAX)
        except Misfit as misfit:
            return PayloadFault(self._prefix + misfit.path, misfit.reason)
        except IndexError:
            return PayloadFault(self._prefix, ENDS_EARLY)
        except RecursionError:
            return PayloadFault("", "nests too deep")
        if end != len(payload):
            return PayloadFault("", f"ends after {end} bytes, and there are {len(payload)}")
        return None

    def check_many(self, payloads: Sequence[bytes]) -> tuple[int, PayloadFault] | None:
        """Which is the first that does not fit, and why."""
        skip = self._skip
        for index, payload in enumerate(payloads):
            try:
                if skip(payload, 0, NESTING_MAX) == len(payload):
                    continue
            except (Misfit, IndexError, RecursionError):
                pass
            # The loop only has to be fast: the payload that fails is checked once more, for the path and the reason.
            fault = self.check(payload)
            assert fault
            return index, fault
        return None


class _Compiler:
    def __init__(self) -> None:
        self._records: dict[AvroRecord, Program | None] = {}
        self._again: dict[AvroRecord, list[Program]] = {}

    def program(self, type: Type) -> Program:
        match type:
            case Primitive(kind):
                return _PRIMITIVES[kind]
            case Fixed():
                return _fixed(type.size)
            case Enum():
                return Program(_enum(len(type.symbols)))
            case Array():
                return self._array(type)
            case Map():
                return self._map(type)
            case Union():
                return self._union(type)
        if type in self._records:
            return self._records[type] or self._met_again(type)
        self._records[type] = None
        program = self._record(type)
        self._records[type] = program
        self._again.get(type, []).append(program)
        return program

    def _met_again(self, record: AvroRecord) -> Program:
        """A record within itself; its program is there before the first payload is."""
        programs = self._again.setdefault(record, [])

        def skip(data: bytes, at: int, left: int) -> int:
            program = programs[0]
            left -= program.calls + 1
            if left < 0:
                raise Misfit("nests too deep")
            try:
                return program.skip(data, at, left)
            except IndexError:
                raise Misfit(ENDS_EARLY, program.prefix) from None
            except Misfit as misfit:
                misfit.below(program.prefix)
                raise

        return Program(skip)

    def _record(self, record: AvroRecord) -> Program:
        steps = []
        calls = 0
        for field in record.fields:
            program = self.program(field.type)
            if not program.is_empty:
                steps.append((f"/{field.name}{program.prefix}", program.skip))
                calls = max(calls, program.calls)
                only = program
        if not steps:
            return Program(_skip_null, many=_many_empty, is_empty=True)
        if len(steps) == 1:
            return only._replace(prefix=steps[0][0])

        def skip(data: bytes, at: int, left: int) -> int:
            path = ""
            try:
                for path, step in steps:  # noqa: B007 - told if it fails
                    at = step(data, at, left)
            except IndexError:
                raise Misfit(ENDS_EARLY, path) from None
            except Misfit as misfit:
                misfit.below(path)
                raise
            return at

        return Program(skip, calls=calls + 1)

    def _union(self, union: Union) -> Program:
        programs = [self.program(branch) for branch in union.branches]
        branches = [(program.prefix, program.skip) for program in programs]
        end = 2 * len(branches)

        def skip(data: bytes, at: int, left: int) -> int:
            index = data[at]
            if index < 128:
                at += 1
            else:
                index, at = _varint(data, at)
            if index & 1 or index >= end:
                raise Misfit(f"the union has no type {_signed(index)}")
            prefix, step = branches[index >> 1]
            try:
                return step(data, at, left)
            except IndexError:
                raise Misfit(ENDS_EARLY, prefix) from None
            except Misfit as misfit:
                misfit.below(prefix)
                raise

        return Program(skip, calls=1 + max((program.calls for program in programs), default=0))

    def _array(self, array: Array) -> Program:
        item, prefix, many, is_empty, calls = self.program(array.items)
        items_max = EMPTY_ITEMS_MAX if is_empty else None

        def skip(data: bytes, at: int, left: int) -> int:
            number = 0
            while data[at]:
                raw = data[at]
                # Nearly every count is positive and fits in one byte: then it is even (zigzag) and below 128.
                if raw & 129 or is_empty:
                    count, at, end = _block(data, at, number, items_max)
                else:
                    count, at, end = raw >> 1, at + 1, None
                if many and (is_empty or count > 16):
                    at = many(data, at, count)
                    number += count
                else:
                    try:
                        for _ in range(count):
                            at = item(data, at, left)
                            number += 1
                    except IndexError:
                        raise Misfit(ENDS_EARLY, f"/{number}{prefix}") from None
                    except Misfit as misfit:
                        misfit.below(f"/{number}{prefix}")
                        raise
                if end is not None and at != end:
                    raise Misfit(f"a block of the array ends at byte {at}, and said {end}")
            return at + 1

        return Program(skip, calls=calls + 1)

    def _map(self, map: Map) -> Program:
        value, prefix, _, _, calls = self.program(map.values)

        def skip(data: bytes, at: int, left: int) -> int:
            while data[at]:
                raw = data[at]
                if raw & 129:
                    count, at, end = _block(data, at, 0, None)
                else:
                    count, at, end = raw >> 1, at + 1, None
                key_at = value_at = at
                try:
                    for _ in range(count):
                        key_at = value_at = at
                        at = value_at = _skip_string(data, at, left)
                        at = value(data, at, left)
                except (IndexError, Misfit) as error:
                    misfit = error if isinstance(error, Misfit) else Misfit(ENDS_EARLY)
                    misfit.below(f"/{_key(data, key_at)}{prefix}" if key_at < value_at else "")
                    raise misfit from None
                if end is not None and at != end:
                    raise Misfit(f"a block of the map ends at byte {at}, and said {end}")
            return at + 1

        return Program(skip, calls=calls + 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A long as it stands there, not yet unzigzagged, and where the next value begins."""
    value = shift = 0
    for position in range(at, at + 10):
        byte = data[position]
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                break
            return value, position + 1
        shift += 7
    raise Misfit("a number has more than 64 bits")


def _signed(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)


def _block(data: bytes, at: int, number: int, items_max: int | None) -> tuple[int, int, int | None]:
    """How many values are in the block that begins here, where they begin, and where they end if it says so."""
    raw = data[at]
    if raw < 128:
        at += 1
    else:
        raw, at = _varint(data, at)
    count, end = _signed(raw), None
    if count < 0:
        count = -count
        raw, at = _varint(data, at)
        end = at + _signed(raw)
        if not at <= end <= len(data):
            raise Misfit(f"a block claims {_signed(raw)} bytes, and there are {len(data) - at}")
    if items_max is not None:
        if number + count > items_max:
            raise Misfit(f"an array has {number + count} items of nothing, and {items_max} are the most")
    elif count > len(data) - at:
        raise Misfit(f"a block claims {count} items, and there are {len(data) - at} bytes")
    return count, at, end


def _key(data: bytes, at: int) -> str:
    raw, at = _varint(data, at)
    return data[at : at + (raw >> 1)].decode().replace("~", "~0").replace("/", "~1")


def _skip_null(data: bytes, at: int, left: int) -> int:
    return at


def _skip_boolean(data: bytes, at: int, left: int) -> int:
    if data[at] > 1:
        raise Misfit(f"a boolean is 0 or 1, not {data[at]}")
    return at + 1


def _skip_int(data: bytes, at: int, left: int) -> int:
    if data[at] < 128:
        return at + 1
    for position in range(at + 1, at + 4):
        if data[position] < 128:
            return position + 1
    if data[at + 4] > 15:
        raise Misfit("an int has more than 32 bits")
    return at + 5


def _skip_long(data: bytes, at: int, left: int) -> int:
    if data[at] < 128:
        return at + 1
    for position in range(at + 1, at + 9):
        if data[position] < 128:
            return position + 1
    if data[at + 9] > 1:
        raise Misfit("a long has more than 64 bits")
    return at + 10


def _skip_bytes(data: bytes, at: int, left: int) -> int:
    size = data[at]
    if size < 128:
        at += 1
    else:
        size, at = _varint(data, at)
    if size & 1:
        raise Misfit("a length is negative")
    at += size >> 1
    if at > len(data):
        raise IndexError
    return at


def _skip_string(data: bytes, at: int, left: int) -> int:
    size = data[at]
    if size < 128:
        at += 1
    else:
        size, at = _varint(data, at)
    if size & 1:
        raise Misfit("a length is negative")
    end = at + (size >> 1)
    if end > len(data):
        raise IndexError
    text = data[at:end]
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            raise Misfit("a string is not UTF-8") from None
    return end


def _enum(count: int) -> Skip:
    end = 2 * count

    def skip(data: bytes, at: int, left: int) -> int:
        index = data[at]
        if index < 128:
            at += 1
        else:
            index, at = _varint(data, at)
        if index & 1 or index >= end:
            raise Misfit(f"the enum has no symbol {_signed(index)}")
        return at

    return skip


def _fixed(size: int) -> Program:
    def skip(data: bytes, at: int, left: int) -> int:
        at += size
        if at > len(data):
            raise IndexError
        return at

    def many(data: bytes, at: int, count: int) -> int:
        return skip(data, at + size * (count - 1), 0)

    return Program(skip, many=many, is_empty=not size)


def _many_empty(data: bytes, at: int, count: int) -> int:
    return at


def _many_booleans(data: bytes, at: int, count: int) -> int:
    if data[at : at + count].translate(None, b"\0\1"):
        raise Misfit("a boolean is 0 or 1")
    return at + count


def _many_numbers(skip: Skip, too_long: re.Pattern[bytes], reason: str) -> SkipMany:
    """Each number ends with a byte below 128, so most of them are counted and not looked at."""

    def many(data: bytes, at: int, count: int) -> int:
        first = at
        # `count` bytes hold at most `count` numbers, so nothing after the numbers is taken for one of them. Those that
        # end here are done, and the next slice has a byte for each that is left. If none ends here, one is too long.
        while count > 16:
            ends = len(data[at : at + count].translate(None, _HIGH))
            at += count
            count -= ends
            if at > len(data):
                raise IndexError
            if not ends:
                raise Misfit(reason)
        for _ in range(count):
            at = skip(data, at, 0)
        if too_long.search(data, first, at):
            raise Misfit(reason)
        return at

    return many


_PRIMITIVES: Final = {
    "null": Program(_skip_null, many=_many_empty, is_empty=True),
    "boolean": Program(_skip_boolean, many=_many_booleans),
    "int": Program(_skip_int, many=_many_numbers(_skip_int, _INT_TOO_LONG, "an int has more than 32 bits")),
    "long": Program(_skip_long, many=_many_numbers(_skip_long, _LONG_TOO_LONG, "a long has more than 64 bits")),
    "float": _fixed(4),
    "double": _fixed(8),
    "bytes": Program(_skip_bytes),
    "string": Program(_skip_string),
}
