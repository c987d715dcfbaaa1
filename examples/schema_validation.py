"""Describe messages by a schema: the broker refuses those that violate it, and schemas that break readers.

python examples/schema_validation.py
"""

from goqueue import Client, SchemaIncompatible, SchemaRejected

PROPERTIES = {"id": {"type": "integer"}, "weight": {"type": "number", "minimum": 0}}
PARCEL = {"type": "object", "properties": PROPERTIES, "required": ["id"], "additionalProperties": False}
NEXT = {**PARCEL, "properties": {**PROPERTIES, "note": {"type": "string"}}}
BROKEN = {**PARCEL, "required": ["id", "weight"]}


def main() -> None:
    """Register a schema, publish against it, and evolve it."""
    with Client() as gq:
        gq.create_topic("example-parcels", exist_ok=True)
        gq.register_schema("example-parcels-value", PARCEL)

        gq.publish("example-parcels", {"id": 1, "weight": 2.5})
        try:
            gq.publish("example-parcels", {"id": 2, "weight": -1})
        except SchemaRejected as refused:
            print("refused at", refused.path)

        gq.register_schema("example-parcels-value", NEXT)  # an optional property more: readers are upgraded first
        try:
            gq.register_schema("example-parcels-value", BROKEN)
        except SchemaIncompatible as refused:
            print(refused.messages[0])


if __name__ == "__main__":
    main()
