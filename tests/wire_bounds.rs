//! What a hostile peer can make a decoder allocate. A program of its own, because it counts every
//! byte allocated.

use nodectl::{
    types::{
        Answer, Message,
        explain::{Reason, ReasonLine},
        limits,
    },
    wire::{control, journal},
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Passes on to the system's allocator and counts what the current thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // `try_with`: a thread that ends frees memory after its locals are gone.
    let held = HELD.try_with(|held| {
        held.set(held.get() + change);
        held.get()
    });
    if let Ok(held) = held {
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held)));
    }
}

// SAFETY: every call goes unchanged to the system's allocator, whose contract this one takes over.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes held at once while `work` ran, beyond those held before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    ((PEAK.get() - before) as usize, result)
}

/// A field claims 2^50 elements and the message ends: nothing near that is allocated, whatever the
/// variant and the field.
#[test]
fn a_length_without_its_bytes_allocates_little() {
    const HUGE_LENGTH: [u8; 8] = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02];
    for line in include_str!("golden/messages.txt").lines().skip(1) {
        let (name, hex) = line.split_once(' ').expect("a name and hex digits");
        let bytes = unhex(hex);
        for cut in 1..bytes.len() {
            let hostile = [&bytes[..cut], &HUGE_LENGTH].concat();
            let (peak, _) = peak_of(|| control::decode(&hostile).map(drop));
            assert!(
                peak < 2 << 20,
                "{name} cut to {cut} bytes made the decoder hold {peak} bytes"
            );
            let (peak, _) = peak_of(|| journal::decode(&hostile).map(drop));
            assert!(
                peak < 2 << 20,
                "a record made the decoder hold {peak} bytes"
            );
        }
    }
}

/// The densest message there is: lines of three bytes each on the wire.
#[test]
fn the_largest_message_allocates_a_bounded_multiple_of_itself() {
    let empty = ReasonLine {
        reason: Reason::Detail,
        node: None,
        text: String::new(),
    };
    let count = (limits::MAX_MESSAGE_BYTES - 16) / 3;
    let dense = Message::Answer {
        id: 1,
        answer: Ok(Answer::Explanation(vec![empty; count])),
    };
    let bytes = control::encode(&dense).expect("it is below the limit");
    drop(dense);
    let (peak, message) = peak_of(|| control::decode(&bytes));
    assert!(
        message.is_err(),
        "nobody explains anything in so many lines"
    );
    // 64 bytes a line, and a vector doubles while it grows.
    assert!(
        peak <= 64 * limits::MAX_MESSAGE_BYTES,
        "{peak} bytes for {}",
        bytes.len()
    );
}

#[test]
fn a_message_beyond_the_limit_is_refused_before_anything_is_allocated() {
    let bytes = vec![0; limits::MAX_MESSAGE_BYTES + 1];
    let (peak, message) = peak_of(|| control::decode(&bytes));
    assert!(message.is_err());
    assert_eq!(peak, 0);
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hex digit") as u8;
    text.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}
