# SPDX-License-Identifier: Apache-2.0
"""Make the virtual environment that runs this see the checkout: its packages and its commands.

What `pip install -e` does, but that compiles every module a second time.
"""

import sys
import sysconfig
import tomllib
from pathlib import Path

SCRIPT = """\
#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""

root = Path(__file__).parents[1]
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
(Path(sysconfig.get_path("purelib")) / f"{project['name']}-checkout.pth").write_text(f"{root}\n")
for name, target in project["scripts"].items():
    module, _, function = target.partition(":")
    script = Path(sysconfig.get_path("scripts")) / name
    script.write_text(SCRIPT.format(python=sys.executable, module=module, function=function))
    script.chmod(0o755)
