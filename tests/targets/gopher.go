// SPDX-License-Identifier: Apache-2.0

// main.main -> main.outer -> main.(*shape).middle -> main.leaf, and a goroutine that starts at main.worker.
package main

import "fmt"

type shape struct{ sides uint64 }

//go:noinline
func leaf(start uint64, forever *bool) uint64 {
	sum := start
	for *forever {
		for i := uint64(0); i < 1000; i++ {
			sum += i * sum
		}
	}
	return sum
}

//go:noinline
func (s *shape) middle(forever *bool) uint64 {
	return leaf(s.sides, forever) + 1
}

//go:noinline
func outer(s *shape, forever *bool) uint64 {
	return s.middle(forever) + 1
}

//go:noinline
func worker(forever *bool) {
	leaf(1, forever)
}

func main() {
	forever := true
	go worker(&forever)
	fmt.Println("ready")
	fmt.Println(outer(&shape{4}, &forever))
}
