# SPDX-License-Identifier: Apache-2.0
"""pyprof: whole-host continuous profiler for Linux."""

__version__ = "0.1.0"
