//! What samples of each class are taken for.

use super::style::{DrawFailure, FONT, document};
use plotters::{prelude::*, style::RGBColor};

/// More classes make no readable picture.
pub const MOST_CLASSES: usize = 40;

/// Rows are what samples are, columns what they are taken for. Dark is many, as a share of the row.
pub fn confusion(
    title: &str,
    names: &[String],
    counts: &[Vec<u64>],
) -> Result<String, DrawFailure> {
    let classes = counts.len();
    let cell = (560 / classes.max(1)).clamp(12, 48) as i32;
    let (left, top) = (110, 90);
    let side = cell * classes as i32;
    let size = ((left + side + 30) as u32, (top + side + 30) as u32);
    document(size, |root| {
        let label =
            |words: &str, place: (i32, i32)| Text::new(words.to_string(), place, (FONT, 13));
        root.draw(&Text::new(title.to_string(), (16, 12), (FONT, 20)))?;
        root.draw(&label("taken for", (left, top - 44)))?;
        for (row, of) in counts.iter().enumerate() {
            let total = of.iter().sum::<u64>().max(1) as f64;
            let y = top + row as i32 * cell;
            let short: String = names[row].chars().take(12).collect();
            root.draw(&label(&short, (10, y + cell / 2 - 7)))?;
            let head: String = names[row]
                .chars()
                .take((cell / 8).max(1) as usize)
                .collect();
            root.draw(&label(&head, (left + row as i32 * cell + 3, top - 20)))?;
            for (column, count) in of.iter().enumerate() {
                let x = left + column as i32 * cell;
                let share = *count as f64 / total;
                let fade = |to: u8| (255.0 - (255.0 - f64::from(to)) * share) as u8;
                let colour = RGBColor(fade(0), fade(80), fade(140));
                root.draw(&Rectangle::new(
                    [(x, y), (x + cell, y + cell)],
                    colour.filled(),
                ))?;
                if *count > 0 && cell >= 24 {
                    let ink = if share > 0.5 { WHITE } else { BLACK };
                    let style = (FONT, 12).into_font().color(&ink);
                    root.draw(&Text::new(
                        count.to_string(),
                        (x + 4, y + cell / 2 - 6),
                        style,
                    ))?;
                }
            }
        }
        Ok(())
    })
}
