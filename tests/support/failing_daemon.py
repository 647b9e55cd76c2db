# SPDX-License-Identifier: Apache-2.0
"""`pyprof daemon` whose second profile cannot be named, and whose third cannot be encoded."""

import sys
from collections.abc import Callable
from typing import Any

from pyprof import interval
from pyprof.cli.main import main
from pyprof.daemon import exporting


def failing(work: Callable[..., Any], call: int) -> Callable[..., Any]:
    """The same function, but one of its calls fails."""
    calls = 0

    def wrapped(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise ValueError(f"call {call}")
        return work(*arguments)

    return wrapped


for module, name in ((interval, "fill"), (exporting, "encode")):
    setattr(module, name, failing(getattr(module, name), 2))

if __name__ == "__main__":
    sys.exit(main())
