//! A dataset's results as NeXus (manual.nexusformat.org: NXentry, NXprocess, NXdata, NXnote), with
//! the names that pyFAI gives what it writes: `data`, `data_errors`, `radial`, `azimuthal`. silx,
//! pyFAI and h5py open it at its default plot.
//!
//! The file is written under another name and gets its own when it is whole and on the disk.

use super::{BadFrames, Part, Total};
use nodectl_ports::files::remove_if_there;
use rust_hdf5::{H5Dataset, H5File, H5Group, types::VarLenUnicode};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// What stands in the file besides patterns.
#[derive(Clone, Debug)]
pub struct FileMetadata {
    /// The dataset's name.
    pub title: String,
    pub source_file: String,
    pub source_dataset: String,
    /// A hash of all that the patterns depend on.
    pub fingerprint: String,
    /// The number of the first frame: 0, unless the file holds some of a dataset's frames.
    pub first: u64,
    pub frames: u64,
    /// The settings, as JSON.
    pub configuration: String,
    /// In pyFAI's words, e.g. `q_nm^-1`.
    pub unit: String,
    pub has_errors: bool,
    /// When it was integrated: ISO 8601.
    pub date: String,
    /// What integrated, for people.
    pub engine: String,
}

/// What a file's patterns are of, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternOrigin {
    pub source_file: String,
    pub fingerprint: String,
    /// Some frames have no patterns.
    pub has_bad_frames: bool,
}

impl PatternOrigin {
    /// None where it is no file of ours.
    pub fn of(path: &Path) -> Option<Self> {
        let file = H5File::open(path).ok()?;
        let text = |name: &str| {
            let dataset = file.dataset(&format!("entry/process/input/{name}")).ok()?;
            dataset.read_vlen_strings().ok()?.into_iter().next()
        };
        Some(Self {
            source_file: text("file")?,
            fingerprint: text("fingerprint")?,
            has_bad_frames: file.dataset("entry/bad_frames/frame").is_ok(),
        })
    }
}

/// A region's axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionAxes {
    /// None: the only one.
    pub name: Option<String>,
    pub radial: Vec<f64>,
    /// Degrees.
    pub azimuthal_deg: Option<Vec<f64>>,
}

/// A file that is being written.
pub struct NexusFile {
    file: H5File,
    temporary: PathBuf,
    path: PathBuf,
    about: FileMetadata,
    regions: Vec<RegionGroup>,
}

struct RegionGroup {
    axes: RegionAxes,
    data: H5Dataset,
    errors: Option<H5Dataset>,
}

type WriteResult<T> = Result<T, String>;

fn said(error: rust_hdf5::Hdf5Error) -> String {
    error.to_string()
}

impl FileMetadata {
    fn end(&self) -> u64 {
        self.first + self.frames
    }
}

impl RegionAxes {
    fn bins(&self) -> usize {
        self.radial.len() * self.azimuthal_deg.as_ref().map_or(1, Vec::len)
    }

    /// The shape of one frame's pattern.
    pub(super) fn shape(&self) -> Vec<usize> {
        self.azimuthal_deg
            .iter()
            .map(Vec::len)
            .chain([self.radial.len()])
            .collect()
    }
}

impl NexusFile {
    /// Begins a file that will be at `path`.
    pub fn create(path: &Path, about: FileMetadata, axes: Vec<RegionAxes>) -> WriteResult<Self> {
        let temporary = path.with_extension("h5.part");
        remove_if_there(&temporary).map_err(|error| error.to_string())?;
        let file = H5File::create(&temporary).map_err(said)?;
        let entry = class(&file.root_group(), "entry", "NXentry")?;
        file.set_attr_string("NX_class", "NXroot").map_err(said)?;
        file.set_attr_string("default", "entry").map_err(said)?;
        file.set_attr_string("creator", "nodectl").map_err(said)?;
        entry
            .set_attr_string("default", &name_of("result", axes.first()))
            .map_err(said)?;
        text(&entry, "title", &about.title)?;
        text(&entry, "start_time", &about.date)?;
        process(&entry, &about)?;
        let mut regions = Vec::with_capacity(axes.len());
        for axes in axes {
            regions.push(region(&entry, &about, axes)?);
        }
        Ok(Self {
            file,
            temporary,
            path: path.to_path_buf(),
            about,
            regions,
        })
    }

    /// Writes the patterns of some frames, in any order.
    pub fn write(&mut self, part: &Part) -> WriteResult<()> {
        if part.regions.len() != self.regions.len() {
            return Err(format!(
                "patterns of {} regions for {}",
                part.regions.len(),
                self.regions.len()
            ));
        }
        let end = part.first.checked_add(part.frames);
        let (Some(first), true) = (
            part.first.checked_sub(self.about.first),
            end.is_some_and(|end| end <= self.about.end()),
        ) else {
            let FileMetadata { first, frames, .. } = self.about;
            return Err(format!(
                "frames from {} on are not among the {frames} from {first} on",
                part.first
            ));
        };
        for (region, values) in self.regions.iter().zip(&part.regions) {
            let shape = region.axes.shape();
            let starts: Vec<usize> = [first as usize]
                .into_iter()
                .chain(shape.iter().map(|_| 0))
                .collect();
            let counts: Vec<usize> = [part.frames as usize].into_iter().chain(shape).collect();
            let expected = region.axes.bins() * part.frames as usize;
            let put = |dataset: &H5Dataset, values: &[f32]| {
                if values.len() != expected {
                    return Err(format!("{} values for {expected}", values.len()));
                }
                dataset.write_slice(&starts, &counts, values).map_err(said)
            };
            put(&region.data, &values.intensity)?;
            match (&region.errors, &values.sigma) {
                (Some(dataset), Some(sigma)) => put(dataset, sigma)?,
                (None, None) => {}
                _ => return Err("patterns with and without errors".into()),
            }
        }
        Ok(())
    }

    /// Adds the means and the sums that they are made of, and the frames that have no patterns, and
    /// gives the file its name.
    pub fn finish(self, totals: &[Total], bad: &[BadFrames]) -> WriteResult<()> {
        let entry = self.file.root_group().group("entry").map_err(said)?;
        for (region, total) in self.regions.iter().zip(totals) {
            let group = data(
                &entry,
                &name_of("mean", Some(&region.axes)),
                &region.axes,
                &self.about,
                false,
            )?;
            let (mean, sigma) = total.mean();
            let shape = region.axes.shape();
            let write = |name: &str, values: &[f32], long: &str| {
                let dataset = group
                    .new_dataset::<f32>()
                    .shape(&shape)
                    .create(name)
                    .map_err(said)?;
                dataset.write_raw(values).map_err(said)?;
                attribute(&dataset, "long_name", long)
            };
            write("data", &mean, "Intensity, mean of all frames")?;
            if let Some(sigma) = sigma {
                write("data_errors", &sigma, "Standard error")?;
            }
            sums(&entry, &region.axes, total)?;
        }
        bad_frames(&entry, bad)?;
        // Datasets hold on to the file.
        let Self {
            file,
            temporary,
            path,
            regions,
            ..
        } = self;
        drop(regions);
        file.close().map_err(said)?;
        File::open(&temporary)
            .and_then(|file| file.sync_all())
            .map_err(|error| error.to_string())?;
        fs::rename(&temporary, &path).map_err(|error| error.to_string())
    }
}

/// The numbers of frames whose patterns are NaN, and the reason beside each.
fn bad_frames(entry: &H5Group, bad: &[BadFrames]) -> WriteResult<()> {
    if bad.is_empty() {
        return Ok(());
    }
    let group = class(entry, "bad_frames", "NXcollection")?;
    let each = |bad: &BadFrames| bad.first..bad.first + bad.frames;
    let frames: Vec<u64> = bad.iter().flat_map(each).collect();
    let dataset = group
        .new_dataset::<u64>()
        .shape([frames.len()])
        .create("frame")
        .map_err(said)?;
    dataset.write_raw(&frames).map_err(said)?;
    let reasons: Vec<&str> = bad
        .iter()
        .flat_map(|bad| each(bad).map(|_| bad.why.as_str()))
        .collect();
    let reasons = group.write_vlen_strings("reason", &reasons);
    reasons.map(drop).map_err(said)
}

/// What patterns of more frames can be added to.
fn sums(entry: &H5Group, axes: &RegionAxes, total: &Total) -> WriteResult<()> {
    let group = class(entry, &name_of("sums", Some(axes)), "NXcollection")?;
    let all = [
        ("signal", Some(&total.signal)),
        ("norm", Some(&total.norm)),
        ("variance", total.variance.as_ref()),
    ];
    for (name, values) in all
        .into_iter()
        .filter_map(|(name, values)| Some((name, values?)))
    {
        let dataset = group
            .new_dataset::<f64>()
            .shape(axes.shape())
            .create(name)
            .map_err(said)?;
        dataset.write_raw(values).map_err(said)?;
    }
    Ok(())
}

pub(super) fn name_of(base: &str, axes: Option<&RegionAxes>) -> String {
    match axes.and_then(|axes| axes.name.as_deref()) {
        Some(name) => format!("{base}_{name}"),
        None => base.to_string(),
    }
}

fn class(parent: &H5Group, name: &str, class: &str) -> WriteResult<H5Group> {
    let group = parent.create_group(name).map_err(said)?;
    group.set_attr_string("NX_class", class).map_err(said)?;
    Ok(group)
}

/// A string, which h5py gives as one.
fn text(group: &H5Group, name: &str, value: &str) -> WriteResult<()> {
    let scalar = group.write_vlen_strings(name, &[value]);
    scalar.map(drop).map_err(said)
}

fn attribute(dataset: &H5Dataset, name: &str, value: &str) -> WriteResult<()> {
    let attribute = dataset
        .new_attr::<VarLenUnicode>()
        .shape(())
        .create(name)
        .map_err(said)?;
    attribute.write_string(value).map_err(said)
}

fn process(entry: &H5Group, about: &FileMetadata) -> WriteResult<()> {
    let process = class(entry, "process", "NXprocess")?;
    text(&process, "program", "nodectl")?;
    text(&process, "version", env!("CARGO_PKG_VERSION"))?;
    text(&process, "date", &about.date)?;
    text(&process, "engine", &about.engine)?;
    let configuration = class(&process, "configuration", "NXnote")?;
    text(&configuration, "type", "application/json")?;
    text(&configuration, "data", &about.configuration)?;
    let input = class(&process, "input", "NXcollection")?;
    text(&input, "file", &about.source_file)?;
    text(&input, "dataset", &about.source_dataset)?;
    text(&input, "fingerprint", &about.fingerprint)?;
    let frames = input
        .new_dataset::<u64>()
        .shape([1usize])
        .create("frames")
        .map_err(said)?;
    frames.write_raw(&[about.frames]).map_err(said)
}

/// An NXdata with its axes, and nothing in it yet.
fn data(
    entry: &H5Group,
    name: &str,
    axes: &RegionAxes,
    about: &FileMetadata,
    over_frames: bool,
) -> WriteResult<H5Group> {
    let group = class(entry, name, "NXdata")?;
    group.set_attr_string("signal", "data").map_err(said)?;
    group
        .set_attr_string("title", &format!("{} ({name})", about.title))
        .map_err(said)?;
    let mut names = Vec::new();
    if over_frames {
        names.push("frame");
        let frames: Vec<u64> = (about.first..about.end()).collect();
        let dataset = group
            .new_dataset::<u64>()
            .shape([frames.len()])
            .create("frame")
            .map_err(said)?;
        dataset.write_raw(&frames).map_err(said)?;
    }
    if let Some(azimuthal) = &axes.azimuthal_deg {
        names.push("azimuthal");
        axis(
            &group,
            "azimuthal",
            azimuthal,
            "deg",
            "Azimuthal angle χ (deg)",
        )?;
    }
    names.push("radial");
    let (unit, long) = radial_unit(&about.unit);
    axis(&group, "radial", &axes.radial, unit, &long)?;
    group.set_attr_string_array("axes", &names).map_err(said)?;
    let indices = |group: &H5Group, index: usize, name: &str| {
        group
            .set_attr_numeric(&format!("{name}_indices"), &(index as i64))
            .map_err(said)
    };
    names
        .iter()
        .enumerate()
        .try_for_each(|(index, name)| indices(&group, index, name))?;
    Ok(group)
}

fn axis(group: &H5Group, name: &str, values: &[f64], units: &str, long: &str) -> WriteResult<()> {
    let dataset = group
        .new_dataset::<f64>()
        .shape([values.len()])
        .create(name)
        .map_err(said)?;
    dataset.write_raw(values).map_err(said)?;
    attribute(&dataset, "units", units)?;
    attribute(&dataset, "long_name", long)
}

fn region(entry: &H5Group, about: &FileMetadata, axes: RegionAxes) -> WriteResult<RegionGroup> {
    let group = data(entry, &name_of("result", Some(&axes)), &axes, about, true)?;
    let shape: Vec<usize> = [about.frames as usize]
        .into_iter()
        .chain(axes.shape())
        .collect();
    let dataset = |name: &str, long: &str| {
        let dataset = group
            .new_dataset::<f32>()
            .shape(&shape)
            .create(name)
            .map_err(said)?;
        attribute(&dataset, "long_name", long)?;
        let what = if axes.azimuthal_deg.is_some() {
            "image"
        } else {
            "spectrum"
        };
        attribute(&dataset, "interpretation", what)?;
        Ok::<_, String>(dataset)
    };
    let values = dataset("data", "Intensity")?;
    let errors = if about.has_errors {
        Some(dataset("data_errors", "Standard error of the intensity")?)
    } else {
        None
    };
    Ok(RegionGroup {
        axes,
        data: values,
        errors,
    })
}

/// A unit in NeXus' words, and an axis' caption.
pub(super) fn radial_unit(unit: &str) -> (&'static str, String) {
    match unit {
        "q_nm^-1" => ("1/nm", "Scattering vector q (nm⁻¹)".into()),
        "q_A^-1" => ("1/angstrom", "Scattering vector q (Å⁻¹)".into()),
        "2th_deg" => ("deg", "Scattering angle 2θ (deg)".into()),
        "2th_rad" => ("rad", "Scattering angle 2θ (rad)".into()),
        "r_mm" => ("mm", "Radius (mm)".into()),
        "r_m" => ("m", "Radius (m)".into()),
        "chi_deg" => ("deg", "Azimuth χ (deg)".into()),
        "chi_rad" => ("rad", "Azimuth χ (rad)".into()),
        "d*2_nm^-2" => ("1/nm^2", "d*² (nm⁻²)".into()),
        "d*2_A^-2" => ("1/angstrom^2", "d*² (Å⁻²)".into()),
        "d_m" => ("m", "Spacing d (m)".into()),
        "d_nm" => ("nm", "Spacing d (nm)".into()),
        "d_A" => ("angstrom", "Spacing d (Å)".into()),
        other => ("", other.replace("_None", "")),
    }
}
