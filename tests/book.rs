//! The book in `docs`: pages that are generated are what the program says, links lead somewhere,
//! SUMMARY.md has every page, and what the guide and the README show as commands are commands of
//! the program. `UPDATE_BOOK=1` writes the generated pages anew.

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = all_files_below(directory);
    files.retain(|path| path.extension().is_some_and(|of| of == extension));
    files.sort();
    files
}

fn all_files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .expect("it is there")
        .map(|entry| entry.expect("readable").path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => all_files_below(&path),
            false => vec![path],
        })
        .collect()
}

/// A page that is written from what the program or its sources say.
fn generated(path: &str, text: &str) {
    let path = root().join("docs").join(path);
    if std::env::var_os("UPDATE_BOOK").is_some() {
        fs::write(&path, text).expect("writable");
    }
    let is_current = fs::read_to_string(&path).is_ok_and(|before| before == text);
    assert!(
        is_current,
        "{}: run UPDATE_BOOK=1 cargo test --test book",
        path.display()
    );
}

#[test]
fn the_command_line_is_as_the_program_says() {
    let mut text = String::from(
        "# Command line\n\nWhat `--help` says of each command. `nodectl COMMAND -h` is shorter; `nodectl man DIR` writes it \
         as manual\npages.\n",
    );
    let mut top = nodectl::cli::command().term_width(96);
    top.build();
    let mut commands = vec![("nodectl".to_string(), top)];
    while let Some((name, mut command)) = commands.pop() {
        let help = command.render_long_help().to_string();
        let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
        let shown = command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set());
        let mut shown: Vec<_> = shown
            .map(|sub| (format!("{name} {}", sub.get_name()), sub.clone()))
            .collect();
        shown.reverse();
        commands.append(&mut shown);
    }
    generated("reference/command-line.md", &text);
}

#[test]
fn the_api_is_as_its_description_says() {
    let api: Value =
        serde_json::from_str(&read(&root().join("src/http/openapi.json"))).expect("JSON");
    let mut text = String::from(
        "# The local API\n\nHTTP and JSON on the Unix socket `api.sock` in the data directory. A running node describes it at\n\
         `/v1/openapi.json`, with the shape of everything that is sent:\n\n\
         ```\ncurl --unix-socket ~/.local/share/nodectl/api.sock http://nodectl/v1/openapi.json\n```\n\n\
         | method | path | what it does |\n|---|---|---|\n",
    );
    for (path, methods) in api["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let summary = operation["summary"]
                .as_str()
                .expect("each has one")
                .replace('\n', " ")
                .replace('|', "\\|");
            let _ = writeln!(text, "| {} | `{path}` | {summary} |", method.to_uppercase());
        }
    }
    generated("reference/api.md", &text);
}

/// Where the program says in words what is wrong, or what to do about it.
const SAYS: [&str; 12] = [
    "#[error(",
    "Fault::new(",
    ".hint(",
    "let message =",
    "let hint =",
    "misfit(",
    "bail!(",
    "anyhow!(",
    ".context(",
    "ApiError::bad_request(",
    "ApiError::not_found(",
    "ApiError::forbidden(",
];

#[test]
fn the_messages_are_as_the_sources_have_them() {
    let mut text = String::from(
        "# Messages\n\nWhat the program says when something is wrong, by the part that says it; `{…}` stands for what differs.\n",
    );
    let mut parts = BTreeMap::<String, BTreeSet<String>>::new();
    let sources = root().join("src");
    for path in files_below(&sources, "rs")
        .iter()
        .filter(|path| !path.to_string_lossy().contains("tests"))
    {
        let inside = path.strip_prefix(&sources).expect("it was found below");
        let part = inside
            .iter()
            .next()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned();
        parts.entry(part).or_default().extend(messages(&read(path)));
    }
    for (part, messages) in parts.iter().filter(|(_, messages)| !messages.is_empty()) {
        let _ = write!(text, "\n## {part}\n\n```text\n");
        for message in messages {
            let _ = writeln!(text, "{}", message.replace('\n', "\n    "));
        }
        text += "```\n";
    }
    generated("reference/messages.md", &text);
}

/// The texts that follow the marks of `SAYS` in their parentheses.
fn messages(source: &str) -> Vec<String> {
    let code = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let found = SAYS.iter().flat_map(|mark| {
        code.match_indices(mark)
            .map(|(at, mark)| &code[at + mark.len()..])
    });
    found
        .filter_map(first_text)
        .filter(|text| text.contains(' '))
        .collect()
}

/// The first string before the parenthesis that is open closes.
fn first_text(code: &str) -> Option<String> {
    let mut chars = code.chars();
    let mut depth = 1;
    loop {
        match chars.next()? {
            '(' => depth += 1,
            ')' if depth == 1 => return None,
            ')' => depth -= 1,
            '"' => break,
            _ => {}
        }
    }
    let mut text = String::new();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => match chars.next()? {
                'n' => text.push('\n'),
                '\n' => chars = chars.as_str().trim_start().chars(),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
}

/// The crates in the order of ARCHITECTURE.md's table.
#[test]
fn the_crates_are_as_they_say_themselves() {
    let mut text = String::from(
        "# Crates\n\nWhat each crate's `lib.rs` opens with: what it owns, what it never does, and where to start reading.\n\n\
         ![the layers: each uses only what is below it](../pictures/layers.svg)\n",
    );
    let table = read(&root().join("ARCHITECTURE.md"));
    let names = table.lines().filter_map(|line| {
        line.strip_prefix("| `")?
            .split_once("/` |")
            .map(|(name, _)| name)
    });
    let picture = read(&root().join("docs/pictures/layers.svg"));
    let is_drawn = |name: &str| {
        let mut words = picture.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words.any(|word| word == name)
    };
    for name in names {
        assert!(is_drawn(name), "layers.svg does not show {name}");
        let source = read(&root().join("src").join(name).join("lib.rs"));
        let opening = source.lines().map_while(|line| line.strip_prefix("//!"));
        let opening: Vec<&str> = opening
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .collect();
        let _ = write!(text, "\n## {name}\n\n{}\n", opening.join("\n").trim_end());
    }
    generated("internals/crates.md", &text);
}

#[test]
fn every_page_is_in_the_summary() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let listed: Vec<PathBuf> = links(&read(&summary))
        .into_iter()
        .map(|link| docs.join(link))
        .collect();
    let once: BTreeSet<&PathBuf> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    let pages = files_below(&docs, "md");
    let missing: Vec<_> = pages
        .iter()
        .filter(|page| **page != summary && !once.contains(page))
        .collect();
    assert!(missing.is_empty(), "not in SUMMARY.md: {missing:?}");
}

#[test]
fn links_lead_somewhere() {
    let tops = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "tests/README.md",
        "benches/README.md",
    ];
    let pages = files_below(&root().join("docs"), "md")
        .into_iter()
        .chain(tops.map(|top| root().join(top)));
    let mut broken = Vec::new();
    for page in pages {
        for link in links(&read(&page)) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() {
                page.clone()
            } else {
                page.parent().expect("a file has one").join(path)
            };
            // What is outside of the book is not in what mdBook makes of it.
            let docs = root().join("docs");
            let stays = |target: &Path| !page.starts_with(&docs) || target.starts_with(&docs);
            let is_there = target.canonicalize().is_ok_and(|target| stays(&target))
                && (anchor.is_empty() || anchors(&read(&target)).contains(anchor));
            if !is_there {
                broken.push(format!(
                    "{}: {link}",
                    page.strip_prefix(root()).unwrap_or(&page).display()
                ));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Files, folders and names of the sources that these pages send to, and that a name which is said
/// to be in a file is in that file. `NAME`, `KIND` and `Your…` stand for what is added.
#[test]
fn what_is_to_be_touched_is_there() {
    let mut pages = files_below(&root().join("docs/how-to-add"), "md");
    pages.extend(["ARCHITECTURE.md", "CONTRIBUTING.md"].map(|top| root().join(top)));
    let mut missing = Vec::new();
    let mut checked = 0;
    for page in pages {
        let text = read(&page);
        let here = page.strip_prefix(root()).unwrap_or(&page).display();
        for span in spans(&text).filter(|span| !stands_for_another(span)) {
            checked += 1;
            let is_there = match is_path(span) {
                true => !SOURCES.at(span).is_empty(),
                false => identifiers(span).all(|name| !is_own(name) || SOURCES.knows(name)),
            };
            if !is_there {
                missing.push(format!("{here}: `{span}`"));
            }
        }
        for (name, path) in placed(&text) {
            checked += 1;
            let found = SOURCES.at(path);
            missing.extend(
                identifiers(name)
                    .filter(|word| word.len() > 2)
                    .filter(|word| !found.iter().any(|file| file.has(word)))
                    .map(|word| format!("{here}: `{word}` is not in `{path}`")),
            );
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(checked > 500, "only {checked} names were found");
}

/// Other pages name files of sources, too.
#[test]
fn files_that_pages_name_are_there() {
    let mut pages = files_below(&root().join("docs/internals"), "md");
    pages.push(root().join("tests/README.md"));
    let endings = [".rs", ".py", ".wgsl", ".js"];
    let mut missing = Vec::new();
    for page in pages {
        let text = read(&page);
        let named = spans(&text)
            .filter(|span| is_path(span) && endings.iter().any(|ending| span.ends_with(ending)));
        let here = page.strip_prefix(root()).unwrap_or(&page).display();
        let absent = named.filter(|span| SOURCES.at(span).is_empty());
        missing.extend(absent.map(|span| format!("{here}: `{span}`")));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn names_are_found_with_the_file_that_they_are_said_to_be_in() {
    let text = "A field of `Api` (`src/http/state.rs`), or `a`,\n`b` in `x.rs`; `y.rs`, `c`: see `z.rs: d`.";
    let found: Vec<_> = placed(text);
    let expected = [
        ("Api", "src/http/state.rs"),
        ("b", "x.rs"),
        ("c", "y.rs"),
        ("d", "z.rs"),
    ];
    assert_eq!(found, expected);
}

/// A file with all the names in it.
struct SourceFile {
    path: PathBuf,
    names: BTreeSet<String>,
}

impl SourceFile {
    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}

struct Sources(Vec<SourceFile>);

/// Read once, whichever test comes first.
static SOURCES: LazyLock<Sources> = LazyLock::new(Sources::read);

impl Sources {
    fn read() -> Self {
        let tops = [
            "src",
            "tests",
            "config",
            "shaders",
            "packaging",
            "benches",
            "docs",
            ".ci",
        ];
        let files = tops
            .iter()
            .flat_map(|top| all_files_below(&root().join(top)))
            .chain(["Cargo.toml", "CHANGELOG.md", "ARCHITECTURE.md"].map(|top| root().join(top)));
        // Pictures and arrays have no names.
        let names = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
        let read = |path: PathBuf| SourceFile {
            names: identifiers(&names(&path)).map(str::to_string).collect(),
            path,
        };
        Self(files.map(read).collect())
    }

    /// Whether code has the name: what pages say of it is no proof.
    fn knows(&self, name: &str) -> bool {
        let is_page = |path: &Path| path.extension().is_some_and(|of| of == "md");
        self.0
            .iter()
            .any(|file| !is_page(&file.path) && file.has(name))
    }

    /// The file of this path, all of this folder, or all whose paths end so.
    fn at(&self, path: &str) -> Vec<&SourceFile> {
        let whole = root().join(path);
        let is_meant =
            |file: &&SourceFile| file.path.starts_with(&whole) || file.path.ends_with(path);
        self.0.iter().filter(is_meant).collect()
    }
}

/// Names that a text says to be in a file: "`name` (`path`)", "`name` of `path`", "`name` in
/// `path`", "`path`, `name`", "`path: name`".
fn placed(text: &str) -> Vec<(&str, &str)> {
    let parts = pieces(text);
    let mut found = Vec::new();
    for (at, span) in parts.iter().enumerate().skip(1).step_by(2) {
        if let Some((path, names)) = span.split_once(": ").filter(|(path, _)| is_path(path)) {
            found.push((names, path));
        }
        let Some(next) = parts.get(at + 2) else {
            continue;
        };
        let between = parts[at + 1]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let pair = match (between.as_str(), is_path(span), is_path(next)) {
            ("(" | "of" | "in", false, true) => (*span, *next),
            ("," | ", list", true, false) => (*next, *span),
            _ => continue,
        };
        // A request is no name.
        if !pair.0.contains(" /") && !stands_for_another(pair.0) && !stands_for_another(pair.1) {
            found.push(pair);
        }
    }
    found
}

/// A text without its blocks, cut at each backquote: every second piece is code.
fn pieces(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    // An empty piece of code between what is before a block and what is after it.
    outside
        .flat_map(|prose| prose.split('`').chain([""]))
        .collect()
}

fn stands_for_another(span: &str) -> bool {
    ["NAME", "KIND", "Your", "NODECTL_"]
        .iter()
        .any(|part| span.contains(part))
}

fn is_path(span: &str) -> bool {
    let endings = [
        ".rs", ".py", ".toml", ".wgsl", ".sh", ".js", ".json", ".md", ".txt",
    ];
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/_.-".contains(char);
    let is_named = endings.iter().any(|ending| span.ends_with(ending));
    let tops = ["src/", "tests/", "docs/", "config/", "packaging/"];
    let is_below = tops.iter().any(|top| span.starts_with(top));
    (is_named || is_below) && span.chars().all(is_plain)
}

/// Whether a name is one that only this project has: of several words.
fn is_own(name: &str) -> bool {
    let is_hump = |pair: &[u8]| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
    name.len() > 3 && (name.contains('_') || name.as_bytes().windows(2).any(is_hump))
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !(char.is_alphanumeric() || char == '_'))
}

#[test]
fn commands_of_the_guide_are_the_programs() {
    let pages = files_below(&root().join("docs/guide"), "md");
    let mut wrong = Vec::new();
    let mut checked = 0;
    for page in pages.into_iter().chain([
        root().join("README.md"),
        root().join("docs/introduction.md"),
    ]) {
        let text = read(&page);
        let here = page.strip_prefix(root()).unwrap_or(&page).display();
        for line in code_lines(&text).filter(|line| line.starts_with("nodectl ")) {
            checked += 1;
            if let Err(error) = nodectl::cli::command().try_get_matches_from(words(line)) {
                wrong.push(format!("{here}: {line}\n{error}"));
            }
        }
        for name in spans(&text).filter_map(|span| span.strip_prefix("nodectl ")) {
            let name = name.split_whitespace().next().unwrap_or_default();
            if name.starts_with(|first: char| first.is_ascii_lowercase())
                && nodectl::cli::command().find_subcommand(name).is_none()
            {
                wrong.push(format!("{here}: `nodectl {name}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 20, "only {checked} commands were found");
}

/// What `[…](…)` leads to, outside of code.
fn links(text: &str) -> Vec<String> {
    let prose: String = prose_lines(text)
        .map(|line| format!("{}\n", without_spans(line)))
        .collect();
    let targets = prose.split("](").skip(1);
    targets
        .filter_map(|rest| {
            Some(
                rest.split_once(')')?
                    .0
                    .split_whitespace()
                    .next()?
                    .to_string(),
            )
        })
        .collect()
}

/// The headings' anchors, as mdBook and GitHub make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose_lines(text)
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#'));
    headings.map(anchor).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .chars()
        .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn lines(text: &str) -> impl Iterator<Item = (bool, &str)> {
    text.lines().scan(false, |inside, line| {
        let is_fence = line.trim_start().starts_with("```");
        *inside ^= is_fence;
        Some((*inside || is_fence, line))
    })
}

fn prose_lines(text: &str) -> impl Iterator<Item = &str> {
    lines(text)
        .filter(|(is_code, _)| !is_code)
        .map(|(_, line)| line)
}

/// What stands in blocks, without a shell's prompt.
fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    let code = lines(text)
        .filter(|(is_code, _)| *is_code)
        .map(|(_, line)| line.trim());
    code.map(|line| line.strip_prefix("$ ").unwrap_or(line))
}

/// What stands between backquotes, outside of blocks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    prose_lines(text).flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn without_spans(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// A command's words as a shell would have them: without quotes, comments, redirections.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (String::new(), None);
    for letter in line.chars().chain([' ']) {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, '#' | '<' | '|' | '>' | '&') if word.is_empty() => break,
            (None, ' ') if !word.is_empty() => words.push(std::mem::take(&mut word)),
            (None, ' ') => {}
            _ => word.push(letter),
        }
    }
    words
}
