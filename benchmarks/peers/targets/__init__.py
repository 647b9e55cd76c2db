# SPDX-License-Identifier: Apache-2.0
"""Programs that are a load."""
