//! Host memory that transfers need no copy of.

use super::*;
use proptest::prelude::*;

fn filled(device: &Device, bytes: &[u8]) -> HostBuffer {
    let mut host = device.host_buffer(bytes.len()).unwrap();
    host.copy_from_slice(bytes);
    host
}

/// Where it lies.
fn address(host: &HostBuffer) -> usize {
    host.as_ptr().addr()
}

#[test]
fn what_is_written_there_arrives_and_comes_back() {
    for fixture in [Fixture::new, Fixture::with_lanes] {
        let Some(device) = fixture() else { return };
        // No multiples of 4, within a block and by themselves, below and above the size from which
        // transfers change the lane.
        for bytes in [1, 7, 4099, (300 << 10) + 3, (17 << 20) + 5] {
            let data: Vec<u8> = (0..bytes).map(|at| (at ^ (at >> 8)) as u8).collect();
            let host = filled(&device, &data);
            assert_eq!((host.len(), &host[..]), (bytes, &data[..]));
            let buffer = device.buffer(bytes as u64 + 3).unwrap();
            device.upload(&buffer, 3, host).wait(LIMIT).unwrap();
            let back = device.host_buffer(bytes + 3).unwrap();
            let back = device.download_into(&buffer, 0, back).wait(LIMIT).unwrap();
            assert!(back[..3] == [0; 3] && back[3..] == data, "{bytes}");
            let mut part = device.host_buffer(bytes).unwrap();
            part.truncate(bytes / 2);
            let part = device.download_into(&buffer, 3, part).wait(LIMIT).unwrap();
            assert!(part[..] == data[..bytes / 2], "{bytes}");
        }
    }
}

#[test]
fn dropped_memory_is_used_again_once_nothing_uses_it() {
    let Some(device) = Fixture::with_lanes() else {
        return;
    };
    let host = device.host_buffer(1 << 20).unwrap();
    let place = address(&host);
    // Dropped before anyone has used it.
    drop(host);
    let host = device.host_buffer(1 << 20).unwrap();
    assert_eq!(address(&host), place);
    let buffer = device.buffer(1 << 20).unwrap();
    device.upload(&buffer, 0, host).wait(LIMIT).unwrap();
    let host = device.host_buffer(1 << 20).unwrap();
    assert_eq!(address(&host), place);
    // Nobody waits for the call, and the memory is there when it has ended.
    drop(device.download_into(&buffer, 0, host));
    device.settle().unwrap();
    assert_eq!(address(&device.host_buffer(1 << 20).unwrap()), place);
}

#[test]
fn whoever_keeps_host_memory_holds_up_no_other_transfer() {
    let Some(device) = Fixture::with_lanes() else {
        return;
    };
    // Together more than all staging memory.
    let half = STAGING_BYTES as usize / 2 + 4096;
    let kept: Vec<HostBuffer> = (0..3).map(|_| device.host_buffer(half).unwrap()).collect();
    let bytes = STAGING_BYTES + 4096;
    let buffer = device.buffer(bytes).unwrap();
    let data = Bytes::from(vec![7; bytes as usize]);
    device.upload(&buffer, 0, data.clone()).wait(LIMIT).unwrap();
    assert!(device.download(&buffer, 0..bytes).wait(LIMIT).unwrap() == data);
    drop(kept);
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_nothing() {
    let Some(device) = Fixture::new() else { return };
    let buffer = device.buffer(8).unwrap();
    let refused = |result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Invalid(_))), "{result:?}");
    };
    refused(
        device
            .upload(&buffer, 5, filled(&device, &[1; 4]))
            .wait(LIMIT),
    );
    let host = device.host_buffer(9).unwrap();
    refused(device.download_into(&buffer, 0, host).wait(LIMIT).map(drop));
    let nothing = device.host_buffer(0).unwrap();
    assert!(nothing.is_empty());
    device.upload(&buffer, 8, nothing).wait(LIMIT).unwrap();
    let nothing = device.host_buffer(0).unwrap();
    let nothing = device.download_into(&buffer, 8, nothing).wait(LIMIT);
    assert!(nothing.unwrap().is_empty());
    assert!(matches!(
        device.host_buffer(1 << 50),
        Err(DeviceError::OutOfMemory { .. })
    ));
    assert_eq!(read(&device, &buffer), [0, 0]);
}

#[test]
fn memory_of_another_device_is_refused_and_outlives_its_own() {
    let Some(device) = Fixture::new() else { return };
    let other = Device::any(&OPTIONS).unwrap();
    let mut theirs = filled(&other, &[3; 100]);
    drop(other);
    theirs[99] = 4;
    assert_eq!(theirs[98..], [3, 4]);
    let buffer = device.buffer(100).unwrap();
    let refused = device.upload(&buffer, 0, theirs).wait(LIMIT);
    assert!(
        matches!(refused, Err(DeviceError::Invalid(_))),
        "{refused:?}"
    );
}

#[test]
fn of_a_device_that_is_lost_there_is_none() {
    let Some(device) = Fixture::new() else { return };
    let lost = Device::any(&OPTIONS).unwrap();
    let buffer = lost.buffer(100).unwrap();
    let (up, down) = (
        lost.host_buffer(100).unwrap(),
        lost.host_buffer(100).unwrap(),
    );
    lost.failure().set(DeviceError::lost("for a test"));
    let is_lost = |error: DeviceError| matches!(error, DeviceError::Lost { .. });
    assert!(is_lost(
        lost.upload(&buffer, 0, up).wait(LIMIT).unwrap_err()
    ));
    let read = lost.download_into(&buffer, 0, down).wait(LIMIT);
    assert!(is_lost(read.unwrap_err()));
    assert!(is_lost(lost.host_buffer(100).unwrap_err()));
    drop(lost);
    assert!(device.host_buffer(100).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..Default::default() })]

    /// Transfers of both kinds, mixed, have the effect of the same on plain memory.
    #[test]
    fn transfers_are_as_if_one_after_the_other(
        lanes in any::<bool>(),
        calls in proptest::collection::vec((0usize..2, 0u8..4, any::<u8>(), 0usize..1000), 1..30),
    ) {
        let fixture = if lanes { Fixture::with_lanes() } else { Fixture::new() };
        let Some(device) = fixture else { return Ok(()) };
        let bytes = 300_001;
        let buffers: Vec<_> = (0..2).map(|_| device.buffer(bytes as u64).unwrap()).collect();
        let mut model = vec![vec![0u8; bytes]; 2];
        let (mut owned, mut lent) = (Vec::new(), Vec::new());
        for (at, call, value, offset) in calls {
            let data = vec![value; bytes - offset];
            match call {
                0 => {
                    let _ = device.upload(&buffers[at], offset as u64, filled(&device, &data));
                    model[at][offset..].fill(value);
                }
                1 => {
                    let _ = device.upload(&buffers[at], offset as u64, data);
                    model[at][offset..].fill(value);
                }
                2 => {
                    let host = device.host_buffer(bytes - offset).unwrap();
                    let pending = device.download_into(&buffers[at], offset as u64, host);
                    lent.push((pending, model[at][offset..].to_vec()));
                }
                _ => {
                    let pending = device.download(&buffers[at], offset as u64..bytes as u64);
                    owned.push((pending, model[at][offset..].to_vec()));
                }
            }
        }
        for (pending, expected) in owned {
            prop_assert!(pending.wait(LIMIT).unwrap() == expected);
        }
        for (pending, expected) in lent {
            prop_assert!(pending.wait(LIMIT).unwrap()[..] == expected);
        }
    }
}
