# SPDX-License-Identifier: Apache-2.0
"""Tests of what differs between kernels: sized so that an emulated machine gets through them, see
packaging/test-kernels. They run on this machine as well, but for those of what only such a machine has."""

import os

collect_ignore = [] if "PYPROF_TEST_VM" in os.environ else ["test_modules.py"]
