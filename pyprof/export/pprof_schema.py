# SPDX-License-Identifier: Apache-2.0
"""Messages of pprof's profile format, made at run time: nothing generated, no protoc.

Names and numbers of fields are those of proto/profile.proto in https://github.com/google/pprof (package
perftools.profiles); fields that are never written are left out.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "perftools.profiles"
_SCALARS = {
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
}

# Written as in the .proto file. Plain int64 fields named after text are indices into string_table.
_MESSAGES = {
    "Profile": """
        repeated ValueType sample_type = 1
        repeated Sample sample = 2
        repeated Mapping mapping = 3
        repeated Location location = 4
        repeated Function function = 5
        repeated string string_table = 6
        int64 time_nanos = 9
        int64 duration_nanos = 10
        ValueType period_type = 11
        int64 period = 12
        repeated int64 comment = 13
        int64 default_sample_type = 14
    """,
    "ValueType": """
        int64 type = 1
        int64 unit = 2
    """,
    "Sample": """
        repeated uint64 location_id = 1
        repeated int64 value = 2
        repeated Label label = 3
    """,
    "Label": """
        int64 key = 1
        int64 str = 2
        int64 num = 3
        int64 num_unit = 4
    """,
    "Mapping": """
        uint64 id = 1
        uint64 memory_start = 2
        uint64 memory_limit = 3
        uint64 file_offset = 4
        int64 filename = 5
        int64 build_id = 6
        bool has_functions = 7
        bool has_filenames = 8
        bool has_line_numbers = 9
        bool has_inline_frames = 10
    """,
    "Location": """
        uint64 id = 1
        uint64 mapping_id = 2
        uint64 address = 3
        repeated Line line = 4
        bool is_folded = 5
    """,
    "Line": """
        uint64 function_id = 1
        int64 line = 2
    """,
    "Function": """
        uint64 id = 1
        int64 name = 2
        int64 system_name = 3
        int64 filename = 4
        int64 start_line = 5
    """,
}


def _message(name: str, fields: str) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for line in fields.strip().splitlines():
        declared, number = line.split("=")
        *repeated, kind, field_name = declared.split()
        field = message.field.add(name=field_name, number=int(number))
        field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{_PACKAGE}.{kind}"
    return message


def _message_classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="pyprof/profile.proto", package=_PACKAGE, syntax="proto3")
    file.message_type.extend(_message(name, fields) for name, fields in _MESSAGES.items())
    # A pool of its own: a program that imports pprof's generated module, too, must not clash with this.
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


_CLASSES = _message_classes()
PprofProfile = _CLASSES["Profile"]
PprofLabel = _CLASSES["Label"]
