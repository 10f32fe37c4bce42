//! Reading a whole journal: every intact record, also behind damage, and what stands between and
//! after them. A frame's checksum covers its position, and a task's record depends on nothing
//! before it, so what follows damage is as good as what precedes it.

use super::{
    super::disk::DiskFile,
    frame::{self, BadHeader, HEADER_BYTES, PREFIX_BYTES},
};
use nodectl_types::{JobId, Record, TaskRecord};
use nodectl_wire::journal::{self, JOURNAL_VERSION};
use std::{io, sync::Arc};

/// What a frame is guessed to need when it is read by itself: most fit.
const READ_GUESS_BYTES: usize = 4096;
/// How much is read from the file at a time.
const WINDOW_BYTES: usize = 256 << 10;
/// The search for intact frames behind damage looks at, and hashes, no more than this in all.
const SEARCH_BYTES: u64 = 256 << 20;
/// A frame found by that search is at most this long: specifications only stand at the start.
const SEARCH_RECORD_BYTES: usize = 1 << 20;

/// What a scan found.
#[derive(Debug, PartialEq, Eq)]
pub struct JournalScan {
    /// Of the records.
    pub version: u32,
    /// Where the last intact record ends.
    pub end: u64,
    pub state: JournalState,
}

/// What is wrong with a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalState {
    Whole,
    /// An append that did not finish follows the last record. Nobody was told that it was stored.
    Torn {
        bytes: u64,
    },
    /// So many bytes that were whole once are not any more.
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
}

/// Where a record stands, in a journal of which version.
#[derive(Clone, Copy, Debug)]
pub struct RecordPlace {
    pub offset: u64,
    pub version: u32,
}

/// Gives every intact record to `each`.
pub fn scan(
    file: &dyn DiskFile,
    job: JobId,
    each: &mut dyn FnMut(RecordPlace, Record),
) -> Result<JournalScan, ScanError> {
    let length = file.len()?;
    let mut window = FileWindow {
        file,
        start: 0,
        bytes: Vec::new(),
    };
    if length < HEADER_BYTES as u64 {
        // A journal gets its name when its first records are on the disk: this was one.
        return Ok(JournalScan {
            version: JOURNAL_VERSION,
            end: 0,
            state: JournalState::Damaged { bytes: length },
        });
    }
    let header = window
        .get(0, HEADER_BYTES)?
        .try_into()
        .expect("the window has what was asked for");
    let (version, mut lost) = match frame::check_header(header, job) {
        Ok(version) => (version, 0),
        Err(BadHeader::NotAJournal) => (frame::likely_version(header), HEADER_BYTES as u64),
        Err(error) => return Err(error.into()),
    };
    let mut end = HEADER_BYTES as u64;
    let mut budget = SEARCH_BYTES;
    let mut rest = 0;
    while end < length {
        if let Some((record, next)) = read_frame(&mut window, end, length, version)? {
            let offset = end;
            each(RecordPlace { offset, version }, record);
            end = next;
            continue;
        }
        match next_record(&mut window, end, length, version, &mut budget)? {
            Some(next) => {
                lost += next - end;
                end = next;
            }
            None => {
                rest = length - end;
                break;
            }
        }
    }
    let state = match (lost, rest) {
        (0, 0) => JournalState::Whole,
        // What could not be searched to its end is kept rather than thrown away.
        (0, bytes) if budget > 0 => JournalState::Torn { bytes },
        (lost, rest) => JournalState::Damaged { bytes: lost + rest },
    };
    Ok(JournalScan {
        version,
        end,
        state,
    })
}

/// The task's record in the frame at `offset`.
pub fn read_record(file: &dyn DiskFile, offset: u64, version: u32) -> io::Result<Arc<TaskRecord>> {
    let bad = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the record at offset {offset} is damaged"),
        )
    };
    let mut bytes = vec![0; READ_GUESS_BYTES];
    let filled = file.read_at(&mut bytes, offset)?;
    let (length, sum) = bytes
        .get(..PREFIX_BYTES.min(filled))
        .filter(|p| p.len() == PREFIX_BYTES)
        .and_then(frame::prefix)
        .ok_or_else(bad)?;
    let whole = PREFIX_BYTES + length;
    if whole > filled {
        // The length is checked against the file before anything is allocated for it.
        if file.len()? < offset + whole as u64 {
            return Err(bad());
        }
        bytes.resize(whole, 0);
        file.read_at(&mut bytes[filled..], offset + filled as u64)?;
    }
    let body = &bytes[PREFIX_BYTES..whole];
    match journal::decode_version(version, body) {
        Ok(Record::Task(record)) if frame::checksum(offset, body) == sum => Ok(record),
        _ => Err(bad()),
    }
}

/// The record at `offset` and where the next one begins; `None` if no intact record stands there.
fn read_frame(
    window: &mut FileWindow<'_>,
    offset: u64,
    length: u64,
    version: u32,
) -> io::Result<Option<(Record, u64)>> {
    let Some(next) = check_frame(window, offset, length, frame::MAX_RECORD_BYTES)? else {
        return Ok(None);
    };
    let body = window.get(
        offset + PREFIX_BYTES as u64,
        (next - offset) as usize - PREFIX_BYTES,
    )?;
    // A checksum that holds over bytes that are no record is damage all the same: made before the
    // checksum was.
    Ok(journal::decode_version(version, body)
        .ok()
        .map(|record| (record, next)))
}

/// Where the frame at `offset` ends, if its checksum holds.
fn check_frame(
    window: &mut FileWindow<'_>,
    offset: u64,
    length: u64,
    max: usize,
) -> io::Result<Option<u64>> {
    let left = length - offset;
    if left < PREFIX_BYTES as u64 {
        return Ok(None);
    }
    let Some((bytes, sum)) = frame::prefix(window.get(offset, PREFIX_BYTES)?) else {
        return Ok(None);
    };
    if bytes > max || bytes as u64 > left - PREFIX_BYTES as u64 {
        return Ok(None);
    }
    let body = window.get(offset + PREFIX_BYTES as u64, bytes)?;
    Ok((frame::checksum(offset, body) == sum).then_some(offset + (PREFIX_BYTES + bytes) as u64))
}

/// Where the first intact record behind the bad one at `bad` begins.
fn next_record(
    window: &mut FileWindow<'_>,
    bad: u64,
    length: u64,
    version: u32,
    budget: &mut u64,
) -> io::Result<Option<u64>> {
    // Where only a record's bytes changed, its length still tells where the next one begins. A
    // length that changed may lead past records: what is intact before comes first.
    let guess = match (length - bad >= PREFIX_BYTES as u64)
        .then(|| window.get(bad, PREFIX_BYTES))
        .transpose()?
    {
        Some(bytes) => frame::prefix(bytes).map(|(bytes, _)| bad + (PREFIX_BYTES + bytes) as u64),
        None => None,
    };
    let guess = match guess.filter(|next| *next < length) {
        Some(next) if read_frame(window, next, length, version)?.is_some() => Some(next),
        _ => None,
    };
    let mut offset = bad + 1;
    while offset < guess.unwrap_or(length) && *budget > 0 {
        let intact = check_frame(window, offset, length, SEARCH_RECORD_BYTES)?.is_some();
        if intact && read_frame(window, offset, length, version)?.is_some() {
            return Ok(Some(offset));
        }
        *budget = budget.saturating_sub(cost(window, offset, length)?);
        offset += 1;
    }
    Ok(guess)
}

/// How many bytes `check_frame` hashed at `offset`, and one for looking.
fn cost(window: &mut FileWindow<'_>, offset: u64, length: u64) -> io::Result<u64> {
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

/// A part of the file in memory. It only ever grows past `WINDOW_BYTES` for a record that is
/// larger, whose length the caller has compared with the file's.
struct FileWindow<'a> {
    file: &'a dyn DiskFile,
    start: u64,
    bytes: Vec<u8>,
}

impl FileWindow<'_> {
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
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was read",
            ));
        }
        Ok(())
    }
}
