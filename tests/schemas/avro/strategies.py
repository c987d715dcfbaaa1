"""Avro schemas, values of them, and later versions of them, at random."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

LEAVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
ANY = {"null": None, "boolean": True, "int": 1, "long": 2, "float": 0.5, "double": 1.5, "bytes": "b", "string": "s"}
Json = Any


@dataclass
class Names:
    """The types that were defined so far; those that are open contain what is drawn now."""

    closed: dict[str, Json] = field(default_factory=dict)
    opened: dict[str, Json] = field(default_factory=dict)
    count: int = 0

    def new(self) -> str:
        self.count += 1
        return f"N{self.count}"


@st.composite
def schemas(draw: st.DrawFn) -> tuple[Json, dict[str, Json]]:
    """A schema, and all named types in it."""
    names = Names()
    return _schema(draw, names, 3, True), names.closed


def _schema(draw: st.DrawFn, names: Names, depth: int, may_be_union: bool) -> Json:
    kinds = ["leaf", "leaf", "enum", "fixed"]
    if depth:
        kinds += ["record", "record", "array", "map"] + ["union"] * may_be_union + ["again"] * bool(names.closed)
    match draw(st.sampled_from(kinds)):
        case "leaf":
            leaf = draw(st.sampled_from(LEAVES))
            return draw(st.sampled_from([leaf, {"type": leaf}]))
        case "enum":
            name = names.new()
            symbols = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True))
            schema: dict[str, Json] = {"type": "enum", "name": name, "symbols": symbols}
            if draw(st.booleans()):
                schema["default"] = symbols[0]
            names.closed[name] = schema
            return schema
        case "fixed":
            name = names.new()
            names.closed[name] = {"type": "fixed", "name": name, "size": draw(st.integers(0, 3))}
            return names.closed[name]
        case "array":
            return {"type": "array", "items": _schema(draw, names, depth - 1, True)}
        case "map":
            return {"type": "map", "values": _schema(draw, names, depth - 1, True)}
        case "again":
            return draw(st.sampled_from(sorted(names.closed)))
        case "union":
            return _union(draw, names, depth)
    return _record(draw, names, depth)


def _union(draw: st.DrawFn, names: Names, depth: int) -> Json:
    branches: list[Json] = []
    seen = set()
    for _ in range(draw(st.integers(1, 3))):
        branch = _schema(draw, names, depth - 1, False)
        kind = branch["type"] if isinstance(branch, dict) else branch
        identity = branch["name"] if isinstance(branch, dict) and "name" in branch else kind
        if identity not in seen:
            seen.add(identity)
            branches.append(branch)
    if names.opened and draw(st.booleans()):
        branches = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        return ["null", *branches, draw(st.sampled_from(sorted(names.opened)))]
    return branches


def _record(draw: st.DrawFn, names: Names, depth: int) -> Json:
    name = names.new()
    record: dict[str, Json] = {"type": "record", "name": name, "fields": []}
    names.opened[name] = record
    for index in range(draw(st.integers(0, 4))):
        record["fields"].append({"name": f"f{index}", "type": _schema(draw, names, depth - 1, True)})
    names.closed[name] = names.opened.pop(name)
    return record


def zigzag(number: int) -> bytes:
    """A number as Avro writes it."""
    raw = (number << 1) ^ (number >> 63) if number < 0 else number << 1
    found = bytearray()
    while raw > 127:
        found.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*found, raw])


def payloads(draw: st.DrawFn, schema: Json, names: dict[str, Json], depth: int = 4) -> bytes:
    """A value of the schema in Avro's binary form, written by the specification."""
    if isinstance(schema, list):
        index = draw(st.integers(0, len(schema) - 1)) if depth > 0 else 0
        return zigzag(index) + payloads(draw, schema[index], names, depth - 1)
    if isinstance(schema, str) and schema in names:
        schema = names[schema]
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([draw(st.booleans())])
        case "int":
            return zigzag(draw(st.integers(-(2**31), 2**31 - 1)))
        case "long":
            return zigzag(draw(st.integers(-(2**63), 2**63 - 1)))
        case "float":
            return draw(st.binary(min_size=4, max_size=4))
        case "double":
            return draw(st.binary(min_size=8, max_size=8))
        case "bytes" | "string":  # either may be read as the other
            text = draw(st.text(max_size=80)).encode()
            return zigzag(len(text)) + text
        case "enum":
            return zigzag(draw(st.integers(0, len(schema["symbols"]) - 1)))
        case "fixed":
            return draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
        case "array":
            return _blocks(draw, depth, lambda: payloads(draw, schema["items"], names, depth - 1))
        case "map":
            return _blocks(draw, depth, lambda: b"\x08k/~\x31" + payloads(draw, schema["values"], names, depth - 1))
    return b"".join(payloads(draw, one["type"], names, depth - 1) for one in schema["fields"])


def _blocks(draw: st.DrawFn, depth: int, one: Callable[[], bytes]) -> bytes:
    found = b""
    for _ in range(draw(st.integers(0, 2)) if depth > 0 else 0):
        count = draw(st.integers(1, 20 if depth == 4 else 2))
        block = b"".join(one() for _ in range(count))
        found += zigzag(-count) + zigzag(len(block)) if draw(st.booleans()) else zigzag(count)
        found += block
    return found + b"\0"


def later(draw: st.DrawFn, schema: Json) -> Json:
    """A schema that somebody may have made of this one, or just the same."""
    if isinstance(schema, list):
        branches = [later(draw, branch) for branch in schema]
        branches = [branch for branch in branches if not isinstance(branch, list)]
        kept = [branch for branch in branches if draw(st.integers(0, 5))] or branches
        return _distinct(kept)
    kind = schema["type"] if isinstance(schema, dict) else schema
    change = draw(st.integers(0, 9))
    if kind in LEAVES:
        if change == 0 and kind in PROMOTIONS:
            return draw(st.sampled_from(PROMOTIONS[kind]))
        if change == 1:
            return draw(st.sampled_from(LEAVES))
        return _distinct([schema, draw(st.sampled_from(LEAVES))]) if change == 2 else schema
    if isinstance(schema, str):
        return schema
    schema = dict(schema)
    match kind:
        case "enum":
            if change == 0:
                schema["symbols"] = draw(st.lists(st.sampled_from("ABCDEF"), min_size=1, unique=True))
                schema.pop("default", None)
                if draw(st.booleans()):
                    schema["default"] = schema["symbols"][-1]
        case "fixed":
            schema["size"] += change == 0
        case "array":
            schema["items"] = later(draw, schema["items"])
        case "map":
            schema["values"] = later(draw, schema["values"])
        case "record":
            schema["fields"] = list(_later_fields(draw, schema["fields"]))
    if kind in ("enum", "fixed", "record") and change == 1:
        schema["namespace"] = "other"
    return schema


def _later_fields(draw: st.DrawFn, fields: list[Json]) -> list[Json]:
    found = []
    for before in fields:
        one = {**before, "type": later(draw, before["type"])}
        match draw(st.integers(0, 7)):
            case 0:
                continue
            case 1:
                one |= {"name": f"{one['name']}x", "aliases": [one["name"]]}
            case 2:
                one |= {"name": f"{one['name']}y"}
        found.append(one)
    if draw(st.booleans()):
        leaf = draw(st.sampled_from(LEAVES))
        added = {"name": "added", "type": leaf}
        found.append({**added, "default": ANY[leaf]} if draw(st.integers(0, 3)) else added)
    return draw(st.permutations(found))


def _distinct(branches: list[Json]) -> list[Json]:
    found: dict[str, Json] = {}
    for branch in branches:
        kind = branch["type"] if isinstance(branch, dict) else branch
        found.setdefault(branch["name"] if isinstance(branch, dict) and "name" in branch else kind, branch)
    return list(found.values())
