//! A peer in a process of its own: a script of `benches/python` that says what it is, and then
//! answers lines with lines.

use std::{
    io::{BufRead, BufReader, Lines, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

pub struct BenchPeer {
    child: Child,
    /// None while it is told to end.
    ask: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl BenchPeer {
    /// Starts the script and prints its first line; None, after saying so, if what it needs cannot
    /// be installed.
    pub fn start(script: &str, arguments: &[&str]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("benches/python")
            .join(script);
        let mut command = Command::new("python3");
        command
            .arg(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| println!("  SKIPPED: python3: {error}"))
            .ok()?;
        let ask = child.stdin.take();
        let mut answers = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let Some(Ok(version)) = answers.next() else {
            let _ = child.wait();
            println!("  SKIPPED: the peer cannot be installed");
            return None;
        };
        println!("  {version}");
        Some(Self {
            child,
            ask,
            answers,
        })
    }

    pub fn ask(&mut self, question: &str) -> String {
        let ask = self.ask.as_mut().expect("nobody told it to end");
        writeln!(ask, "{question}").expect("it listens");
        self.answers
            .next()
            .expect("it answers")
            .expect("it answers")
    }
}

impl Drop for BenchPeer {
    fn drop(&mut self) {
        self.ask = None;
        let _ = self.child.wait();
    }
}
