//! What a holder of a blob offers, and the sealed frames that carry it.
#![no_main]

use futures::{executor::block_on, io::Cursor};
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../../src/net/sealed/frames.rs"]
mod frames;
#[allow(dead_code)]
#[path = "../../../src/net/bulk/offer.rs"]
mod offer;

const KEY: [u8; 32] = [9; 32];

fuzz_target!(|bytes: &[u8]| {
    if let Ok(want) = block_on(offer::Want::read(&mut Cursor::new(bytes))) {
        assert_eq!(want.encode(), bytes[..40]);
    }
    if let Ok(answer) = block_on(offer::OfferAnswer::read(&mut Cursor::new(bytes))) {
        assert_eq!(
            block_on(offer::OfferAnswer::read(&mut Cursor::new(answer.encode()))).expect("its own"),
            answer
        );
    }
    // Nothing that was not sealed with the key comes out.
    let announced = bytes.len() as u64;
    let mut out = 0;
    let unsealed = frames::receive(&mut &bytes[..], announced, &KEY, |plain| {
        out += plain.len();
        Ok(())
    });
    assert!(unsealed.is_err() && out == 0);
    // What was, comes out as it went in.
    let (mut wire, mut back) = (Vec::new(), Vec::new());
    frames::send(&mut &bytes[..], announced, &KEY, &mut wire).expect("into memory");
    let opened = frames::receive(&mut &wire[..], announced, &KEY, |plain| {
        back.extend_from_slice(plain);
        Ok(())
    });
    assert!(opened.is_ok() && back == bytes);
});
