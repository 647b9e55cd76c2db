# SPDX-License-Identifier: Apache-2.0
"""A receiver's memory: it complains where something that it knows comes without what it knows of it.

It takes requests one by one and compares each with all that came before. A receiver that joins late has
nothing but the requests that it gets, so each must tell all.
"""

from dataclasses import dataclass, field

from tests.support.otlp_validator import SeenFrame, SeenSample, read

HTLHASH = "process.executable.build_id.htlhash"
BUILD_ID = "process.executable.build_id.gnu"
MOST_COMPLAINTS = 20


@dataclass
class Witness:
    """What it remembers.

    Attributes:
        executables: all IDs and the file name, by htlhash.
        by_build_id: the htlhash of a build ID.
        names: of functions, by htlhash and address, or address alone in the kernel.
        complaints: the first MOST_COMPLAINTS of `count`.
        nameless_processes: samples of processes that ran in user space and have no program.
    """

    executables: dict[str, tuple[object, ...]] = field(default_factory=dict)
    by_build_id: dict[str, str] = field(default_factory=dict)
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    count: int = 0
    requests: int = 0
    samples: int = 0
    nameless_processes: int = 0

    def take(self, payload: bytes) -> None:
        """Checks a request, which must also be valid in itself."""
        self.requests += 1
        frames: set[SeenFrame] = set()
        for sample in read(payload).samples:
            self.samples += sample.count
            frames.update(sample.frames)
            self._process(sample)
        for frame in frames:
            self._executable(frame)
            self._name(frame)

    def complain(self, what: str) -> None:
        self.count += 1
        if len(self.complaints) < MOST_COMPLAINTS:
            self.complaints.append(f"request {self.requests}: {what}")

    def _process(self, sample: SeenSample) -> None:
        if not sample.resource.get("process.executable.name"):
            self.complain(f"a process without a name: {sample.resource}")
        in_user_space = any(frame.kind in ("native", "go") for frame in sample.frames)
        if in_user_space and not sample.resource.get("process.executable.path"):
            self.nameless_processes += sample.count

    def _executable(self, frame: SeenFrame) -> None:
        if frame.kind not in ("native", "go"):
            return
        ids = dict(frame.build_ids)
        hashed = ids.get(HTLHASH, "")
        build_id = ids.get(BUILD_ID, "")
        if not frame.filename:
            self.complain(f"an executable without a file name: {ids}")
        if build_id and not hashed and build_id in self.by_build_id:
            self.complain(f"{frame.filename} came without its htlhash {self.by_build_id[build_id]}")
        if not ids:
            self.complain(f"{frame.filename} came without any ID")
        if not hashed:
            return
        known = self.executables.setdefault(hashed, (frame.build_ids, frame.filename))
        if known != (frame.build_ids, frame.filename):
            self.complain(f"{known} came as {(frame.build_ids, frame.filename)}")
        if build_id:
            self.by_build_id.setdefault(build_id, hashed)

    def _name(self, frame: SeenFrame) -> None:
        place = "kernel" if frame.kind == "kernel" else dict(frame.build_ids).get(HTLHASH, "")
        if not place:
            return
        known = self.names.get((place, frame.address), "")
        if frame.name:
            self.names[place, frame.address] = frame.name
        if known and known != frame.name:
            self.complain(f"{frame.filename}+{frame.address:#x}, which is {known}, came as {frame.name!r}")
