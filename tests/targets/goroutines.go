// SPDX-License-Identifier: Apache-2.0

// Goroutines of one chain each: functions without a frame, deep recursion, closures, deferred functions while
// a panic is on its way, a fault, stacks that grow, system calls, and what only the run-time system's own
// stacks run.
package main

import (
	"fmt"
	"os"
	"time"
)

var (
	sink    [8]uint64
	kept    [][]byte
	nowhere *uint64
)

// Has no frame.
//
//go:noinline
func tiny(x uint64) uint64 { return x*x + 1 }

//go:noinline
func spin(rounds int) uint64 {
	sum := uint64(rounds)
	for i := 0; i < rounds; i++ {
		sum += tiny(sum)
	}
	return sum
}

//go:noinline
func recurse(depth int) uint64 {
	if depth == 0 {
		return spin(20000)
	}
	return recurse(depth-1) + 1
}

//go:noinline
func wide(rounds int) uint64 {
	var room [500]uint64
	for i := range room {
		room[i] = tiny(uint64(i))
	}
	return spin(rounds) + room[rounds%500]
}

//go:noinline
func apply(f func(int) uint64) uint64 { return f(20000) + 1 }

//go:noinline
func panics() {
	defer func() {
		sink[0] += spin(20000)
		recover()
	}()
	panic("in flight")
}

//go:noinline
func faults() {
	defer func() {
		sink[1] += spin(20000)
		recover()
	}()
	sink[1] += *nowhere
}

//go:noinline
func grow(depth int) uint64 {
	var room [4096]byte
	room[depth%4096] = byte(depth)
	if depth == 0 {
		return 1
	}
	return grow(depth-1) + uint64(room[depth%4096])
}

func recursion() {
	for {
		sink[2] += recurse(100)
	}
}

func frames() {
	for {
		sink[3] += wide(20000)
	}
}

func closures() {
	for {
		extra := sink[4]
		sink[4] += apply(func(rounds int) uint64 { return spin(rounds) + extra })
	}
}

func panicking() {
	for {
		panics()
	}
}

func faulting() {
	for {
		faults()
	}
}

func growing() {
	done := make(chan uint64)
	for {
		go func() { done <- grow(100) }()
		sink[5] += <-done
	}
}

func allocating() {
	for {
		kept = append(kept, make([]byte, 2000))
		if len(kept) == 4000 {
			kept = nil
		}
	}
}

func calling() {
	file, _ := os.Open("/dev/zero")
	buffer := make([]byte, 4096)
	for {
		file.Read(buffer)
	}
}

func clock() {
	for {
		sink[6] += uint64(time.Now().UnixNano())
	}
}

func main() {
	for _, work := range []func(){
		recursion, frames, closures, panicking, faulting, growing, allocating, calling, clock,
	} {
		go work()
	}
	fmt.Println("ready")
	for {
		sink[7] += spin(20000)
	}
}
