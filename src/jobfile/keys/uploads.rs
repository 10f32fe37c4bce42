//! Which files travel with a job: `source`, `data`, `files`, and what `command` names. Nothing
//! outside of the job file's directory does, by `..` or by a link. Reads directories and metadata,
//! never contents.

use crate::{Context, Fault, Fields, Item, Upload, UploadSource};
use globset::GlobMatcher;
use ignore::{
    DirEntry, WalkBuilder,
    gitignore::{Gitignore, GitignoreBuilder},
};
use nodectl_formats::files;
use nodectl_types::{
    glob::{self, BadGlob},
    manifest::{PARAMS_FILE, RESULT_FILE, safe_path},
    text::is_unsafe,
};
use std::{
    collections::BTreeMap,
    ops::Range,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// The most files of one job.
const MAX_FILES: usize = 1_000_000;
const IGNORE_FILES: [&str; 3] = [".gitignore", ".ignore", ".nodectlignore"];
const MAX_IGNORE_BYTES: u64 = 4 << 20;

/// What a directory or pattern leaves out. A file that is named is always taken.
#[derive(Clone, Copy, PartialEq)]
enum Skip {
    /// `source`: hidden files and what `.gitignore`, `.ignore` and `.nodectlignore` name.
    Ignored,
    /// `files`: hidden files.
    Hidden,
    /// `data`: some formats need their hidden files.
    Nothing,
}

/// The files of `files = …`, one task each; None without the key.
pub fn task_files(fields: &Fields<'_, '_>) -> Result<Option<Vec<Upload>>, Fault> {
    let Some(key) = fields.get("files") else {
        return Ok(None);
    };
    let mut found = BTreeMap::new();
    for item in fields.one_or_more("files")? {
        not_empty(&item, "files")?;
        collect(fields.context, &item, Skip::Hidden, &mut found)?;
    }
    if found.is_empty() {
        return Err(Fault::new(
            key.span(),
            "`files` names no file: there would be no task",
        ));
    }
    Ok(Some(found.into_values().collect()))
}

/// Everything that travels with the job, sorted by path.
pub fn plan(
    fields: &Fields<'_, '_>,
    files: Option<Vec<Upload>>,
    words: &[Item<String>],
    has_params: bool,
) -> Result<Vec<Upload>, Fault> {
    let mut found: BTreeMap<String, Upload> = files
        .into_iter()
        .flatten()
        .map(|upload| (upload.path.clone(), upload))
        .collect();
    let excluded = excluded(fields)?;
    for (key, skip) in [("source", Skip::Ignored), ("data", Skip::Nothing)] {
        for item in fields.one_or_more(key)? {
            not_empty(&item, key)?;
            let mut taken = BTreeMap::new();
            collect(fields.context, &item, skip, &mut taken)?;
            taken.retain(|path, _| {
                !excluded
                    .matched_path_or_any_parents(path, false)
                    .is_ignore()
            });
            leave_out_own(&item, &mut taken, has_params)?;
            found.append(&mut taken);
        }
    }
    for word in words {
        let relative = tidy(&word.value);
        if safe_path(relative) && fields.context.base.join(relative).is_file() {
            add(fields.context, relative, word.span.clone(), &mut found)?;
        }
    }
    Ok(found.into_values().collect())
}

/// Everything below the job file is `.`, not nothing.
fn not_empty(item: &Item<String>, key: &str) -> Result<(), Fault> {
    if !item.value.is_empty() {
        return Ok(());
    }
    let fault = Fault::new(item.span.clone(), format!("`{key}` names no file"));
    Err(fault.hint(format!(
        "for all that is beside the job file: {key} = \".\""
    )))
}

/// Files that every task makes for itself, at the top of its directory. An earlier run by hand may
/// have left them beside the job file: in a directory or a pattern they are passed over, and by
/// name they are refused.
fn leave_out_own(
    item: &Item<String>,
    taken: &mut BTreeMap<String, Upload>,
    has_params: bool,
) -> Result<(), Fault> {
    let own = [Some(RESULT_FILE), has_params.then_some(PARAMS_FILE)];
    for name in own.into_iter().flatten() {
        if taken.remove(name).is_some() && tidy(&item.value) == name {
            let fault = Fault::new(
                item.span.clone(),
                format!(
                    "every task has a `{name}` of its own, so no such file can be sent with the job"
                ),
            );
            return Err(fault.hint("rename the file, or put it into a directory"));
        }
    }
    Ok(())
}

/// What `exclude` leaves out of `source` and `data`: patterns as in `.gitignore`, relative to the
/// job file's directory.
fn excluded(fields: &Fields<'_, '_>) -> Result<Gitignore, Fault> {
    let mut builder = GitignoreBuilder::new("");
    builder.allow_unclosed_class(false);
    for item in fields.one_or_more("exclude")? {
        let bad = |why: String| {
            Fault::new(
                item.span.clone(),
                format!("`{}` is not a pattern: {why}", item.value),
            )
        };
        if item.value.contains(is_unsafe) {
            return Err(bad("it has a character that no name should have".into()));
        }
        glob::check(&item.value).map_err(|error| bad(error.to_string()))?;
        builder
            .add_line(None, &item.value)
            .map_err(|error| bad(error.to_string()))?;
    }
    builder
        .build()
        .map_err(|error| Fault::new(fields.span.clone(), format!("`exclude`: {error}")))
}

/// The one file that `item` names, without a pattern.
pub fn file(context: &Context<'_>, item: &Item<String>) -> Result<Upload, Fault> {
    let name = tidy(&item.value);
    if !safe_path(name) {
        let fault = Fault::new(
            item.span.clone(),
            format!("`{}` leaves the directory of the job file", item.value),
        );
        return Err(fault
            .hint("only files below it travel with the job: move the job file up, or copy them"));
    }
    if !context.base.join(name).exists() {
        let fault = Fault::new(
            item.span.clone(),
            format!("`{}` does not exist", item.value),
        );
        return Err(fault.hint(format!(
            "it was looked for in `{}`, where the job file is",
            context.base.display()
        )));
    }
    let mut found = BTreeMap::new();
    add(context, name, item.span.clone(), &mut found)?;
    Ok(found.into_values().next().expect("just added"))
}

/// The files below a directory, or that a pattern matches, sorted by path; without hidden ones.
pub fn folder(context: &Context<'_>, item: &Item<String>) -> Result<Vec<Upload>, Fault> {
    let mut found = BTreeMap::new();
    collect(context, item, Skip::Hidden, &mut found)?;
    Ok(found.into_values().collect())
}

/// The files below a directory that are its author's: not hidden ones, nor those that git ignores.
pub fn sources(context: &Context<'_>, item: &Item<String>) -> Result<Vec<Upload>, Fault> {
    let mut found = BTreeMap::new();
    collect(context, item, Skip::Ignored, &mut found)?;
    Ok(found.into_values().collect())
}

/// Without a leading `./` and a trailing `/`.
pub fn tidy(path: &str) -> &str {
    let mut path = path;
    while let Some(rest) = path.strip_prefix("./") {
        path = rest.trim_start_matches('/');
    }
    path.trim_end_matches('/')
}

/// Adds what one path or pattern names; naming nothing is an error.
fn collect(
    context: &Context<'_>,
    item: &Item<String>,
    skip: Skip,
    found: &mut BTreeMap<String, Upload>,
) -> Result<(), Fault> {
    let name = tidy(&item.value);
    let span = || item.span.clone();
    if name != "." && !name.is_empty() && !safe_path(name) {
        let fault = Fault::new(
            span(),
            format!("`{}` leaves the directory of the job file", item.value),
        );
        return Err(fault
            .hint("only files below it travel with the job: move the job file up, or copy them"));
    }
    let path = context.base.join(name);
    // What is there, and no directory, says for itself if it is no file.
    if path.exists() && !path.is_dir() {
        return add(context, name, span(), found);
    }
    let (root, pattern) = if path.is_dir() {
        (name, None)
    } else {
        pattern(context, item, name)?
    };
    let mut matched = false;
    walk(context, root, skip, span(), |relative| {
        if pattern
            .as_ref()
            .is_none_or(|pattern| matches(pattern, relative, skip))
        {
            matched = true;
            add(context, relative, span(), found)?;
        }
        Ok(())
    })?;
    if matched {
        return Ok(());
    }
    let fault = Fault::new(
        span(),
        format!(
            "no file matches `{}` in `{}`",
            item.value,
            context.base.display()
        ),
    );
    Err(match skip {
        Skip::Ignored => {
            fault.hint("hidden and ignored files (.gitignore, .nodectlignore) are left out of `source`; `data` takes them")
        }
        Skip::Hidden | Skip::Nothing => fault,
    })
}

/// Whether the pattern names the file; for uploads also a directory above it.
fn matches(pattern: &GlobMatcher, relative: &str, skip: Skip) -> bool {
    pattern.is_match(relative)
        || (skip != Skip::Hidden
            && Path::new(relative)
                .ancestors()
                .skip(1)
                .any(|above| pattern.is_match(above)))
}

/// A pattern, and the directory below which all that it can match lies.
fn pattern<'n>(
    context: &Context<'_>,
    item: &Item<String>,
    name: &'n str,
) -> Result<(&'n str, Option<GlobMatcher>), Fault> {
    let Some(special) = name.find(['*', '?', '[', '{']) else {
        let fault = Fault::new(
            item.span.clone(),
            format!("`{}` does not exist", item.value),
        );
        return Err(fault.hint(format!(
            "it was looked for in `{}`, where the job file is",
            context.base.display()
        )));
    };
    let matcher = files::matcher(name).map_err(|why| {
        Fault::new(
            item.span.clone(),
            format!("`{}` is not a pattern: {why}", item.value),
        )
    })?;
    let root = name[..special]
        .rfind('/')
        .map_or("", |slash| &name[..slash]);
    Ok((root, Some(matcher)))
}

/// Gives every file below `root`, relative to the job file's directory. Walks from that directory,
/// so that ignore files above `root` count, but none above it.
fn walk(
    context: &Context<'_>,
    root: &str,
    skip: Skip,
    span: Range<usize>,
    mut each: impl FnMut(&str) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let base = context.base.clone();
    let root = if root == "." {
        base.clone()
    } else {
        base.join(root)
    };
    let ignored = skip == Skip::Ignored;
    let mut builder = WalkBuilder::new(&base);
    builder
        .standard_filters(false)
        .follow_links(true)
        .hidden(skip != Skip::Nothing);
    builder
        .ignore(ignored)
        .git_ignore(ignored)
        .require_git(false);
    if ignored {
        builder.add_custom_ignore_filename(".nodectlignore");
    }
    let below = root.clone();
    let unfit: Arc<Mutex<Option<String>>> = Arc::default();
    let found = unfit.clone();
    // Ignore files are compiled when their directory is entered, so they are looked at before.
    let may_enter =
        move |directory: &Path| match ignored.then(|| unfit_ignore_file(directory)).flatten() {
            None => true,
            problem => {
                *found.lock().unwrap_or_else(PoisonError::into_inner) = problem;
                false
            }
        };
    let check = |unfit: &Mutex<Option<String>>| match unfit
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
    {
        None => Ok(()),
        Some(problem) => Err(Fault::new(span.clone(), problem)),
    };
    may_enter(&base);
    check(&unfit)?;
    builder.filter_entry(move |entry| {
        (entry.path().starts_with(&below) || below.starts_with(entry.path()))
            && (entry.file_type().is_some_and(|kind| kind.is_file()) || may_enter(entry.path()))
    });
    for entry in builder.build() {
        let entry = match entry {
            Ok(entry) => entry,
            // A dangling link beside `root`, or a hidden one (editors' lock files), is not ours to
            // follow.
            Err(error) if !concerns(&error, &root, skip) => continue,
            Err(error) => {
                return Err(Fault::new(
                    span.clone(),
                    format!("cannot look for files: {error}"),
                ));
            }
        };
        if entry.file_type().is_some_and(|kind| kind.is_dir()) {
            continue;
        }
        each(&relative(&entry, &context.base, &span)?)?;
    }
    check(&unfit)
}

/// What is wrong with the patterns of a directory's ignore files, if they cannot be compiled.
fn unfit_ignore_file(directory: &Path) -> Option<String> {
    IGNORE_FILES.iter().find_map(|name| {
        let path = directory.join(name);
        let text = match files::text(&path, MAX_IGNORE_BYTES, "an ignore file") {
            Ok(text) => text,
            // One that is not there, or cannot be read, ignores nothing.
            Err(_) if !path.is_file() => return None,
            Err(why) => return Some(format!("{}: {why}", path.display())),
        };
        // git knows neither braces nor errors: what is no pattern to it ignores nothing.
        let is_unbounded = |error: &BadGlob| {
            matches!(
                error,
                BadGlob::TooLong(_) | BadGlob::TooDeep | BadGlob::TooMany
            )
        };
        text.lines().enumerate().find_map(|(index, line)| {
            let error = glob::check(line).err().filter(is_unbounded)?;
            Some(format!("{} line {}: {error}", path.display(), index + 1))
        })
    })
}

fn concerns(error: &ignore::Error, root: &Path, skip: Skip) -> bool {
    match error {
        ignore::Error::WithPath { path, .. } => {
            let is_hidden = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            path.starts_with(root) && (skip == Skip::Nothing || !is_hidden)
        }
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => {
            concerns(err, root, skip)
        }
        _ => true,
    }
}

fn relative(entry: &DirEntry, base: &Path, span: &Range<usize>) -> Result<String, Fault> {
    let below = entry.path().strip_prefix(base).unwrap_or(entry.path());
    let text = below.to_str().filter(|text| safe_path(text));
    text.map(str::to_string).ok_or_else(|| {
        let fault = Fault::new(
            span.clone(),
            format!("{:?} has a name that cannot be sent to nodes", entry.path()),
        );
        fault.hint(
            "names are UTF-8, without backslashes, and at most 1,024 bytes with their directories",
        )
    })
}

/// Adds one file after checking that it is one, and that it lies where it seems to.
fn add(
    context: &Context<'_>,
    relative: &str,
    span: Range<usize>,
    found: &mut BTreeMap<String, Upload>,
) -> Result<(), Fault> {
    let source: PathBuf = context.base.join(relative);
    let unreadable = |error: std::io::Error| {
        Fault::new(span.clone(), format!("cannot read `{relative}`: {error}"))
    };
    let real = source.canonicalize().map_err(unreadable)?;
    if !real.starts_with(context.base.canonicalize().map_err(unreadable)?) {
        let message = format!(
            "`{relative}` is a link that leaves the directory of the job file, to `{}`",
            real.display()
        );
        return Err(Fault::new(span, message).hint("replace the link by a copy"));
    }
    let metadata = source.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Fault::new(
            span,
            format!("`{relative}` is neither a file nor a directory"),
        ));
    }
    if found.len() == MAX_FILES {
        return Err(Fault::new(span, format!("more than {MAX_FILES} files"))
            .hint("pack them into archives"));
    }
    let executable = metadata.permissions().mode() & 0o111 != 0;
    let upload = Upload {
        path: relative.to_string(),
        source: UploadSource::File(source),
        executable,
    };
    found.insert(relative.to_string(), upload);
    Ok(())
}
