//! TensorBoard's event files: records of a protocol-buffer message, each with checksums. Written by
//! hand, since it is so little.
//! <https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details>, `event.proto` and `summary.proto`.

use nodectl_ports::wall_ms;
use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

/// The file's name: TensorBoard looks for `tfevents` in it.
pub const FILE: &str = "events.out.tfevents.nodectl";

pub struct Events(File);

impl Events {
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut events = Self(File::create(path)?);
        // Event.file_version = 3.
        let version = field_bytes(3, b"brain.Event:2");
        events.write(&event(0, &version))?;
        Ok(events)
    }

    /// A number under a name, at a step.
    pub fn scalar(&mut self, step: u64, name: &str, value: f32) -> io::Result<()> {
        // Summary.Value: tag = 1, simple_value = 2. Summary.value = 1. Event.summary = 5.
        let mut of_value = field_bytes(1, name.as_bytes());
        of_value.push(2 << 3 | 5);
        of_value.extend(value.to_le_bytes());
        let summary = field_bytes(1, &of_value);
        self.write(&event(step, &field_bytes(5, &summary)))
    }

    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        self.0.write_all(&framed(record))
    }
}

/// Length, its checksum, the record, its checksum.
fn framed(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked(crc32c(bytes)).to_le_bytes();
    [&length[..], &checksum(&length), record, &checksum(record)].concat()
}

/// Event: wall_time = 1, step = 2, then the rest.
fn event(step: u64, rest: &[u8]) -> Vec<u8> {
    let now = wall_ms() as f64 / 1e3;
    let mut bytes = vec![1 << 3 | 1];
    bytes.extend(now.to_le_bytes());
    bytes.push(2 << 3);
    varint(step, &mut bytes);
    bytes.extend(rest);
    bytes
}

fn field_bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    varint(content.len() as u64, &mut bytes);
    bytes.extend(content);
    bytes
}

fn varint(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Castagnoli's polynomial, reflected (RFC 3720, appendix B.4). Bit by bit: some hundred bytes a
/// step.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_published_ones() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_scalar_is_the_message_that_protocol_buffers_make() {
        let value = [&[0x0a, 4][..], b"loss", &[0x15, 0, 0, 0x80, 0x3f]].concat();
        let summary = [&[0x0a, value.len() as u8][..], &value].concat();
        let wanted = [&[0x2a, summary.len() as u8][..], &summary].concat();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        Events::create(&path)
            .unwrap()
            .scalar(300, "loss", 1.0)
            .unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.windows(wanted.len()).any(|part| part == wanted));
        assert!(
            bytes.windows(3).any(|part| part == [0x10, 0xac, 0x02]),
            "step 300"
        );
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(bytes[..16 + length], framed(&bytes[12..12 + length]));
    }
}
