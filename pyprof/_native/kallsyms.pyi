# SPDX-License-Identifier: Apache-2.0
# Only C functions: see kallsyms.pxd.
