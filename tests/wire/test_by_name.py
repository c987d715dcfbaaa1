"""Fields go into the structs of the wire by name: none is built from the values of another, one after the other."""

import ast
from pathlib import Path

import goqueue
from tests.wire.notation import wire_structs

SOURCES = sorted(Path(goqueue.__file__).parent.rglob("*.py"))


def test_no_struct_of_the_wire_is_built_from_a_sequence_by_position() -> None:
    structs = wire_structs().keys()

    by_position = [
        f"{source}:{call.lineno}: {_name(call)}"
        for source in SOURCES
        for call in ast.walk(ast.parse(source.read_text()))
        if isinstance(call, ast.Call) and any(isinstance(argument, ast.Starred) for argument in call.args)
        if _name(call) in structs and "events." not in ast.unparse(call.func)
    ]

    assert by_position == []


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]
