//! The directions of a sealed stream for threads that block: a frame is read to where its bytes are
//! wanted and opened there, and several frames are written at once.

use super::{
    duplex::{DirectionKeys, Sealed, SealedInput, WRITE_BYTES},
    frames::{FINAL, FrameCipher, HEADER_BYTES, TAG_BYTES},
};
use libp2p::Stream;
use nodectl_ports::{Halves, PeerStream};
use std::{
    io::{self, IoSliceMut, Read, Write},
    net::{Shutdown, TcpStream},
};
use tokio_util::compat::Compat;

/// Frames that are written at once: fewer system calls, and they stay in a core's cache until then.
const BATCH: usize = 8;
/// The most that a frame takes.
const WHOLE_BYTES: usize = HEADER_BYTES + WRITE_BYTES + TAG_BYTES;
/// Read beside a frame's contents: its tag, and what may be a short frame behind it.
const BESIDE_BYTES: usize = 512;

impl PeerStream for Sealed<tokio::net::TcpStream> {
    fn is_direct(&self) -> bool {
        true
    }

    fn blocking(self: Box<Self>) -> io::Result<Halves> {
        let Self {
            stream,
            sealer,
            opener,
            outgoing,
            written,
            closing: _,
            incoming,
        } = *self;
        let mut stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        stream.write_all(&outgoing[written..])?;
        let source = HalfSource {
            stream: stream.try_clone()?,
            opener,
            incoming,
        };
        let closer = stream.try_clone()?;
        let sink = HalfSink {
            stream,
            sealer,
            buffer: vec![0; BATCH * WHOLE_BYTES],
            filled: 0,
        };
        // It may be closed already.
        let close = move || drop(closer.shutdown(Shutdown::Both));
        Ok(Halves {
            source: Box::new(source),
            sink: Box::new(sink),
            close: Box::new(close),
        })
    }
}

/// The blocking reader of what is in memory, for fuzzing.
pub fn reading<'a>(bytes: &'a [u8], keys: &DirectionKeys) -> impl Read + use<'a> {
    let Sealed {
        stream,
        opener,
        incoming,
        ..
    } = Sealed::new(tokio::io::join(bytes, tokio::io::sink()), keys);
    HalfSource {
        stream: stream.into_inner().0,
        opener,
        incoming,
    }
}

/// Over the swarm it is slow in any case.
impl PeerStream for Sealed<Compat<Stream>> {}

struct HalfSource<R> {
    stream: R,
    opener: FrameCipher,
    incoming: SealedInput,
}

struct HalfSink {
    stream: TcpStream,
    sealer: FrameCipher,
    /// Sealed frames up to `filled`.
    buffer: Vec<u8>,
    filled: usize,
}

impl<R: Read> Read for HalfSource<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let plain = self.incoming.take(out.len());
            let count = plain.len();
            out[..count].copy_from_slice(plain);
            if count > 0 || self.incoming.ended || out.is_empty() {
                return Ok(count);
            }
            if self.incoming.open(&mut self.opener)? {
                continue;
            }
            match self.incoming.begun()? {
                Some(length) if (1..=out.len()).contains(&length) => {
                    self.read_frame(&mut out[..length])?;
                    return Ok(length);
                }
                _ => self.fill()?,
            }
        }
    }
}

impl<R: Read> HalfSource<R> {
    fn fill(&mut self) -> io::Result<()> {
        let count = retried(|| self.stream.read(self.incoming.space()?))?;
        self.incoming.end += count;
        Ok(())
    }

    /// The frame that has begun, with contents of `out`'s length. What of it is here already is
    /// copied.
    fn read_frame(&mut self, out: &mut [u8]) -> io::Result<()> {
        let (header, mut here, mut beside) = self.incoming.move_to(out);
        let length = out.len();
        while here < length || beside < TAG_BYTES {
            let count = retried(|| {
                let beside = &mut self.incoming.buffer[beside..BESIDE_BYTES];
                let places = &mut [IoSliceMut::new(&mut out[here..]), IoSliceMut::new(beside)];
                self.stream.read_vectored(places)
            })?;
            let of_contents = count.min(length - here);
            here += of_contents;
            beside += count - of_contents;
        }
        self.incoming.end = beside;
        self.incoming.next = TAG_BYTES;
        let tag = *self
            .incoming
            .buffer
            .first_chunk()
            .expect("the buffer has room for more");
        self.opener.open_apart(header, out, tag)?;
        self.incoming.ended = u32::from_le_bytes(header) & FINAL != 0;
        Ok(())
    }
}

/// Bytes that were read, at least one.
fn retried(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl Write for HalfSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() - self.filled < WHOLE_BYTES {
            self.flush()?;
        }
        let count = bytes.len().min(WRITE_BYTES);
        let frame = &mut self.buffer[self.filled..];
        frame[HEADER_BYTES..HEADER_BYTES + count].copy_from_slice(&bytes[..count]);
        self.filled += self.sealer.seal(frame, count, false)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        let filled = std::mem::take(&mut self.filled);
        self.stream.write_all(&self.buffer[..filled])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    const HERE: DirectionKeys = DirectionKeys {
        out: [1; 32],
        back: [2; 32],
    };
    const THERE: DirectionKeys = DirectionKeys {
        out: [2; 32],
        back: [1; 32],
    };

    async fn connected() -> (tokio::net::TcpStream, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, two) = tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
        (one.unwrap(), two.unwrap().0)
    }

    fn blocking(stream: tokio::net::TcpStream, keys: &DirectionKeys) -> Halves {
        Box::new(Sealed::new(stream, keys)).blocking().unwrap()
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    /// Writes pieces of these lengths, flushing behind some, and reads pieces of those.
    fn converse(written: &[usize], read: &[usize]) {
        let (one, two) = runtime().block_on(async {
            let (one, two) = connected().await;
            (blocking(one, &HERE), blocking(two, &THERE))
        });
        let total: usize = written.iter().sum();
        let bytes: Vec<u8> = (0..total).map(|i| ((i * 31) >> 3) as u8).collect();
        std::thread::scope(|scope| {
            let (mut sink, mut rest) = (one.sink, bytes.as_slice());
            scope.spawn(move || {
                for (index, length) in written.iter().enumerate() {
                    let (piece, behind) = rest.split_at(*length);
                    sink.write_all(piece).unwrap();
                    if index % 3 == 0 {
                        sink.flush().unwrap();
                    }
                    rest = behind;
                }
                sink.flush().unwrap();
            });
            let mut source = two.source;
            let (mut all, mut lengths) = (Vec::new(), read.iter().cycle());
            while all.len() < total {
                let mut piece = vec![0; (*lengths.next().unwrap()).min(total - all.len())];
                source.read_exact(&mut piece).unwrap();
                all.extend(piece);
            }
            assert!(all == bytes);
        });
    }

    #[test]
    fn blocks_between_short_messages_arrive_whole() {
        let block = 4 * WRITE_BYTES + 5;
        converse(
            &[
                16,
                40,
                block,
                16,
                1,
                block,
                0,
                7,
                WRITE_BYTES,
                BATCH * WRITE_BYTES,
            ],
            &[4, 4, 8, 40, block],
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn pieces_of_any_lengths_arrive_in_order(
            written in prop::collection::vec(prop_oneof![0usize..700, 60_000usize..200_000], 1..12),
            read in prop::collection::vec(prop_oneof![1usize..700, 60_000usize..200_000], 1..5),
        ) {
            converse(&written, &read);
        }
    }

    #[test]
    fn what_came_before_the_halves_parted_is_read_and_the_end_is_told() {
        let (mut one, mut two) = runtime().block_on(async {
            let (one, two) = connected().await;
            let (mut one, mut two) = (Sealed::new(one, &HERE), Sealed::new(two, &THERE));
            one.write_all(b"early, ").await.unwrap();
            one.flush().await.unwrap();
            // One byte of it is asked for, the rest comes with it.
            assert_eq!(
                tokio::io::AsyncReadExt::read_u8(&mut two).await.unwrap(),
                b'e'
            );
            // This one is sealed, and not yet written.
            one.write_all(b"late").await.unwrap();
            (
                Box::new(one).blocking().unwrap(),
                Box::new(two).blocking().unwrap(),
            )
        });
        let mut rest = [0; 10];
        two.source.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"arly, late");
        one.sink.write_all(&[7; 1000]).unwrap();
        one.sink.flush().unwrap();
        (one.close)();
        let mut all = Vec::new();
        let cut = two.source.read_to_end(&mut all).unwrap_err();
        assert_eq!(
            (all.len(), cut.kind()),
            (1000, io::ErrorKind::UnexpectedEof),
            "no final frame has come"
        );
    }

    #[test]
    fn a_changed_frame_and_a_larger_one_than_any_are_errors() {
        let whole = {
            let mut frame = vec![3; WHOLE_BYTES];
            FrameCipher::new(&HERE.out)
                .seal(&mut frame, WRITE_BYTES, false)
                .unwrap();
            frame
        };
        let read = |bytes: &[u8]| {
            let (mut one, two) = runtime().block_on(async {
                let (one, two) = connected().await;
                let one = one.into_std().unwrap();
                one.set_nonblocking(false).unwrap();
                (one, blocking(two, &THERE))
            });
            one.write_all(bytes).unwrap();
            drop(one);
            let mut source = two.source;
            source
                .read_exact(&mut vec![0; WRITE_BYTES])
                .map_err(|error| error.kind())
        };
        assert_eq!(read(&whole), Ok(()));
        for place in [HEADER_BYTES, 1000, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            assert_eq!(
                read(&changed),
                Err(io::ErrorKind::InvalidData),
                "byte {place}"
            );
        }
        assert_eq!(
            read(&u32::to_le_bytes(1 << 30)),
            Err(io::ErrorKind::InvalidData)
        );
        assert_eq!(
            read(&whole[..whole.len() - 1]),
            Err(io::ErrorKind::UnexpectedEof)
        );
    }

    #[test]
    fn who_waits_learns_that_it_was_closed() {
        let (one, _two) = runtime().block_on(async {
            let (one, two) = connected().await;
            (blocking(one, &HERE), two)
        });
        let mut source = one.source;
        let waiting =
            std::thread::spawn(move || source.read(&mut [0]).map_err(|error| error.kind()));
        (one.close)();
        assert_eq!(waiting.join().unwrap(), Err(io::ErrorKind::UnexpectedEof));
    }
}
