//! Finds paths, macros and modules in Rust text: a lexer for what matters here, no parser.

/// A file of Rust code.
pub struct ScannedFile {
    /// Relative to the repository.
    pub path: String,
    /// The crate, or the root package's module; empty for its `lib.rs` and `main.rs`.
    pub module: String,
    /// Whether the whole file is a test.
    pub is_test: bool,
    pub text: String,
    /// The text with comments, strings and characters blanked, line by line as before.
    pub code: String,
}

/// A path such as `std::fs::read`, groups expanded.
pub struct CodePath {
    pub segments: Vec<String>,
    pub line: usize,
}

impl ScannedFile {
    pub fn new(path: String, text: String) -> Self {
        let inside = path
            .strip_prefix("src/")
            .unwrap_or(&path)
            .trim_end_matches(".rs")
            .to_string();
        let parts: Vec<&str> = inside.split('/').filter(|part| *part != "mod").collect();
        let module = if matches!(parts[..], ["lib"] | ["main"]) {
            ""
        } else {
            parts[0]
        };
        let is_test = parts
            .iter()
            .any(|part| *part == "tests" || part.ends_with("_tests"));
        let code = blank(&text);
        Self {
            module: module.to_string(),
            is_test,
            code,
            path,
            text,
        }
    }

    /// The code up to the test module written in it, which by convention ends a file.
    pub fn code_without_tests(&self) -> &str {
        let mark = "#[cfg(test)]";
        let begins_module = |at: &usize| {
            let next = self.code[at + mark.len()..].trim_start();
            next.starts_with("mod ")
                && next
                    .find(['{', ';'])
                    .is_some_and(|end| next[end..].starts_with('{'))
        };
        let found = self
            .code
            .match_indices(mark)
            .map(|(at, _)| at)
            .find(|at| begins_module(at));
        &self.code[..found.unwrap_or(self.code.len())]
    }
}

/// Every path of the code, bare names included.
pub fn paths(code: &str) -> Vec<CodePath> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let (text, line) = (tokens[at].0, tokens[at].1);
        if !is_name(text) {
            at += 1;
            continue;
        }
        let mut all = Vec::new();
        at = path_at(&tokens, at, &mut Vec::new(), &mut all);
        found.extend(all.into_iter().map(|segments| CodePath { segments, line }));
    }
    found
}

/// The names of types and traits, with their lines; not those of associated types.
pub fn types(code: &str) -> Vec<(&str, usize)> {
    let named = |(index, line)| Some((type_named(line)?, index + 1));
    code.lines().enumerate().filter_map(named).collect()
}

/// What a line begins to define.
fn type_named(line: &str) -> Option<&str> {
    let mut words = tokens(line).into_iter().map(|(word, _)| word).peekable();
    if words.next_if_eq(&"pub").is_some() && words.peek() == Some(&"(") {
        words.by_ref().find(|word| *word == ")");
    }
    let is_type = match words.find(|word| *word != "unsafe")? {
        "struct" | "enum" | "union" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    words.next().filter(|name| is_type && is_name(name))
}

/// Names followed by `!`, with their lines.
pub fn macros_called(code: &str) -> Vec<(String, usize)> {
    let tokens = tokens(code);
    let calls = tokens
        .windows(2)
        .filter(|pair| pair[1].0 == "!" && is_name(pair[0].0));
    calls
        .map(|pair| (pair[0].0.to_string(), pair[0].1))
        .collect()
}

/// Reads the path that begins at `at`, one result for each leaf of its groups; returns the position
/// after it.
fn path_at(
    tokens: &[(&str, usize)],
    at: usize,
    prefix: &mut Vec<String>,
    out: &mut Vec<Vec<String>>,
) -> usize {
    prefix.push(tokens[at].0.to_string());
    let token = |index: usize| tokens.get(index).map_or("", |token| token.0);
    let next = if token(at + 1) != "::" {
        out.push(prefix.clone());
        at + 1
    } else if token(at + 2) == "{" {
        group_at(tokens, at + 3, prefix, out)
    } else if is_name(token(at + 2)) {
        path_at(tokens, at + 2, prefix, out)
    } else {
        out.push(prefix.clone());
        at + 2
    };
    prefix.pop();
    next
}

/// Reads `a, b::c, d::{e}}` up to its closing brace.
fn group_at(
    tokens: &[(&str, usize)],
    mut at: usize,
    prefix: &mut Vec<String>,
    out: &mut Vec<Vec<String>>,
) -> usize {
    while at < tokens.len() {
        match tokens[at].0 {
            "}" => return at + 1,
            "as" => at += 2,
            text if is_name(text) => at = path_at(tokens, at, prefix, out),
            _ => at += 1,
        }
    }
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::` and single other characters, with their lines.
fn tokens(code: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = match first {
                ':' if rest.starts_with("::") => 2,
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                c => c.len_utf8(),
            };
            found.push((&rest[..length], index + 1));
            rest = rest[length..].trim_start();
        }
    }
    found
}

/// Replaces comments, strings and characters by blanks and keeps the lines.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = opaque_length(rest);
        if length == 0 {
            out.push(first);
            // An `r` that ends a name begins no raw string.
            let word = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                .unwrap_or(rest.len());
            let taken = word.max(first.len_utf8());
            out.push_str(&rest[first.len_utf8()..taken]);
            rest = &rest[taken..];
        } else {
            out.push(' ');
            out.extend(rest[..length].chars().filter(|c| *c == '\n'));
            rest = &rest[length..];
        }
    }
    out
}

/// How long the comment, string or character at the start of `rest` is; 0 if it is code.
fn opaque_length(rest: &str) -> usize {
    let until = |from: usize, end: &str| {
        rest[from..]
            .find(end)
            .map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until(2, "*/");
    }
    let unprefixed = rest.trim_start_matches(['b', 'c']);
    if let Some(raw) = unprefixed.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let from = rest.len() - raw.len() + hashes + 1;
            return until(from, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    match unprefixed.chars().next() {
        Some('"') => quoted_length(rest, rest.len() - unprefixed.len() + 1, '"'),
        Some('\'') if is_character(&unprefixed[1..]) => {
            quoted_length(rest, rest.len() - unprefixed.len() + 1, '\'')
        }
        _ => 0,
    }
}

/// `'x'` or `'\n'`, not the lifetime `'x`.
fn is_character(after_quote: &str) -> bool {
    let mut chars = after_quote.chars();
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

fn quoted_length(rest: &str, from: usize, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest[from..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return from + at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}
