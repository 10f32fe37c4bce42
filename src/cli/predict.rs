//! `nodectl predict`: what a trained model says of data.

use super::{
    args::PredictArgs,
    exit::{CliError, Exit, print},
};
use crate::workloads::{
    arrays::{self, Array},
    train,
};

pub fn predict(args: &PredictArgs) -> Result<Exit, CliError> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let prediction = train::predict(&args.model, &args.data, threads).map_err(CliError::Usage)?;
    let Some(path) = &args.output else {
        print(&prediction.to_csv())?;
        return Ok(Exit::Done);
    };
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => {
            std::fs::write(path, prediction.to_csv()).map_err(|source| CliError::file("writing", path, source))?;
        }
        Some("npy" | "npz" | "h5" | "safetensors") => {
            let width = prediction.width as u64;
            let array = Array::of_f32(vec![prediction.answers.len() as u64 / width, width], &prediction.answers);
            let written = arrays::write(path, &[("answers", &array)], None);
            written.map_err(|error| CliError::Usage(error.to_string()))?;
        }
        _ => {
            let hint = "name it .csv, or .npy for all answers as an array";
            return Err(CliError::Usage(format!("`{}` names no format of answers\nhint: {hint}", path.display())));
        }
    }
    Ok(Exit::Done)
}
