"""The messages of etcd that GoQueue sends and receives: a subset, in a package of its own.

etcd's definitions are in the package `etcdserverpb`. A process may have another etcd client, and one process can have
a Protobuf name only once; so these have other names, in a pool of their own. On the wire a message has no name: the
numbers of its fields are what counts. Fields that GoQueue does not use are left out; Protobuf skips them.

The text below is the whole definition; the classes are made from it at import, by the parser of the schema registry.
"""

from typing import Any, Final

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from goqueue.schemas.protobuf import text

_PROTO: Final = """
syntax = "proto3";
package goqueue.etcd;

message ResponseHeader { uint64 cluster_id = 1; uint64 member_id = 2; int64 revision = 3; }
message KeyValue { bytes key = 1; int64 create_revision = 2; int64 mod_revision = 3; bytes value = 5; }

message RangeRequest { bytes key = 1; bytes range_end = 2; int64 limit = 3; bool keys_only = 8; }
message RangeResponse { ResponseHeader header = 1; repeated KeyValue kvs = 2; bool more = 3; }
message PutRequest { bytes key = 1; bytes value = 2; }
message PutResponse { ResponseHeader header = 1; }
message DeleteRangeRequest { bytes key = 1; bytes range_end = 2; }
message DeleteRangeResponse { ResponseHeader header = 1; }

message Compare {
  enum Result { EQUAL = 0; GREATER = 1; LESS = 2; NOT_EQUAL = 3; }
  enum Target { VERSION = 0; CREATE = 1; MOD = 2; VALUE = 3; }
  Result result = 1;
  Target target = 2;
  bytes key = 3;
  oneof operand { int64 create_revision = 5; int64 mod_revision = 6; bytes value = 7; }
  bytes range_end = 64;
}
message RequestOp {
  oneof request { RangeRequest range = 1; PutRequest put = 2; DeleteRangeRequest delete_range = 3; }
}
message ResponseOp {
  oneof response { RangeResponse range = 1; PutResponse put = 2; DeleteRangeResponse delete_range = 3; }
}
message TxnRequest { repeated Compare compare = 1; repeated RequestOp success = 2; repeated RequestOp failure = 3; }
message TxnResponse { ResponseHeader header = 1; bool succeeded = 2; repeated ResponseOp responses = 3; }

message WatchCreateRequest {
  enum Filter { NOPUT = 0; NODELETE = 1; }
  bytes key = 1;
  bytes range_end = 2;
  int64 start_revision = 3;
  repeated Filter filters = 5;
  bool fragment = 8;
}
message WatchProgressRequest {}
message WatchRequest {
  oneof request { WatchCreateRequest create = 1; WatchProgressRequest progress = 3; }
}
message Event { KeyValue kv = 2; }
message WatchResponse {
  ResponseHeader header = 1;
  bool created = 3;
  bool canceled = 4;
  int64 compact_revision = 5;
  string cancel_reason = 6;
  repeated Event events = 11;
}

message AuthenticateRequest { string name = 1; string password = 2; }
message AuthenticateResponse { ResponseHeader header = 1; string token = 2; }

message StatusRequest {}
message StatusResponse {
  ResponseHeader header = 1;
  string version = 2;
  int64 db_size = 3;
  uint64 leader = 4;
  repeated string errors = 8;
  int64 db_size_in_use = 9;
  int64 db_size_quota = 12;
}
"""

# Message classes that are made at run time have no attributes that a type checker knows.
Message = Any


def build(proto: str) -> dict[str, Message]:
    """The classes of all messages of this Protobuf text, by name. It may import nothing."""
    file = text.parse(proto, lambda names: [])
    file.name = "goqueue/etcd.proto"
    pool = DescriptorPool()
    pool.Add(file)
    return {
        message.name: GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
        for message in file.message_type
    }


_CLASSES: Final = build(_PROTO)

RangeRequest: Message = _CLASSES["RangeRequest"]
PutRequest: Message = _CLASSES["PutRequest"]
DeleteRangeRequest: Message = _CLASSES["DeleteRangeRequest"]
Compare: Message = _CLASSES["Compare"]
RequestOp: Message = _CLASSES["RequestOp"]
TxnRequest: Message = _CLASSES["TxnRequest"]
TxnResponse: Message = _CLASSES["TxnResponse"]
PutResponse: Message = _CLASSES["PutResponse"]
WatchCreateRequest: Message = _CLASSES["WatchCreateRequest"]
WatchProgressRequest: Message = _CLASSES["WatchProgressRequest"]
WatchRequest: Message = _CLASSES["WatchRequest"]
WatchResponse: Message = _CLASSES["WatchResponse"]
AuthenticateRequest: Message = _CLASSES["AuthenticateRequest"]
AuthenticateResponse: Message = _CLASSES["AuthenticateResponse"]
StatusRequest: Message = _CLASSES["StatusRequest"]
StatusResponse: Message = _CLASSES["StatusResponse"]
