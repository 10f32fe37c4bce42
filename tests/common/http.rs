//! Calls of a node's local API over its Unix socket, each with a limit. No client of the product's:
//! what is tested must not depend on what that makes of an answer. Nor a command, where one is not
//! what is tested: its process costs some hundred times as much as the answer.

use serde_json::Value;
use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// No answer of the API is larger.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A node's API.
#[derive(Clone)]
pub struct NodeApi {
    pub socket: PathBuf,
}

/// Why a call came to nothing.
pub struct CallFailure {
    pub text: String,
    /// The node refused, so that nothing was done. Otherwise nobody knows.
    pub refused: bool,
}

impl NodeApi {
    pub fn at(data_dir: &Path) -> Self {
        Self {
            socket: data_dir.join("api.sock"),
        }
    }

    pub fn get(&self, path: &str, limit: Duration) -> Result<Value, CallFailure> {
        json(&self.call("GET", path, None, limit)?)
    }

    pub fn post(
        &self,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Value, CallFailure> {
        json(&self.call("POST", path, body, limit)?)
    }

    pub fn bytes(&self, path: &str, limit: Duration) -> Result<Vec<u8>, CallFailure> {
        self.call("GET", path, None, limit)
    }

    fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Vec<u8>, CallFailure> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let kind = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: nodectl\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let bytes =
            exchange(&self.socket, request.as_bytes(), limit).map_err(|text| CallFailure {
                text,
                refused: false,
            })?;
        let (status, body) = split_answer(&bytes).map_err(|text| CallFailure {
            text,
            refused: false,
        })?;
        if (200..300).contains(&status) {
            return Ok(body);
        }
        let text = format!("{status}: {}", String::from_utf8_lossy(&body).trim());
        // Of a failure of its own a node cannot say what was done before.
        Err(CallFailure {
            text,
            refused: (400..500).contains(&status),
        })
    }
}

fn json(bytes: &[u8]) -> Result<Value, CallFailure> {
    serde_json::from_slice(bytes).map_err(|error| CallFailure {
        text: format!("no JSON: {error}"),
        refused: false,
    })
}

fn exchange(socket: &Path, request: &[u8], limit: Duration) -> Result<Vec<u8>, String> {
    let end = Instant::now() + limit;
    let mut stream =
        UnixStream::connect(socket).map_err(|error| format!("no node answers: {error}"))?;
    stream
        .set_write_timeout(Some(limit))
        .map_err(|error| error.to_string())?;
    stream
        .write_all(request)
        .map_err(|error| format!("sending: {error}"))?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || answer.len() > MAX_ANSWER_BYTES {
            return Err(format!("no whole answer within {limit:?}"));
        }
        stream
            .set_read_timeout(Some(left))
            .map_err(|error| error.to_string())?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(length) => answer.extend_from_slice(&buffer[..length]),
            // A read with a limit is not taken up again after a signal.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("no whole answer: {error}")),
        }
    }
}

/// Status and body of an answer that is complete.
pub fn split_answer(bytes: &[u8]) -> Result<(u16, Vec<u8>), String> {
    let broken = || "an answer that ends in its middle".to_string();
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .ok_or_else(broken)?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(broken)?;
    let body = &bytes[end + 4..];
    let header = |name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(name).map(str::trim).map(str::to_string))
    };
    // Where a node is cut off from a result it may run the task once more: what that attempt has
    // written so far is not the result's.
    if header("nodectl-ended:").is_some_and(|ended| ended == "false") {
        return Err("the log of an attempt that goes on".to_string());
    }
    if header("transfer-encoding:").is_some_and(|coding| coding.contains("chunked")) {
        return Ok((status, unchunk(body).ok_or_else(broken)?));
    }
    let length = header("content-length:").and_then(|length| length.parse::<usize>().ok());
    if length.is_some_and(|length| length != body.len()) {
        return Err(broken());
    }
    Ok((status, body.to_vec()))
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}
