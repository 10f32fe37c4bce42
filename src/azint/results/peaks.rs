//! The peaks of a pattern, and how they compare with a calibrant's rings.

use super::Calibrant;
use nodectl_types::units::counted;
use std::fmt::Write;

/// A maximum that rises out of its surroundings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// In the unit of the axis, between bins.
    pub position: f64,
    pub intensity: f32,
    /// Above its surroundings.
    pub height: f32,
}

/// Bins on each side among which a peak is the highest.
const REACH: usize = 4;
/// Bins on each side that make its surroundings.
const SURROUNDINGS: usize = 30;
/// How far a peak rises above them, in their median absolute deviations.
const RISE: f32 = 6.0;
/// And as a share of the highest one.
const LEAST_SHARE: f32 = 0.01;
/// The most peaks that are told.
const MOST: usize = 40;

/// The peaks by position. `radial` and `pattern` are as long as each other.
pub fn peaks(radial: &[f64], pattern: &[f32]) -> Vec<Peak> {
    let mut found: Vec<Peak> = Vec::new();
    for index in 1..pattern.len().saturating_sub(1) {
        let (from, to) = (
            index.saturating_sub(REACH),
            (index + REACH + 1).min(pattern.len()),
        );
        let value = pattern[index];
        let is_highest = (from..to)
            .all(|other| pattern[other] < value || (other >= index && pattern[other] == value));
        if !is_highest {
            continue;
        }
        let around = &pattern
            [index.saturating_sub(SURROUNDINGS)..(index + SURROUNDINGS + 1).min(pattern.len())];
        let level = median(around.iter().copied());
        let spread = median(around.iter().map(|other| (other - level).abs()));
        let height = value - level;
        if height > RISE * spread && height > 0.0 {
            found.push(Peak {
                position: between(radial, pattern, index),
                intensity: value,
                height,
            });
        }
    }
    let highest = found.iter().map(|peak| peak.height).fold(0.0, f32::max);
    found.retain(|peak| peak.height >= LEAST_SHARE * highest);
    found.truncate(MOST);
    found
}

fn median(values: impl Iterator<Item = f32>) -> f32 {
    let mut values: Vec<f32> = values.collect();
    values.sort_by(f32::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The top of the parabola through three bins.
fn between(radial: &[f64], pattern: &[f32], index: usize) -> f64 {
    let [left, middle, right] =
        [-1, 0, 1].map(|step: isize| f64::from(pattern[index.wrapping_add_signed(step)]));
    let curvature = left - 2.0 * middle + right;
    let shift = if curvature < 0.0 {
        (0.5 * (left - right) / curvature).clamp(-0.5, 0.5)
    } else {
        0.0
    };
    radial[index] + shift * (radial[index + 1] - radial[index])
}

/// The peaks as a table for people; with a calibrant, beside its rings in the pattern's range.
pub fn table(
    title: &str,
    radial: &[f64],
    pattern: &[f32],
    unit: &str,
    of: Option<(Calibrant, Option<f64>)>,
) -> String {
    let found = peaks(radial, pattern);
    let mut text = match (found.len(), of) {
        (0, None) => return format!("{title}: no peaks\n"),
        (count, _) => format!("{title}: {}, in {unit}\n", counted(count, "peak")),
    };
    let (Some(first), Some(last)) = (radial.first(), radial.last()) else {
        return text;
    };
    let Some((calibrant, wavelength_m)) = of else {
        let _ = writeln!(text, "{:>12}  {:>12}", "position", "intensity");
        for peak in &found {
            let _ = writeln!(text, "{:>12.4}  {:>12.4}", peak.position, peak.intensity);
        }
        return text;
    };
    let _ = writeln!(
        text,
        "{:>8}  {:>12}  {:>12}  {:>12}",
        calibrant.name(),
        "expected",
        "found",
        "difference"
    );
    for ring in calibrant.rings(0.0) {
        let Some(place) = ring
            .position(unit, wavelength_m)
            .filter(|place| (*first..=*last).contains(place))
        else {
            continue;
        };
        let label = ring
            .hkl
            .map_or_else(|| "?".into(), |[h, k, l]| format!("{h}{k}{l}"));
        let near = found.iter().min_by(|one, other| {
            (one.position - place)
                .abs()
                .total_cmp(&(other.position - place).abs())
        });
        let step = (last - first) / radial.len() as f64;
        match near.filter(|peak| (peak.position - place).abs() < 4.0 * step) {
            Some(peak) => {
                let _ = writeln!(
                    text,
                    "{label:>8}  {place:>12.4}  {:>12.4}  {:>+12.4}",
                    peak.position,
                    peak.position - place
                );
            }
            None => {
                let _ = writeln!(text, "{label:>8}  {place:>12.4}  {:>12}  {:>12}", "-", "-");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peak_is_a_peak_and_none_is_no_table() {
        let radial: Vec<f64> = (0..100).map(f64::from).collect();
        let mut pattern = vec![1.0; 100];
        assert_eq!(table("a", &radial, &pattern, "r_mm", None), "a: no peaks\n");
        (pattern[49], pattern[50], pattern[51]) = (5.0, 20.0, 5.0);
        let text = table("a", &radial, &pattern, "r_mm", None);
        assert!(text.starts_with("a: 1 peak, in r_mm\n"), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
