"""How structs travel: as msgpack maps from field names to values.

With names, a field that is moved, added or removed is never taken for another one, and a capture of the traffic can be
read without the source. An end ignores fields that it does not know and gives missing ones their default, so a field
may be added wherever it reads best, with a default. A field may not be renamed, and its meaning may not change.

Names cost bytes and time. Measured against arrays they are less than 1 % of publishing one message, and of a poll and
an ack of one message; larger requests carry their bulk in the payload. Every field is written, also one that has its
default: so a default can change without a change of meaning for the other end.
"""

import msgspec


class WireStruct(msgspec.Struct):
    """The base of all structs of the native protocol."""
