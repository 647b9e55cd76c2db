# SPDX-License-Identifier: Apache-2.0
"""pyprof beside another whole-host profiler, on one load and at one rate: `python -m benchmarks.peers`."""
