//! Products of a sparse matrix in compressed rows with dense vectors.

use super::{
    access::{OpAccess, elements},
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::{Lowering, grid},
    engine::EngineError,
    op::Operation,
    shaders,
};
use rayon::prelude::*;

/// `y[v, r]` = Σ of `values[j] · x[v, columns[j]]` over j from `starts[r]` to `starts[r + 1]`. Sums
/// are f32, in a fixed order on each engine. What is in the index arrays is not known when an op is
/// recorded: see `check`. A broken matrix gives wrong numbers, and reads nothing outside of the
/// views.
#[derive(Clone, Debug)]
pub struct Csr {
    /// rows + 1, u32, rising from 0 to `nonzeros`.
    pub starts: BufferView,
    /// `nonzeros`, u32, each below `width`.
    pub columns: BufferView,
    /// `nonzeros`, f32.
    pub values: BufferView,
    /// vectors × width, f32.
    pub x: BufferView,
    /// vectors × rows, f32.
    pub y: BufferView,
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix, and elements of each vector `x`.
    pub width: u32,
    /// Elements that the matrix stores.
    pub nonzeros: u32,
    /// How many vectors are multiplied at once.
    pub vectors: u32,
}

impl Csr {
    /// Checks that index arrays are those of a matrix with columns below `width`: to be called
    /// before they are uploaded.
    pub fn check(starts: &[u32], columns: &[u32], width: u32) -> Result<(), String> {
        if starts.first() != Some(&0) {
            return Err("row starts do not begin with 0".into());
        }
        if let Some(row) = starts.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(format!(
                "row {row} ends at {} before its start {}",
                starts[row + 1],
                starts[row]
            ));
        }
        if starts[starts.len() - 1] as usize != columns.len() {
            return Err(format!(
                "rows end at {}, there are {} columns",
                starts[starts.len() - 1],
                columns.len()
            ));
        }
        match columns.iter().position(|column| *column >= width) {
            Some(place) => Err(format!(
                "element {place} is in column {} of {width}",
                columns[place]
            )),
            None => Ok(()),
        }
    }
}

/// Vectors that share one pass over the matrix.
const AT_ONCE: usize = 4;

impl Operation for Csr {
    fn name(&self) -> &'static str {
        "csr"
    }

    fn access(&self) -> Result<OpAccess, String> {
        if self.width == 0 && self.nonzeros > 0 {
            return Err("elements in a matrix without columns".into());
        }
        let starts = u64::from(self.rows) + 1;
        let access = OpAccess::default().read("starts", &self.starts, ElementKind::U32, starts)?;
        let access = access.read(
            "columns",
            &self.columns,
            ElementKind::U32,
            self.nonzeros.into(),
        )?;
        let access = access.read(
            "values",
            &self.values,
            ElementKind::F32,
            self.nonzeros.into(),
        )?;
        let access = access.read(
            "x",
            &self.x,
            ElementKind::F32,
            elements(&[self.vectors, self.width])?,
        )?;
        access.write(
            "y",
            &self.y,
            ElementKind::F32,
            elements(&[self.vectors, self.rows])?,
        )
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let (rows, width, nonzeros) = (
            self.rows as usize,
            self.width as usize,
            self.nonzeros as usize,
        );
        if rows == 0 || self.vectors == 0 {
            return;
        }
        let starts = &memory.read::<u32>(&self.starts)[..=rows];
        let columns = &memory.read::<u32>(&self.columns)[..nonzeros];
        let values = &memory.read::<f32>(&self.values)[..nonzeros];
        let x = memory.read::<f32>(&self.x);
        let y = &mut memory.write::<f32>(&self.y)[..self.vectors as usize * rows];
        let cuts = even_cuts(starts, rayon::current_num_threads() * 4);
        for (batch, y) in y.chunks_mut(rows * AT_ONCE).enumerate() {
            let vectors = y.len() / rows;
            let x: Vec<&[f32]> = x[batch * AT_ONCE * width..][..vectors * width]
                .chunks(width.max(1))
                .collect();
            let x = if width == 0 {
                vec![&[][..]; vectors]
            } else {
                x
            };
            // Of each vector's result, the rows between two cuts.
            let mut parts: Vec<(usize, Vec<&mut [f32]>)> =
                cuts.iter().map(|first| (*first, Vec::new())).collect();
            for mut rest in y.chunks_mut(rows) {
                for (index, part) in parts.iter_mut().enumerate() {
                    let end = cuts.get(index + 1).copied().unwrap_or(rows);
                    let (ours, others) = rest.split_at_mut(end - part.0);
                    part.1.push(ours);
                    rest = others;
                }
            }
            parts.into_par_iter().for_each(|(first, mut y)| {
                for row in 0..y[0].len() {
                    let range = |at: u32| (at as usize).min(nonzeros);
                    let (start, end) = (range(starts[first + row]), range(starts[first + row + 1]));
                    let (columns, values) = (
                        &columns[start..end.max(start)],
                        &values[start..end.max(start)],
                    );
                    match &x[..] {
                        [x] => y[0][row] = dot(columns, values, x),
                        [a, b, c, d] => {
                            let sums = dots(columns, values, [a, b, c, d]);
                            y.iter_mut().zip(sums).for_each(|(y, sum)| y[row] = sum);
                        }
                        some => y
                            .iter_mut()
                            .zip(some)
                            .for_each(|(y, x)| y[row] = dot(columns, values, x)),
                    }
                }
            });
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        if self.rows == 0 || self.vectors == 0 {
            return Ok(());
        }
        let lanes = (self.nonzeros / self.rows / 2)
            .next_power_of_two()
            .clamp(1, 256);
        let groups = grid(self.rows.into(), u64::from(256 / lanes));
        // What is too large to be bound is bound by parts: the elements of the matrix, and the
        // vectors.
        let most = (lowering.bindable() / 4).min(u64::from(u32::MAX)) as u32;
        let elements = self.nonzeros.min(most);
        for first_element in (0..self.nonzeros.max(1)).step_by(elements.max(1) as usize) {
            let elements = elements.min(self.nonzeros - first_element);
            let columns = self.columns.part(first_element.into(), elements.into());
            let values = self.values.part(first_element.into(), elements.into());
            for (first, at_once) in self.vectors_at_once(most) {
                let (x, y, first_vector) = self.bound(first, at_once, most);
                let parameters = [
                    self.rows,
                    self.width,
                    self.nonzeros,
                    first_vector,
                    at_once,
                    lanes,
                    first_element,
                    elements,
                    u32::from(first_element > 0),
                ];
                let bindings = [&self.starts, &columns, &values, &x, &y];
                lowering.dispatch(shaders::csr(), &bindings, &parameters, groups);
            }
        }
        Ok(())
    }
}

impl Csr {
    /// First vectors of passes over the matrix, and how many there are in each.
    fn vectors_at_once(&self, most: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let length = self.width.max(self.rows).max(1);
        let at_once = (most / length).clamp(1, AT_ONCE as u32);
        let vectors = self.vectors;
        (0..vectors)
            .step_by(at_once as usize)
            .map(move |first| (first, at_once.min(vectors - first)))
    }

    /// The vectors from `first` on and their results, and which of those the first is: all are
    /// bound unless that is more than `most` elements.
    fn bound(&self, first: u32, count: u32, most: u32) -> (BufferView, BufferView, u32) {
        let elements = |each: u32, vectors: u32| u64::from(each) * u64::from(vectors);
        if elements(self.width.max(self.rows), self.vectors) <= most.into() {
            return (self.x.clone(), self.y.clone(), first);
        }
        let part =
            |view: &BufferView, each: u32| view.part(elements(each, first), elements(each, count));
        (part(&self.x, self.width), part(&self.y, self.rows), 0)
    }
}

/// First rows of about `parts` parts with as many elements each.
fn even_cuts(starts: &[u32], parts: usize) -> Vec<usize> {
    let rows = starts.len() - 1;
    let total = u64::from(starts[rows]);
    let cut = |part: usize| {
        starts[..rows]
            .partition_point(|start| u64::from(*start) * (parts as u64) < part as u64 * total)
    };
    let mut cuts: Vec<usize> = (1..parts).map(cut).collect();
    cuts.push(0);
    // A broken matrix may have cuts in any order.
    cuts.sort_unstable();
    cuts.dedup();
    cuts.retain(|cut| *cut < rows);
    cuts
}

/// In four sums, so that additions do not wait for each other.
fn dot(columns: &[u32], values: &[f32], x: &[f32]) -> f32 {
    let at = |column: u32| x.get(column as usize).copied().unwrap_or(f32::NAN);
    let (whole, rest) = columns.as_chunks::<4>();
    let (whole_values, rest_values) = values.as_chunks::<4>();
    let mut sums = [0f32; 4];
    for (columns, values) in whole.iter().zip(whole_values) {
        for lane in 0..4 {
            sums[lane] += values[lane] * at(columns[lane]);
        }
    }
    let rest: f32 = rest
        .iter()
        .zip(rest_values)
        .map(|(column, value)| value * at(*column))
        .sum();
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest
}

/// Each vector has a sum of its own: they do not wait for each other.
fn dots(columns: &[u32], values: &[f32], x: [&[f32]; AT_ONCE]) -> [f32; AT_ONCE] {
    let len = x[0].len();
    let mut sums = [0f32; AT_ONCE];
    for (column, value) in columns.iter().zip(values) {
        let column = (*column as usize).min(len.wrapping_sub(1));
        for lane in 0..AT_ONCE {
            sums[lane] += value * x[lane].get(column).copied().unwrap_or(f32::NAN);
        }
    }
    sums
}
