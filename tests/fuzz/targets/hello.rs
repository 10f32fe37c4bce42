//! The first bytes of a control stream and the frames that follow.
#![no_main]

use futures::{executor::block_on, io::Cursor};
use libfuzzer_sys::fuzz_target;
// The file below names its own crate.
use nodectl::net::Versions;

#[allow(dead_code)]
#[path = "../../../src/net/swarm/hello.rs"]
mod hello;

fuzz_target!(|bytes: &[u8]| {
    let mut stream = Cursor::new(bytes);
    if let Ok(said) = block_on(hello::Hello::read(&mut stream)) {
        let again = block_on(hello::Hello::read(&mut Cursor::new(said.encode())))
            .expect("its own encoding");
        assert_eq!(again.versions, said.versions);
        assert_eq!(again.listen_port, said.listen_port);
    }
    // Every frame is shorter than what is left, so this ends.
    while let Ok(Some(frame)) = block_on(hello::SessionFrame::read(&mut stream)) {
        let mut again = Vec::new();
        frame.encode_into(&mut again);
        assert_eq!(
            block_on(hello::SessionFrame::read(&mut Cursor::new(again))).expect("its own encoding"),
            Some(frame)
        );
    }
});
