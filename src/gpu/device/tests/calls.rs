//! What calls do, in which order, and how long things live.

use super::*;
use proptest::prelude::*;

#[test]
fn buffers_are_zero_also_when_their_memory_was_used_before() {
    let Some(device) = Fixture::new() else { return };
    for _ in 0..3 {
        let buffer = device.buffer(4000).unwrap();
        assert!(read(&device, &buffer).iter().all(|word| *word == 0));
        device
            .upload(&buffer, 0, words(1..=1000))
            .wait(LIMIT)
            .unwrap();
    }
}

#[test]
fn steps_and_calls_take_effect_in_order() {
    for fixture in [Fixture::new, Fixture::with_lanes] {
        let Some(device) = fixture() else { return };
        let kernel = kernel(&device, DOUBLE_AND_ADD);
        let (input, output) = (device.buffer(400).unwrap(), device.buffer(400).unwrap());
        let step = || dispatch(&kernel, &[&input, &output], 2);
        let copy = RecordingStep::Copy {
            from: output.clone(),
            from_offset: 0,
            to: input.clone(),
            to_offset: 4,
            bytes: 396,
        };
        let recording = device.record(vec![step(), step(), copy, step()]).unwrap();
        let first = device.upload(&input, 0, words(1..=100));
        let run = device.run(&recording);
        let early = device.download(&output, 0..400);
        let second = device.upload(&input, 0, words([7; 100]));
        let again = device.run(&recording);
        let (mut x, mut y): (Vec<u32>, Vec<u32>) = ((1..=100).collect(), vec![0; 100]);
        let mut expected = |x: &mut Vec<u32>| {
            let step =
                |x: &[u32], y: &mut [u32]| y.iter_mut().zip(x).for_each(|(y, x)| *y = *y * 2 + x);
            step(x, &mut y);
            step(x, &mut y);
            x[1..].copy_from_slice(&y[..99]);
            step(x, &mut y);
            y.clone()
        };
        assert_eq!(early.wait(LIMIT).unwrap(), words(expected(&mut x)));
        x = vec![7; 100];
        assert_eq!(read(&device, &output), expected(&mut x));
        for pending in [first, run, second, again] {
            pending.wait(LIMIT).unwrap();
        }
    }
}

#[test]
fn a_recording_runs_a_thousand_times_without_anyone_waiting_between() {
    let Some(device) = Fixture::new() else { return };
    let count = kernel(
        &device,
        "@group(0) @binding(0) var<storage, read_write> n: array<u32>;
        @compute @workgroup_size(1) fn main() { n[0] = n[0] * 3u + 1u; }",
    );
    let buffer = device.buffer(4).unwrap();
    let recording = device
        .record(vec![dispatch(&count, &[&buffer], 1)])
        .unwrap();
    let runs: Vec<_> = (0..1000).map(|_| device.run(&recording)).collect();
    let expected = (0..1000).fold(0u32, |n, _| n.wrapping_mul(3).wrapping_add(1));
    assert_eq!(read(&device, &buffer), [expected]);
    for run in runs {
        run.wait(LIMIT).unwrap();
    }
}

#[test]
fn transfers_larger_than_a_chunk_and_than_all_staging_memory_arrive() {
    for fixture in [Fixture::new, Fixture::with_lanes] {
        let Some(device) = fixture() else { return };
        let bytes = STAGING_BYTES + (3 << 20) + 5;
        let buffer = device.buffer(bytes + 3).unwrap();
        let data: Bytes = (0..bytes)
            .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
            .collect::<Vec<_>>()
            .into();
        device.upload(&buffer, 3, data.clone()).wait(LIMIT).unwrap();
        let back = device.download(&buffer, 0..bytes + 3).wait(LIMIT).unwrap();
        assert!(back[..3] == [0; 3] && back[3..] == data);
    }
}

#[test]
fn uploads_of_the_next_batch_may_overlap_a_run_and_change_nothing_in_it() {
    for fixture in [Fixture::new, Fixture::with_lanes] {
        let Some(device) = fixture() else { return };
        let kernel = kernel(&device, DOUBLE_AND_ADD);
        let count = 100_000u32;
        let bytes = u64::from(count) * 4;
        let buffers: Vec<_> = (0..2)
            .map(|_| (device.buffer(bytes).unwrap(), device.buffer(bytes).unwrap()))
            .collect();
        let recordings: Vec<_> = buffers
            .iter()
            .map(|(input, output)| {
                let fill = RecordingStep::Fill {
                    buffer: output.clone(),
                    range: 0..bytes,
                    value: 1,
                };
                device
                    .record(vec![
                        fill,
                        dispatch(&kernel, &[input, output], count.div_ceil(64)),
                    ])
                    .unwrap()
            })
            .collect();
        let mut results = Vec::new();
        for batch in 0..20u32 {
            let (input, output) = &buffers[batch as usize % 2];
            let _ = device.upload(input, 0, words((0..count).map(|at| at * batch)));
            let _ = device.run(&recordings[batch as usize % 2]);
            results.push(device.download(output, 0..bytes));
        }
        for (batch, result) in results.into_iter().enumerate() {
            assert_eq!(
                result.wait(LIMIT).unwrap(),
                words((0..count).map(|at| at * batch as u32 + 2)),
                "batch {batch}"
            );
        }
    }
}

#[test]
fn push_constants_and_other_sets_reach_the_shader() {
    let Some(device) = Fixture::new() else { return };
    let kernel = kernel(
        &device,
        "
        struct Push { a: u32, b: vec2<f32> }
        var<immediate> push: Push;
        @group(1) @binding(3) var<storage, read_write> out: array<f32>;
        @compute @workgroup_size(1) fn main() { out[0] = f32(push.a * 10u) + push.b.x * push.b.y; }",
    );
    let buffer = device.buffer(4).unwrap();
    let binding = BufferBinding {
        set: 1,
        binding: 3,
        buffer: buffer.clone(),
        range: 0..4,
    };
    let push = [
        4u32.to_le_bytes(),
        [0; 4],
        1.5f32.to_le_bytes(),
        3f32.to_le_bytes(),
    ]
    .concat();
    let step = RecordingStep::Dispatch {
        kernel,
        bindings: vec![binding],
        push,
        groups: [1; 3],
    };
    device
        .run(&device.record(vec![step]).unwrap())
        .wait(LIMIT)
        .unwrap();
    assert_eq!(f32::from_bits(read(&device, &buffer)[0]), 44.5);
}

#[test]
fn specialization_constants_reach_the_shader() {
    let Some(device) = Fixture::new() else { return };
    let spirv = wgsl(
        "
        @group(0) @binding(0) var<storage, read_write> out: array<f32>;
        @compute @workgroup_size(1) fn main() { out[0] = f32(123u * u32(out[1])) + 4.25; }",
    );
    let spirv = specialized(&spirv, &[(123, 5), (4.25f32.to_bits(), 9)]);
    let run = |constants: &[(u32, Constant)]| {
        let kernel = device.kernel(&KernelSource {
            spirv: &spirv,
            entry: "main",
            constants,
            name: "special",
        })?;
        let buffer = device.buffer(8)?;
        let _ = device.upload(&buffer, 4, 2f32.to_le_bytes().to_vec());
        device
            .run(&device.record(vec![dispatch(&kernel, &[&buffer], 1)])?)
            .wait(LIMIT)?;
        Ok(f32::from_bits(read(&device, &buffer)[0]))
    };
    assert_eq!(run(&[]), Ok(250.25));
    assert_eq!(
        run(&[(5, Constant::U32(10)), (9, Constant::F32(0.5))]),
        Ok(20.5)
    );
    let invalid =
        |result, text: &str| matches!(result, Err(DeviceError::Invalid(why)) if why.contains(text));
    assert!(invalid(run(&[(5, Constant::I32(10))]), "the types differ"));
    assert!(invalid(
        run(&[(6, Constant::U32(10))]),
        "no specialization constant 6; it has [5, 9]"
    ));
}

/// Makes specialization constants of the constants with these values: `(bits, id)`.
fn specialized(spirv: &[u32], constants: &[(u32, u32)]) -> Vec<u32> {
    // Numbers from the SPIR-V specification; the first type ends the decorations.
    const OP_CONSTANT: u32 = 43;
    const OP_SPEC_CONSTANT: u32 = 50;
    const OP_DECORATE: u32 = 71;
    const SPEC_ID: u32 = 1;
    const OP_TYPES: Range<u32> = 19..40;
    let (mut head, mut body) = (spirv[..5].to_vec(), Vec::new());
    let (mut at, mut decorations) = (5, Vec::new());
    while at < spirv.len() {
        let (opcode, length) = (spirv[at] & 0xffff, (spirv[at] >> 16) as usize);
        let mut instruction = spirv[at..at + length].to_vec();
        let found = constants
            .iter()
            .find(|(bits, _)| opcode == OP_CONSTANT && instruction[3..] == [*bits]);
        if let Some((_, id)) = found {
            instruction[0] = 4 << 16 | OP_SPEC_CONSTANT;
            decorations.extend([4 << 16 | OP_DECORATE, instruction[2], SPEC_ID, *id]);
        }
        if body.is_empty() && !OP_TYPES.contains(&opcode) {
            &mut head
        } else {
            &mut body
        }
        .extend(instruction);
        at += length;
    }
    [head, decorations, body].concat()
}

#[test]
fn everything_may_be_dropped_while_in_flight() {
    let Some(device) = Fixture::with_lanes() else {
        return;
    };
    let kernel = kernel(&device, DOUBLE_AND_ADD);
    let result = device.buffer(4 << 20).unwrap();
    for _ in 0..20 {
        let (input, output) = (
            device.buffer(4 << 20).unwrap(),
            device.buffer(4 << 20).unwrap(),
        );
        let _ = device.upload(&input, 0, words(vec![3; 1 << 20]));
        let copy = RecordingStep::Copy {
            from: output.clone(),
            from_offset: 0,
            to: result.clone(),
            to_offset: 0,
            bytes: 4 << 20,
        };
        let recording = device
            .record(vec![dispatch(&kernel, &[&input, &output], 1 << 14), copy])
            .unwrap();
        let _ = device.run(&recording);
        let _ = device.download(&output, 0..4 << 20);
    }
    assert!(read(&device, &result).iter().all(|word| *word == 3));
    // And the device itself.
    let _ = device.download(&result, 0..4 << 20);
}

#[test]
fn memory_that_was_dropped_in_flight_is_free_once_the_calls_have_ended() {
    let Some(device) = Fixture::with_lanes() else {
        return;
    };
    let bytes = 3 << 20;
    let buffer = device.buffer(bytes).unwrap();
    let (number, memory) = (buffer.0.number, buffer.0.memory.clone());
    for _ in 0..10 {
        let _ = device.upload(&buffer, 0, words(vec![1; 3 << 18]));
        let _ = device.download(&buffer, 0..bytes);
    }
    drop(buffer);
    device.settle().unwrap();
    let again = device.buffer(bytes).unwrap();
    assert!(again.0.memory == memory && again.0.number != number);
}

#[test]
fn many_threads_use_one_device() {
    let Some(device) = Fixture::new() else { return };
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let device: &Device = &device;
            scope.spawn(move || {
                for round in 0..10u32 {
                    let kernel = kernel(device, DOUBLE_AND_ADD);
                    let (input, output) =
                        (device.buffer(1000).unwrap(), device.buffer(1000).unwrap());
                    let recording = device
                        .record(vec![dispatch(&kernel, &[&input, &output], 4)])
                        .unwrap();
                    let _ = device.upload(&input, 0, words((0..250).map(|at| at + thread * round)));
                    let _ = device.run(&recording);
                    let _ = device.run(&recording);
                    assert!(
                        read(device, &output)
                            .into_iter()
                            .eq((0..250).map(|at| 3 * (at + thread * round)))
                    );
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() })]

    /// Any sequence of calls has the effect of the same sequence on plain memory.
    #[test]
    fn calls_are_as_if_one_after_the_other(
        lanes in any::<bool>(),
        calls in proptest::collection::vec((0usize..4, 0usize..4, 0u8..4, 1u32..1000), 1..40),
    ) {
        let Some(device) = (if lanes { Fixture::with_lanes() } else { Fixture::new() }) else { return Ok(()) };
        // Above the size from which transfers change the lane.
        let count = 70_000u32;
        let bytes = u64::from(count) * 4;
        let add = kernel(&device, DOUBLE_AND_ADD);
        let buffers: Vec<_> = (0..4).map(|_| device.buffer(bytes).unwrap()).collect();
        let mut model = vec![vec![0u32; count as usize]; 4];
        let mut reads = Vec::new();
        for (a, b, call, value) in calls {
            match call {
                0 => {
                    let _ = device.upload(&buffers[a], 0, words((0..count).map(|at| at ^ value)));
                    model[a] = (0..count).map(|at| at ^ value).collect();
                }
                1 if a != b => {
                    let step = dispatch(&add, &[&buffers[a], &buffers[b]], count.div_ceil(64));
                    let _ = device.run(&device.record(vec![step]).unwrap());
                    let x = model[a].clone();
                    model[b].iter_mut().zip(x).for_each(|(y, x)| *y = y.wrapping_mul(2).wrapping_add(x));
                }
                2 if a != b => {
                    let (from, to) = (buffers[a].clone(), buffers[b].clone());
                    let copy = RecordingStep::Copy { from, from_offset: 0, to, to_offset: 0, bytes };
                    let _ = device.run(&device.record(vec![copy]).unwrap());
                    model[b] = model[a].clone();
                }
                _ => reads.push((device.download(&buffers[a], 0..bytes), words(model[a].iter().copied()))),
            }
        }
        for (pending, expected) in reads {
            prop_assert!(pending.wait(LIMIT).unwrap() == expected);
        }
        for (buffer, expected) in buffers.iter().zip(model) {
            prop_assert!(read(&device, buffer) == expected);
        }
    }
}
