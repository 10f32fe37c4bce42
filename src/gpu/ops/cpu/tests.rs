//! What the conformance suite cannot see: that the number of threads does not show.

use super::{super::*, Cpu};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Bits of what ops whose sums round give on so many threads.
fn results(threads: usize) -> Vec<Vec<u8>> {
    let cpu = Cpu::new(threads).expect("there are threads");
    let zeroed = |len: u32| {
        cpu.buffer(u64::from(len) * 4)
            .expect("there is memory")
            .f32s()
    };
    let (len, side) = (200_000, 300);
    let (x, state) = (zeroed(len), cpu.buffer(16).expect("there is memory").u32s());
    let (c, total, running, columns) = (zeroed(side * side), zeroed(1), zeroed(len), zeroed(side));
    let (a, b) = (
        x.part(0, u64::from(side * side)),
        x.part(100_000, u64::from(side * side)),
    );
    let (y, dx, dweights) = (zeroed(9 * 10_000), zeroed(8 * 10_000), zeroed(9 * 72));
    let mut ops: Vec<Op> = vec![
        Random {
            distribution: RandomDistribution::Normal {
                mean: 0.0,
                deviation: 1.0,
            },
            state,
            output: x.clone(),
        }
        .into(),
        Gemm::new(a, b, c.clone(), [side; 3]).into(),
        sum(&x, &total, [1, len, 1]),
        sum(&c, &columns, [1, side, side]),
        Scan {
            input: x.clone(),
            output: running.clone(),
            exclusive: false,
        }
        .into(),
    ];
    ops.extend(convolutions(&x, &y, &dx, &dweights));
    let program = cpu.record(&ops).expect("it fits");
    cpu.run(&program).wait(LIMIT).expect("it runs");
    let read = |view: &BufferView| {
        cpu.download(&view.buffer, 0..view.buffer.bytes())
            .wait(LIMIT)
            .expect("it is there")
    };
    [x, c, total, running, columns, y, dx, dweights]
        .iter()
        .map(read)
        .collect()
}

fn sum(input: &BufferView, output: &BufferView, [outer, axis, inner]: [u32; 3]) -> Op {
    Op::from(Reduce {
        kind: Reduction::Sum,
        input: input.clone(),
        output: output.clone(),
        outer,
        axis,
        inner,
    })
}

/// With numbers of `x` for images and weights. One sample, whose filters or channels threads share;
/// and many.
fn convolutions(x: &BufferView, y: &BufferView, dx: &BufferView, dweights: &BufferView) -> [Op; 3] {
    let many = Conv2dShape {
        samples: 20,
        channels: 8,
        filters: 9,
        image: [30; 2],
        window: Window {
            padding: [1; 2],
            ..Window::new([3; 2])
        },
        groups: 1,
    };
    let single = Conv2dShape {
        samples: 1,
        image: [100; 2],
        ..many
    };
    let weights = x.part(0, 9 * 72);
    [
        Conv2d {
            shape: single,
            x: x.clone(),
            weights: weights.clone(),
            bias: None,
            y: y.clone(),
            activation: Activation::None,
        }
        .into(),
        Conv2dInputGradient {
            shape: single,
            dy: x.clone(),
            weights,
            dx: dx.clone(),
        }
        .into(),
        Conv2dWeightGradient {
            shape: many,
            x: x.clone(),
            dy: x.clone(),
            dweights: dweights.clone(),
            dbias: None,
        }
        .into(),
    ]
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let one = results(1);
    for threads in [2, 3, 7] {
        assert!(results(threads) == one, "{threads} threads");
    }
}

#[test]
fn one_thread_is_not_called_threads() {
    let name = |threads| Cpu::new(threads).expect("there are threads").name();
    assert_eq!(
        [name(1), name(2)],
        ["CPU, 1 thread", "CPU, 2 threads"].map(String::from)
    );
}
