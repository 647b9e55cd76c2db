// SPDX-License-Identifier: Apache-2.0
//! main -> outer -> Shape::middle -> leaf::<u64>
use std::hint::black_box;
use std::io::Write;

struct Shape {
    sides: u64,
}

#[inline(never)]
fn leaf<T: Copy + Into<u64>>(start: T) -> u64 {
    let mut sum: u64 = start.into();
    while black_box(true) {
        for i in 0..1000u64 {
            sum = black_box(sum.wrapping_add(i));
        }
    }
    sum
}

impl Shape {
    #[inline(never)]
    fn middle(&self) -> u64 {
        black_box(leaf(self.sides)) + 1
    }
}

#[inline(never)]
fn outer(shape: &Shape) -> u64 {
    black_box(shape.middle()) + 1
}

fn main() {
    println!("ready");
    std::io::stdout().flush().unwrap();
    black_box(outer(black_box(&Shape { sides: 4 })));
}
