# SPDX-License-Identifier: Apache-2.0
"""Go programs in twins, with and without symbols, and what Go's own tools say of them."""

import os
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

MODULE = "module example.com/twin\n\ngo 1.19\n"

PLAIN = """package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
)

type shape interface{ area() int }
type square struct{ side int }

func (s *square) area() int { return s.side * s.side }

//go:noinline
func apply[T any](list []T, f func(T) T) []T {
	out := make([]T, 0, len(list))
	for _, item := range list {
		out = append(out, f(item))
	}
	return out
}

func main() {
	words := apply(os.Args, strings.ToUpper)
	numbers := apply([]int{3, 1, 2}, func(x int) int { return x * len(words) })
	sort.Ints(numbers)
	var s shape = &square{len(words)}
	fmt.Println(words, numbers, s.area())
}
"""

WITH_C = """package main

// static int twice(int x) { return 2 * x; }
import "C"

import (
	"fmt"
	"os/user"
)

//export Callback
func Callback(x C.int) C.int { return x + 1 }

func main() {
	who, _ := user.Current()
	fmt.Println(C.twice(4), who)
}
"""

# Prints "ADDRESS END NAME" of each function that Go's own decoder finds in a table.
DECODER = """package main

import (
	"debug/gosym"
	"fmt"
	"os"
	"strconv"
)

func main() {
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	text, _ := strconv.ParseUint(os.Args[2], 10, 64)
	table, err := gosym.NewTable(nil, gosym.NewLineTable(data, text))
	if err != nil {
		panic(err)
	}
	for _, function := range table.Funcs {
		fmt.Println(function.Entry, function.End, function.Name)
	}
}
"""


def go(folder: Path, *arguments: str, cgo: bool = False, arch: str = "amd64") -> str:
    """Runs the go command for a machine as Go names it; a test is skipped where there is none."""
    command = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if command is None:
        pytest.skip("Go is not installed")
    home = {"HOME": str(Path.home()), "GOCACHE": str(Path.home() / ".cache/go-build")}
    settings = {"CGO_ENABLED": "1" if cgo else "0", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    settings["GOARCH"] = arch
    done = subprocess.run(
        [command, *arguments],
        cwd=folder,
        env=os.environ | home | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"go {arguments} failed: {done.stderr}")
    return done.stdout


def build(folder: Path, source: str, name: str, *flags: str, cgo: bool = False) -> Path:
    """Builds a program of one file."""
    (folder / "go.mod").write_text(MODULE)
    (folder / "main.go").write_text(source)
    go(folder, "build", *flags, "-o", name, "main.go", cgo=cgo)
    return folder / name


def build_twins(folder: Path, source: str, *flags: str, cgo: bool = False) -> tuple[Path, Path]:
    """Builds a program with and without symbols."""
    whole = build(folder, source, "whole", *flags, cgo=cgo)
    return whole, build(folder, source, "stripped", *flags, "-ldflags=-s -w", cgo=cgo)


def functions_of_nm(folder: Path, program: Path) -> dict[int, set[str]]:
    """Address -> names of all symbols of code between runtime.text and runtime.etext, by `go tool nm`: the Go
    functions; C code lies outside."""
    found = defaultdict(set)
    for line in go(folder, "tool", "nm", str(program)).splitlines():
        fields = line.strip().split(" ", 2)
        if len(fields) == 3 and fields[1] in "Tt":
            found[int(fields[0], 16)].add(fields[2])
    start = next(address for address, names in found.items() if "runtime.text" in names)
    end = next(address for address, names in found.items() if "runtime.etext" in names)
    return {address: names for address, names in found.items() if start <= address < end}


def as_in_stack_traces(name: str) -> str:
    """A name of a Go symbol table as Go's stack traces have it: without the calling convention, nor what is
    between the first and the last bracket, as cmd/link does it (pcln.go, nameParts)."""
    name = name.removesuffix(".abi0")
    start, end = name.find("["), name.rfind("]")
    return f"{name[:start]}[...]{name[end + 1 :]}" if 0 <= start < end else name
