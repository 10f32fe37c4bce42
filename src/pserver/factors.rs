//! Gradients of dense layers as sufficient factors: the gradient is Σ uᵢvᵢᵀ over a batch's samples,
//! so that K(M + N) numbers say what M × N do (Xie et al., arXiv 1511.08486). In the shared memory
//! they lie in the gradient's place, behind `HEADER` numbers of which the first has the bits of K;
//! all u first, sample after sample, then all v. On the wire the header is K alone.

use rayon::prelude::*;
use std::io;

/// Numbers before the factors in a gradient's place.
pub const HEADER: usize = nodectl_types::servers::ALIGNMENT as usize;

/// The factors of one worker's gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    samples: usize,
    /// u: `samples` × rows.
    rows: Vec<f32>,
    /// v: `samples` × columns.
    columns: Vec<f32>,
}

impl Factors {
    /// What a worker left in a gradient's place. None if there are more than fit.
    pub fn of_memory(memory: &[f32], [rows, columns]: [u64; 2]) -> Option<Self> {
        let samples = memory.first()?.to_bits() as usize;
        let (rows, columns) = (rows as usize * samples, columns as usize * samples);
        let numbers = memory.get(HEADER.min(memory.len())..)?;
        let own = numbers.get(..rows.checked_add(columns)?)?;
        Some(Self {
            samples,
            rows: own[..rows].to_vec(),
            columns: own[rows..].to_vec(),
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let samples = (self.samples as u32).to_le_bytes();
        [
            &samples,
            bytemuck::cast_slice(&self.rows),
            bytemuck::cast_slice(&self.columns),
        ]
        .concat()
    }

    /// Fails on bytes that `encode` does not make for a gradient of this shape. Returns how many
    /// samples it is of, and the numbers.
    pub fn check(bytes: &[u8], [rows, columns]: [u64; 2]) -> io::Result<(usize, &[u8])> {
        let wrong = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} bytes are no factors", bytes.len()),
            )
        };
        let (samples, numbers) = bytes.split_first_chunk::<4>().ok_or_else(wrong)?;
        let samples = u32::from_le_bytes(*samples) as usize;
        let wanted = (rows + columns)
            .checked_mul(samples as u64 * 4)
            .ok_or_else(wrong)?;
        if numbers.len() as u64 != wanted {
            return Err(wrong());
        }
        Ok((samples, numbers))
    }

    /// Fails as `check` does.
    pub fn decode(bytes: &[u8], sizes: [u64; 2]) -> io::Result<Self> {
        let (samples, numbers) = Self::check(bytes, sizes)?;
        let [rows, _] = sizes;
        let (rows, columns) = numbers.split_at(rows as usize * samples * 4);
        let numbers = |bytes: &[u8]| bytemuck::pod_collect_to_vec(bytes);
        Ok(Self {
            samples,
            rows: numbers(rows),
            columns: numbers(columns),
        })
    }
}

/// Adds up the gradients that factors stand for, each with its weight. In a fixed order and without
/// contraction: the same bits on every node.
pub fn sum(parts: &[(Factors, f32)], columns: u64, out: &mut [f32]) {
    let columns = columns as usize;
    let rows = out.len() / columns;
    out.par_chunks_mut(columns)
        .enumerate()
        .for_each(|(row, out)| {
            out.fill(0.0);
            for (factors, weight) in parts {
                for sample in 0..factors.samples {
                    let u = weight * factors.rows[sample * rows + row];
                    let v = &factors.columns[sample * columns..(sample + 1) * columns];
                    out.iter_mut().zip(v).for_each(|(sum, v)| *sum += u * v);
                }
            }
        });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn factors_come_to_the_gradient_that_they_stand_for() {
        // Two samples, 2 × 3: u = (1, 2), (3, 4); v = (1, 0, 2), (0, 1, 1).
        let mut memory = vec![0.0; HEADER];
        memory[0] = f32::from_bits(2);
        memory.extend([1.0, 2.0, 3.0, 4.0, 1.0, 0.0, 2.0, 0.0, 1.0, 1.0, 9.0]);
        let one = Factors::of_memory(&memory, [2, 3]).unwrap();
        assert_eq!(Factors::decode(&one.encode(), [2, 3]).unwrap(), one);
        let none = Factors::of_memory(&[0.0; 20], [2, 3]).unwrap();
        let mut out = [7.0; 6];
        sum(&[(one.clone(), 0.5), (none, 0.5)], 3, &mut out);
        assert_eq!(out, [0.5, 1.5, 2.5, 1.0, 2.0, 4.0]);
        assert!(
            Factors::of_memory(&memory[..20], [2, 3]).is_none()
                && Factors::decode(&one.encode(), [3, 3]).is_err()
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..100), rows in 0u64..9, columns in 1u64..9) {
            let _ = Factors::decode(&bytes, [rows, columns]);
        }
    }
}
