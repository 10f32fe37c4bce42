//! A stream beside those of a connection, on which each end says nothing but that it is there, and
//! before it closes the connection that it does. Whoever sees it end without that word knows that
//! the kernel at the other end has closed it, as it does when a process is killed. A wall that
//! refuses in a node's stead resets connections, or lets them be silent: it ends none so. What
//! bytes pass is sealed.
//!
//! Nobody sends anything on it, so that nothing is left unread: with unread bytes a kernel resets a
//! connection of a killed process, too.

use nodectl_ports::{Close, Halves, PeerStream};
use std::{
    io::{self, Read, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

const HERE: u8 = b'H';
const CLOSES: u8 = b'C';

/// This node's end.
pub struct Lifeline {
    sink: Mutex<Box<dyn Write + Send>>,
    close: Close,
    /// Where something in between forwards the bytes, the end of that tells nothing of the other
    /// node.
    is_direct: bool,
    closed: AtomicBool,
}

impl Lifeline {
    /// Says that this end is there. What the other end says is read from what is returned with it.
    pub fn new(stream: Box<dyn PeerStream>) -> io::Result<(Self, Box<dyn Read + Send>)> {
        let is_direct = stream.is_direct();
        let Halves {
            source,
            sink,
            close,
        } = stream.blocking()?;
        let lifeline = Self {
            sink: Mutex::new(sink),
            close,
            is_direct,
            closed: AtomicBool::new(false),
        };
        lifeline.say(HERE);
        Ok((lifeline, source))
    }

    /// Before this node closes its connection.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.say(CLOSES);
        }
        (self.close)();
    }

    fn say(&self, word: u8) {
        if self.is_direct {
            let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
            // Of a connection that is broken it need not come. It is a byte, for which a socket has
            // room.
            let _ = sink.write_all(&[word]).and_then(|()| sink.flush());
        }
    }

    /// Listens to its end. Returns whether the process at the other end was ended.
    pub fn watch(&self, mut source: impl Read) -> bool {
        let mut was_there = false;
        loop {
            let mut word = [0];
            match source.read_exact(&mut word).map(|()| word[0]) {
                Ok(HERE) => was_there = true,
                Ok(_) => return false,
                Err(error) => {
                    let is_end = error.kind() == io::ErrorKind::UnexpectedEof;
                    return is_end
                        && was_there
                        && self.is_direct
                        && !self.closed.load(Ordering::Acquire);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn end(stream: UnixStream, is_direct: bool) -> Lifeline {
        let closing = stream.try_clone().unwrap();
        let close: Close = Box::new(move || drop(closing.shutdown(std::net::Shutdown::Both)));
        let lifeline = Lifeline {
            sink: Mutex::new(Box::new(stream)),
            close,
            is_direct,
            closed: AtomicBool::new(false),
        };
        lifeline.say(HERE);
        lifeline
    }

    /// What one end finds after the other did something.
    fn found(is_direct: bool, end_it: impl FnOnce(&Lifeline, Lifeline)) -> bool {
        let (one, two) = UnixStream::pair().unwrap();
        let (source, mut other) = (one.try_clone().unwrap(), two.try_clone().unwrap());
        let (one, two) = (end(one, is_direct), end(two, is_direct));
        if is_direct {
            // As the other end's thread does: a kernel that ends a process with unread bytes resets
            // its connection.
            other.read_exact(&mut [0]).unwrap();
        }
        drop(other);
        end_it(&one, two);
        one.watch(source)
    }

    #[test]
    fn only_an_end_without_a_word_is_that_of_a_process() {
        assert!(found(true, |_, other| drop(other)), "its kernel closed it");
        assert!(!found(true, |_, other| other.close()), "it said so");
        assert!(
            !found(true, |own, _other| own.close()),
            "this end closed it"
        );
        assert!(
            !found(false, |_, other| drop(other)),
            "something in between may have ended"
        );
    }

    #[test]
    fn who_has_not_said_that_it_is_there_may_never_have_been() {
        let (one, two) = UnixStream::pair().unwrap();
        let source = one.try_clone().unwrap();
        drop(two);
        assert!(!end(one, true).watch(source));
    }
}
