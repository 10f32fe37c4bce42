//! Reading a whole journal: every intact record from the start, and what stands after the last of them.

use super::{
    super::disk::DiskFile,
    frame::{self, BadHeader, HEADER_BYTES, PREFIX_BYTES},
};
use crate::{types::JobId, wire::journal::Record};
use std::io;

/// How much is read from the file at a time.
const WINDOW_BYTES: usize = 256 << 10;
/// A search for intact frames behind damage looks no further, and hashes no more than this in all.
const SEARCH_BYTES: u64 = 64 << 20;
/// A frame found by that search is at most this long: specifications only stand at the start.
const SEARCH_RECORD_BYTES: usize = 1 << 20;

/// What a scan found.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan {
    /// Where the intact records end; 0 if not even the header is there.
    pub end: u64,
    pub rest: Rest,
}

/// What follows the intact records.
#[derive(Debug, PartialEq, Eq)]
pub enum Rest {
    Nothing,
    /// An append that did not finish. Nobody was told that it was stored.
    Torn {
        bytes: u64,
    },
    /// Intact frames follow, so these bytes were whole once.
    Damaged {
        bytes: u64,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Header(#[from] BadHeader),
    #[error("its first record is not the job's specification\nhint: remove the job's directory")]
    NoSpec,
}

/// Gives every intact record with its position to `each`.
pub fn scan(file: &dyn DiskFile, job: JobId, each: &mut dyn FnMut(u64, Record)) -> Result<Scan, ScanError> {
    let length = file.len()?;
    let mut window = Window { file, start: 0, bytes: Vec::new() };
    if length < HEADER_BYTES as u64 {
        let rest = if length == 0 { Rest::Nothing } else { Rest::Torn { bytes: length } };
        return Ok(Scan { end: 0, rest });
    }
    let header = window.get(0, HEADER_BYTES)?.try_into().expect("the window has what was asked for");
    frame::check_header(header, job)?;
    let mut end = HEADER_BYTES as u64;
    while let Some((record, next)) = read_frame(&mut window, end, length)? {
        if end == HEADER_BYTES as u64 && !matches!(record, Record::Spec(_)) {
            return Err(ScanError::NoSpec);
        }
        each(end, record);
        end = next;
    }
    Ok(Scan { end, rest: classify(&mut window, end, length)? })
}

/// The record at `offset` and where the next one begins; `None` if no intact record stands there.
fn read_frame(window: &mut Window<'_>, offset: u64, length: u64) -> io::Result<Option<(Record, u64)>> {
    let Some(next) = check_frame(window, offset, length, frame::MAX_RECORD_BYTES)? else { return Ok(None) };
    let body = window.get(offset + PREFIX_BYTES as u64, (next - offset) as usize - PREFIX_BYTES)?;
    // A checksum that holds over bytes that are no record is damage all the same: made before the checksum was.
    Ok(Record::decode(body).ok().map(|record| (record, next)))
}

/// Where the frame at `offset` ends, if its checksum holds.
fn check_frame(window: &mut Window<'_>, offset: u64, length: u64, max: usize) -> io::Result<Option<u64>> {
    let left = length - offset;
    if left < PREFIX_BYTES as u64 {
        return Ok(None);
    }
    let Some((bytes, sum)) = frame::prefix(window.get(offset, PREFIX_BYTES)?) else { return Ok(None) };
    if bytes > max || bytes as u64 > left - PREFIX_BYTES as u64 {
        return Ok(None);
    }
    let body = window.get(offset + PREFIX_BYTES as u64, bytes)?;
    Ok((frame::checksum(offset, body) == sum).then_some(offset + (PREFIX_BYTES + bytes) as u64))
}

/// Looks for an intact frame behind the first bad one: it tells damage from an append that did not finish.
fn classify(window: &mut Window<'_>, end: u64, length: u64) -> io::Result<Rest> {
    let bytes = length - end;
    if bytes == 0 {
        return Ok(Rest::Nothing);
    }
    let mut budget = SEARCH_BYTES;
    let mut offset = end + 1;
    while offset < length && budget > 0 {
        if check_frame(window, offset, length, SEARCH_RECORD_BYTES)?.is_some() {
            return Ok(Rest::Damaged { bytes });
        }
        budget = budget.saturating_sub(cost(window, offset, length)?);
        offset += 1;
    }
    // What could not be searched to its end is kept rather than thrown away.
    Ok(if offset < length { Rest::Damaged { bytes } } else { Rest::Torn { bytes } })
}

/// How many bytes `check_frame` hashed at `offset`, and one for looking.
fn cost(window: &mut Window<'_>, offset: u64, length: u64) -> io::Result<u64> {
    let left = length - offset;
    if left < PREFIX_BYTES as u64 {
        return Ok(1);
    }
    let hashed = match frame::prefix(window.get(offset, PREFIX_BYTES)?) {
        Some((bytes, _)) if bytes <= SEARCH_RECORD_BYTES && bytes as u64 <= left => bytes as u64,
        _ => 0,
    };
    Ok(1 + hashed)
}

/// A part of the file in memory. It only ever grows past `WINDOW_BYTES` for a record that is larger, whose length the
/// caller has compared with the file's.
struct Window<'a> {
    file: &'a dyn DiskFile,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// `count` bytes from `offset`, which the file has.
    fn get(&mut self, offset: u64, count: usize) -> io::Result<&[u8]> {
        let held = self.start..self.start + self.bytes.len() as u64;
        if !(held.contains(&offset) && offset + count as u64 <= held.end) {
            self.fill(offset, count)?;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.bytes[at..at + count])
    }

    fn fill(&mut self, offset: u64, count: usize) -> io::Result<()> {
        self.start = offset;
        self.bytes.resize(count.max(WINDOW_BYTES), 0);
        let filled = self.file.read_at(&mut self.bytes, offset)?;
        self.bytes.truncate(filled);
        if filled < count {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
        }
        Ok(())
    }
}
