//! Sorting that leaves elements where libstdc++'s `std::sort` does, also equal ones and those that
//! are not in any order (NaN). pyFAI's quantiles depend on it: of pixels with equal values, those
//! on one side of a quantile count and the others do not; and dead pixels are NaN there.

/// Runs so short are left to the insertion sort at the end (`_S_threshold` in bits/stl_algo.h).
const SHORT: usize = 16;

/// Sorts by `is_less`, not stably: Musser's introsort (Software: Practice and Experience 27 (1997),
/// page 983) as in bits/stl_algo.h.
pub(super) fn introsort<T: Copy>(items: &mut [T], is_less: impl Fn(&T, &T) -> bool + Copy) {
    if items.is_empty() {
        return;
    }
    split(items, 2 * items.len().ilog2(), is_less);
    for index in 1..items.len() {
        if index < SHORT && is_less(&items[index], &items[0]) {
            items[..=index].rotate_right(1);
        } else {
            insert(items, index, is_less);
        }
    }
}

/// Cuts at pivots until parts are short; `depth` bounds how often, then parts are sorted as heaps.
fn split<T: Copy>(mut items: &mut [T], mut depth: u32, is_less: impl Fn(&T, &T) -> bool + Copy) {
    while items.len() > SHORT {
        if depth == 0 {
            return heapsort(items, is_less);
        }
        depth -= 1;
        let cut = partition(items, is_less);
        let (left, right) = items.split_at_mut(cut);
        split(right, depth, is_less);
        items = left;
    }
}

/// Moves the median of three to the front and the rest to the right side of it; where the right
/// side begins.
fn partition<T: Copy>(items: &mut [T], is_less: impl Fn(&T, &T) -> bool) -> usize {
    let (a, b, c) = (1, items.len() / 2, items.len() - 1);
    let less = |x: usize, y: usize| is_less(&items[x], &items[y]);
    let median = if less(a, b) {
        if less(b, c) {
            b
        } else if less(a, c) {
            c
        } else {
            a
        }
    } else if less(a, c) {
        a
    } else if less(b, c) {
        c
    } else {
        b
    };
    items.swap(0, median);
    let pivot = items[0];
    let (mut first, mut last) = (1, items.len());
    loop {
        // Where elements have an order, one of those that were looked at stops this.
        while first < items.len() && is_less(&items[first], &pivot) {
            first += 1;
        }
        last -= 1;
        while is_less(&pivot, &items[last]) {
            last -= 1;
        }
        if first >= last {
            return first;
        }
        items.swap(first, last);
        first += 1;
    }
}

/// Inserts an item into those before it, which are sorted.
fn insert<T: Copy>(items: &mut [T], index: usize, is_less: impl Fn(&T, &T) -> bool) {
    let item = items[index];
    let mut at = index;
    while at > 0 && is_less(&item, &items[at - 1]) {
        items[at] = items[at - 1];
        at -= 1;
    }
    items[at] = item;
}

fn heapsort<T: Copy>(items: &mut [T], is_less: impl Fn(&T, &T) -> bool + Copy) {
    for parent in (0..items.len() / 2).rev() {
        sift(items, parent, items[parent], is_less);
    }
    for end in (1..items.len()).rev() {
        let last = items[end];
        items[end] = items[0];
        sift(&mut items[..end], 0, last, is_less);
    }
}

/// Puts an item into the heap below a hole: the hole goes to the bottom, then the item rises.
fn sift<T: Copy>(items: &mut [T], mut hole: usize, item: T, is_less: impl Fn(&T, &T) -> bool) {
    let top = hole;
    while 2 * hole + 2 < items.len() {
        let (left, right) = (2 * hole + 1, 2 * hole + 2);
        let child = if is_less(&items[right], &items[left]) {
            left
        } else {
            right
        };
        items[hole] = items[child];
        hole = child;
    }
    if 2 * hole + 2 == items.len() {
        items[hole] = items[2 * hole + 1];
        hole = 2 * hole + 1;
    }
    while hole > top && is_less(&items[(hole - 1) / 2], &item) {
        items[hole] = items[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    items[hole] = item;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_sorts(mut numbers in prop::collection::vec(0u32..50, 0..300)) {
            let mut sorted = numbers.clone();
            sorted.sort();
            introsort(&mut numbers, |a, b| a < b);
            prop_assert_eq!(numbers, sorted);
        }

        /// Whatever has no order: all elements are still there.
        #[test]
        fn nothing_is_lost(numbers in prop::collection::vec(prop::option::of(0u32..50), 0..300)) {
            let mut floats: Vec<f32> = numbers.iter().map(|number| number.map_or(f32::NAN, |number| number as f32)).collect();
            let bits = |floats: &[f32]| {
                let mut bits: Vec<u32> = floats.iter().map(|float| float.to_bits()).collect();
                bits.sort();
                bits
            };
            let before = bits(&floats);
            introsort(&mut floats, |a, b| a < b);
            prop_assert_eq!(bits(&floats), before);
        }
    }
}
