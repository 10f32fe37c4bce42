//! What `record` refuses, and that programs can be run again.

use super::{
    super::{
        Buffer, BufferView, Csr, ElementKind, Elementwise, EngineError, Expression, Gemm,
        Histogram, Op, Random, RandomDistribution, Reduce, Reduction, Scan, Softmax, Sort,
    },
    LIMIT, Rig,
};

/// Records the op after one that is fine: it must be refused with these words.
#[track_caller]
pub fn refused(rig: &Rig, op: impl Into<Op>, because: &str) {
    let fine = Op::Sort(Sort {
        keys: buffer(rig).u32s(),
        payload: None,
        descending: false,
    });
    match rig.engine.record(&[fine, op.into()]) {
        Err(EngineError::Op { index: 1, what, .. }) if what.contains(because) => {}
        Err(error) => panic!("refused, but: {error}"),
        Ok(_) => panic!("it was taken"),
    }
}

fn buffer(rig: &Rig) -> Buffer {
    rig.engine.buffer(400).expect("there is memory")
}

fn view(rig: &Rig) -> BufferView {
    buffer(rig).f32s()
}

pub fn views(rig: &Rig) {
    let scan = |input, output| Scan {
        input,
        output,
        exclusive: false,
    };
    let part = || view(rig).part(0, 11);
    let outside = buffer(rig).view(ElementKind::F32, 90, 11);
    refused(
        rig,
        scan(outside, part()),
        "not inside a buffer of 400 bytes",
    );
    let beyond = buffer(rig).view(ElementKind::F32, u64::MAX - 2, 11);
    refused(rig, scan(beyond, part()), "not inside");
    let op = scan(view(rig), buffer(rig).u32s());
    refused(rig, op, "`output` is u32");
}

pub fn products(rig: &Rig) {
    let f32s = || view(rig);
    let u32s = || buffer(rig).u32s();
    let gemm = |size| Gemm::new(f32s(), f32s(), f32s(), size);
    let because = "`a` has 100 elements where 110 are needed";
    refused(rig, gemm([10, 10, 11]), because);
    let whole_numbers = Gemm::new(u32s(), f32s(), f32s(), [10; 3]);
    refused(rig, whole_numbers, "`a` is u32, not f32 or f16");
    refused(rig, gemm([1 << 20, 1 << 20, 1]), "cut the work");
    let short = Gemm {
        bias: Some(f32s().part(0, 9)),
        ..gemm([10; 3])
    };
    refused(rig, short, "`bias`");
    let mut narrow = gemm([10; 3]);
    narrow.a.row_stride = 9;
    refused(rig, narrow, "row stride of 9");
    let csr = Csr {
        starts: u32s(),
        columns: u32s(),
        values: f32s(),
        x: f32s(),
        y: f32s(),
        rows: 100,
        width: 1,
        nonzeros: 1,
        vectors: 1,
    };
    refused(rig, csr, "`starts` has 100 elements where 101");
}

pub fn pointwise(rig: &Rig) {
    let refused = |expression, inputs, because| {
        let op = Elementwise {
            expression,
            inputs,
            output: view(rig),
        };
        refused(rig, op, because);
    };
    let input = Expression::Input;
    refused(input(1), vec![view(rig)], "input 1, there are 1");
    let seven = view(rig).part(0, 7);
    let because = "7 elements cannot be repeated to 100";
    refused(input(0), vec![seven], because);
    refused(input(0), vec![view(rig).part(0, 0)], "0 elements");
    refused(input(0), vec![view(rig); 9], "9 inputs, more than 8");
    let constants = (0..13)
        .map(|i| Expression::Constant(i as f32))
        .reduce(|a, b| a + b)
        .expect("there are some");
    refused(constants, vec![], "13 constants");
    let long = (0..300).fold(input(0), |sum, _| sum.exp());
    refused(long, vec![view(rig)], "more than 128 parts");
}

pub fn rows(rig: &Rig) {
    let reduce = |kind, axis| Reduce {
        kind,
        input: view(rig),
        output: buffer(rig).u32s(),
        outer: 10,
        axis,
        inner: 10,
    };
    refused(rig, reduce(Reduction::ArgMax, 0), "maximum of nothing");
    refused(rig, reduce(Reduction::Sum, 1), "`output` is u32, not f32");
    let softmax = Softmax {
        x: view(rig),
        y: view(rig),
        rows: 9,
        columns: 11,
    };
    refused(rig, softmax, "not 99");
}

pub fn arrays(rig: &Rig) {
    let f32s = || view(rig);
    let u32s = || buffer(rig).u32s();
    for (bins, low, high) in [
        (0, 0.0, 1.0),
        (3, 1.0, 1.0),
        (3, f32::NAN, 1.0),
        (3, 0.0, f32::INFINITY),
        (3, -3e38, 3e38),
    ] {
        let histogram = Histogram {
            values: f32s(),
            counts: u32s(),
            bins,
            low,
            high,
        };
        refused(rig, histogram, "bins from");
    }
    let random = Random {
        distribution: RandomDistribution::Bits,
        state: u32s(),
        output: f32s(),
    };
    refused(rig, random, "`output` is f32");
    let sort = Sort {
        keys: f32s(),
        payload: Some(u32s().part(0, 99)),
        descending: false,
    };
    refused(rig, sort, "`payload` has 99");
}

pub fn overlaps(rig: &Rig) {
    let shared = view(rig);
    let (low, high) = (shared.part(0, 60), shared.part(40, 60));
    let copy = |input: &BufferView, output: &BufferView| Elementwise {
        expression: Expression::Input(0),
        inputs: vec![input.clone()],
        output: output.clone(),
    };
    refused(rig, copy(&low, &high), "overlaps");
    refused(
        rig,
        Scan {
            input: shared.clone(),
            output: shared.clone(),
            exclusive: false,
        },
        "`output` is written but overlaps",
    );
    refused(
        rig,
        Sort {
            keys: shared.buffer.u32s(),
            payload: Some(shared.buffer.u32s()),
            descending: false,
        },
        "overlaps",
    );
    let gemm = Gemm::new(shared.clone(), view(rig), shared.clone(), [10; 3]);
    refused(rig, gemm, "`c` is written but overlaps `a`");
    // Side by side, or the same for reading: fine.
    let square = Gemm::new(
        shared.part(0, 25),
        shared.part(0, 25),
        shared.part(25, 25),
        [5; 3],
    );
    rig.run([
        copy(&shared.part(0, 50), &shared.part(50, 50)).into(),
        square.into(),
    ]);
}

pub fn foreign_buffers(rig: &Rig) {
    let other = Rig::cpu().expect("there is always a processor");
    let theirs = view(&other);
    let op = Elementwise {
        expression: Expression::Input(0),
        inputs: vec![theirs.clone()],
        output: view(rig),
    };
    assert!(matches!(
        rig.engine.record(&[op.into()]),
        Err(EngineError::Foreign)
    ));
    assert_eq!(
        rig.engine
            .upload(&theirs.buffer, 0, vec![0].into())
            .wait(LIMIT),
        Err(EngineError::Foreign)
    );
    assert_eq!(
        rig.engine.download(&theirs.buffer, 0..1).wait(LIMIT),
        Err(EngineError::Foreign)
    );
    let ours = buffer(rig);
    let program = rig.engine.record(&[]).expect("nothing is fine");
    assert_eq!(rig.engine.run(&program).wait(LIMIT), Ok(()));
    let outside = |result| matches!(result, Err(EngineError::Outside { bytes: 400, .. }));
    assert!(outside(
        rig.engine.upload(&ours, 399, vec![0, 0].into()).wait(LIMIT)
    ));
    assert!(outside(
        rig.engine
            .upload(&ours, u64::MAX, vec![0, 0].into())
            .wait(LIMIT)
    ));
    assert!(outside(
        rig.engine.download(&ours, 0..401).wait(LIMIT).map(drop)
    ));
    assert!(matches!(
        rig.engine.buffer(1 << 60),
        Err(EngineError::OutOfMemory { .. })
    ));
}

/// Ops see what earlier ones wrote, runs what earlier runs wrote; calls take effect in order
/// without waiting.
pub fn programs_are_replayed(rig: &Rig) {
    let (x, y) = (rig.f32(&[1.0; 300]), rig.output(ElementKind::F32, 300));
    let sum = rig.output(ElementKind::F32, 1);
    let plus_one = Expression::Input(0) + Expression::Constant(1.0);
    let ops: [Op; 3] = [
        Elementwise {
            expression: plus_one,
            inputs: vec![x.clone()],
            output: y.clone(),
        }
        .into(),
        Elementwise {
            expression: Expression::Input(0),
            inputs: vec![y.clone()],
            output: x.clone(),
        }
        .into(),
        Reduce {
            kind: Reduction::Sum,
            input: x.clone(),
            output: sum.clone(),
            outer: 1,
            axis: 300,
            inner: 1,
        }
        .into(),
    ];
    let program = rig.engine.record(&ops).expect("it is fine");
    drop(ops);
    let runs: Vec<_> = (0..5).map(|_| rig.engine.run(&program)).collect();
    let five = rig.engine.download(&sum.buffer, sum.range());
    let upload = rig.engine.upload(
        &x.buffer,
        x.range().start,
        bytemuck::cast_slice::<f32, u8>(&[0.0; 300]).to_vec().into(),
    );
    let last = rig.engine.run(&program);
    assert_eq!(five.wait(LIMIT), Ok(1800f32.to_le_bytes().to_vec()));
    runs.into_iter()
        .chain([upload, last])
        .for_each(|call| call.wait(LIMIT).expect("it runs"));
    assert_eq!(rig.read_f32(&sum), [300.0]);
}
