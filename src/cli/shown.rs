//! What tasks wrote, on a terminal: their bytes as text that only shows. Where the output goes to a
//! file or a program, they stay as they are.

use super::exit::{CliError, print_bytes};
use nodectl_types::text;
use std::io::{self, IsTerminal};

/// Prints the pieces of a log as they come.
pub struct ShownLog {
    /// As they are: to no terminal, or because somebody wants that.
    is_raw: bool,
    /// The beginning of a character whose end has not come.
    rest: Vec<u8>,
}

impl ShownLog {
    pub fn new(raw: bool) -> Self {
        Self {
            is_raw: raw || !io::stdout().is_terminal(),
            rest: Vec::new(),
        }
    }

    pub fn print(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        if self.is_raw {
            print_bytes(bytes)
        } else {
            print_bytes(self.harmless(bytes).as_bytes())
        }
    }

    fn harmless(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(_) => self.rest.len(),
            // What is no text in the middle is shown as such; a character that is cut off waits for
            // its end.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.rest.len() - cut_off(&self.rest),
        };
        let whole: Vec<u8> = self.rest.drain(..whole).collect();
        text::lines(&String::from_utf8_lossy(&whole)).into_owned()
    }
}

/// How many bytes at the end begin a character that is not whole.
fn cut_off(bytes: &[u8]) -> usize {
    let longest = bytes.len().min(3);
    let begins = |count: &usize| {
        let tail = &bytes[bytes.len() - count..];
        std::str::from_utf8(tail)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=longest).find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_cannot_act_on_a_terminal_and_their_characters_stay_whole() {
        let mut shown = ShownLog {
            is_raw: false,
            rest: Vec::new(),
        };
        assert_eq!(shown.harmless(b"a\x1b[2J\xc3"), "a [2J");
        assert_eq!(shown.harmless(b"\xbc\n\tb\r"), "\u{fc}\n\tb ");
        assert_eq!(shown.harmless(b"\xff\xe2\x82"), "\u{fffd}");
        assert_eq!(
            shown.harmless("\u{ac}\u{202e}x".as_bytes()),
            "\u{fffd}\u{ac} x"
        );
    }
}
