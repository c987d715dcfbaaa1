"""Which messages are held against which schema, and what becomes of those that break it."""

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.errors import SchemaRejected
from goqueue.schemas.registry import Registry
from goqueue.schemas.validation import Validation
from goqueue.wire.schema_reports import NewSchema

ORDER = json.dumps({"title": "Order", "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
ORDER_2 = json.dumps({"title": "Order", "type": "object", "properties": {"n": {"type": "integer"}}})
TEXT = '{"title": "Text", "type": "string"}'
AVRO = '{"type": "record", "name": "com.acme.Order", "fields": [{"name": "n", "type": "long"}]}'
PROTO = 'syntax = "proto3"; package acme; message Order { int64 n = 1; } message Other { string s = 1; }'
GOOD, BAD = b'{"n": 1}', b'{"n": "x"}'


class Registered(Registry):
    def add(self, subject: str, text: str, schema_type: str = "JSON") -> int:
        change = self.register(subject, NewSchema(text, schema_type))
        self.apply(change.facts)
        return change.result.id

    def drop(self, subject: str) -> None:
        self.apply(self.delete_subject(subject).facts)


@pytest.fixture
def registry() -> Registered:
    found = Registered()
    found.apply(found.set_level(None, "NONE").facts)
    return found


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


def refused(
    registry: Registry,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    named: Mapping[int, str | bytes] | None = None,
    topic: str = "orders",
    is_required: bool = False,
    first_only: bool = False,
    validation: Validation | None = None,
) -> dict[int, SchemaRejected]:
    validation = validation or Validation(registry)
    rule = validation.rule(topic, is_required=is_required)
    if rule is None:
        return {}
    return validation.refused(
        rule,
        values,
        keys if keys is not None else [None] * len(values),
        named or {},
        is_required=is_required,
        first_only=first_only,
    )


def facts(error: SchemaRejected) -> tuple[str, int, int, str]:
    return error.subject, error.version, error.schema_id, error.path


# --- which subject -------------------------------------------------------------------------------


def test_without_a_subject_there_is_nothing_to_do(registry: Registered) -> None:
    registry.add("other-value", ORDER)

    assert Validation(registry).rule("orders", is_required=False) is None
    assert refused(registry, [b"anything"]) == {}


@pytest.mark.parametrize("subject", ["orders-value", "orders"])
def test_values_are_held_against_the_latest_schema_of_their_subject(registry: Registered, subject: str) -> None:
    registry.add(subject, TEXT)
    schema_id = registry.add(subject, ORDER)

    found = refused(registry, [GOOD, BAD, b"{", GOOD])

    assert list(found) == [1, 2]
    assert facts(found[1]) == (subject, 2, schema_id, "/n")
    assert (found[1].index, found[1].field, found[1].reason) == (1, "value", '"x" is not of type integer')
    assert facts(found[2]) == (subject, 2, schema_id, "")


def test_the_longer_name_wins(registry: Registered) -> None:
    registry.add("orders", TEXT)
    registry.add("orders-value", ORDER)

    assert refused(registry, [GOOD]) == {}
    assert list(refused(registry, [b'"text"'])) == [0]


def test_a_subject_that_is_deleted_counts_no_more(registry: Registered) -> None:
    registry.add("orders", TEXT)
    registry.add("orders-value", ORDER)
    validation = Validation(registry)
    assert refused(registry, [b'"text"'], validation=validation) != {}

    registry.drop("orders-value")
    assert refused(registry, [b'"text"'], validation=validation) == {}
    registry.drop("orders")
    assert validation.rule("orders", is_required=False) is None
    registry.add("orders-value", ORDER)
    assert refused(registry, [b'"text"'], validation=validation) != {}


def test_only_the_first_is_told_if_one_is_enough(registry: Registered) -> None:
    registry.add("orders-value", ORDER)
    registry.add("orders-key", TEXT)
    good, bad = b'"key"', b"key"

    assert list(refused(registry, [GOOD, BAD, BAD], first_only=True)) == [1]
    found = refused(registry, [GOOD, GOOD, BAD], keys=[good, bad, bad], first_only=True)
    assert [(index, error.field) for index, error in found.items()] == [(1, "key")]
    found = refused(registry, [GOOD, framed(99, b""), BAD, framed(98, b"")], first_only=True)
    assert list(found) == [1]
    found = refused(registry, [BAD, framed(99, b"")], first_only=True)
    assert list(found) == [0]


# --- which schema --------------------------------------------------------------------------------


def test_the_prefix_names_the_schema(registry: Registered) -> None:
    old = registry.add("orders-value", TEXT)
    new = registry.add("orders-value", ORDER)

    found = refused(registry, [framed(old, b'"a"'), framed(new, GOOD), framed(old, GOOD), framed(new, BAD), b'"a"'])

    assert {index: facts(error) for index, error in found.items()} == {
        2: ("orders-value", 1, old, ""),
        3: ("orders-value", 2, new, "/n"),
        4: ("orders-value", 2, new, ""),
    }


def test_the_header_names_the_schema(registry: Registered) -> None:
    old = registry.add("orders-value", TEXT)
    registry.add("orders-value", ORDER)

    assert refused(registry, [b'"a"', GOOD], named={0: str(old)}) == {}
    assert refused(registry, [b'"a"', GOOD], named={0: str(old).encode()}) == {}
    assert list(refused(registry, [GOOD], named={0: str(old)})) == [0]


def test_the_header_wins_over_the_prefix(registry: Registered) -> None:
    old = registry.add("orders-value", TEXT)
    new = registry.add("orders-value", ORDER)

    assert refused(registry, [framed(old, b'"a"')], named={0: str(old)}) == {}
    anything = registry.add("orders-value", "true")
    found = refused(registry, [framed(new, GOOD)], named={0: str(anything)})
    assert facts(found[0]) == ("orders-value", 3, anything, "")


@pytest.mark.parametrize("header", ["", "x", "-1", "1.0", "²", "4294967296", "9" * 50, b"\xff", " 1"])
def test_a_header_that_is_no_id_is_refused(registry: Registered, header: str | bytes) -> None:
    registry.add("orders-value", ORDER)

    found = refused(registry, [GOOD], named={0: header})

    assert facts(found[0]) == ("orders-value", 0, 0, "")
    assert "schema-id is no id" in found[0].reason


def test_a_schema_of_another_topic_may_not_be_named(registry: Registered) -> None:
    registry.add("orders-value", ORDER)
    other = registry.add("payments-value", TEXT)

    for values, named in (([framed(other, b'"a"')], {}), ([b'"a"'], {0: str(other)}), ([framed(77, GOOD)], {})):
        found = refused(registry, values, named=named)
        assert "is not registered for the values of this topic" in found[0].reason


def test_a_schema_whose_version_is_deleted_may_not_be_named(registry: Registered) -> None:
    old = registry.add("orders-value", TEXT)
    registry.add("orders-value", ORDER)
    validation = Validation(registry)
    assert refused(registry, [framed(old, b'"a"')], validation=validation) == {}

    registry.apply(registry.delete_version("orders-value", "1").facts)

    assert list(refused(registry, [framed(old, b'"a"')], validation=validation)) == [0]


@pytest.mark.parametrize("subject", ["Order", "orders-Order", "orders"])
def test_a_schema_may_be_registered_under_its_record_name(registry: Registered, subject: str) -> None:
    registry.add("orders-value", TEXT)
    named = registry.add(subject, ORDER_2)

    assert refused(registry, [framed(named, GOOD), b'"text"']) == {}
    assert facts(refused(registry, [framed(named, BAD)])[0])[:1] == (subject,)


def test_a_topic_may_have_subjects_of_record_names_only(registry: Registered) -> None:
    order = registry.add("orders-Order", ORDER)
    registry.add("orders-eu-value", TEXT)  # another topic's

    assert refused(registry, [framed(order, GOOD), b"unnamed"]) == {}
    assert sorted(refused(registry, [framed(order, BAD), framed(99, GOOD)])) == [0, 1]
    assert Validation(registry).rule("orders-eu", is_required=False) is not None
    registry.drop("orders-Order")
    assert Validation(registry).rule("orders", is_required=False) is None


def test_a_payload_that_is_too_short_for_a_prefix_has_none(registry: Registered) -> None:
    registry.add("orders-value", ORDER)

    found = refused(registry, [b"\x00", b"\x00\x00\x00\x00", b""])

    assert [error.reason.startswith("not JSON") for error in found.values()] == [True] * 3


# --- keys, tombstones, required ------------------------------------------------------------------


def test_keys_are_held_against_their_own_subject(registry: Registered) -> None:
    registry.add("orders-key", TEXT)

    found = refused(registry, [b"any", b"any", b"any", b"any"], keys=[b'"k"', b"k", None, b""])

    assert list(found) == [1, 3]  # an empty key is a key
    assert (found[1].subject, found[1].field) == ("orders-key", "key")


def test_a_key_may_name_its_schema_too(registry: Registered) -> None:
    old = registry.add("orders-key", TEXT)
    registry.add("orders-key", ORDER)
    values = registry.add("orders-value", '{"title": "any"}')

    assert refused(registry, [b"1"], keys=[framed(old, b'"k"')]) == {}
    assert list(refused(registry, [b"1"], keys=[framed(values, b'"k"')])) == [0]
    assert list(refused(registry, [b"1"], keys=[b'"k"'], named={0: str(old)})) == [0]  # the header is the value's


def test_what_has_no_value_is_not_looked_at(registry: Registered) -> None:
    registry.add("orders-value", ORDER)
    registry.add("orders-key", TEXT)

    assert refused(registry, [None, GOOD], keys=[b"not JSON", b'"k"'], is_required=True) == {}


def test_where_a_schema_is_required_there_must_be_one(registry: Registered) -> None:
    found = refused(registry, [GOOD, None, b""], is_required=True)

    assert list(found) == [0, 2]
    assert facts(found[0]) == ("orders-value", 0, 0, "")
    assert "requires a schema" in found[0].reason


def test_where_a_schema_is_required_a_record_name_is_enough(registry: Registered) -> None:
    order = registry.add("Order", ORDER)

    assert refused(registry, [framed(order, GOOD)], is_required=True) == {}
    assert sorted(refused(registry, [framed(order, BAD), GOOD], is_required=True)) == [0, 1]
    assert refused(registry, [framed(order, BAD)]) == {}  # not required, and none of the topic's own


# --- other formats -------------------------------------------------------------------------------


def test_avro_is_read_behind_the_prefix_and_without(registry: Registered) -> None:
    schema_id = registry.add("orders-value", AVRO, "AVRO")
    other = registry.add("com.acme.Order", AVRO, "AVRO")

    assert other == schema_id
    assert refused(registry, [framed(schema_id, b"\x02"), b"\x04"]) == {}
    assert list(refused(registry, [framed(schema_id, b""), b"\x04\x04"])) == [0, 1]


def test_a_protobuf_message_without_a_prefix_is_the_first_of_its_file(registry: Registered) -> None:
    schema_id = registry.add("orders-value", PROTO, "PROTOBUF")
    number, text = b"\x08\x01", b"\x0a\x01a"

    assert refused(registry, [number, framed(schema_id, b"\x00" + number), framed(schema_id, b"\x02\x02" + text)]) == {}
    assert refused(registry, [number], named={0: str(schema_id)}) == {}
    assert refused(registry, [number, number]) == {}
    assert list(refused(registry, [number, b"\x00" + number])) == [1]
    assert list(refused(registry, [b"\x0a\x05a", framed(schema_id, b"\x02\x08" + text)])) == [0, 1]


# --- what is remembered --------------------------------------------------------------------------


def test_a_rule_is_made_once_and_again_when_the_registry_changes(registry: Registered) -> None:
    registry.add("orders-value", ORDER)
    validation = Validation(registry)
    rule = validation.rule("orders", is_required=False)
    assert validation.rule("orders", is_required=False) is rule

    registry.add("orders-value", ORDER_2)

    assert validation.rule("orders", is_required=False) is not rule


def test_only_so_many_rules_are_remembered(registry: Registered) -> None:
    validation = Validation(registry)

    for number in range(25_000):
        validation.rule(f"t{number}", is_required=False)

    assert len(validation._rules) <= 10_001


def test_a_schema_that_was_good_once_refuses_what_it_cannot_judge(registry: Registered) -> None:
    schema_id = registry.add("orders-value", ORDER)
    damaged = {key: (value or b"").replace(b'"integer', b'"intege') for key, value in _facts_of(registry).items()}
    again = Registered()
    again.apply(damaged)

    found = refused(again, [GOOD, GOOD])

    assert list(found) == [0, 1]
    assert f"schema {schema_id} cannot be used" in found[0].reason
    assert list(refused(again, [GOOD, GOOD], first_only=True)) == [0]


def _facts_of(registry: Registered) -> Mapping[bytes, bytes | None]:
    fresh = Registered()
    return fresh.register("orders-value", NewSchema(ORDER, "JSON")).facts


PAYLOADS = st.one_of(
    st.none(),
    st.sampled_from([GOOD, BAD, b'"a"', b"{", b""]),
    st.builds(framed, st.integers(1, 4), st.sampled_from([GOOD, BAD, b'"a"'])),
)


@settings(max_examples=60)
@given(st.lists(PAYLOADS, max_size=12), st.booleans(), st.booleans())
def test_a_batch_is_judged_as_its_messages_one_by_one(
    payloads: list[bytes | None], is_required: bool, has_default: bool
) -> None:
    registry = Registered()
    registry.apply(registry.set_level(None, "NONE").facts)
    if has_default:
        registry.add("orders-value", ORDER)
    registry.add("orders-Text", TEXT)
    registry.add("payments-value", ORDER_2)

    together = refused(registry, payloads, is_required=is_required)
    alone = {
        index: found[0]
        for index, payload in enumerate(payloads)
        if (found := refused(registry, [payload], is_required=is_required))
    }

    assert {index: (facts(error), error.reason) for index, error in together.items()} == {
        index: (facts(error), error.reason) for index, error in alone.items()
    }
    first = refused(registry, payloads, is_required=is_required, first_only=True)
    assert list(first) == sorted(together)[:1]
