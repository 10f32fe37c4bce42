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
    let (c, sum, running, columns) = (zeroed(side * side), zeroed(1), zeroed(len), zeroed(side));
    let (a, b) = (
        x.part(0, u64::from(side * side)),
        x.part(100_000, u64::from(side * side)),
    );
    let reduce = |input: &BufferView, output: &BufferView, outer, axis, inner| Reduce {
        kind: Reduction::Sum,
        input: input.clone(),
        output: output.clone(),
        outer,
        axis,
        inner,
    };
    let shape = Conv2dShape {
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
    // One sample, whose filters or channels threads share; and many.
    let single = Conv2dShape {
        samples: 1,
        image: [100; 2],
        ..shape
    };
    let (y, dx, dweights) = (zeroed(9 * 10_000), zeroed(8 * 10_000), zeroed(9 * 72));
    let weights = x.part(0, 9 * 72);
    let (activation, bias) = (Activation::None, None);
    let ops: [Op; 8] = [
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
        reduce(&x, &sum, 1, len, 1).into(),
        reduce(&c, &columns, 1, side, side).into(),
        Scan {
            input: x.clone(),
            output: running.clone(),
            exclusive: false,
        }
        .into(),
        Conv2d {
            shape: single,
            x: x.clone(),
            weights: weights.clone(),
            bias,
            y: y.clone(),
            activation,
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
            shape,
            x: x.clone(),
            dy: x.clone(),
            dweights: dweights.clone(),
            dbias: None,
        }
        .into(),
    ];
    let program = cpu.record(&ops).expect("it fits");
    cpu.run(&program).wait(LIMIT).expect("it runs");
    let read = |view: &BufferView| {
        cpu.download(&view.buffer, 0..view.buffer.bytes())
            .wait(LIMIT)
            .expect("it is there")
    };
    [x, c, sum, running, columns, y, dx, dweights]
        .iter()
        .map(read)
        .collect()
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let one = results(1);
    for threads in [2, 3, 7] {
        assert!(results(threads) == one, "{threads} threads");
    }
}
