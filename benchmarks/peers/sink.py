# SPDX-License-Identifier: Apache-2.0
"""A receiver of OTLP profiles over gRPC: `python -m benchmarks.peers.sink PORT`.

It prints a JSON line for each request until its standard input ends, with the times of the samples:
{"identified": [NANOSECONDS, ...], "other": [...]}. A sample is identified if a process or thread name comes
with it, and for each native frame a build ID.
"""

import concurrent.futures
import json
import sys
from typing import Any

import grpc
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as messages

SERVICE = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"
MAX_MESSAGE = 64 << 20
NAMES = {"process.executable.name", "thread.name"}
BUILD_IDS = {
    "process.executable.build_id.gnu",
    "process.executable.build_id.go",
    "process.executable.build_id.htlhash",
}
FRAME_TYPE = "profile.frame.type"


class Reading:
    """One request, its dictionary at hand."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._dictionary = request.dictionary
        self._strings = request.dictionary.string_table
        self._known: dict[int, bool] = {}  # by number of the stack

    def _attributes(self, indices: Any) -> dict[str, str]:
        entries = [self._dictionary.attribute_table[index] for index in indices]
        return {self._strings[entry.key_strindex]: entry.value.string_value for entry in entries}

    def _has_build_ids(self, stack: int) -> bool:
        known = self._known.get(stack)
        if known is None:
            known = self._known[stack] = all(
                self._is_known(self._dictionary.location_table[index])
                for index in self._dictionary.stack_table[stack].location_indices
            )
        return known

    def _is_known(self, location: Any) -> bool:
        if self._attributes(location.attribute_indices).get(FRAME_TYPE) != "native":
            return True
        mapping = self._dictionary.mapping_table[location.mapping_index]
        return any(
            name in BUILD_IDS and value for name, value in self._attributes(mapping.attribute_indices).items()
        )

    def samples(self) -> dict[str, list[int]]:
        """Times of its samples, ns since 1970."""
        found: dict[str, list[int]] = {"identified": [], "other": []}
        for group in self._request.resource_profiles:
            named = any(
                entry.key in NAMES and entry.value.string_value for entry in group.resource.attributes
            )
            profiles = [profile for scope in group.scope_profiles for profile in scope.profiles]
            for profile in profiles:
                for sample in profile.samples:
                    attributes = self._attributes(sample.attribute_indices)
                    known = named or any(attributes.get(name) for name in NAMES)
                    known = known and self._has_build_ids(sample.stack_index)
                    times = list(sample.timestamps_unix_nano)
                    times = times or [profile.time_unix_nano] * sum(sample.values)
                    found["identified" if known else "other"] += times
        return found


def main(port: str) -> None:
    """Serves until standard input ends."""

    def export(request: Any, context: Any) -> Any:
        del context
        print(json.dumps(Reading(request).samples()), flush=True)
        return messages.ExportProfilesServiceResponse()

    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(1), options=[("grpc.max_receive_message_length", MAX_MESSAGE)]
    )
    handler = grpc.unary_unary_rpc_method_handler(
        export,
        messages.ExportProfilesServiceRequest.FromString,
        messages.ExportProfilesServiceResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Export": handler})])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("{}", flush=True)  # ready
    sys.stdin.read()
    server.stop(1).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
