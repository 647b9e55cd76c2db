# SPDX-License-Identifier: Apache-2.0
"""Print the requirements that pyproject.toml names, one a line: requirements.py FILE [EXTRA ...]."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())
lines = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
for extra in sys.argv[2:]:
    lines += project["project"]["optional-dependencies"][extra]
print("\n".join(lines))
