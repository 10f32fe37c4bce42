//! `[data]`: files, what is held back, what becomes of inputs.

use super::numbers::{limited, number};
use crate::data::{ClassWeights, Column, DataError, DataSpec, FilePlace, Source, Validation};
use nodectl_formats::Format;
use nodectl_jobfile::{Fault, Fields, Item, Upload, keys::uploads, to_i64, type_name};
use std::{collections::BTreeMap, ops::Range, path::Path};
use toml::de::DeValue;

#[rustfmt::skip]
const KEYS: [&str; 12] = [
    "table", "target", "inputs", "targets", "images", "channels", "size", "validation", "shape", "scale", "standardize",
    "class_weights",
];
/// Keys that name files, which a validation of its own has too.
const SOURCE_KEYS: [&str; 7] = [
    "table", "target", "inputs", "targets", "images", "channels", "size",
];
/// So that pixels are from 0 to 1.
const PIXEL: f32 = 1.0 / 255.0;

/// What the table says, and where.
pub struct Data {
    pub spec: DataSpec,
    span: Range<usize>,
    keys: BTreeMap<String, Range<usize>>,
}

impl Data {
    /// An error of the data, at their place in the job file.
    pub fn fault(&self, error: &DataError) -> Fault {
        Fault::new(self.span.clone(), error.0.as_str())
    }

    /// Where a key of the table stands, if it does.
    pub fn table_key(&self, key: &str) -> Option<Range<usize>> {
        self.keys.get(key).cloned()
    }
}

pub fn plan(fields: &Fields<'_, '_>, files: &mut BTreeMap<String, Upload>) -> Result<Data, Fault> {
    let Some(table) = fields.table("data", "[data]")? else {
        let fault = Fault::new(fields.span.clone(), "the job has no [data]");
        return Err(fault.hint("[data]\ntable = \"data.csv\", with the target in its last column"));
    };
    table.check_keys(&KEYS)?;
    let (source, span) = source(&table, files)?;
    let scale = limited(&table, "scale", "a number other than 0", |number| {
        number != 0.0
    })?;
    let of_images = matches!(source, Source::Images { .. });
    let validation = validation(&table, files)?;
    let spec = DataSpec {
        source,
        validation,
        shape: shape(&table)?,
        scale: scale.unwrap_or(if of_images { PIXEL } else { 1.0 }),
        standardize: table
            .bool("standardize")?
            .is_some_and(|standardize| standardize.value),
        class_weights: class_weights(&table)?,
    };
    let keys = table
        .table
        .iter()
        .map(|(key, value)| (key.get_ref().to_string(), value.span()))
        .collect();
    Ok(Data { spec, span, keys })
}

/// Where samples come from, and where that is said.
fn source(
    table: &Fields<'_, '_>,
    files: &mut BTreeMap<String, Upload>,
) -> Result<(Source, Range<usize>), Fault> {
    let given: Vec<&str> = ["table", "inputs", "images"]
        .into_iter()
        .filter(|key| table.get(key).is_some())
        .collect();
    let hinted = |fault: Fault| {
        Err(fault.hint("table = \"data.csv\"; inputs = \"x.npy\" and targets = \"y.npy\"; or images = \"folder\""))
    };
    let key = match given.as_slice() {
        [key] => key,
        [] => return hinted(Fault::new(table.span.clone(), "[data] names no file")),
        [one, other, ..] => {
            let message = format!("[data] has one source of samples, not `{one}` and `{other}`");
            return hinted(Fault::new(table.span.clone(), message));
        }
    };
    let allowed: &[&str] = match *key {
        "table" => &["table", "target"],
        "inputs" => &["inputs", "targets"],
        _ => &["images", "channels", "size"],
    };
    let stray = SOURCE_KEYS
        .into_iter()
        .filter(|other| !allowed.contains(other))
        .find_map(|other| Some((other, table.get(other)?)));
    if let Some((stray, value)) = stray {
        return Err(Fault::new(
            value.span(),
            format!("`{stray}` does not go with `{key}`"),
        ));
    }
    let item = table
        .string(key)?
        .expect("the source was chosen by the key that is there");
    let span = item.span.clone();
    let source = match *key {
        "table" => Source::Table {
            path: upload(table, &item, files)?,
            target: column(table)?,
        },
        "inputs" => {
            let Some(targets) = table.string("targets")? else {
                let fault = Fault::new(span, "[data] has `inputs` but no `targets`");
                return Err(fault.hint("targets = \"y.npy\", with as many samples"));
            };
            Source::Arrays {
                inputs: place(table, &item, files)?,
                targets: place(table, &targets, files)?,
            }
        }
        _ => {
            let channels = table.u32("channels", 1)?;
            if let Some(channels) = channels
                .as_ref()
                .filter(|channels| ![1, 3].contains(&channels.value))
            {
                return Err(Fault::new(
                    channels.span.clone(),
                    "`channels` is 1, grey values, or 3, colours",
                ));
            }
            let size = super::numbers::pair(table, "size", 1)?;
            let files = images(table, &item, files)?;
            Source::Images {
                files,
                channels: channels.map(|channels| channels.value),
                size,
            }
        }
    };
    Ok((source, span))
}

/// Adds a file to those that travel; returns its path there.
fn upload(
    table: &Fields<'_, '_>,
    item: &Item<String>,
    files: &mut BTreeMap<String, Upload>,
) -> Result<String, Fault> {
    let upload = uploads::file(table.context, item)?;
    let path = upload.path.clone();
    files.insert(path.clone(), upload);
    Ok(path)
}

/// `FILE` or `FILE:MEMBER`.
fn place(
    table: &Fields<'_, '_>,
    item: &Item<String>,
    files: &mut BTreeMap<String, Upload>,
) -> Result<FilePlace, Fault> {
    let (path, member) = match item.value.split_once(':') {
        Some((path, member)) if !member.is_empty() => (path, Some(member.to_string())),
        _ => (item.value.as_str(), None),
    };
    match Format::of(Path::new(path)) {
        None | Some(Format::Png | Format::Raw(_)) => {
            let fault = Fault::new(
                item.span.clone(),
                format!("the ending of `{path}` is not that of a format of samples"),
            );
            return Err(
                fault.hint("samples are read from .npy, .npz, .safetensors, .h5 and IDX files, or a `table` (CSV)")
            );
        }
        Some(format) if member.is_some() && !format.has_members() => {
            let message = format!("a file such as `{path}` has one array: nothing to name");
            return Err(Fault::new(item.span.clone(), message));
        }
        Some(_) => {}
    }
    let own = Item {
        value: path.to_string(),
        span: item.span.clone(),
    };
    Ok(FilePlace {
        path: upload(table, &own, files)?,
        member,
    })
}

/// `FOLDER/CLASS/IMAGE`: all images below the folder, in the order of their names.
fn images(
    table: &Fields<'_, '_>,
    item: &Item<String>,
    files: &mut BTreeMap<String, Upload>,
) -> Result<Vec<String>, Fault> {
    let is_image = |path: &str| {
        let ending = Path::new(path)
            .extension()
            .and_then(|ending| ending.to_str())
            .unwrap_or_default();
        ["png", "jpg", "jpeg"].contains(&ending.to_ascii_lowercase().as_str())
    };
    let found = uploads::folder(table.context, item)?;
    let mut paths = Vec::new();
    for upload in found.into_iter().filter(|upload| is_image(&upload.path)) {
        paths.push(upload.path.clone());
        files.insert(upload.path.clone(), upload);
    }
    if paths.is_empty() {
        let fault = Fault::new(
            item.span.clone(),
            format!("`{}` has no .png or .jpg files", item.value),
        );
        return Err(fault.hint("a folder for each class: FOLDER/cats/1.png, FOLDER/dogs/1.png"));
    }
    Ok(paths)
}

fn column(table: &Fields<'_, '_>) -> Result<Column, Fault> {
    let Some(value) = table.get("target") else {
        return Ok(Column::Last);
    };
    match value.get_ref() {
        DeValue::String(name) => Ok(Column::Name(name.to_string())),
        DeValue::Integer(number) => match to_i64(number) {
            Some(-1) => Ok(Column::Last),
            Some(number) => u32::try_from(number).map(Column::Number).map_err(|_| {
                Fault::new(
                    value.span(),
                    "`target` is a column's number from 0, -1 for the last, or its name",
                )
            }),
            None => Err(Fault::new(
                value.span(),
                "`target` is not the number of a column",
            )),
        },
        other => {
            let message = format!(
                "`target` is a column's name or number, not {}",
                type_name(other)
            );
            Err(Fault::new(value.span(), message))
        }
    }
}

fn validation(
    table: &Fields<'_, '_>,
    files: &mut BTreeMap<String, Upload>,
) -> Result<Validation, Fault> {
    let Some(value) = table.get("validation") else {
        return Ok(Validation::Nothing);
    };
    if let DeValue::Table(_) = value.get_ref() {
        let own = table
            .table("validation", "`validation`")?
            .expect("`validation` was seen to be a table");
        own.check_keys(&SOURCE_KEYS)?;
        return source(&own, files).map(|(source, _)| Validation::Other(source));
    }
    match number(value) {
        Some(0.0) => Ok(Validation::Nothing),
        Some(share) if share > 0.0 && share < 1.0 => Ok(Validation::Share(share)),
        _ => {
            let fault = Fault::new(
                value.span(),
                "`validation` is a fraction from 0 to below 1, or a table with files",
            );
            Err(fault.hint("validation = 0.2, or validation = { table = \"test.csv\" }"))
        }
    }
}

fn shape(table: &Fields<'_, '_>) -> Result<Option<Vec<u32>>, Fault> {
    let Some(value) = table.get("shape") else {
        return Ok(None);
    };
    let wrong = || {
        Fault::new(value.span(), "`shape` is a list of whole numbers from 1 on")
            .hint("shape = [1, 28, 28]")
    };
    let DeValue::Array(items) = value.get_ref() else {
        return Err(wrong());
    };
    let extent = |item: &toml::Spanned<DeValue<'_>>| {
        let number = item
            .get_ref()
            .as_integer()
            .and_then(to_i64)
            .and_then(|number| u32::try_from(number).ok());
        number.filter(|number| *number > 0).ok_or_else(wrong)
    };
    items.iter().map(extent).collect::<Result<_, _>>().map(Some)
}

fn class_weights(table: &Fields<'_, '_>) -> Result<ClassWeights, Fault> {
    let Some(value) = table.get("class_weights") else {
        return Ok(ClassWeights::Equal);
    };
    let wrong = || {
        let fault = Fault::new(
            value.span(),
            "`class_weights` is \"balanced\", or a number above 0 for each class",
        );
        fault.hint("class_weights = [1.0, 4.0]")
    };
    match value.get_ref() {
        DeValue::String(text) if text == "balanced" => Ok(ClassWeights::Balanced),
        DeValue::Array(items) if !items.is_empty() => {
            let weight = |item| {
                number(item)
                    .filter(|weight| *weight > 0.0)
                    .map(|weight| weight as f32)
                    .ok_or_else(wrong)
            };
            items
                .iter()
                .map(weight)
                .collect::<Result<_, _>>()
                .map(ClassWeights::Given)
        }
        _ => Err(wrong()),
    }
}
