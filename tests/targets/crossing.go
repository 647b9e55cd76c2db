// SPDX-License-Identifier: Apache-2.0

// From Go to C, back to Go, and to C again, each time to another stack: main.crossing -> c_outer -> Callback ->
// main.inner -> c_inner, besides a goroutine that stays in Go.
package main

/*
__attribute__((noinline)) static unsigned long c_spin(unsigned long rounds)
{
	volatile unsigned long sum = 0;

	for (unsigned long i = 0; i < rounds; i++)
		sum += i * i;
	return sum;
}

__attribute__((noinline)) static unsigned long c_inner(unsigned long rounds)
{
	return c_spin(rounds) + 1;
}

extern unsigned long Callback(unsigned long);

__attribute__((noinline)) static unsigned long c_outer(unsigned long rounds)
{
	volatile unsigned long room[100] = {rounds};

	return c_spin(rounds) + Callback(room[0]) + room[0];
}
*/
import "C"

import "fmt"

var sum uint64

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
func inner(rounds C.ulong) C.ulong {
	return C.c_inner(rounds) + C.ulong(spin(int(rounds)))
}

//export Callback
func Callback(rounds C.ulong) C.ulong { return inner(rounds) + 1 }

//go:noinline
func crossing() {
	for {
		sum += uint64(C.c_outer(20000))
	}
}

func staying() {
	for {
		sum += spin(20000)
	}
}

func main() {
	fmt.Println("ready")
	go staying()
	crossing()
}
