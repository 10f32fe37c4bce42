//! The keys of a job file that say how frames are integrated.

use super::{
    engine::{
        DetectorFile, ErrorModel, Filter, Geometry, Image, Images, IntegrationSettings, Mask,
        Region, Splitting, Unit,
        detectors::{self, DetectorSettings},
        ending,
    },
    plan::{ImageFile, ImageFiles},
    pyfai,
    run::images,
};
use nodectl_formats::files as plain;
use nodectl_jobfile::{Fault, Fields, Item, Upload, UploadSource, to_i64, type_name};
use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

#[rustfmt::skip]
pub(super) const KEYS: [&str; 25] = [
    "poni", "pyfai", "detector", "points", "azimuthal_points", "unit", "radial_range", "azimuthal_range", "regions", "splitting",
    "mask", "dark", "flat", "absorption", "variance", "dummy", "delta_dummy", "solid_angle", "polarization_factor",
    "polarization_offset", "transmission", "error_model", "sigma_clip", "quantile", "chi_discontinuity_at_0",
];

/// How the units of pyFAI's begin that there are none of here.
const OTHER_UNITS: [&str; 9] = [
    "qip",
    "qoop",
    "qtot",
    "qx",
    "qy",
    "qz",
    "chigi",
    "exit_angle",
    "scattering_angle",
];
/// Bins where nobody says how many.
pub(super) const DEFAULT_POINTS: u32 = 1000;
/// The largest `.poni` file.
pub(super) const MAX_PONI_BYTES: u64 = 1 << 20;

/// Settings, the images that go with them, and these as uploads.
#[derive(Default)]
pub(super) struct Pictures {
    pub(super) files: ImageFiles,
    pub(super) uploads: Vec<Upload>,
    /// Where the file names each.
    places: BTreeMap<&'static str, Range<usize>>,
}

pub(super) fn plan(fields: &Fields<'_, '_>) -> Result<(IntegrationSettings, Pictures), Fault> {
    let base = &fields.context.base;
    let poni = fields.string("poni")?;
    let from_poni = |poni: &Item<String>| {
        geometry(&base.join(&poni.value)).map_err(|why| Fault::new(poni.span.clone(), why))
    };
    let Some(file) = fields.string("pyfai")? else {
        let Some(poni) = poni else {
            let fault = Fault::new(fields.span.clone(), "the job has no `poni`");
            return Err(
                fault.hint("the geometry, as pyFAI-calib2 saves it, e.g. poni = \"lab6.poni\"")
            );
        };
        return of_keys(fields, from_poni(&poni)?, &poni);
    };
    let saved = pyfai::read(&base.join(&file.value), fields.get("monitor").is_some())
        .map_err(|why| Fault::new(file.span.clone(), why))?;
    let text: String = saved
        .keys
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    let table = with_saved(fields, &text, &file.span)?;
    let fields = Fields::new(fields.context, &table, "a job", fields.span.clone());
    match &poni {
        Some(poni) => of_keys(&fields, from_poni(poni)?, poni),
        None => of_keys(&fields, saved.geometry, &file),
    }
}

/// The keys of a job, and those that a file of pyFAI's has (as TOML) where the job says nothing
/// else.
fn with_saved<'t>(
    fields: &Fields<'_, 't>,
    saved: &'t str,
    place: &Range<usize>,
) -> Result<DeTable<'t>, Fault> {
    let unread = |error: toml::de::Error| Fault::new(place.clone(), error.message().to_string());
    let saved = DeTable::parse(saved).map_err(unread)?.into_inner();
    // Where the job has one of these, none of the others is the file's.
    const TOGETHER: [&[&str]; 2] = [
        &["regions", "radial_range", "azimuthal_range"],
        &["sigma_clip", "quantile"],
    ];
    let is_replaced = |key: &str| {
        let mut groups = TOGETHER.iter().filter(|group| group.contains(&key));
        groups.any(|group| group.iter().any(|other| fields.get(other).is_some()))
    };
    let mut table: DeTable<'t> = saved
        .into_iter()
        .filter(|(key, _)| !is_replaced(key.get_ref()))
        .map(|(key, value)| (key, Spanned::new(place.clone(), value.into_inner())))
        .collect();
    table.extend(
        fields
            .table
            .iter()
            .map(|(key, value)| (key.clone(), value.clone())),
    );
    Ok(table)
}

/// Settings as the keys say, of a geometry that `origin`, a file, has.
fn of_keys(
    fields: &Fields<'_, '_>,
    mut geometry: Geometry,
    origin: &Item<String>,
) -> Result<(IntegrationSettings, Pictures), Fault> {
    let base = &fields.context.base;
    let mut pictures = detector(&mut geometry, base, origin, fields.string("detector")?)?;
    let unit = unit(fields)?.unwrap_or_default();
    let points = fields
        .u32("points", 1)?
        .map_or(DEFAULT_POINTS, |points| points.value);
    let mut settings = IntegrationSettings::new(geometry, unit, points);
    settings.azimuthal_points = fields
        .u32("azimuthal_points", 1)?
        .map(|points| points.value);
    settings.regions = regions(fields)?;
    settings.splitting =
        named(fields, "splitting", splitting, &["no", "bbox", "full"])?.unwrap_or_default();
    let models = ["no", "poisson", "azimuthal", "hybrid", "variance"];
    settings.error_model = named(fields, "error_model", error_model, &models)?.unwrap_or_default();
    settings.solid_angle = fields
        .bool("solid_angle")?
        .is_none_or(|solid_angle| solid_angle.value);
    settings.polarization_factor = number(fields, "polarization_factor")?;
    settings.polarization_offset_rad = number(fields, "polarization_offset")?
        .unwrap_or(0.0)
        .to_radians();
    settings.transmission = number(fields, "transmission")?;
    settings.dummy = number(fields, "dummy")?;
    settings.delta_dummy = number(fields, "delta_dummy")?;
    settings.filter = filter(fields)?;
    settings.chi_discontinuity_at_0 = fields
        .bool("chi_discontinuity_at_0")?
        .is_some_and(|at_0| at_0.value);
    for key in ["mask", "dark", "flat", "absorption", "variance"] {
        if let Some(item) = fields.string(key)? {
            pictures.add(key, &item, base)?;
        }
    }
    // What is wrong with one number stands there; with several together, at the geometry.
    settings.check().map_err(|error| {
        let text = error.to_string();
        let place = KEYS
            .iter()
            .find(|key| text.starts_with(&format!("{key} ")))
            .and_then(|key| fields.get(key));
        Fault::new(place.map_or(origin.span.clone(), Spanned::span), text)
    })?;
    Ok((settings, pictures))
}

/// A calibration's geometry. The error is a sentence.
pub(super) fn geometry(path: &Path) -> Result<Geometry, String> {
    let told = |why: String| format!("{}: {why}", path.display());
    let text = plain::text(path, MAX_PONI_BYTES, "a .poni file").map_err(told)?;
    Geometry::from_poni(&text).map_err(|error| told(error.to_string()))
}

/// What a job says of its detector in place of its `.poni` file, and the file that says where its
/// pixels are, if there is one. Paths in a job are below `base`, paths in a `.poni` file are beside
/// it.
pub(super) fn detector(
    geometry: &mut Geometry,
    base: &Path,
    poni: &Item<String>,
    given: Option<Item<String>>,
) -> Result<Pictures, Fault> {
    let path = base.join(&poni.value);
    let mut place = (&poni.span, path.parent().unwrap_or(base));
    if let Some(given) = &given {
        let name = &given.value;
        geometry.detector = if detectors::is_file(name) {
            place = (&given.span, base);
            DetectorSettings {
                file: Some(name.into()),
                ..Default::default()
            }
        } else if detectors::is_known(name) {
            DetectorSettings {
                name: Some(name.clone()),
                ..Default::default()
            }
        } else {
            let names: Vec<&str> = detectors::names().collect();
            let fault = Fault::new(
                given.span.clone(),
                format!("no detector is called `{name}`"),
            );
            return Err(fault.suggest(name, &names));
        };
    }
    let mut pictures = Pictures::default();
    if let Some(file) = &geometry.detector.file {
        let (span, folder) = place;
        let path = folder.join(file);
        DetectorFile::read(&path).map_err(|error| Fault::new(span.clone(), error.to_string()))?;
        let named = Item {
            value: path.to_string_lossy().into_owned(),
            span: span.clone(),
        };
        pictures.add("detector", &named, Path::new(""))?;
    }
    Ok(pictures)
}

impl Pictures {
    /// Rows and columns of the detector. The error is a sentence.
    pub(super) fn detector_shape(
        &self,
        settings: &IntegrationSettings,
    ) -> Result<[usize; 2], String> {
        let file = self
            .files
            .detector
            .as_ref()
            .map(|file| DetectorFile::read(&self.place(file)));
        let file = file.transpose().map_err(|error| error.to_string())?;
        settings
            .detector_shape(file.as_ref())
            .map_err(|error| error.to_string())
    }

    /// The images, from where they lie. The error is a sentence.
    pub(super) fn read(&self) -> Result<Images, String> {
        images(&self.files, |file| self.place(file))
    }

    /// The images' paths where they lie.
    pub(super) fn here(&self) -> ImageFiles {
        let here = |file: &Option<ImageFile>| {
            file.as_ref().map(|file| ImageFile {
                path: self.place(file).to_string_lossy().into_owned(),
                member: file.member.clone(),
            })
        };
        ImageFiles {
            mask: here(&self.files.mask),
            dark: here(&self.files.dark),
            flat: here(&self.files.flat),
            absorption: here(&self.files.absorption),
            variance: here(&self.files.variance),
            detector: here(&self.files.detector),
        }
    }

    fn place(&self, file: &ImageFile) -> PathBuf {
        let source = self
            .uploads
            .iter()
            .find(|upload| upload.path == file.path)
            .map(|upload| &upload.source);
        match source {
            Some(UploadSource::File(path)) => path.clone(),
            _ => file.path.clone().into(),
        }
    }

    /// Fails where an image cannot be read, or has another shape than the frames: workers would say
    /// so of each dataset, and of a copy of the file.
    pub(super) fn check(&self, shape: Option<[usize; 2]>) -> Result<(), Fault> {
        let files = &self.files;
        let all = [
            ("mask", &files.mask),
            ("dark", &files.dark),
            ("flat", &files.flat),
            ("absorption", &files.absorption),
            ("variance", &files.variance),
        ];
        for (what, file) in all {
            let Some(file) = file else { continue };
            let (path, member) = (self.place(file), file.member.as_deref());
            let found = if what == "mask" {
                Mask::read(&path, member).map(|mask| mask.shape)
            } else {
                Image::read(&path, member).map(|image| image.shape)
            };
            let span = self.places.get(what).cloned().unwrap_or_default();
            let found = found.map_err(|error| Fault::new(span.clone(), error.to_string()))?;
            if let Some([rows, columns]) = shape.filter(|shape| *shape != found) {
                let message = format!(
                    "{}: the {what} has {} × {} pixels, the detector {rows} × {columns}",
                    path.display(),
                    found[0],
                    found[1]
                );
                return Err(Fault::new(span, message));
            }
        }
        Ok(())
    }

    /// An image, as `path` or `path::dataset`.
    pub(super) fn add(
        &mut self,
        what: &'static str,
        named: &Item<String>,
        base: &Path,
    ) -> Result<(), Fault> {
        let whole = base.join(&named.value);
        let (source, member) = match named.value.split_once("::") {
            Some((file, member)) if !whole.is_file() => (base.join(file), Some(member.to_string())),
            _ => (whole, None),
        };
        let fault = |why: String| Fault::new(named.span.clone(), why);
        let metadata = fs::metadata(&source)
            .map_err(|error| fault(format!("{}: {error}", source.display())))?;
        if !metadata.is_file() {
            return Err(fault(format!("{} is no file", source.display())));
        }
        let ending = match ending(&source) {
            none if none.is_empty() => "edf".into(),
            ending => ending,
        };
        let path = format!("images/{what}.{ending}");
        let image = Some(ImageFile {
            path: path.clone(),
            member,
        });
        let files = &mut self.files;
        match what {
            "mask" => files.mask = image,
            "dark" => files.dark = image,
            "flat" => files.flat = image,
            "absorption" => files.absorption = image,
            "detector" => files.detector = image,
            _ => files.variance = image,
        }
        self.uploads.push(Upload {
            path,
            source: UploadSource::File(source),
            executable: false,
        });
        self.places.insert(what, named.span.clone());
        Ok(())
    }
}

pub(super) fn splitting(name: &str) -> Option<Splitting> {
    match name.to_ascii_lowercase().as_str() {
        "no" => Some(Splitting::No),
        "bbox" => Some(Splitting::BBox),
        "full" => Some(Splitting::Full),
        _ => None,
    }
}

pub(super) fn error_model(name: &str) -> Option<ErrorModel> {
    match name.to_ascii_lowercase().as_str() {
        "no" | "none" | "" => Some(ErrorModel::No),
        "poisson" => Some(ErrorModel::Poisson),
        "azimuthal" => Some(ErrorModel::Azimuthal),
        "hybrid" => Some(ErrorModel::Hybrid),
        "variance" => Some(ErrorModel::Variance),
        _ => None,
    }
}

fn unit(fields: &Fields<'_, '_>) -> Result<Option<Unit>, Fault> {
    let found = named(fields, "unit", Unit::from_name, &Unit::ALL.map(Unit::name));
    let given = fields.string("unit")?.map(|text| text.value);
    let is_other = |text: &String| OTHER_UNITS.iter().any(|start| text.starts_with(start));
    match (found, given.filter(is_other)) {
        (Err(fault), Some(_)) => Err(fault.hint(
            "pyFAI's units along one axis of the detector or the sample, as for fibres and grazing incidence, \
             are not there: the guide's page on limits says why",
        )),
        (found, _) => found,
    }
}

fn named<T>(
    fields: &Fields<'_, '_>,
    key: &str,
    parse: impl FnOnce(&str) -> Option<T>,
    known: &[&str],
) -> Result<Option<T>, Fault> {
    let Some(text) = fields.string(key)? else {
        return Ok(None);
    };
    match parse(&text.value) {
        Some(value) => Ok(Some(value)),
        None => Err(Fault::new(
            text.span,
            format!("there is no `{key}` called `{}`", text.value),
        )
        .suggest(&text.value, known)),
    }
}

fn number(fields: &Fields<'_, '_>, key: &str) -> Result<Option<f64>, Fault> {
    fields.get(key).map(|value| float(key, value)).transpose()
}

fn float(key: &str, value: &Spanned<DeValue<'_>>) -> Result<f64, Fault> {
    let number = match value.get_ref() {
        DeValue::Integer(number) => to_i64(number).map(|number| number as f64),
        DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| {
        Fault::new(
            value.span(),
            format!("`{key}` is a number, not {}", type_name(value.get_ref())),
        )
    })
}

fn pair(fields: &Fields<'_, '_>, key: &str) -> Result<Option<[f64; 2]>, Fault> {
    let Some(value) = fields.get(key) else {
        return Ok(None);
    };
    match value.get_ref() {
        DeValue::Array(items) if items.len() == 2 => {
            Ok(Some([float(key, &items[0])?, float(key, &items[1])?]))
        }
        _ => Err(
            Fault::new(value.span(), format!("`{key}` is two numbers, from and to"))
                .hint(format!("e.g. {key} = [0, 30]")),
        ),
    }
}

/// `[[regions]]`, or the one of `radial_range` and `azimuthal_range`.
fn regions(fields: &Fields<'_, '_>) -> Result<Vec<Region>, Fault> {
    let one = |fields: &Fields<'_, '_>, name: Option<String>| -> Result<Region, Fault> {
        Ok(Region {
            name,
            radial_range: pair(fields, "radial_range")?,
            azimuthal_range_deg: pair(fields, "azimuthal_range")?,
        })
    };
    let Some(value) = fields.get("regions") else {
        let region = one(fields, None)?;
        let is_whole = region == Region::default();
        return Ok(if is_whole { Vec::new() } else { vec![region] });
    };
    if let Some(key) = ["radial_range", "azimuthal_range"]
        .iter()
        .find_map(|key| fields.get(key))
    {
        return Err(Fault::new(
            key.span(),
            "ranges stand in each of the [[regions]]",
        ));
    }
    let DeValue::Array(items) = value.get_ref() else {
        return Err(
            Fault::new(value.span(), "`regions` is a list of tables").hint("write [[regions]]")
        );
    };
    let mut regions: Vec<Region> = Vec::new();
    for item in items.iter() {
        let DeValue::Table(table) = item.get_ref() else {
            return Err(Fault::new(item.span(), "a region is a table").hint("write [[regions]]"));
        };
        let inner = Fields::new(fields.context, table, "a region", item.span());
        inner.check_keys(&["name", "radial_range", "azimuthal_range"])?;
        let name = inner.string("name")?;
        let is_sound = |name: &str| {
            let is_safe = name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
            !name.is_empty()
                && is_safe
                && !regions
                    .iter()
                    .any(|known: &Region| known.name.as_deref() == Some(name))
        };
        if let Some(name) = name.as_ref().filter(|name| !is_sound(&name.value)) {
            let fault = Fault::new(
                name.span.clone(),
                format!("`{}` cannot be a region's name", name.value),
            );
            return Err(fault.hint("letters, digits, `-` and `_`, each name once"));
        }
        regions.push(one(&inner, name.map(|name| name.value))?);
    }
    Ok(regions)
}

/// `sigma_clip = { threshold = 5, iterations = 5 }`, or `quantile = [0.5, 0.5]`.
fn filter(fields: &Fields<'_, '_>) -> Result<Option<Filter>, Fault> {
    let clip = fields.table("sigma_clip", "sigma_clip")?;
    let quantile = pair(fields, "quantile")?;
    match (clip, quantile) {
        (Some(clip), Some(_)) => Err(Fault::new(
            clip.span,
            "outliers are clipped or quantiles are taken, not both",
        )),
        (Some(clip), None) => {
            clip.check_keys(&["threshold", "iterations"])?;
            let threshold = number(&clip, "threshold")?.unwrap_or(5.0);
            let iterations = clip
                .u32("iterations", 0)?
                .map_or(5, |iterations| iterations.value);
            Ok(Some(Filter::SigmaClip {
                threshold,
                iterations,
            }))
        }
        (None, quantile) => Ok(quantile.map(|[low, high]| Filter::Quantile { low, high })),
    }
}
