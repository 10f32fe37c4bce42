//! The keys of an integrator configuration (esrf-integrator 2026.1), what they are where the file
//! does not give them, and which of them have no meaning here.

/// A key of a section.
pub(super) struct ConfigKey {
    pub(super) name: &'static str,
    /// The value that integrator takes where the key is absent; empty for none.
    pub(super) default: &'static str,
    /// Why the key is not used, for people; None where it is.
    pub(super) unused: Option<&'static str>,
}

const fn used(name: &'static str, default: &'static str) -> ConfigKey {
    ConfigKey {
        name,
        default,
        unused: None,
    }
}

const fn unused(name: &'static str, why: &'static str) -> ConfigKey {
    ConfigKey {
        name,
        default: "",
        unused: Some(why),
    }
}

pub(super) const DATASET: &str = "dataset";
pub(super) const INTEGRATION: &str = "azimuthal integration";
pub(super) const COMPUTATIONS: &str = "computations distribution";
pub(super) const OUTPUT: &str = "output";

const NO_PYTHON: &str = "workers need no Python";
const OF_SLURM: &str = "workers need no directory of their own";

/// Every section with its keys.
pub(super) const SECTIONS: [(&str, &[ConfigKey]); 5] = [
    (
        DATASET,
        &[
            used("location", ""),
            used("hdf5_entry", ""),
            unused("layout", "results are named after their data"),
        ],
    ),
    (
        INTEGRATION,
        &[
            used("n_pts", "2500"),
            used("unit", "r_mm"),
            used("detector", ""),
            used("detector_name", ""),
            used("detector_suffix", ""),
            used("poni_file", ""),
            used("mask_file", ""),
            used("flatfield_file", ""),
            used("dark_file", ""),
            used("error_model", "hybrid"),
            used("azimuthal_range", ""),
            used("radial_range", ""),
            unused("ai_method", "`partition` says what integrates"),
            used("polarization_factor", "0.99"),
            used("correct_solid_angle", "1"),
            used("correct_detector_attenuation", "1"),
            used("average_xy", ""),
            used("pixel_splitting", "0"),
            used("trim_method", ""),
            unused(
                "trim_n_pts",
                "a median is that of the pixels of a bin, not of azimuthal bins",
            ),
            used("trim_bounds", ""),
        ],
    ),
    (
        COMPUTATIONS,
        &[
            used("partition", "local"),
            used("n_workers", "4"),
            used("cores_per_worker", "4"),
            used("ai_engines_per_worker", "8"),
            used("strategy", "auto"),
            used("time", ""),
            used("memory_per_worker", ""),
            unused("python_executable", NO_PYTHON),
            unused("python_executables", NO_PYTHON),
            unused("workspace_path", OF_SLURM),
        ],
    ),
    (
        OUTPUT,
        &[
            used("location", ""),
            used("existing_output", "reprocess_if_conffile_more_recent"),
            unused("repack_output", "results are whole files"),
            unused(
                "partial_files_subfolder",
                "finished frames are in NAME.parts beside the results until those are whole",
            ),
            unused("file_mode", "the umask of the shell says it"),
            unused("try_metadata", "motors and counters stay in the data"),
        ],
    ),
    (
        "pipeline",
        &[unused("verbosity", "`nodectl logs` has what workers print")],
    ),
];

/// Keys of [dataset] that integrator has moved to [azimuthal integration].
pub(super) const MOVED: [&str; 2] = ["detector", "mask_file"];

/// The key of a section.
pub(super) fn key(section: &str, name: &str) -> Option<&'static ConfigKey> {
    let (_, keys) = SECTIONS.iter().find(|(known, _)| *known == section)?;
    keys.iter().find(|key| key.name == name)
}
