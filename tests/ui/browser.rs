//! Chromium without a window, driven over WebDriver: a handful of calls in plain HTTP.

use crate::common::{SOON, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// None where there is no Chromium with its driver, which is said.
    pub fn start() -> Option<Self> {
        let browser = Self::try_start();
        if browser.is_none() {
            eprintln!("SKIPPED: no chromium, or no chromedriver");
        }
        browser
    }

    fn try_start() -> Option<Self> {
        let find = |name: &str| {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path)
                .map(|directory| directory.join(name))
                .find(|file| file.is_file())
        };
        let (program, driver) = (find("chromium")?, find("chromedriver")?);
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let driver = Command::new(driver)
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
        };
        wait_for(SOON, "chromedriver answers", || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        let flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
        ];
        let options = json!({ "binary": program, "args": flags });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" }, "goog:chromeOptions": options,
        }}});
        let session = browser.call("POST", "/session", &wanted);
        let id = session["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("{session}"));
        browser.session = format!("/session/{id}");
        Some(browser)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a socket");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        // It keeps connections open, so the answer's length says where it ends.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a head");
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(count) = line.strip_prefix("content-length:") {
                length = count.trim().parse().expect("a number");
            }
            if line.is_empty() {
                break;
            }
        }
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).expect("an answer");
        let body = String::from_utf8_lossy(&bytes);
        let said: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
        assert!(said["value"]["error"].is_null(), "{path}: {said}");
        said["value"].clone()
    }

    fn ask(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    fn devtools(&self, command: &str, params: &Value) -> Value {
        self.ask(
            "/goog/cdp/execute",
            &json!({ "cmd": command, "params": params }),
        )
    }

    pub fn go(&self, address: &str) {
        self.ask("/url", &json!({ "url": address }));
    }

    /// To another view of the page that is open.
    pub fn turn_to(&self, hash: &str) {
        self.ask(
            "/execute/sync",
            &json!({ "script": "location.hash = arguments[0]", "args": [hash] }),
        );
    }

    pub fn script(&self, script: &str) -> Value {
        self.ask("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Clicks the button of this text inside of `place`; false where none is to be seen.
    pub fn press(&self, place: &str, text: &str) -> bool {
        let script = "const wanted = [...document.querySelectorAll(`${arguments[0]} button`)]
            .find((one) => one.textContent === arguments[1] && !one.hidden && !one.disabled);
            wanted?.click(); return Boolean(wanted)";
        let pressed = self.ask(
            "/execute/sync",
            &json!({ "script": script, "args": [place, text] }),
        );
        pressed == json!(true)
    }

    /// Presses a key, as whoever has no mouse does: its name and its code in the DevTools protocol.
    pub fn press_key(&self, key: &str, code: u32) {
        let text = if key == "Enter" { "\r" } else { "" };
        let event = |kind: &str| json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
        for kind in ["keyDown", "keyUp"] {
            self.devtools("Input.dispatchKeyEvent", &event(kind));
        }
    }

    /// What can be read on the page, in pictures too.
    pub fn text(&self) -> String {
        let text = self.script("return document.body.textContent");
        text.as_str().unwrap_or_default().to_string()
    }

    pub fn width(&self) -> u64 {
        let width = self.script("return document.documentElement.scrollWidth");
        width.as_u64().expect("a number")
    }

    pub fn resize(&self, width: u64, height: u64) {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 }),
        );
    }

    pub fn theme(&self, theme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": theme });
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [feature] }),
        );
    }

    /// Scrolls to the card of a heading, as little as shows it; to the top if there is none.
    pub fn show(&self, heading: &str) {
        self.ask(
            "/execute/sync",
            &json!({ "script": "scrollTo(0, 0); \
                [...document.querySelectorAll('main h2')] \
                    .find((one) => one.textContent.includes(arguments[0])) \
                    ?.closest('.card')?.scrollIntoView({ block: 'nearest' })",
                "args": [heading] }),
        );
    }

    /// As PNG.
    pub fn picture(&self) -> Vec<u8> {
        let taken = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        base64(taken["data"].as_str().expect("a picture"))
    }

    /// What the browser has measured of the page, by the names of the DevTools protocol.
    pub fn metric(&self, name: &str) -> f64 {
        self.devtools("Performance.enable", &json!({}));
        let metrics = self.devtools("Performance.getMetrics", &json!({}));
        let all = metrics["metrics"].as_array().expect("a list");
        let found = all.iter().find(|one| one["name"] == name);
        found
            .and_then(|one| one["value"].as_f64())
            .expect("a number")
    }

    /// What the processes that draw pages hold for themselves, in all.
    pub fn page_bytes(&self) -> u64 {
        let mut total = 0;
        for pid in below(self.driver.id()) {
            if of_process(pid, "cmdline").contains("--type=renderer") {
                let memory = of_process(pid, "smaps_rollup");
                let private = memory.lines().filter(|line| line.starts_with("Private_"));
                let kib =
                    private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
                total += kib.sum::<u64>() * 1024;
            }
        }
        assert!(total > 0, "no process of the browser draws pages");
        total
    }

    /// What the browser complained about since it was asked last.
    pub fn errors(&self) -> Vec<String> {
        let log = self.ask("/se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().expect("a list").iter();
        lines
            .filter(|line| line["level"] == "SEVERE" || line["level"] == "WARNING")
            .map(|line| line["message"].to_string())
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let mut left = Vec::new();
        if std::thread::panicking() {
            left = below(self.driver.id());
        } else if !self.session.is_empty() {
            self.call("DELETE", &self.session, &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        // A browser does not end with its driver.
        for pid in left {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}

fn of_process(pid: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// All processes below one.
fn below(pid: u32) -> Vec<u32> {
    let mut all = children(pid);
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let more = children(*pid);
        all.extend(more);
        next += 1;
    }
    all
}

/// The processes that a process started, whichever of its threads did.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let lists = threads.flatten().flatten().map(|thread| {
        let path = thread.path().join("children");
        std::fs::read_to_string(path).unwrap_or_default()
    });
    let of_list = |list: String| -> Vec<u32> {
        list.split_whitespace()
            .filter_map(|child| child.parse().ok())
            .collect()
    };
    lists.flat_map(of_list).collect()
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let digits: Vec<u32> = digits.map(|digit| digit as u32).collect();
    let group = |group: &[u32]| {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        let bytes = [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8];
        bytes[..group.len() - 1].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
