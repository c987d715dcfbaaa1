"""Where the `$ref`s of a JSON Schema lead, through all documents that it is made of.

A place is a document and the path of keys to a node in it. A `$ref` is resolved as the specification says, against the
`$id`s around it, but only within the documents that are given: what leads out of them leads nowhere.

Two things follow from knowing that. A schema can be written as one document whose refs are plain pointers. And
it can be said how large it would be with all refs written out, which bounds what it costs to hold a message against
it: twenty definitions, each of which refers twice to the next one, are a million. Refs that lead back to where
they came from count once; validators remember what they found there.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote, urljoin

Path: TypeAlias = tuple[str | int, ...]

MAIN: Final = ""
"""The name of the schema itself among its documents."""
_REFS: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_MAPS: Final = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)
_NOT_APPLIED: Final = frozenset(("$defs", "definitions", "enum", "const", "default", "examples"))


class SchemaPlace(NamedTuple):
    """A node of one of the documents."""

    document: str
    path: Path


class _Ref(NamedTuple):
    node: dict[str, Any]
    keyword: str
    target: str  # absolute, as far as the documents have names


class References:
    """The places of the documents of a schema, by what refs call them."""

    def __init__(self, document: object, others: Mapping[str, object]) -> None:
        self._documents: dict[str, object] = {MAIN: document, **others}
        self._resources: dict[str, SchemaPlace] = {}
        self._anchors: dict[tuple[str, str], SchemaPlace] = {}
        self._refs: list[_Ref] = []
        bases = {"", *(_own_id(one) for one in self._documents.values())}
        for name in others:
            for base in bases:
                self._resources.setdefault(_without_fragment(_joined(base, name)), SchemaPlace(name, ()))
        for name in self._documents:
            self._scan(name)
        found = ((ref, self.place(ref.target)) for ref in self._refs)
        self._places = [(ref, place) for ref, place in found if place is not None]
        self._targets = {id(ref.node): place for ref, place in self._places if ref.keyword == "$ref"}

    def resources(self) -> Iterator[tuple[str, str]]:
        """Under which addresses the other documents are to be found: (address, name)."""
        return ((uri, place.document) for uri, place in self._resources.items() if place.document and not place.path)

    def _scan(self, name: str) -> None:
        """Note the resources, anchors and refs of a document."""
        start = self._documents[name]
        keyword_of_id, is_alone = _dialect(start)
        self._resources.setdefault(name, SchemaPlace(name, ()))
        stack: list[tuple[object, Path, str]] = [(start, (), name)]
        while stack:
            node, path, base = stack.pop()
            if isinstance(node, list):
                stack += [(item, (*path, index), base) for index, item in enumerate(node)]
                continue
            if not isinstance(node, dict):
                continue
            own = node.get(keyword_of_id)
            if isinstance(own, str) and not (is_alone and "$ref" in node):
                base = self._named(own, SchemaPlace(name, path), base)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(anchor := node.get(keyword), str):
                    self._anchors[base, anchor] = SchemaPlace(name, path)
            for keyword in _REFS:
                if isinstance(ref := node.get(keyword), str):
                    self._refs.append(_Ref(node, keyword, _joined(base, ref)))
            stack += [(item, (*path, key), base) for key, item in node.items() if isinstance(item, dict | list)]

    def _named(self, own: str, place: SchemaPlace, base: str) -> str:
        """Note the name that a node gives itself; the base of the refs in it."""
        uri, _, fragment = _joined(base, own).partition("#")
        if fragment:
            self._anchors[base, fragment] = place
        if own.startswith("#"):
            return base
        self._resources.setdefault(uri, place)
        return uri

    def target(self, node: dict[str, Any]) -> SchemaPlace | None:
        """Where the `$ref` of a node leads, if it has one."""
        return self._targets.get(id(node))

    def place(self, target: str) -> SchemaPlace | None:
        """Where a ref leads."""
        uri, _, fragment = target.partition("#")
        found = self._resources.get(uri)
        if found is None or not fragment:
            return found
        if not fragment.startswith("/"):
            return self._anchors.get((uri, fragment)) or self._anchors.get((uri, unquote(fragment)))
        return self._below(found, unquote(fragment))

    def _below(self, start: SchemaPlace, pointer: str) -> SchemaPlace | None:
        node = self.node(start)
        path: list[str | int] = list(start.path)
        for token in pointer.split("/")[1:]:
            key: str | int = token.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and token.isdecimal() and int(token) < len(node):
                key = int(token)
                node = node[key]
            else:
                return None
            path.append(key)
        return SchemaPlace(start.document, tuple(path))

    def node(self, place: SchemaPlace) -> Any:
        """What stands there."""
        node: Any = self._documents[place.document]
        for key in place.path:
            node = node[key]
        return node

    # --- as one document -----------------------------------------------------------------------

    def bundled(self) -> object:
        """The schema as one document; if there were others, all refs that lead somewhere are pointers in it."""
        main = self._documents[MAIN]
        if len(self._documents) == 1 or not isinstance(main, dict):
            return main
        keys = {name: f"document-{number}" for number, name in enumerate(self._documents) if name}
        pointers = {(id(ref.node), ref.keyword): _fragment(place, keys) for ref, place in self._places}
        bundle = _rewritten(main, pointers)
        definitions = bundle.get("$defs")
        bundle["$defs"] = {
            **(definitions if isinstance(definitions, dict) else {}),
            **{key: _rewritten(self._documents[name], pointers) for name, key in keys.items()},
        }
        return bundle

    # --- written out ---------------------------------------------------------------------------

    def expanded_size(self, limit: int) -> int:
        """How many nodes the schema has with all refs written out, if it has any; no more than `limit` are counted."""
        if not self._places:
            return 1
        targets = {id(ref.node): node for ref, place in self._places if isinstance(node := self.node(place), dict)}
        sizes: dict[tuple[int, bool], int] = {}
        main = self._documents[MAIN]
        stack: list[tuple[Any, bool, bool]] = [(main, False, False)]
        while stack:
            node, is_map, is_entered = stack.pop()
            key = (id(node), is_map)
            if is_entered:
                inside = sum(sizes.get((id(child), kind), 0) for child, kind in _applied(node, is_map, targets))
                sizes[key] = min(limit, 1 + inside)
            elif key not in sizes:
                sizes[key] = 0  # met again from inside: it leads back
                stack.append((node, is_map, True))
                stack += [(child, kind, False) for child, kind in _applied(node, is_map, targets)]
        return sizes[id(main), False]


def _applied(node: Any, is_map: bool, targets: Mapping[int, Any]) -> Iterator[tuple[Any, bool]]:
    """What is evaluated when the node is, and whether that is a map from names to schemas."""
    if isinstance(node, list):
        yield from ((child, False) for child in node if isinstance(child, dict | list))
    elif isinstance(node, dict):
        for key, child in node.items():
            if isinstance(child, dict | list) and (is_map or key not in _NOT_APPLIED):
                yield child, not is_map and key in _MAPS and isinstance(child, dict)
        if not is_map and id(node) in targets:
            yield targets[id(node)], False


def _rewritten(start: Any, pointers: Mapping[tuple[int, str], str]) -> Any:
    """A copy with other refs, and without the names that would change what refs mean."""

    def copied(node: Any) -> Any:
        if isinstance(node, list):
            return [copied(item) for item in node]
        if not isinstance(node, dict):
            return node
        kept = {}
        for key, item in node.items():
            if key in ("$id", "id", "$anchor") and isinstance(item, str):
                continue
            kept[key] = pointers.get((id(node), key), item) if key in _REFS else copied(item)
        return kept

    return copied(start)


def pointer_of(path: Sequence[str | int]) -> str:
    """The path as a JSON Pointer."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def _fragment(place: SchemaPlace, keys: Mapping[str, str]) -> str:
    path = ("$defs", keys[place.document], *place.path) if place.document else place.path
    return "#" + quote(pointer_of(path), safe="/~$")


def _dialect(document: object) -> tuple[str, bool]:
    """How the document names its parts, and whether a `$ref` makes all that stands beside it mean nothing."""
    named = document.get("$schema") if isinstance(document, dict) else None
    dialect = named if isinstance(named, str) else ""
    return "id" if "draft-04" in dialect else "$id", "2019-09" not in dialect and "2020-12" not in dialect


def _own_id(document: object) -> str:
    own = document.get(_dialect(document)[0]) if isinstance(document, dict) else None
    return own if isinstance(own, str) else ""


def _joined(base: str, ref: str) -> str:
    if ref.startswith("#"):  # `urljoin` knows not every scheme
        return _without_fragment(base) + ref
    try:
        return urljoin(base, ref) if base else ref
    except ValueError:  # no address at all
        return ref


def _without_fragment(uri: str) -> str:
    return uri.partition("#")[0]
