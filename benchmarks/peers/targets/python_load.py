# SPDX-License-Identifier: Apache-2.0
"""Python load, for ever: JSON, regular expressions, recursion, method calls."""

import json
import re
from collections.abc import Callable


class Total:
    def __init__(self) -> None:
        self.length = 0

    def add(self, value: object) -> None:
        self.length += len(re.sub(r"\d", "x", str(value)))


def tree(depth: int) -> dict[str, object]:
    return {f"k{i}": tree(depth - 1) if depth else [i, str(i), i * 1.5] for i in range(4)}


def walk(node: object, visit: Callable[[object], None]) -> None:
    if isinstance(node, dict):
        for child in node.values():
            walk(child, visit)
    elif isinstance(node, list):
        for child in node:
            walk(child, visit)
    else:
        visit(node)


def main() -> None:
    total = Total()
    while True:
        walk(json.loads(json.dumps(tree(5), indent=1)), total.add)


if __name__ == "__main__":
    main()
