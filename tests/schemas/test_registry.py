"""The registry: what is registered, found and deleted, what fits what, and that its facts are all there is to it."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.errors import (
    GoQueueError,
    InvalidConfig,
    InvalidSchema,
    InvalidSchemaRequest,
    SchemaError,
    SchemaIncompatible,
    SchemaNotFound,
    SchemaOperationRefused,
    SchemaVersionNotFound,
    SubjectNotFound,
)
from goqueue.schemas.format import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX
from goqueue.schemas.registry import Change, Registry, RegistryConfig, T
from goqueue.schemas.subjects import Level
from goqueue.wire.schema_reports import NewSchema, SchemaInfo, SchemaReference, SubjectVersion

SUBJECT = "orders-value"
CLOSED = {"type": "object", "additionalProperties": False}


def schema(**properties: object) -> str:
    """An object with these properties and no others."""
    return json.dumps({**CLOSED, "properties": properties})


TEXT: Mapping[str, object] = {"type": "string"}
NUMBER: Mapping[str, object] = {"type": "number"}
ONE = schema(a=TEXT)
TWO = schema(a=TEXT, b=TEXT)
OTHER = schema(a=NUMBER)


def json_schema(text: str, *references: SchemaReference, **more: object) -> NewSchema:
    return NewSchema(text, "JSON", list(references), **more)  # type: ignore[arg-type]


class Kept(Registry):
    """A registry whose facts are also kept, as a journal keeps them."""

    def __init__(self, config: RegistryConfig | None = None) -> None:
        super().__init__(config)
        self.facts: dict[bytes, bytes] = {}

    def do(self, change: Change[T]) -> T:
        for key, value in change.facts.items():
            self.facts.pop(key, None)
            if value is not None:
                self.facts[key] = value
        self.apply(change.facts)
        return change.result

    def add(self, subject: str, text: str, *references: SchemaReference, **more: object) -> SchemaInfo:
        return self.do(self.register(subject, json_schema(text, *references, **more)))

    def deleted(self, subject: str, version: str | None, permanent: bool) -> object:
        if version is None:
            return self.do(self.delete_subject(subject, permanent=permanent))
        return self.do(self.delete_version(subject, version, permanent=permanent))

    def reloaded(self) -> "Kept":
        other = Kept()
        other.apply(self.facts)
        other.facts = dict(self.facts)
        return other


def refusal(action: Callable[[], object]) -> int:
    """The number that Confluent's clients get."""
    with pytest.raises(SchemaError) as raised:
        action()
    return raised.value.error_code


@pytest.fixture
def registry() -> Kept:
    return Kept()


# --- registering ---------------------------------------------------------------------------------


def test_the_first_schema_is_version_1_with_id_1(registry: Kept) -> None:
    info = registry.add(SUBJECT, ONE)

    assert (info.subject, info.version, info.id, info.schema, info.schema_type) == (SUBJECT, 1, 1, ONE, "JSON")
    assert UUID(info.guid).version == 5
    assert registry.get(SUBJECT) == registry.by_id(1) == registry.by_guid(info.guid) == info


def test_a_plan_changes_nothing(registry: Kept) -> None:
    change = registry.register(SUBJECT, json_schema(ONE))

    assert registry.subjects() == []
    assert refusal(lambda: registry.by_id(1)) == 40403
    assert list(change.facts) == [b"schema/1", b"version/1/orders-value"]


def test_the_same_schema_again_is_the_version_that_it_has(registry: Kept) -> None:
    first = registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, TWO)
    spaced = json.dumps(json.loads(ONE), indent=4)

    assert registry.register(SUBJECT, json_schema(spaced)) == Change({}, first)


def test_the_same_text_elsewhere_has_the_same_id_and_guid(registry: Kept) -> None:
    first = registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, TWO)

    second = registry.add("payments-value", ONE)

    assert (second.id, second.guid, second.version) == (first.id, first.guid, 1)
    assert registry.uses(first.id) == [SubjectVersion(SUBJECT, 1), SubjectVersion("payments-value", 1)]


def test_a_guid_comes_of_the_content_alone() -> None:
    one, two = Kept(), Kept()
    two.add("another", OTHER)

    assert one.add(SUBJECT, ONE).guid == two.add(SUBJECT, ONE).guid


def test_the_order_of_keys_makes_another_schema_unless_it_is_normalized(registry: Kept) -> None:
    registry.add(SUBJECT, '{"type": "object", "title": "Order"}')
    turned = json_schema('{"title": "Order", "type": "object"}')

    assert registry.do(registry.register(SUBJECT, turned, normalize=True)).version == 1
    assert refusal(lambda: registry.lookup(SUBJECT, turned)) == 40403
    assert registry.lookup(SUBJECT, turned, normalize=True).version == 1
    assert registry.do(registry.register(SUBJECT, turned)).version == 2


def test_without_a_type_what_reads_as_avro_is_avro_and_all_else_json(registry: Kept) -> None:
    record = '{"type": "record", "name": "Order", "fields": []}'

    assert registry.do(registry.register("a", NewSchema(record))).schema_type == "AVRO"
    assert registry.do(registry.register("b", NewSchema('{"type": "object"}'))).schema_type == "JSON"
    assert registry.do(registry.register("c", NewSchema('syntax = "proto3";', "protobuf"))).schema_type == "PROTOBUF"


@pytest.mark.parametrize("text", ["", "  \n", "{", "[1]", "1", '{"type": "strin"}', '{"$schema": "https://x.y/z"}'])
def test_what_is_no_schema_is_refused(registry: Kept, text: str) -> None:
    assert refusal(lambda: registry.register(SUBJECT, json_schema(text))) == 42201


def test_an_unknown_type_is_refused(registry: Kept) -> None:
    assert refusal(lambda: registry.register(SUBJECT, NewSchema("{}", "XML"))) == 42201


def test_a_schema_that_is_too_long_is_refused(registry: Kept) -> None:
    text = json.dumps({"description": "x" * SCHEMA_BYTES_MAX})
    wide = json.dumps({"description": "ä" * (SCHEMA_BYTES_MAX // 2 + 1)}, ensure_ascii=False)

    assert refusal(lambda: registry.register(SUBJECT, json_schema(text))) == 42201
    assert refusal(lambda: registry.register(SUBJECT, json_schema(wide))) == 42201


def test_metadata_that_is_too_long_is_refused(registry: Kept) -> None:
    new = json_schema(ONE, metadata={"properties": {"note": "x" * 300_000}})

    assert refusal(lambda: registry.register(SUBJECT, new)) == 42201


@pytest.mark.parametrize("subject", ["", "a\nb", "a\x00b", "\ud800", "ä" * 513])
def test_a_subject_has_a_name_that_can_be_written_down(registry: Kept, subject: str) -> None:
    with pytest.raises(InvalidSchemaRequest):
        registry.register(subject, json_schema(ONE))
    with pytest.raises(InvalidSchemaRequest):
        registry.set_level(subject, "FULL")
    with pytest.raises(InvalidSchemaRequest):
        registry.set_mode(subject, "READONLY")


@pytest.mark.parametrize("subject", ["a/b", "/", "версия", ":.context:orders", "1/2/3", "a b", "%2F", "🦆"])
def test_a_subject_may_be_called_anything_else(registry: Kept, subject: str) -> None:
    registry.add(subject, ONE)
    registry.do(registry.set_level(subject, "NONE"))
    registry.add(subject, OTHER)
    registry.do(registry.delete_version(subject, "1"))

    found = registry.reloaded()

    assert found.subjects() == [subject]
    assert found.versions(subject, deleted=True) == [1, 2]
    assert found.versions(subject) == [2]
    assert found.level(subject) == "NONE"


# --- compatibility -------------------------------------------------------------------------------

LOOSER = [ONE, TWO]  # the new one reads what the old one wrote
STRICTER = [TWO, ONE]
APART = [ONE, OTHER]


@pytest.mark.parametrize(
    ("level", "history", "is_good"),
    [
        ("BACKWARD", LOOSER, True),
        ("BACKWARD", STRICTER, False),
        ("FORWARD", LOOSER, False),
        ("FORWARD", STRICTER, True),
        ("FULL", LOOSER, False),
        ("FULL", STRICTER, False),
        ("FULL", [ONE, json.dumps({**json.loads(ONE), "title": "Order"})], True),
        ("NONE", APART, True),
        ("BACKWARD_TRANSITIVE", LOOSER, True),
        ("FORWARD_TRANSITIVE", STRICTER, True),
        ("FULL_TRANSITIVE", LOOSER, False),
    ],
)
def test_a_new_version_fits_as_the_level_says(registry: Kept, level: str, history: list[str], is_good: bool) -> None:
    registry.add(SUBJECT, history[0])
    registry.do(registry.set_level(SUBJECT, level))
    new = json_schema(history[1])

    assert registry.compatibility(SUBJECT, new).is_compatible is is_good
    if is_good:
        assert registry.do(registry.register(SUBJECT, new)).version == 2
    else:
        with pytest.raises(SchemaIncompatible) as raised:
            registry.register(SUBJECT, new)
        assert raised.value.messages == registry.compatibility(SUBJECT, new).messages
        assert (raised.value.subject, raised.value.level) == (SUBJECT, level)
        assert all("version 1" in message for message in raised.value.messages)


@pytest.mark.parametrize(("level", "is_good"), [("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)])
def test_transitive_levels_look_at_all_versions(registry: Kept, level: str, is_good: bool) -> None:
    registry.do(registry.set_level(SUBJECT, "NONE"))
    registry.add(SUBJECT, OTHER)
    registry.add(SUBJECT, ONE)
    registry.do(registry.set_level(SUBJECT, level))

    assert registry.compatibility(SUBJECT, json_schema(TWO)).is_compatible is is_good


def test_a_deleted_version_is_no_longer_compared_with(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.do(registry.delete_version(SUBJECT, "1"))

    assert registry.add(SUBJECT, OTHER).version == 2


def test_one_version_can_be_compared_with(registry: Kept) -> None:
    registry.do(registry.set_level(None, "NONE"))
    registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, OTHER)
    registry.do(registry.set_level(None, "BACKWARD"))
    new = json_schema(TWO)

    assert registry.compatibility(SUBJECT, new, version="1").is_compatible
    assert not registry.compatibility(SUBJECT, new, version="2").is_compatible
    assert not registry.compatibility(SUBJECT, new, version="latest").is_compatible
    assert not registry.compatibility(SUBJECT, new, version="-1").is_compatible
    assert refusal(lambda: registry.compatibility(SUBJECT, new, version="3")) == 40402
    assert refusal(lambda: registry.compatibility(SUBJECT, new, version="0")) == 42202


def test_the_latest_of_an_unknown_subject_fits_and_a_number_does_not_exist(registry: Kept) -> None:
    assert registry.compatibility("unknown", json_schema(ONE), version="latest").is_compatible
    assert registry.compatibility("unknown", json_schema(ONE)).is_compatible
    assert refusal(lambda: registry.compatibility("unknown", json_schema(ONE), version="1")) == 40402


def test_another_type_does_not_fit(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)

    with pytest.raises(SchemaIncompatible, match="version 1 is JSON, not AVRO"):
        registry.register(SUBJECT, NewSchema('"string"', "AVRO"))


def test_the_level_of_a_subject_wins_over_that_of_all(registry: Kept) -> None:
    registry.do(registry.set_level(None, "none"))
    registry.do(registry.set_level(SUBJECT, "Full_Transitive"))

    assert (registry.level(), registry.level(SUBJECT)) == ("NONE", "FULL_TRANSITIVE")
    assert refusal(lambda: registry.level("another")) == 40408
    assert registry.level("another", default_to_global=True) == "NONE"


OPEN = json.dumps({"type": "object", "properties": {"a": TEXT}})
OPEN_WIDER = json.dumps({"type": "object", "properties": {"a": TEXT, "b": TEXT}})


@pytest.mark.parametrize("subject", [None, SUBJECT])
@pytest.mark.parametrize("level", ["BACKWARD", "FORWARD", "FULL", "FULL_TRANSITIVE"])
def test_under_lenient_an_optional_property_comes_and_goes(registry: Kept, subject: str | None, level: str) -> None:
    registry.do(registry.set_level(None, level))
    registry.do(registry.set_policy(subject, "lenient"))

    versions = [registry.add(SUBJECT, text).version for text in (OPEN, OPEN_WIDER)]

    assert versions == [1, 2]
    assert registry.compatibility(SUBJECT, json_schema(OPEN)).is_compatible
    assert not registry.compatibility(SUBJECT, json_schema(OPEN_WIDER.replace("string", "number"))).is_compatible
    registry.do(registry.set_policy(subject, None))
    assert registry.compatibility(SUBJECT, json_schema(OPEN)).is_compatible == (level == "BACKWARD")


def test_the_policy_of_a_subject_wins_over_the_global_one(registry: Kept) -> None:
    registry.do(registry.set_policy(None, "LENIENT"))
    registry.do(registry.set_policy(SUBJECT, "STRICT"))
    registry.add(SUBJECT, OPEN)
    registry.add("another", OPEN)

    assert not registry.compatibility(SUBJECT, json_schema(OPEN_WIDER)).is_compatible
    assert registry.compatibility("another", json_schema(OPEN_WIDER)).is_compatible
    assert registry.policy("another") == ""
    assert registry.policy("another", default_to_global=True) == registry.policy() == "LENIENT"


def test_a_policy_lasts_and_goes_with_its_subject_and_facts_without_one_are_strict(registry: Kept) -> None:
    registry.add(SUBJECT, OPEN)
    old = registry.reloaded()
    registry.do(registry.set_policy(SUBJECT, "LENIENT"))
    new = registry.reloaded()

    assert (old.policy(SUBJECT), new.policy(SUBJECT)) == ("", "LENIENT")
    assert not old.compatibility(SUBJECT, json_schema(OPEN_WIDER)).is_compatible
    assert new.compatibility(SUBJECT, json_schema(OPEN_WIDER)).is_compatible
    new.do(new.delete_subject(SUBJECT))
    assert new.reloaded().policy(SUBJECT) == ""


def test_the_policy_does_not_concern_avro(registry: Kept) -> None:
    def record(*names: str) -> NewSchema:
        fields = [{"name": name, "type": "string"} for name in names]
        return NewSchema(json.dumps({"type": "record", "name": "r", "fields": fields}), "AVRO")

    registry.do(registry.set_policy(None, "LENIENT"))
    registry.do(registry.register(SUBJECT, record("a")))

    assert not registry.compatibility(SUBJECT, record("a", "b")).is_compatible


def test_a_level_that_is_taken_back_is_told_once_more(registry: Kept) -> None:
    registry.do(registry.set_level(SUBJECT, "FULL"))
    registry.do(registry.set_level(None, "NONE"))

    assert registry.do(registry.delete_level(SUBJECT)) == "FULL"
    assert refusal(lambda: registry.delete_level(SUBJECT)) == 40408
    assert registry.do(registry.delete_level(None)) == "NONE"
    assert registry.level() == "BACKWARD"


def test_levels_and_modes_have_names(registry: Kept) -> None:
    assert refusal(lambda: registry.set_level(None, "SIDEWAYS")) == 42203
    assert refusal(lambda: registry.set_policy(None, "GENEROUS")) == 42203
    assert refusal(lambda: registry.set_mode(None, "WRITEONLY")) == 42204
    assert {str(level) for level in Level} == {
        "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
    }  # fmt: skip


# --- modes ---------------------------------------------------------------------------------------


def test_what_is_read_only_does_not_change(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.do(registry.set_mode(SUBJECT, "READONLY"))

    for change in (
        lambda: registry.register(SUBJECT, json_schema(TWO)),
        lambda: registry.delete_version(SUBJECT, "1"),
        lambda: registry.delete_subject(SUBJECT),
        lambda: registry.set_level(SUBJECT, "NONE"),
    ):
        assert refusal(change) == 42205
    assert registry.register(SUBJECT, json_schema(ONE)).result.version == 1
    assert registry.add("another", ONE).version == 1


def test_a_mode_of_its_own_wins_over_that_of_all(registry: Kept) -> None:
    registry.do(registry.set_mode(None, "readonly"))
    assert refusal(lambda: registry.register(SUBJECT, json_schema(ONE))) == 42205
    assert refusal(lambda: registry.set_level(None, "NONE")) == 42205

    registry.do(registry.set_mode(SUBJECT, "READWRITE"))

    assert registry.add(SUBJECT, ONE).version == 1
    assert (registry.mode(), registry.mode(SUBJECT)) == ("READONLY", "READWRITE")
    assert refusal(lambda: registry.mode("another")) == 40409
    assert registry.mode("another", default_to_global=True) == "READONLY"
    assert registry.do(registry.delete_mode(SUBJECT)) == "READWRITE"
    assert refusal(lambda: registry.delete_mode(SUBJECT)) == 40409
    assert registry.do(registry.delete_mode(None)) == "READONLY"
    assert registry.mode() == "READWRITE"


def test_an_import_is_held_against_nothing(registry: Kept) -> None:
    registry.add("another", ONE)
    registry.do(registry.set_mode(SUBJECT, "IMPORT"))
    registry.add(SUBJECT, ONE)

    assert registry.add(SUBJECT, OTHER).version == 2


def test_an_import_begins_with_nothing_or_by_force(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)

    assert refusal(lambda: registry.set_mode(SUBJECT, "IMPORT")) == 42205
    assert refusal(lambda: registry.set_mode(None, "IMPORT")) == 42205
    assert registry.do(registry.set_mode(SUBJECT, "IMPORT", force=True)) == "IMPORT"
    assert registry.do(registry.set_mode(SUBJECT, "IMPORT")) == "IMPORT"


# --- deleting ------------------------------------------------------------------------------------


def test_a_version_is_deleted_softly_then_for_good(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, TWO)
    assert refusal(lambda: registry.delete_version(SUBJECT, "1", permanent=True)) == 40407

    assert registry.do(registry.delete_version(SUBJECT, "1")) == 1
    assert registry.versions(SUBJECT) == [2]
    assert registry.versions(SUBJECT, deleted=True) == [1, 2]
    assert registry.versions(SUBJECT, deleted_only=True) == [1]
    assert refusal(lambda: registry.get(SUBJECT, "1")) == 40402
    assert registry.get(SUBJECT, "1", deleted=True).deleted
    assert registry.by_id(1).schema == ONE
    assert registry.uses(1) == []
    assert registry.uses(1, deleted=True) == [SubjectVersion(SUBJECT, 1)]
    assert refusal(lambda: registry.delete_version(SUBJECT, "1")) == 40406

    assert registry.do(registry.delete_version(SUBJECT, "1", permanent=True)) == 1
    assert registry.versions(SUBJECT, deleted=True) == [2]
    assert refusal(lambda: registry.by_id(1)) == 40403
    assert refusal(lambda: registry.delete_version(SUBJECT, "1", permanent=True)) == 40402


def test_the_latest_version_can_be_deleted_by_that_name(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, TWO)

    assert registry.do(registry.delete_version(SUBJECT, "latest")) == 2
    assert registry.get(SUBJECT).version == 1
    assert registry.do(registry.delete_version(SUBJECT, "-1")) == 1
    assert refusal(lambda: registry.delete_version(SUBJECT, "latest")) == 40401


def test_a_subject_is_deleted_softly_then_for_good(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, TWO)
    assert refusal(lambda: registry.delete_subject("unknown")) == 40401
    assert refusal(lambda: registry.delete_subject(SUBJECT, permanent=True)) == 40405

    assert registry.do(registry.delete_subject(SUBJECT)) == [1, 2]
    assert registry.subjects() == []
    assert registry.subjects(deleted=True) == registry.subjects(deleted_only=True) == [SUBJECT]
    for look in (
        lambda: registry.get(SUBJECT),
        lambda: registry.get(SUBJECT, "1"),
        lambda: registry.versions(SUBJECT),
        lambda: registry.lookup(SUBJECT, json_schema(ONE)),
        lambda: registry.with_metadata(SUBJECT, {}),
    ):
        assert refusal(look) == 40401
    assert registry.lookup(SUBJECT, json_schema(ONE), deleted=True).version == 1
    assert registry.get(SUBJECT, deleted=True).version == 2
    assert refusal(lambda: registry.delete_subject(SUBJECT)) == 40404

    assert registry.do(registry.delete_subject(SUBJECT, permanent=True)) == [1, 2]
    assert registry.subjects(deleted=True) == []
    assert refusal(lambda: registry.delete_subject(SUBJECT, permanent=True)) == 40401
    assert [key for key in registry.facts if key.startswith((b"schema", b"version"))] == []


def test_what_is_set_for_a_subject_goes_with_it(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.do(registry.set_level(SUBJECT, "FULL"))
    registry.do(registry.set_mode(SUBJECT, "IMPORT", force=True))

    registry.do(registry.delete_subject(SUBJECT))

    assert refusal(lambda: registry.level(SUBJECT)) == 40408
    assert refusal(lambda: registry.mode(SUBJECT)) == 40409


@pytest.mark.parametrize("restarted", [False, True])
def test_numbers_and_ids_are_never_given_twice(registry: Kept, restarted: bool) -> None:
    registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, TWO)
    registry.do(registry.delete_subject(SUBJECT))
    registry.do(registry.delete_subject(SUBJECT, permanent=True))

    registry = registry.reloaded() if restarted else registry
    info = registry.add(SUBJECT, ONE)

    assert (info.version, info.id) == (3, 3)


def test_a_schema_that_was_soft_deleted_comes_back_as_a_new_version_with_its_id(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.do(registry.delete_version(SUBJECT, "1"))

    info = registry.add(SUBJECT, ONE)

    assert (info.version, info.id, info.deleted) == (2, 1, False)
    assert registry.by_id(1).version == 2


def test_a_schema_stays_while_another_subject_has_it(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.add("another", ONE)
    registry.do(registry.delete_subject(SUBJECT))
    registry.do(registry.delete_subject(SUBJECT, permanent=True))

    assert registry.by_id(1).subject == "another"


# --- looking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0", "-2", "x", "", "1.0", "²", "2147483648", "9" * 30, "+1", " 1"])
def test_a_version_is_a_number_or_the_latest(registry: Kept, version: str) -> None:
    registry.add(SUBJECT, ONE)

    assert refusal(lambda: registry.get(SUBJECT, version)) == 42202


def test_what_is_not_there_is_not_found(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)

    assert refusal(lambda: registry.get(SUBJECT, "2")) == 40402
    assert refusal(lambda: registry.get("unknown", "1")) == 40401
    assert refusal(lambda: registry.versions("unknown")) == 40401
    assert refusal(lambda: registry.versions(SUBJECT, deleted_only=True)) == 40401
    assert refusal(lambda: registry.lookup("unknown", json_schema(ONE))) == 40401
    assert refusal(lambda: registry.lookup(SUBJECT, json_schema(TWO))) == 40403
    assert refusal(lambda: registry.by_id(2)) == 40403
    assert refusal(lambda: registry.uses(2)) == 40403
    assert refusal(lambda: registry.by_guid("x")) == 40403
    assert refusal(lambda: registry.referenced_by(SUBJECT, "2")) == 40402


def test_subjects_are_found_by_their_beginning(registry: Kept) -> None:
    for subject in ("b", "ab", "abc", "a", "b-b"):
        registry.add(subject, ONE)

    assert registry.subjects() == ["a", "ab", "abc", "b", "b-b"]
    assert registry.subjects(prefix="ab") == ["ab", "abc"]
    assert registry.subjects(prefix="c") == []


def test_all_versions_can_be_listed(registry: Kept) -> None:
    registry.add("b", ONE)
    registry.add("a", ONE)
    registry.add("a", TWO)
    registry.do(registry.delete_version("a", "1"))

    def listed(**how: bool) -> list[tuple[str, int]]:
        return [(info.subject, info.version) for info in registry.find(**how)]  # type: ignore[arg-type]

    assert listed() == [("a", 2), ("b", 1)]
    assert listed(deleted=True) == [("a", 1), ("a", 2), ("b", 1)]
    assert listed(deleted=True, latest_only=True) == [("a", 2), ("b", 1)]


def test_an_id_is_told_with_the_subject_that_was_asked_for(registry: Kept) -> None:
    registry.add("a", ONE)
    registry.add("b", ONE)
    assert registry.by_id(1, subject="b").subject == "b"
    assert registry.by_id(1, subject="unknown").subject == "a"

    registry.do(registry.delete_subject("a"))

    assert registry.by_id(1).subject == "b"
    assert registry.by_id(1, subject="a").deleted


def test_metadata_makes_another_schema_and_finds_it_again(registry: Kept) -> None:
    plain = registry.add(SUBJECT, ONE)
    owned = registry.add(SUBJECT, ONE, metadata={"properties": {"owner": "ada", "tier": "1"}})

    assert (owned.version, owned.id) == (2, 2)
    assert owned.guid != plain.guid
    assert registry.with_metadata(SUBJECT, {"owner": "ada"}) == owned
    assert refusal(lambda: registry.with_metadata(SUBJECT, {"owner": "bob"})) == 40402
    assert registry.add(SUBJECT, ONE, metadata={"properties": {"tier": "1", "owner": "ada"}}) == owned
    assert registry.add(SUBJECT, ONE, rule_set={"domainRules": []}).version == 3


def test_who_asks_without_metadata_means_any(registry: Kept) -> None:
    owned = registry.add(SUBJECT, ONE, metadata={"properties": {"owner": "ada"}})

    assert registry.lookup(SUBJECT, json_schema(ONE)) == owned
    assert registry.add(SUBJECT, ONE) == owned


def test_the_numbers_count_what_is_live(registry: Kept) -> None:
    registry.add("a", ONE)
    registry.add("a", TWO)
    registry.add("b", ONE)
    registry.add("gone", ONE)
    registry.do(registry.delete_subject("gone"))
    registry.do(registry.set_level("a", "FULL"))
    registry.validator(1)

    stats = registry.stats(validated={"a": True})

    assert (stats.subjects, stats.schemas, stats.versions, stats.cached_validators) == (2, 2, 3, 1)
    assert (stats.global_compatibility, stats.validation_enabled) == ("BACKWARD", True)
    assert [list(one.__rich_repr__()) for one in stats.details] == [
        [
            ("subject", "a"),
            ("version_count", 2),
            ("latest_version", 2),
            ("latest_schema_id", 2),
            ("compatibility", "FULL"),
            ("validation_enabled", True),
        ],
        [
            ("subject", "b"),
            ("version_count", 1),
            ("latest_version", 1),
            ("latest_schema_id", 1),
            ("compatibility", "BACKWARD"),
            ("validation_enabled", False),
        ],
    ]


# --- references ----------------------------------------------------------------------------------

ADDRESS = SchemaReference("address.json", "address", 1)
CUSTOMER = json.dumps({**CLOSED, "properties": {"home": {"$ref": "address.json"}}})
ADDRESS_TEXT = schema(street=TEXT)


def test_a_reference_is_followed(registry: Kept) -> None:
    registry.add("address", ADDRESS_TEXT)
    info = registry.add("customer", CUSTOMER, ADDRESS)

    validator = registry.validator(info.id)

    assert info.references == [ADDRESS]
    assert validator.check(b'{"home": {"street": "here"}}') is None
    fault = validator.check(b'{"home": {"street": 1}}')
    assert fault is not None
    assert fault.path == "/home/street"


def test_references_are_followed_through_others(registry: Kept) -> None:
    registry.add("address", ADDRESS_TEXT)
    registry.add("customer", CUSTOMER, ADDRESS)
    order = json.dumps({"properties": {"by": {"$ref": "customer.json"}}})
    info = registry.add("order", order, SchemaReference("customer.json", "customer", -1))

    assert info.references == [SchemaReference("customer.json", "customer", 1)]
    assert registry.reloaded().validator(info.id).check(b'{"by": {"home": {"street": 1}}}') is not None


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (SchemaReference("address.json", "nowhere", 1), "the reference address.json leads to version 1 of nowhere"),
        (SchemaReference("address.json", "address", 2), "leads to version 2 of address, which is not there"),
        (SchemaReference("address.json", "customer", 1), "leads to version 1 of customer"),  # itself
        (SchemaReference("", "address", 1), "no name"),
        (SchemaReference("address.json", "avro", 1), "leads to AVRO, not JSON"),
    ],
)
def test_a_reference_leads_to_a_live_version_of_the_same_type(
    registry: Kept, reference: SchemaReference, text: str
) -> None:
    registry.add("address", ADDRESS_TEXT)
    registry.do(registry.register("avro", NewSchema('"string"', "AVRO")))

    with pytest.raises(InvalidSchema, match=text):
        registry.add("customer", CUSTOMER, reference)


def test_what_is_not_among_the_references_is_not_found(registry: Kept) -> None:
    with pytest.raises(InvalidSchema, match="'address.json' is not among the references"):
        registry.add("customer", CUSTOMER)


def test_two_references_do_not_share_a_name(registry: Kept) -> None:
    registry.add("address", ADDRESS_TEXT)

    with pytest.raises(InvalidSchema, match="same name"):
        registry.add("customer", CUSTOMER, ADDRESS, ADDRESS)


def test_other_references_make_another_schema(registry: Kept) -> None:
    registry.do(registry.set_level(None, "NONE"))
    registry.add("address", ADDRESS_TEXT)
    registry.add("address", schema(street=NUMBER))

    first = registry.add("customer", CUSTOMER, ADDRESS)
    second = registry.add("customer", CUSTOMER, SchemaReference("address.json", "address", 2))

    assert first.id != second.id
    assert registry.referenced_by("address", "1") == [first.id]
    assert registry.referenced_by("address", "latest") == [second.id]


def test_the_same_name_may_lead_elsewhere_in_the_old_schema(registry: Kept) -> None:
    registry.add("address", ADDRESS_TEXT)
    registry.add("customer", CUSTOMER, ADDRESS)
    registry.add("address", schema(street=TEXT, city=TEXT))
    registry.do(registry.set_level("address", "NONE"))
    registry.add("address", schema(street=NUMBER))

    def fits(version: int) -> bool:
        new = json_schema(CUSTOMER, SchemaReference("address.json", "address", version))
        return registry.compatibility("customer", new).is_compatible

    assert fits(2)
    assert not fits(3)


def test_a_name_of_its_own_wins_over_that_of_a_reference(registry: Kept) -> None:
    registry.add("text", json.dumps(TEXT))
    registry.add("number", json.dumps(NUMBER))
    registry.add("inner", '{"properties": {"b": {"$ref": "it"}}}', SchemaReference("it", "text", 1))
    outer = '{"properties": {"a": {"$ref": "it"}}}'
    references = [SchemaReference("inner", "inner", 1), SchemaReference("it", "number", 1)]

    for turn in (references, references[::-1]):
        validator = registry.validator(registry.add(f"outer-{turn[0].name}", outer, *turn).id)
        assert validator.check(b'{"a": 1}') is None
        assert validator.check(b'{"a": "x"}') is not None


def test_what_is_referred_to_cannot_be_deleted(registry: Kept) -> None:
    registry.add("address", ADDRESS_TEXT)
    registry.add("customer", CUSTOMER, ADDRESS)
    assert refusal(lambda: registry.delete_version("address", "1")) == 42206
    assert refusal(lambda: registry.delete_subject("address")) == 42206

    registry.do(registry.delete_subject("customer"))
    assert registry.referenced_by("address", "1") == []
    registry.do(registry.delete_subject("address"))
    assert refusal(lambda: registry.delete_subject("address", permanent=True)) == 42206
    assert registry.validator(2).check(b'{"home": {"street": "here"}}') is None

    registry.do(registry.delete_subject("customer", permanent=True))
    assert registry.do(registry.delete_subject("address", permanent=True)) == [1]


def test_a_subject_may_refer_to_itself_and_still_be_deleted(registry: Kept) -> None:
    registry.do(registry.set_level(None, "NONE"))
    registry.add("customer", ADDRESS_TEXT)
    registry.add("customer", CUSTOMER, SchemaReference("address.json", "customer", 1))

    assert refusal(lambda: registry.delete_version("customer", "1")) == 42206
    assert registry.do(registry.delete_subject("customer")) == [1, 2]
    assert registry.do(registry.delete_subject("customer", permanent=True)) == [1, 2]


def test_a_schema_refers_to_so_many_others_and_no_more() -> None:
    registry = Kept(RegistryConfig(references_max=20))
    registry.add("s0", ONE)

    def add(number: int) -> int:
        below = f"s{number - 1}"
        text = json.dumps({"$ref": f"{below}.json", "title": f"{number}"})
        return registry.add(f"s{number}", text, SchemaReference(f"{below}.json", below, 1)).id

    last = [add(number) for number in range(1, 21)][-1]

    with pytest.raises(InvalidSchema, match="more than 20 schemas"):
        add(21)
    assert registry.reloaded().validator(last).check(b'{"a": 1}') is not None


def test_references_that_are_too_long_together_are_refused(registry: Kept) -> None:
    long = json.dumps({"description": "x" * (SCHEMA_BYTES_MAX - 100)})
    references = []
    for number in range(5):
        registry.add(f"s{number}", json.dumps({"title": f"{number}", **json.loads(long)}))
        references.append(SchemaReference(f"s{number}", f"s{number}", 1))

    with pytest.raises(InvalidSchema, match="what it refers to has more than"):
        registry.add("all", ONE, *references)
    assert registry.add("some", ONE, *references[:4]).version == 1


def test_references_that_meet_again_are_read_once(registry: Kept) -> None:
    registry.add("s0", ONE)
    for number in range(1, 60):  # 2^60 ways lead to the first one
        below = f"s{number - 1}"
        references = [SchemaReference(name, below, 1) for name in (f"{below}.a", f"{below}.b")]
        registry.add(f"s{number}", json.dumps({"title": f"{number}"}), *references)

    assert registry.reloaded().parsed(60).record_name == "59"


# --- what is kept --------------------------------------------------------------------------------


def test_only_so_many_validators_are_kept() -> None:
    registry = Kept(RegistryConfig(cached_schemas_max=10, references_max=9))
    for number in range(30):
        registry.add(f"s{number}", json.dumps({"title": f"{number}"}))
    for schema_id in range(1, 31):
        registry.validator(schema_id)
    assert registry.stats(validated={}).cached_validators == 10

    kept = registry.validator(21)
    registry.validator(1)

    assert registry.validator(21) is kept  # the one that was not used for longest went
    assert registry.stats(validated={}).cached_validators == 10


def test_only_so_many_bytes_are_kept() -> None:
    registry = Kept(RegistryConfig(cached_bytes_max=2 * SCHEMA_BYTES_MAX, reference_bytes_max=SCHEMA_BYTES_MAX))
    for number in range(8):
        registry.add(f"s{number}", json.dumps({"title": f"{number}", "description": "x" * (SCHEMA_BYTES_MAX // 2)}))
    for schema_id in range(1, 9):
        registry.validator(schema_id)
    assert registry.stats(validated={}).cached_validators == 3

    registry.do(registry.delete_subject("s7"))
    registry.do(registry.delete_subject("s7", permanent=True))

    assert registry.stats(validated={}).cached_validators == 2
    registry.validator(1)
    assert registry.stats(validated={}).cached_validators == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"references_max": 0},
        {"references_max": 1_000},
        {"cached_schemas_max": 100},
        {"cached_bytes_max": SCHEMA_BYTES_MAX},
    ],
)
def test_a_cache_holds_at_least_a_schema_and_what_it_refers_to(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig):
        RegistryConfig(**wrong)


# --- facts ---------------------------------------------------------------------------------------


def test_facts_that_nobody_understands_are_passed_over(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)

    registry.apply({
        b"future/1": b"{}",
        b"schema/x": b"{}",
        b"schema/7": b"nonsense",
        b"version/2/orders-value": b"nonsense",
        b"level": b"SIDEWAYS",
        b"mode/orders-value": b"\xff",
        b"\xff": b"",
        b"version/1": b'{"id": 1}',
    })  # fmt: skip

    assert registry.versions(SUBJECT) == [1]
    assert registry.level() == "BACKWARD"


def test_a_version_whose_schema_is_lost_is_lost_but_its_number_is_not_given_again(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, TWO)
    del registry.facts[b"schema/2"]

    registry = registry.reloaded()

    assert registry.versions(SUBJECT, deleted=True) == [1]
    assert registry.add(SUBJECT, TWO).version == 3


def test_a_schema_that_a_crash_left_without_a_version_is_used_when_it_comes_again(registry: Kept) -> None:
    change = registry.register(SUBJECT, json_schema(ONE))
    registry.apply(dict(list(change.facts.items())[:1]))
    assert refusal(lambda: registry.by_id(1)) == 40403
    assert refusal(lambda: registry.by_guid(change.result.guid)) == 40403

    assert registry.add(SUBJECT, ONE).id == 1
    assert registry.add("another", TWO).id == 2


def test_a_deletion_that_a_crash_cut_short_can_be_finished(registry: Kept) -> None:
    registry.add(SUBJECT, ONE)
    registry.add(SUBJECT, TWO)
    registry.do(registry.delete_subject(SUBJECT))
    facts = list(registry.delete_subject(SUBJECT, permanent=True).facts.items())

    for count in range(len(facts)):
        cut = registry.reloaded()
        cut.do(Change(dict(facts[:count]), None))
        again = cut.reloaded()
        if again.subjects(deleted=True):
            again.do(again.delete_subject(SUBJECT, permanent=True))
        info = again.add(SUBJECT, schema(c=TEXT))
        assert (info.version, info.id) == (3, 3)


def state(registry: Registry) -> object:
    """All that can be seen of a registry."""
    subjects = registry.subjects(deleted=True)
    return (
        registry.find(deleted=True),
        registry.level(),
        registry.mode(),
        [(subject, _or_code(partial(registry.level, subject))) for subject in (*subjects, "a", "b")],
        [(subject, _or_code(partial(registry.mode, subject))) for subject in (*subjects, "a", "b")],
        registry.stats(validated={}).details,
        [registry.referenced_by(info.subject, str(info.version)) for info in registry.find(deleted=True)],
        [registry.uses(info.id, deleted=True) for info in registry.find(deleted=True)],
    )


def _or_code(action: Callable[[], object]) -> object:
    try:
        return action()
    except SchemaError as error:
        return error.error_code


class Model:
    """The registry as one would write it on a page: lists of versions, and nothing else."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, tuple[str, bool]]] = {"a": {}, "b": {}}  # text, whether it is deleted
        self.highest = {"a": 0, "b": 0}
        self.ids: dict[str, int] = {}
        self.last_id = 0

    def live(self, subject: str) -> list[int]:
        return [number for number, (_, deleted) in self.versions[subject].items() if not deleted]

    def register(self, subject: str, text: str) -> tuple[int, int]:
        for number in reversed(self.live(subject)):
            if self.versions[subject][number][0] == text:
                return number, self.ids[text]
        if text not in self.ids:
            self.last_id += 1
            self.ids[text] = self.last_id
        self.highest[subject] += 1
        self.versions[subject][self.highest[subject]] = (text, False)
        return self.highest[subject], self.ids[text]

    def delete_version(self, subject: str, number: int, permanent: bool) -> int:
        if not self.versions[subject]:
            return 40401
        if number not in self.versions[subject]:
            return 40402
        text, deleted = self.versions[subject][number]
        if permanent and not deleted:
            return 40407
        if deleted and not permanent:
            return 40406
        if permanent:
            del self.versions[subject][number]
            self._forget()
        else:
            self.versions[subject][number] = (text, True)
        return number

    def delete_subject(self, subject: str, permanent: bool) -> object:
        if not self.versions[subject]:
            return 40401
        if permanent and self.live(subject):
            return 40405
        if not permanent and not self.live(subject):
            return 40404
        if permanent:
            gone = list(self.versions[subject])
            self.versions[subject] = {}
            self._forget()
            return gone
        gone = self.live(subject)
        self.versions[subject] = {number: (text, True) for number, (text, _) in self.versions[subject].items()}
        return gone

    def _forget(self) -> None:
        used = {text for versions in self.versions.values() for text, _ in versions.values()}
        self.ids = {text: schema_id for text, schema_id in self.ids.items() if text in used}


SUBJECTS = st.sampled_from(["a", "b"])
TEXTS = st.sampled_from([ONE, TWO, OTHER, schema(c=TEXT)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), SUBJECTS, TEXTS),
        st.tuples(st.just("delete version"), SUBJECTS, st.integers(1, 5), st.booleans()),
        st.tuples(st.just("delete subject"), SUBJECTS, st.booleans()),
        st.tuples(st.just("level"), SUBJECTS, st.sampled_from(["NONE", "FULL"])),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


@settings(max_examples=80)
@given(STEPS)
def test_the_registry_does_what_its_model_does_and_is_what_its_facts_say(steps: list[tuple[object, ...]]) -> None:
    registry, model = Kept(), Model()
    registry.do(registry.set_level(None, "NONE"))

    for step in steps:
        match step:
            case ("register", str(subject), str(text)):
                registry.do(registry.set_level(subject, "NONE"))
                info = registry.add(subject, text)
                assert (info.version, info.id) == model.register(subject, text)
            case ("delete version", str(subject), int(number), bool(permanent)):
                found = _or_code(partial(registry.deleted, subject, str(number), permanent))
                assert found == model.delete_version(subject, number, permanent)
            case ("delete subject", str(subject), bool(permanent)):
                found = _or_code(partial(registry.deleted, subject, None, permanent))
                assert found == model.delete_subject(subject, permanent)
            case ("level", str(subject), str(level)):
                registry.do(registry.set_level(subject, level))
            case ("restart",):
                registry = registry.reloaded()

        for subject, versions in model.versions.items():
            seen = [(one.version, (one.schema, one.deleted)) for one in registry.find(prefix=subject, deleted=True)]
            assert dict(seen) == versions
        assert state(registry) == state(registry.reloaded())


@settings(max_examples=100)
@given(st.binary(max_size=20), st.binary(max_size=40))
def test_no_fact_breaks_the_registry(key: bytes, value: bytes) -> None:
    registry = Kept()
    registry.add(SUBJECT, ONE)

    for prefix in (b"", b"schema/", b"version/1/", b"level/", b"mode/", b"highest/"):
        registry.apply({prefix + key: value})
    registry.apply({b"last-id": value})

    assert registry.get(SUBJECT).schema == ONE


def test_what_is_nested_too_deep_is_refused_in_every_format(registry: Kept) -> None:
    for text in (
        '{"not":' * 5_000 + "{}" + "}" * 5_000,
        "[" * 100_000,
        '{"items":' * SCHEMA_DEPTH_MAX + "{}" + "}" * SCHEMA_DEPTH_MAX,
    ):
        for schema_type in ("JSON", "AVRO", "PROTOBUF", None):
            with pytest.raises(InvalidSchema):
                registry.register(SUBJECT, NewSchema(text, schema_type))


@settings(max_examples=200)
@given(st.text(max_size=60), st.sampled_from(["JSON", "AVRO", "PROTOBUF", None]))
def test_any_text_is_a_schema_or_refused(text: str, schema_type: str | None) -> None:
    try:
        Kept().register(SUBJECT, NewSchema(text, schema_type))
    except GoQueueError as error:
        assert isinstance(error, InvalidSchema)


def test_the_errors_say_which_they_are() -> None:
    assert {SubjectNotFound("s").error_code, SchemaVersionNotFound("s", 1).error_code} == {40401, 40402}
    assert {SchemaNotFound("s").error_code, SchemaOperationRefused("s").error_code} == {40403, 42205}


def test_a_version_tells_when_it_was_registered_also_after_it_is_deleted(registry: Kept) -> None:
    registry.do(registry.register(SUBJECT, json_schema(ONE), wall_ns=7))
    registry.do(registry.register(SUBJECT, json_schema(ONE), wall_ns=9))  # which is the same version
    assert registry.get(SUBJECT).registered_at_ns == 7

    registry.do(registry.delete_version(SUBJECT, "1"))
    assert registry.get(SUBJECT, "1", deleted=True).registered_at_ns == 7
