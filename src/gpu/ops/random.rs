//! Random numbers by counter: element i depends on the state and i alone, so every engine and every
//! cut of the work gives the same. Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3", SC 2011.

use super::{
    access::OpAccess,
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::{GROUP, Lowering, grid},
    engine::EngineError,
    op::Operation,
    shaders,
};
use rayon::prelude::*;

/// Fills `output`. Element 4 i + w comes from word w of Philox at counter `start` + i.
#[derive(Clone, Debug)]
pub struct Random {
    pub distribution: RandomDistribution,
    /// Four u32: the key, low and high word; the counter to start from, low and high word. In
    /// memory, so that a recorded program can go on where it was: add ⌈len / 4⌉ to the counter.
    pub state: BufferView,
    /// f32; u32 for `Bits`.
    pub output: BufferView,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RandomDistribution {
    /// All 32 bits.
    Bits,
    /// Multiples of 2⁻²⁴ from 0 up to, not including, 1. The same bits on every engine.
    Uniform,
    /// By the method of Box and Muller; engines agree within 1e-5 deviations. At most 5.8
    /// deviations from the mean.
    Normal { mean: f32, deviation: f32 },
}

impl Operation for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let kind = if self.distribution == RandomDistribution::Bits {
            ElementKind::U32
        } else {
            ElementKind::F32
        };
        let access = OpAccess::default().read("state", &self.state, ElementKind::U32, 4)?;
        access.write("output", &self.output, kind, self.output.len)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        const CHUNK: usize = 1 << 14;
        let state = memory.read::<u32>(&self.state);
        let start = u64::from(state[2]) | u64::from(state[3]) << 32;
        let chunks = memory
            .write::<u32>(&self.output)
            .par_chunks_mut(CHUNK)
            .enumerate();
        chunks.for_each(|(chunk, output)| {
            let first = start.wrapping_add((chunk * CHUNK / 4) as u64);
            for (block, output) in output.chunks_mut(4).enumerate() {
                let words = philox(first.wrapping_add(block as u64), [state[0], state[1]]);
                output.copy_from_slice(&self.distribution.of(words)[..output.len()]);
            }
        });
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let len = self.output.len;
        let (kind, a, b) = match self.distribution {
            RandomDistribution::Bits => (0, 0.0, 0.0),
            RandomDistribution::Uniform => (1, 0.0, 0.0),
            RandomDistribution::Normal { mean, deviation } => (2, mean, deviation),
        };
        if len > 0 {
            let parameters = [len as u32, kind, f32::to_bits(a), f32::to_bits(b)];
            lowering.dispatch(
                shaders::random(),
                &[&self.state, &self.output],
                &parameters,
                grid(len, GROUP * 4),
            );
        }
        Ok(())
    }
}

impl RandomDistribution {
    /// Bits of the elements that come from four words.
    fn of(self, words: [u32; 4]) -> [u32; 4] {
        let [a, b, c, d] = words;
        match self {
            Self::Bits => words,
            Self::Uniform => words.map(|word| ((word >> 8) as f32 * 2f32.powi(-24)).to_bits()),
            Self::Normal { mean, deviation } => {
                let ([a, b], [c, d]) = (normals(a, b), normals(c, d));
                [a, b, c, d].map(|normal| (mean + deviation * normal).to_bits())
            }
        }
    }
}

fn philox(counter: u64, key: [u32; 2]) -> [u32; 4] {
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut k = key;
    for _ in 0..10 {
        let m0 = 0xD251_1F53 * u64::from(c[0]);
        let m1 = 0xCD9E_8D57 * u64::from(c[2]);
        c = [
            (m1 >> 32) as u32 ^ c[1] ^ k[0],
            m1 as u32,
            (m0 >> 32) as u32 ^ c[3] ^ k[1],
            m0 as u32,
        ];
        k = [
            k[0].wrapping_add(0x9E37_79B9),
            k[1].wrapping_add(0xBB67_AE85),
        ];
    }
    c
}

fn normals(a: u32, b: u32) -> [f32; 2] {
    // Above 0, for the logarithm.
    let u = ((a >> 8) + 1) as f32 * 2f32.powi(-24);
    let radius = (-2.0 * u.ln()).sqrt();
    let (sine, cosine) = ((b >> 8) as f32 * 2f32.powi(-24) * std::f32::consts::TAU).sin_cos();
    [radius * cosine, radius * sine]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of the Random123 library, `kat_vectors`, for counters that fit here.
    #[test]
    fn philox_gives_the_published_words() {
        assert_eq!(
            philox(0, [0, 0]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
    }
}
