//! Arrays in memory, and boxes cut out of them.

use nodectl_types::Scalar;

/// The most axes of an array; numpy's own limit was 32 for long.
pub const MAX_AXES: usize = 32;

/// The type and shape of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub scalar: Scalar,
    /// Row-major: the last axis varies fastest. Empty for a single number.
    pub shape: Vec<u64>,
}

/// An array. `bytes` holds `info.bytes()` little-endian bytes, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub info: Info,
    /// The numbers in row-major order, little-endian.
    pub bytes: Vec<u8>,
}

impl Info {
    /// The number of numbers; None beyond 64 bits.
    pub fn len(&self) -> Option<u64> {
        self.shape
            .iter()
            .try_fold(1u64, |product, extent| product.checked_mul(*extent))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The bytes of all numbers; None beyond 63 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.len()?
            .checked_mul(self.scalar.bytes() as u64)
            .filter(|bytes| *bytes <= i64::MAX as u64)
    }

    /// Whether the box lies within the array. A sentence where it does not.
    pub fn check_box(&self, start: &[u64], shape: &[u64]) -> Result<(), String> {
        let fits = |axis: usize| {
            start[axis]
                .checked_add(shape[axis])
                .is_some_and(|end| end <= self.shape[axis])
        };
        if start.len() == self.shape.len()
            && shape.len() == start.len()
            && (0..start.len()).all(fits)
        {
            return Ok(());
        }
        Err(format!(
            "a block of {shape:?} at {start:?} does not lie within an array of {:?}",
            self.shape
        ))
    }
}

impl Array {
    /// Zeros. None where it would have more than 63 bits of bytes.
    pub fn zeros(info: Info) -> Option<Self> {
        let bytes = usize::try_from(info.bytes()?).ok()?;
        Some(Self {
            info,
            bytes: vec![0; bytes],
        })
    }

    /// The box of `shape` at `start`, which lies within the array.
    ///
    /// # Panics
    /// If it does not.
    pub fn block(&self, start: &[u64], shape: &[u64]) -> Array {
        self.info
            .check_box(start, shape)
            .expect("the caller's box lies within the array");
        let info = Info {
            scalar: self.info.scalar,
            shape: shape.to_vec(),
        };
        let mut block = Array::zeros(info).expect("smaller than an array in memory");
        copy_box(self, start, &mut block, &vec![0; shape.len()], shape);
        block
    }
}

/// Copies the box of `shape` at `from_start` of one array to `to_start` of another of the same type
/// and number of axes.
///
/// # Panics
/// If types differ, or the box does not lie within both.
pub fn copy_box(from: &Array, from_start: &[u64], to: &mut Array, to_start: &[u64], shape: &[u64]) {
    assert_eq!(from.info.scalar, to.info.scalar, "arrays of one type");
    from.info
        .check_box(from_start, shape)
        .expect("a box of the source");
    to.info
        .check_box(to_start, shape)
        .expect("a box of the target");
    let size = from.info.scalar.bytes() as u64;
    let target = runs(&to.info.shape, to_start, shape);
    // Runs of both have the length of the shorter ones: those of a row.
    let row = shape.last().map_or(1, |extent| *extent) * size;
    let source = runs(&from.info.shape, from_start, shape);
    let split = |run: ContiguousRun| {
        (0..run.length * size / row.max(1))
            .map(move |part| (run.offset * size + part * row) as usize)
    };
    for (read, write) in source.flat_map(split).zip(target.flat_map(split)) {
        let row = row as usize;
        to.bytes[write..write + row].copy_from_slice(&from.bytes[read..read + row]);
    }
}

/// Numbers that lie side by side in a row-major array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContiguousRun {
    /// Of the first number, in numbers.
    pub offset: u64,
    pub length: u64,
}

/// The runs of a box that lies within an array of `whole`, in order. As long as they can be: axes
/// that the box takes whole belong to one run.
pub fn runs(whole: &[u64], start: &[u64], shape: &[u64]) -> impl Iterator<Item = ContiguousRun> {
    let axes = whole.len();
    // The first axis of which a run has several entries.
    let mut inner = axes;
    while inner > 0 && (inner == axes || shape[inner] == whole[inner]) {
        inner -= 1;
    }
    let stride = |axis: usize| whole[axis + 1..].iter().product::<u64>();
    let length = shape[inner..].iter().product::<u64>();
    let first: u64 = (0..axes).map(|axis| start[axis] * stride(axis)).sum();
    let outer: Vec<(u64, u64)> = (0..inner).map(|axis| (shape[axis], stride(axis))).collect();
    let count = if length == 0 {
        0
    } else {
        outer.iter().map(|(extent, _)| extent).product::<u64>()
    };
    (0..count).map(move |index| {
        let mut rest = index;
        let mut offset = first;
        for (extent, stride) in outer.iter().rev() {
            offset += rest % extent * stride;
            rest /= extent;
        }
        ContiguousRun { offset, length }
    })
}
