//! Rows of tables by their numbers.

use super::{
    super::{ElementKind, Lookup, LookupBackward, Op},
    EPSILON, Rig, assert_close, numbers, rng, size,
};
use rand::RngExt;

pub fn lookups(rig: &Rig) {
    for seed in 0..12 {
        let rng = &mut rng(seed);
        let (rows, columns, count) = (size(rng, 60) + 1, size(rng, 40), size(rng, 300));
        let table = numbers(rng, (rows * columns) as usize);
        // Now and then one that no row has.
        let indices: Vec<u32> = (0..count).map(|_| rng.random_range(0..=rows)).collect();
        let gradient = numbers(rng, (count * columns) as usize);
        let (ours, sums) = (
            rig.output(ElementKind::F32, gradient.len()),
            rig.output(ElementKind::F32, table.len()),
        );
        let places = rig.u32(&indices);
        rig.run([
            Op::from(Lookup {
                table: rig.f32(&table),
                indices: places.clone(),
                output: ours.clone(),
                rows,
                columns,
                count,
            }),
            Op::from(LookupBackward {
                gradient: rig.f32(&gradient),
                indices: places,
                table_gradient: sums.clone(),
                rows,
                columns,
                count,
            }),
        ]);
        let width = columns as usize;
        let exact = indices.iter().flat_map(|index| {
            let row = table.get(*index as usize * width..(*index as usize + 1) * width);
            (0..width).map(move |column| row.map_or(f64::NAN, |row| f64::from(row[column])))
        });
        assert_close(
            "lookup",
            &rig.read_f32(&ours),
            &exact.collect::<Vec<_>>(),
            |_| 0.0,
        );
        let mut exact = vec![0f64; table.len()];
        for (index, row) in indices
            .iter()
            .zip(gradient.chunks(width.max(1)))
            .filter(|(index, _)| **index < rows)
        {
            row.iter().enumerate().for_each(|(column, value)| {
                exact[*index as usize * width + column] += f64::from(*value)
            });
        }
        // At most `count` additions of numbers below 1.
        assert_close("lookup backward", &rig.read_f32(&sums), &exact, |_| {
            f64::from(count).powi(2) * EPSILON
        });
    }
}
