//! Memory for what comes from other nodes. It goes round: a block's memory serves the next block,
//! since fresh memory costs a page fault for each page.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

/// Buffers that are kept for later; more are given back to the system.
const SPARE: usize = 32;

/// Buffers that nobody uses at the moment.
#[derive(Default)]
pub struct Spare {
    buffers: Mutex<Vec<Vec<f32>>>,
}

/// Bytes of a message, at an address where numbers may lie.
#[derive(Default)]
pub struct Incoming {
    /// Never shorter than it was: what grows is set to zero first.
    numbers: Vec<f32>,
    bytes: usize,
    /// Where the memory goes afterwards.
    home: Option<Arc<Spare>>,
}

impl Incoming {
    /// Room for so many bytes. What is in it is undefined.
    pub fn new(bytes: usize, spare: &Arc<Spare>) -> Self {
        let home = (bytes > 0).then(|| spare.clone());
        let known = home.as_ref().and_then(|home| {
            home.buffers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop()
        });
        let mut numbers = known.unwrap_or_default();
        if numbers.len() * 4 < bytes {
            numbers.resize(bytes.div_ceil(4), 0.0);
        }
        Self {
            numbers,
            bytes,
            home,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.numbers)[..self.bytes]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.numbers)[..self.bytes]
    }

    /// The bytes as `len` f32. Fails if there are not as many.
    pub fn numbers(&self, len: usize) -> io::Result<&[f32]> {
        if self.bytes != len * 4 {
            let why = format!("{} bytes are not {len} numbers", self.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(&self.numbers[..len])
    }

    /// As many f32 as there are.
    pub fn all(&self) -> &[f32] {
        &self.numbers[..self.bytes / 4]
    }
}

impl From<Vec<f32>> for Incoming {
    fn from(numbers: Vec<f32>) -> Self {
        Self {
            bytes: numbers.len() * 4,
            numbers,
            home: None,
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            let mut buffers = home.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            if buffers.len() < SPARE {
                buffers.push(std::mem::take(&mut self.numbers));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_serves_again_and_only_whole_numbers_are_numbers() {
        let spare = Arc::default();
        let mut first = Incoming::new(10, &spare);
        first.bytes_mut().copy_from_slice(&[1; 10]);
        assert_eq!(first.bytes(), [1; 10]);
        assert!(first.numbers(2).is_err() && first.numbers(3).is_err());
        let address = first.all().as_ptr();
        drop(first);
        let second = Incoming::new(8, &spare);
        assert_eq!(
            (second.all().as_ptr(), second.numbers(2).unwrap().len()),
            (address, 2)
        );
        assert_eq!(second.bytes().len(), 8);
        assert_eq!(
            Incoming::from(vec![1.0, 2.0]).numbers(2).unwrap(),
            [1.0, 2.0]
        );
    }
}
